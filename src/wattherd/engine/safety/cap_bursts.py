"""What caps may let through when devices rise from rest: held free until it is known.

A cap that holds a mean lets a device draw all it can until it bites: 43 % beyond for half a second
on a B300. Whether a device's caps hold means or moments is on no data sheet, and shows only when
the device goes from rest to its cap. If that is waited for, the first rise of a job on many devices
is above the limit, as is each one after a pause that is longer than bursts are remembered. So a
device at rest counts for what its cap may let through. That costs little: who rests needs no
watts, and caps go back up within seconds of a rise. Devices of a kind that have risen some times
without a burst hold moments, and nothing is kept for them any more.
"""

from __future__ import annotations

import numpy as np

from wattherd.engine.safety.contract import Bools, Fleet, Floats, Ints, no_streak

FIRST_BURST = 0.15
"""Of a device's most, in the mean of a second, as long as nobody has seen more. A cap that follows
the mean of a second lets 14 % of it through, be it low or high (simulated): the lower it is the
sooner it bites, and the more is beyond it until then."""
RESTS, FULL = 0.6, 0.9
"""Of its count: who draws less may rise into its cap, and who draws more has met it."""
REST_S = 2.0
"""Who rested for less has hardly anything to take: a swing that fast shows its bursts."""
LONG_REST_S = 10.0
"""From rests of so long on, caps that come down and go up again cost less than a memory does."""
BEYOND = 0.03
"""Of its count: draw beyond that is a burst and no noise."""
SHOWN_S = 3.0
"""So long after rest it is seen whether a rise went beyond: a second of it may be half rest."""
CLEAN = 4
"""Rises without a burst that prove a kind: one may have met its cap without any hurry."""
MOMENTS = 0.5
"""A rise that moments a second apart tell of is worth less: they may all have missed its burst."""
SELDOM_S = 1.5
"""Between news that are farther apart a burst passes unseen, and its absence proves nothing."""


# What one device shows holds for all of its kind, which is told by the caps that it can have: so a
# site of many devices knows within seconds.
class CapBursts:
    """Arrays over devices (N,)."""

    def __init__(self, fleet: Fleet) -> None:
        """No device was seen to rise."""
        self._fleet = fleet
        ranges = np.stack((fleet.floor_w, fleet.max_w), axis=1)
        kinds, kind = np.unique(ranges, axis=0, return_inverse=True)
        self._kind: Ints = np.asarray(kind, dtype=np.int64).reshape(fleet.size)
        self._share: Floats = np.full(len(kinds), FIRST_BURST)
        """By kind, what a device may draw beyond its count in the second of a rise, of its most."""
        self._clean: Floats = np.zeros(len(kinds))
        """By kind, rises without a burst since the last one."""
        self._rests = no_streak(fleet.size)
        self._rest_s: Floats = np.zeros(fleet.size)
        """How long the last rest was."""
        self._rested_s: Floats = np.full(fleet.size, -np.inf)
        """When a device was last at rest; minus infinity once its rise is judged."""
        self._most: Floats = np.zeros(fleet.size)
        """The most of its count that it has shown since."""
        self._beyond: Floats = np.zeros(fleet.size)
        """How far that was beyond its count, of its most."""
        self._counted_w: Floats = np.zeros(fleet.size)
        """What it counted at when it was last at rest, or more since."""

    @property
    def proven(self) -> Bools:
        """Devices (N,) whose caps hold moments, by what their kind has shown."""
        return np.asarray(self._clean >= CLEAN)[self._kind]

    @property
    def risen_from_long_rest(self) -> Bools:
        """Devices (N,) whose bursts need no memory: they are kept free whenever these rest."""
        return np.asarray(np.isfinite(self._rested_s) & (self._rest_s >= LONG_REST_S))

    def look(
        self, read_w: Floats, counted_w: Floats, means: Bools, now_s: float, news_s: float = 0.0
    ) -> Floats:
        """What to keep free on levels (F + 1,), after a look at what devices draw.

        `read_w` (N,) are means of a second or, where not `means` (N,), of moments; NaN is nothing.
        `counted_w` (N,) is what devices count at now, `news_s` how seldom their meters have news.
        """
        read_w = np.where(counted_w > 0, read_w, np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            low = read_w < RESTS * counted_w
            # Nobody who rests draws after a cut what it drew before, so that its count of now is
            # what holds. Of who has risen the cap may be cut in that second.
            self._counted_w = np.where(low, counted_w, np.maximum(self._counted_w, counted_w))
            above = np.nan_to_num(read_w / self._counted_w)
        rest_s = self._rests.note(low, now_s)
        rests = rest_s >= REST_S
        self._rest_s = np.where(rests, rest_s, self._rest_s)
        waits = np.isfinite(self._rested_s) & ~low
        beyond = np.nan_to_num((read_w - self._counted_w) / self._fleet.max_w)
        self._most = np.where(rests, 0.0, np.maximum(self._most, above))
        self._beyond = np.where(rests, 0.0, np.maximum(self._beyond, beyond))
        worth = np.where(means, 1.0, MOMENTS if news_s <= SELDOM_S else 0.0)
        self._judge(waits & (now_s - self._rested_s >= SHOWN_S), above, worth)
        self._rested_s = np.where(rests, now_s, self._rested_s)
        watched = np.isfinite(self._rested_s) & ~self.proven
        most_w = self._fleet.max_w
        may_w = np.clip(most_w - counted_w, 0.0, self._share[self._kind] * most_w)
        return self._fleet.levels(np.where(watched, may_w, 0.0))

    # What lasts is no burst: a draw that is above its count for good is learned as such elsewhere.
    def _judge(self, risen: Bools, above: Floats, worth: Floats) -> None:
        """Learn from devices (N,) that have risen long enough ago to have shown all."""
        if not risen.any():
            return
        kinds = len(self._share)
        beyond_it = self._most > 1.0 + BEYOND
        burst = risen & beyond_it & (above <= 1.0 + BEYOND)
        clean = risen & ~beyond_it & (self._most >= FULL)
        beyond = np.full(kinds, -np.inf)
        # What a moment shows beyond is a peak, and says little of the mean of a second.
        shown = np.where(worth < 1.0, 0.0, self._beyond)
        np.maximum.at(beyond, self._kind[burst], shown[burst])
        bursts = np.isfinite(beyond)
        # A rise that began within a second shows a part of its burst: none proves that it is less.
        self._share = np.where(bursts, np.maximum(self._share, beyond), self._share)
        # Devices of one job rise together, and are one witness.
        proof = np.zeros(kinds)
        np.maximum.at(proof, self._kind[clean], worth[clean])
        self._clean = np.where(bursts, 0.0, self._clean + proof)
        self._rested_s = np.where(risen, -np.inf, self._rested_s)

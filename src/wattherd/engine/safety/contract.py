"""What the safety loop is told and what it orders: arrays over devices and feeds.

A device is whatever one cap acts on (a node, a GPU). N devices hang on F feeds below one site, and
feeds may hang on feeds (racks on a row); every feed and the site has a limit and a breaker. NaN
stands for "no answer" in every reading.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


# Levels are numbered so that each stands before the one above it. Sums upwards and minima downwards
# are then one pass over the generations, each a single NumPy call: a large site has many levels and
# few generations.
class FeedLevels:
    """The L levels above the devices; `above` (L - 1,) is the level that each but the site is in.

    Raises:
        UserError: a level does not stand before the one above it.
    """

    def __init__(self, above: Ints) -> None:
        """Nobody's watts yet."""
        self.above = np.asarray(above, dtype=np.int64)
        self.count = len(self.above) + 1
        numbers = np.arange(self.count - 1)
        if np.any(self.above <= numbers) or np.any(self.above >= self.count):
            raise UserError(
                "every level stands before the one above it, the site last", field="above"
            )
        # By distance from the site and not from the leaves: all of a generation have their parents
        # in the next one, so that a generation may be added up at once.
        self._deepest_first = _generations(self.above)

    def ancestors(self, level: Ints) -> tuple[Ints, ...]:
        """By generation, the deepest first and the site last: the one above each of `level` (N,).

        `count` stands for none: what hangs high up has no ancestor in the deeper generations.
        """
        found = []
        for rows in (*self._deepest_first, np.array([self.count - 1])):
            # One past the last level stands for none, so that whoever indexes by a path appends one
            # entry to its array (a room without end) and needs no mask.
            member = np.full(self.count, self.count)
            member[rows] = rows
            for lower in reversed(self._deepest_first):
                own = member[lower]
                member[lower] = np.where(own == self.count, member[self.above[lower]], own)
            found.append(member[level])
        return tuple(found)

    def sums(self, own: Floats) -> Floats:
        """Each level's `own` (L,) and those of all levels below it."""
        total = own.astype(np.float64)
        for rows in self._deepest_first:
            # `total[above] += ...` would add only one of the feeds that hang on the same level.
            total += np.bincount(self.above[rows], total[rows], self.count)
        return total

    # From the site down: the tightest limit anywhere above a device is the one it feels.
    def least(self, values: Floats) -> Floats:
        """The lowest of `values` (L,) on the way from each level to the site."""
        found = values.copy()
        for rows in reversed(self._deepest_first):
            found[rows] = np.minimum(found[rows], found[self.above[rows]])
        return found

    def any_above(self, marked: Bools) -> Bools:
        """Whether a level or one above it is `marked` (L,)."""
        return np.asarray(self.least(np.where(marked, 0.0, 1.0)) == 0.0)

    # A level without a meter is what is below it and what hangs on it itself; that is why the walk
    # begins at the leaves.
    def filled_in(self, known: Floats, own: Floats) -> Floats:
        """`known` (L,), and where that is NaN the `own` watts of a level and what is below it."""
        found = known.copy()
        total = own.astype(np.float64)
        for rows in self._deepest_first:
            found[rows] = np.where(np.isnan(found[rows]), total[rows], found[rows])
            total += np.bincount(self.above[rows], found[rows], self.count)
        found[-1] = total[-1] if np.isnan(found[-1]) else found[-1]
        return found

    # Two readings of one truth: the level's own meter, and what is known below it. The higher one
    # counts, since a meter may be wrong in either direction and only the high error is harmless.
    def believed(self, read: Floats, *, least: Floats, unread: Floats) -> Floats:
        """What levels (L,) draw: as `read`, but no less than what is below them and their `least`.

        Where nothing is read (NaN) it is what is below and what is `unread` of their own.
        """
        # Two sums run upwards. A level that is read has a meter to contradict, by no more than the
        # least below it; one that is not read has nothing else, and takes all that may be drawn
        # there.
        found, least_sum, sum_ = read.copy(), least.astype(np.float64), unread.astype(np.float64)
        for rows in (*self._deepest_first, np.array([self.count - 1])):
            here = found[rows]
            here = np.where(np.isnan(here), sum_[rows], np.maximum(here, least_sum[rows]))
            found[rows] = here
            if rows[-1] < self.count - 1:
                upwards = np.bincount(self.above[rows], here, self.count)
                least_sum, sum_ = least_sum + upwards, sum_ + upwards
        return found


def _generations(above: Ints) -> tuple[Ints, ...]:
    """The levels by their distance from the site, the farthest first; the site is left out."""
    depth = np.zeros(len(above) + 1, dtype=np.int64)
    # From the site down: every level stands before the one above it, whose depth is known by then.
    for number in range(len(above) - 1, -1, -1):
        depth[number] = depth[above[number]] + 1
    return tuple(np.flatnonzero(depth == far) for far in range(int(depth.max()), 0, -1))


_FAR_ABOVE = 10.0
"""Times its rating that a breaker of 0 W carries when anything draws there: it trips in seconds."""


# Inverse time: a thermal-magnetic breaker carries a small overload for minutes and a large one for
# seconds, because its bimetal warms with the square of the current. Watts stand for amperes here,
# as voltage is constant. The magnetic release at several times the rating is instantaneous and no
# loop's affair.
@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """Inverse-time breakers of the feeds and, last, the site.

    `rated_w` has F + 1 entries. The thermal state rises by ((P / rated)^2 - 1) / `constant_s` each
    second, falls the same way below the rating, never below 0, and trips at 1. With 214 s a load
    10 % above the rating is carried for 17 min, as Dynamo (ISCA'16) reports of its row panels.
    """

    rated_w: Floats
    constant_s: float = 214.0

    def heated(self, heat: Floats, draw_w: Floats, seconds: float) -> Floats:
        """The thermal states (F + 1,) after `seconds` at `draw_w` (F + 1,)."""
        # A feed on which nothing hangs may be rated 0 W: at rest without draw, else far above.
        rests = np.where(np.asarray(draw_w) > 0, _FAR_ABOVE, 0.0)
        # The square makes it inverse-time: twice the overload is carried for less than half as
        # long.
        loaded = np.divide(draw_w, self.rated_w, out=rests, where=np.asarray(self.rated_w) > 0)
        rate = (np.square(loaded) - 1.0) / self.constant_s
        return np.asarray(np.maximum(heat + rate * seconds, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The devices: whose feed, and between which caps.

    `floor_w` is the lowest cap and where a lapsed lease ends; `max_w` what a device may draw
    uncapped and where a reboot leaves its cap. All arrays (N,), `feed` counts from 0. `above` (F,)
    is the feed or the site (F) that each feed hangs on, lower ones first; the site if left out.
    `metered` (F,) says which feeds have a meter, `device_metered` (N,) which devices; all if left
    out. The site has one only if `site_metered`. `step_w` (N,) is what each knob rounds to; whole
    watts if left out. `base_w` (F + 1,) is other load that the operator states for each level
    itself, beside its devices and the levels below it: at least so much is drawn there.

    Raises:
        UserError: a floor above its maximum, or a feed that no breaker belongs to.
    """

    feed: Ints
    floor_w: Floats
    max_w: Floats
    breaker: Breaker
    above: Ints | None = None
    metered: Bools | None = None
    step_w: Floats | None = None
    site_metered: bool = False
    device_metered: Bools | None = None
    base_w: Floats | None = None
    tree: FeedLevels = field(init=False, compare=False)
    rows: tuple[Ints, ...] = field(init=False, compare=False)
    """The devices below every level."""
    paths: tuple[Ints, ...] = field(init=False, compare=False)
    """The level above each device (N,) in every generation, the deepest first, see `FeedLevels`."""

    def __post_init__(self) -> None:
        """Refuse fleets on which no cap is legal."""
        if np.any(self.floor_w > self.max_w) or np.any(self.floor_w < 0):
            raise UserError(
                "a device's lowest cap is negative or above its highest", field="floor_w"
            )
        # Where there are no feeds the site is level 0, and all devices hang on it.
        if np.any(self.feed < 0) or np.any(self.feed > self.feeds - (self.feeds > 0)):
            raise UserError("a device hangs on an unknown feed", field="feed")
        # Left out, every feed hangs on the site: two levels, the commonest case.
        flat = np.full(self.feeds, self.feeds)
        tree = FeedLevels(flat if self.above is None else self.above)
        if tree.count != self.feeds + 1:
            raise UserError("needs one entry for every feed", field="above")
        object.__setattr__(self, "tree", tree)
        object.__setattr__(self, "rows", _rows_below(self.feed, tree))
        object.__setattr__(self, "paths", tree.ancestors(np.asarray(self.feed, dtype=np.int64)))

    @property
    def size(self) -> int:
        """How many devices there are."""
        return len(self.feed)

    @property
    def feeds(self) -> int:
        """How many feeds there are."""
        return len(self.breaker.rated_w) - 1

    @property
    def steps_w(self) -> Floats:
        """What each knob (N,) rounds to, in watts."""
        return np.ones(self.size) if self.step_w is None else np.maximum(self.step_w, 1.0)

    @property
    def stated_base_w(self) -> Floats:
        """Other load (F + 1,) that is stated for each level itself."""
        return np.zeros(self.feeds + 1) if self.base_w is None else self.base_w

    @property
    def device_read(self) -> Bools:
        """Which devices (N,) have a meter."""
        if self.device_metered is None:
            return np.ones(self.size, dtype=np.bool_)
        return self.device_metered

    @property
    def level_read(self) -> Bools:
        """Which levels (F + 1,) have a meter."""
        return np.append(self.read, self.site_metered)

    @property
    def read(self) -> Bools:
        """Which feeds (F,) have a meter."""
        return np.ones(self.feeds, dtype=np.bool_) if self.metered is None else self.metered

    def own(self, watts: Floats) -> Floats:
        """Sums (F + 1,) of `watts` (N,) over the devices that hang on each level itself."""
        sums = np.bincount(self.feed, weights=watts, minlength=self.feeds + 1)
        return sums.astype(np.float64, copy=False)

    def levels(self, watts: Floats) -> Floats:
        """Sums (F + 1,) of `watts` (N,) by feed and, last, for the site."""
        return self.tree.sums(self.own(watts))

    def least(self, values: Floats) -> Floats:
        """For each device (N,) the lowest of `values` (F + 1,) on its way to the site."""
        return self.tree.least(values)[self.feed]

    def any_above(self, marked: Bools) -> Bools:
        """The devices (N,) with a level above them that is `marked` (F + 1,)."""
        return self.tree.any_above(marked)[self.feed]

    def below(self, number: int) -> Bools:
        """The devices (N,) below a level."""
        found = np.zeros(self.size, dtype=np.bool_)
        found[self.rows[number]] = True
        return found


def _rows_below(feed: Ints, tree: FeedLevels) -> tuple[Ints, ...]:
    order = np.argsort(feed, kind="stable")
    ends = np.searchsorted(feed[order], np.arange(tree.count + 1))
    parts = [[order[ends[number] : ends[number + 1]]] for number in range(tree.count)]
    for number, upper in enumerate(tree.above.tolist()):
        parts[upper].extend(parts[number])
    return tuple(np.concatenate(own) for own in parts)


# NaN for "no answer" and not an absent key: all of a cycle is arithmetic over arrays, and NaN
# spreads to whatever depends on it. Where a NaN must not spread, `fmax`, `fmin` or `isnan` say so;
# a plain comparison with NaN is false.
@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What meters and knobs answered at `now_s`; timestamps are the meters' own.

    `draw_w`, `draw_at_s`, `cap_w` are (N,), `feed_w`, `feed_at_s` (F,); `site_w` and `site_at_s`
    are the site's own meter's. `off` says which devices
    are without power; it comes from the outlets, which answer when the device does not. Of storages
    (S,) `storage_w` is what they give (negative: take), `storage_charge` how full they are, 0 to 1.
    `of_second` (N + F + 1,) names the meters of devices, feeds and site whose numbers are means of
    the last second and not of a moment; None is none.
    """

    now_s: float
    draw_w: Floats
    draw_at_s: Floats
    cap_w: Floats
    feed_w: Floats
    feed_at_s: Floats
    off: Bools
    site_w: float = float("nan")
    site_at_s: float = float("nan")
    storage_w: Floats | None = None
    storage_charge: Floats | None = None
    storage_at_s: Floats | None = None
    of_second: Bools | None = None


# A lease on each cap is what makes a dead loop safe: nobody has to notice that it died.
@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """Caps (N,) to be in force, each for `lease_s` unless renewed; the backstop's outlets and jobs.

    Every cycle orders every device: an unchanged cap renews its lease, and undoes a reboot. The
    jobs of `stop_job` (N,) stay stopped as long as it is said; None stops nobody's.
    """

    cap_w: Floats
    lease_s: float
    switch_off: Bools
    switch_on: Bools
    stop_job: Bools | None = None
    storage_w: Floats | None = None
    """What storages (S,) are to give, negative: take; None without any."""


@dataclass(frozen=True, slots=True)
class SafetyNote:
    """Something that the loop noticed and an operator may want to know; it orders nothing.

    `level` counts feeds and, last, the site; `device` counts devices; -1 where it is not about one.
    """

    kind: str
    """One of `NOTE_KINDS`."""
    since_s: float
    """On the clock of the readings."""
    watts: float = float("nan")
    """Of `ramp-up`, `ramp-down` and `limit-before-ramp` watts a second."""
    level: int = -1
    device: int = -1


NOTE_KINDS = (
    "over-limit",
    "base-load",
    "floor-not-reached",
    "defiant",
    "late",
    "frozen-meter",
    "coarse-meter",
    "short-meter",
    "no-meter",
    "swing",
    "ramp-up",
    "ramp-down",
    "swing-limit",
    "ramp-held",
    "ramp-out-of-reach",
    "limit-before-ramp",
)
"""What a note may be about."""


class Controller(Protocol):
    """Whoever holds the line: readings and limits in, orders out."""

    def cycle(self, readings: Readings, limit_w: Floats) -> Orders:
        """Decide once; `limit_w` (F + 1,) are the feeds' limits and, last, the site's."""
        ...

    def leave(self, readings: Readings) -> Orders:
        """Hand the devices back as they were found; asked again until that is read back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyConfig:
    """Constants of the loop; times in seconds, shares of the limit or of a device's maximum.

    The bands follow Dynamo (ISCA'16): a device above `capped_at` of its cap wants more, one below
    `idle_below` gives back down to `idle_to`; between the two its cap stays.
    """

    lease_s: float = 15.0
    settle_s: float = 4.0
    """How long a knob may take before its device is counted as not following."""
    silent_s: float = 3.0
    max_age_s: float = 5.0
    frozen_after: int = 5
    refresh_s: float = 0.0
    """How seldom meters renew what they say (controller boards: seconds); looks in between count
    neither for nor against them."""
    plausible: float = 1.3
    """Readings above this multiple of the highest draw are noise; bursts reach 1.2 of it (B300)."""
    margin: float = 0.003
    unproven: float = 0.045
    """How far beyond its cap a device is taken to draw until it was seen under one that stands:
    the most that caps were seen to be exceeded by for good (A100)."""
    capped_at: float = 0.98
    idle_below: float = 0.93
    idle_to: float = 0.96
    idle_s: float = 3.0
    """A shorter dip keeps its cap. It takes seconds to get one back: see `regret_s`."""
    idle_most_s: float = 24.0
    regret_s: float = 10.0
    """Who wants a cap again sooner than that after giving it back is waited for twice as long the
    next time, up to `idle_most_s`; who wants it later, half as long, down to `idle_s`."""
    band: float = 0.004
    """Caps move by at least this share of a device's maximum unless a limit demands it."""
    raise_per_s: float = 0.04
    """Give back at most this share of the limit each second."""
    missing_share: float = 0.20
    """Dynamo stops acting on readings when more than a fifth of them is missing."""
    defiant_after_s: float = 4.0
    obedient_after_s: float = 20.0
    disagree: float = 0.08
    hot: float = 0.5
    cool: float = 0.42
    hot_share: float = 0.92
    start_heat: float = 0.6
    """Assumed thermal state of breakers whose past is not known."""
    backstop_s: float = 5.0
    stops_jobs: bool = False
    """Whether whoever carries orders out stops jobs; if not, outlets are all there is."""
    stop_s: float = 10.0
    """How long a job may take to stop before its devices' outlets are switched off instead."""
    outlet_s: float = 10.0
    """How long an outlet may take before it is ordered off again."""
    retry_s: float = 60.0
    wake_found: bool = True
    """Whether devices that were found off are switched on, too: not where somebody meant it."""


NEVER_HELD = -np.inf
"""Seconds of a condition that does not hold: no time that passes makes them any more."""


@dataclass(slots=True)
class Streak:
    """For how long a condition has held without a break, by entry."""

    seconds: Floats
    _at_s: float = field(default=float("nan"))
    _holds: bool = True

    def note(self, condition: Bools, now_s: float) -> Floats:
        """Durations so far; 0 where the condition has just begun or does not hold."""
        step_s = 0.0 if np.isnan(self._at_s) else max(now_s - self._at_s, 0.0)
        self._at_s = now_s
        if not condition.any():  # most of what is watched for is rare
            if self._holds:
                self.seconds, self._holds = np.full(len(condition), NEVER_HELD), False
            return np.zeros(len(condition))
        self._holds = True
        # 0 is "has just begun": only from the second look on has time passed in which it held at
        # both ends.
        grown = self.seconds + step_s
        np.maximum(grown, 0.0, out=grown)
        self.seconds = np.where(condition, grown, NEVER_HELD)
        return np.maximum(self.seconds, 0.0, out=grown)


class Reckoned:
    """Watts that are reckoned anew only once an array that they depend on was replaced.

    Such arrays are never written to in place: another one takes their place.
    """

    def __init__(self) -> None:
        """Nothing was reckoned yet."""
        self._from: tuple[object, ...] = ()
        self._watts: Floats = np.zeros(0)

    def of(self, arrays: tuple[Floats | Bools, ...], reckon: Callable[[], Floats]) -> Floats:
        """What `reckon` finds from these arrays, read-only."""
        same = len(arrays) == len(self._from)
        if not same or any(one is not was for one, was in zip(arrays, self._from, strict=True)):
            # Kept, so that no other array can come to lie at the same address.
            self._from, self._watts = arrays, reckon()
            self._watts.flags.writeable = False
        return self._watts


def no_streak(size: int) -> Streak:
    """Conditions that have not held yet."""
    return Streak(np.full(size, NEVER_HELD))

"""How fast and how far draw may move: ramps up and down, and swing, of every level.

A limit is a mean over a window of `over_s`: within any stretch of that length draw may rise by
`up_w_s * over_s`, fall by `down_w_s * over_s`, and move by `swing_w` from its lowest to its highest
point. What a meter shows is judged by that, whoever caused it. What the loop does about it:

* *Up.* A job may be back at its cap within milliseconds of a checkpoint, so that the sum of caps is
  held near the draw: at most a window's rise above the lowest draw of the last window. Caps that
  nobody uses are taken down first of all to where they fit, and given back along the ramp.
* *Down.* Cuts that no limit demands are spread. A limit goes before a ramp: its cuts are made at
  once, and noted. Falls of limits that are known beforehand are met early (`hold.site_file`).
* *Out of reach.* A device below its lowest cap is held by nothing, a job that ends falls, and what
  happens within a period and a knob's answer has happened. Smoothing profiles of the devices and
  storage do something about those; here they are measured and said.

Ramps never raise a cap above what the limits allow, and never stop a job.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields

import numpy as np

from wattherd.engine.safety.caps import CapBook
from wattherd.engine.safety.contract import Bools, Fleet, Floats
from wattherd.engine.safety.fill import fill
from wattherd.engine.safety.meters import TrustedReadings
from wattherd.engine.safety.other_load import BaseLoad
from wattherd.errors import UserError

OVER_S = 10.0
"""Window of ramps where none is stated, and of swings: what utilities judge by, and loops reach."""
SLACK = 0.02
"""Share of a limit by which meters may be off before it counts as exceeded."""
WORTH_W = 1.0
"""Fewer watts kept back are not told."""


# A mean over a window and not a slope between two readings: a meter that updates every second makes
# every step of load infinitely steep.
@dataclass(frozen=True, slots=True, kw_only=True)
class RampLimits:
    """Limits of all levels (F + 1,): watts a second up and down, watts of swing; inf where none.

    Raises:
        UserError: a limit that is zero, negative or no number, or a window without length.
    """

    up_w_s: Floats
    down_w_s: Floats
    swing_w: Floats
    over_s: float = OVER_S

    def __post_init__(self) -> None:
        """Refuse what nothing could keep."""
        for one in ("up_w_s", "down_w_s", "swing_w"):
            if not np.all(getattr(self, one) > 0):
                raise UserError("must be above zero, or the draw could never change", field=one,
                                hint="leave it out for no limit")  # fmt: skip
        if not 0 < self.over_s < np.inf:
            raise UserError("is no length of time", field="over_s", hint="write 10s")

    @classmethod
    def of(
        cls, levels: int, *, up_w_s: Floats | None = None, down_w_s: Floats | None = None,
        swing_w: Floats | None = None, over_s: float = OVER_S,
    ) -> RampLimits:  # fmt: skip
        """Of so many levels; what is left out is not limited."""
        free = np.full(levels, np.inf)
        given = {"up_w_s": up_w_s, "down_w_s": down_w_s, "swing_w": swing_w}
        found = {name: free if one is None else one for name, one in given.items()}
        return cls(over_s=over_s, **found)

    @property
    def any(self) -> bool:
        """Whether anything is limited."""
        return any(np.isfinite(getattr(self, one.name)).any() for one in fields(self)[:3])


@dataclass(frozen=True, slots=True)
class _Past:
    at_s: float
    drawn_w: Floats


class DrawRamps:
    """Keeps what was drawn of late; arrays over levels (F + 1,) or devices (N,)."""

    def __init__(self, fleet: Fleet, limits: RampLimits) -> None:
        """Nothing was drawn yet."""
        self._fleet, self._limits = fleet, limits
        self._limited = limits.any
        self._past: deque[_Past] = deque()
        self._began_s = 0.0
        # Three readings: the middle one of three moves for no single spike.
        self._read_w: deque[Floats] = deque(maxlen=3)
        levels = fleet.feeds + 1
        self._most_w: Floats = np.full(levels, np.inf)
        """How high draw may rise."""
        self._least_w: Floats = np.full(levels, -np.inf)
        """How low it may fall."""
        self._now_w: Floats = np.zeros(fleet.size)
        self._room_w: Floats = np.full(levels, np.inf)
        self._fall_w: Floats = np.full(levels, np.inf)
        none, nowhere = np.zeros(levels), np.zeros(levels, dtype=np.bool_)
        self.rising_w_s, self.falling_w_s, self.swing_w = none, none, none
        """As measured over the last window."""
        self._held_w: Floats = none
        self._beyond_w: Floats = none
        self._hasty: Bools = nowhere

    def look(self, seen: TrustedReadings, caps: CapBook, base: BaseLoad, now_s: float) -> None:
        """Take in what is drawn at the beginning of a cycle."""
        if not self._limited:
            return
        fleet, limits = self._fleet, self._limits
        self._now_w = self._devices_w(seen.now_w, seen.level_now_w, caps, base)
        read_w = fleet.tree.filled_in(seen.level_now_w, fleet.own(self._now_w))
        # What is higher is believed at once, what is lower once it was read twice.
        self._read_w.append(read_w)
        drawn_w = np.median(np.array(self._read_w), axis=0)
        now_w = np.maximum(read_w, drawn_w)
        first = not self._past or now_s < self._past[-1].at_s
        if first:
            self._past.clear()  # of another clock
            self._began_s = now_s
        # A loop that slept for minutes must not wake up to minutes' worth of rise: a window's is
        # all that any window may have.
        step_s = 0.0 if first else min(now_s - self._past[-1].at_s, limits.over_s)
        if now_s - self._began_s < limits.over_s:
            step_s = 0.0  # A predecessor may just have used up what there was.
        self._past.append(_Past(now_s, drawn_w.copy()))
        # Swing is judged over `OVER_S` whatever the ramps' window, so that the past must reach so
        # far.
        longest_s = max(limits.over_s, OVER_S)
        while self._past[0].at_s < now_s - longest_s - 1e-6:
            self._past.popleft()
        low_w, high_w = self._range(limits.over_s)
        low_10_w, high_10_w = self._range(OVER_S)
        rise_w, fall_w = limits.up_w_s * limits.over_s, limits.down_w_s * limits.over_s
        if first and np.isinf(self._most_w).all():
            # What its predecessor allowed may still be used; of its past nothing is known.
            surplus_w = fleet.levels(np.maximum(caps.counted_w - self._now_w, 0.0))
            self._most_w, self._least_w = drawn_w + surplus_w, drawn_w
        with np.errstate(invalid="ignore"):
            up_w, down_w = limits.up_w_s * step_s, limits.down_w_s * step_s
        up_w, down_w = np.nan_to_num(up_w, posinf=np.inf), np.nan_to_num(down_w, posinf=np.inf)
        free_up, free_down = np.isinf(limits.up_w_s), np.isinf(limits.down_w_s)
        # Both bounds: as fast as the rate from where it might have been, and a window's rise above
        # the lowest of the last window. The first alone could be saved up while draw is low, the
        # second alone could be used anew in each window.
        most_w = np.where(free_up, np.inf, np.minimum(self._most_w + up_w, low_w + rise_w))
        self._least_w = np.where(
            free_down, -np.inf, np.maximum(self._least_w - down_w, high_w - fall_w)
        )
        self._most_w = most_w
        may_w = np.minimum(most_w, low_10_w + limits.swing_w)
        must_w = np.maximum(self._least_w, high_10_w - limits.swing_w)
        # The higher of two readings for what may still rise, the lower for what may still fall:
        # either way what is left is not overstated.
        self._room_w = np.maximum(may_w - now_w, 0.0)
        self._fall_w = np.maximum(np.minimum(drawn_w, read_w) - must_w, 0.0)
        self.rising_w_s = (drawn_w - low_w) / limits.over_s
        self.falling_w_s = (high_w - drawn_w) / limits.over_s
        self.swing_w = high_10_w - low_10_w

    def _range(self, over_s: float) -> tuple[Floats, Floats]:
        """The lowest and highest draw of a window."""
        from_s = self._past[-1].at_s - over_s - 1e-6
        drawn_w = np.array([one.drawn_w for one in self._past if one.at_s >= from_s])
        return drawn_w.min(axis=0), drawn_w.max(axis=0)

    # Ramps are about what is drawn. Of a device that nobody reads it is a part, by its count, of
    # what its level draws beside the others.
    def _devices_w(self, draw_w: Floats, level_w: Floats, caps: CapBook, base: BaseLoad) -> Floats:
        """What devices (N,) draw; of those that nobody reads, their part of what is left."""
        fleet, counted_w = self._fleet, caps.counted_w
        known = np.isfinite(draw_w)
        if known.all():
            return draw_w
        unread_w = fleet.own(np.where(known, 0.0, counted_w))
        left_w = level_w - fleet.own(np.where(known, draw_w, 0.0)) - base.stated_w
        with np.errstate(invalid="ignore", divide="ignore"):
            part = np.clip(np.maximum(left_w, 0.0) / unread_w, 0.0, 1.0)
        guess_w = counted_w * np.nan_to_num(part, nan=1.0)[fleet.feed]
        return np.where(known, draw_w, guess_w)

    # Lower caps first: what nobody uses is taken down to where draw may rise to, and given back
    # along the ramp.
    def budget(self, budget_w: Floats) -> Floats:
        """What devices may be counted at (F + 1,), within what the limits leave."""
        if not self._limited:
            return budget_w
        return np.minimum(budget_w, self._fleet.levels(self._now_w) + self._room_w)

    def within(self, target_w: Floats, caps: CapBook) -> Floats:
        """Caps (N,) no higher than `target_w` (N,), under which draw cannot rise too fast.

        Devices keep what they have as far as that fits, then they get more, all alike.
        """
        if not self._limited or np.isinf(self._room_w).all():
            return target_w
        fleet, draw, now_w = self._fleet, caps.response.at, self._now_w
        fixed = caps.fixed
        ordered_w = np.where(np.isnan(caps.ordered_w), target_w, caps.ordered_w)
        least_w = np.maximum(np.where(fixed, caps.counted_w, draw(caps.lowest_w)) - now_w, 0.0)
        most_w = np.maximum(np.where(fixed, caps.counted_w, draw(target_w)) - now_w, least_w)
        kept_w = np.clip(draw(np.minimum(ordered_w, target_w)) - now_w, least_w, most_w)
        # Two fills: first everybody up to what it has, then more for all. In one, a newcomer would
        # take watts from who is at work.
        given_w = fill(fleet, self._room_w, least_w, kept_w)
        given_w = fill(fleet, self._room_w, given_w, most_w)
        whole = fixed | (given_w >= most_w - WORTH_W)
        cap_w = np.clip(caps.response.cap_for(now_w + given_w), fleet.floor_w, target_w)
        found_w = np.where(whole, target_w, cap_w)
        self._held_w = fleet.levels(np.where(whole, 0.0, most_w - given_w))
        self._beyond_w = fleet.levels(least_w) - self._room_w
        return np.asarray(np.minimum(found_w, target_w))

    # The larger of two shares of each cut: what the ramp allows at this moment, and what a limit
    # demands whatever the ramp says.
    def softened(
        self, lowered_w: Floats, caps: CapBook, budget_w: Floats, *, at_once: bool
    ) -> Floats:
        """Caps (N,) no lower than `lowered_w` (N,): as much of the cuts as ramps allow now.

        What the budgets (F + 1,) demand is cut `at_once` or not, and what does not follow, too.
        """
        self._hasty = np.zeros(len(budget_w), dtype=np.bool_)
        if not self._limited or np.isinf(self._fall_w).all():
            return lowered_w
        fleet, draw, now_w = self._fleet, caps.response.at, self._now_w
        ordered_w = np.where(np.isnan(caps.ordered_w), lowered_w, caps.ordered_w)
        low_w, high_w = draw(lowered_w), draw(np.maximum(ordered_w, lowered_w))
        # Cut from what is drawn and not from what is allowed: to take away what nobody uses makes
        # no fall.
        from_w = np.clip(now_w, low_w, high_w)
        cut_w = np.where(caps.fixed, 0.0, from_w - low_w)
        falls_w = fleet.levels(cut_w)
        counted_w = fleet.levels(np.where(caps.fixed, caps.counted_w, from_w))
        with np.errstate(invalid="ignore", divide="ignore"):
            may = np.where(falls_w > self._fall_w, self._fall_w / falls_w, 1.0)
            must = np.where(counted_w > budget_w, (counted_w - budget_w) / falls_w, 0.0)
        must = np.clip(np.nan_to_num(must, nan=0.0, posinf=1.0), 0.0, 1.0)
        if at_once:
            must = np.ones_like(must)
        self._hasty = (must > may + SLACK) & (falls_w > WORTH_W)
        # The tightest ramp on the way to the site, or the limit on it that demands most: limits go
        # first.
        share = np.maximum(fleet.least(may), -fleet.least(-must))
        soft_w = caps.response.cap_for(from_w - share * cut_w)
        soft_w = np.clip(soft_w, lowered_w, np.maximum(ordered_w, lowered_w))
        return np.where(caps.fixed | (share >= 1.0), lowered_w, soft_w)

    def found(self) -> tuple[tuple[str, Bools, Floats], ...]:
        """What is to be told of levels: kind, where, and watts (of ramps: watts a second)."""
        if not self._limited:
            return ()
        limits, over = self._limits, 1.0 + SLACK
        return (
            ("ramp-up", self.rising_w_s > over * limits.up_w_s, self.rising_w_s),
            ("ramp-down", self.falling_w_s > over * limits.down_w_s, self.falling_w_s),
            ("swing-limit", self.swing_w > over * limits.swing_w, self.swing_w),
            ("ramp-held", self._bound & (self._held_w > WORTH_W), self._held_w),
            ("ramp-out-of-reach", self._bound & (self._beyond_w > WORTH_W), self._beyond_w),
            ("limit-before-ramp", self._hasty, self.falling_w_s),
        )

    @property
    def _bound(self) -> Bools:
        """Levels with a limit of their own on what rises."""
        return np.isfinite(self._room_w)

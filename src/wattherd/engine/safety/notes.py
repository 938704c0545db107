"""What the loop noticed, for operators: by kind, where, how much and since when. It orders nothing.

A note appears when its condition has held for as long as its kind takes to be worth a line, and
goes when the condition has: `over-limit` is what a trusted meter shows above a limit for longer
than caps take to act, `no-meter` a device of which no meter at all would tell, `coarse-meter` one
whose readings have all been multiples of a large step, `short-meter` one that has long shown less
than the devices below it draw together: it counts a part of its outlets.
"""

from __future__ import annotations

import numpy as np

from wattherd.engine.safety.caps import CapBook
from wattherd.engine.safety.contract import Bools, Fleet, Floats, SafetyNote, Streak, no_streak
from wattherd.engine.safety.meters import Meters, TrustedReadings
from wattherd.engine.safety.other_load import BaseLoad
from wattherd.engine.safety.response import NEAR_FLOOR

AFTER_S = {
    "over-limit": 10.0, "base-load": 5.0, "floor-not-reached": 5.0, "swing": 0.0, "ramp-up": 0.0,
    "ramp-down": 0.0, "swing-limit": 0.0, "limit-before-ramp": 0.0, "ramp-out-of-reach": 5.0,
}  # fmt: skip
COARSE = 0.005
"""Share of a reading: meters in larger steps are coarse."""
REACH = 0.05
"""Draw beyond a low cap, as a share of it, that is worth a line."""
BASE = 0.02
"""Share of a limit: less other load is not worth a line."""


class NoteBook:
    """Keeps since when each condition has held; `current` are the notes of the last cycle."""

    def __init__(self, fleet: Fleet) -> None:
        """Nothing was noticed."""
        self._fleet = fleet
        self.current: tuple[SafetyNote, ...] = ()
        # A meter anywhere above is enough: it shows what the device does not keep to, if not who it
        # is.
        self._unseen = ~fleet.device_read & ~fleet.any_above(fleet.level_read)
        self._streaks: dict[tuple[str, bool], Streak] = {}

    def take(
        self, caps: CapBook, base: BaseLoad, meters: Meters, seen: TrustedReadings, limit_w: Floats,
        now_s: float, ramps: tuple[tuple[str, Bools, Floats], ...] = (),
    ) -> None:  # fmt: skip
        """Look at a cycle; `ramps` are kinds, levels (F + 1,) and watts of what moves too fast."""
        fleet, size, found = self._fleet, self._fleet.size, list[SafetyNote]()

        def on_levels(kind: str, which: Bools, watts: Floats) -> None:
            found.extend(self._notes(kind, which, watts, now_s, level=True))

        def on_devices(kind: str, which: Bools, watts: Floats) -> None:
            found.extend(self._notes(kind, which, watts, now_s, level=False))

        # By what is read, not by what is counted. A count above a limit is what the loop is there
        # for; a reading above it is what an operator wants to hear of.
        over_w = seen.level_w - limit_w
        on_levels("over-limit", over_w > 0, over_w)
        on_levels("base-load", base.now_w > BASE * np.maximum(base.drawn_w, 1.0), base.now_w)
        on_levels("swing", base.swing_w > 0, base.swing_w)
        for kind, which, watts in ramps:
            on_levels(kind, which, watts)
        on_devices("no-meter", self._unseen, fleet.max_w)
        on_devices("defiant", caps.defiant, caps.counted_w)
        on_devices("late", caps.late & ~caps.defiant, caps.held_w)
        low = caps.held_w <= NEAR_FLOOR * fleet.floor_w
        reach_w = caps.response.at(caps.lowest_w)
        # Not by what it draws beyond a higher cap: that may well be in proportion.
        with np.errstate(invalid="ignore"):
            beyond = seen.draw_w > (1.0 + REACH) * caps.held_w
        beyond |= caps.response.reach_w > (1.0 + REACH) * caps.lowest_w
        stuck = low & ~caps.fixed & beyond & (reach_w > (1.0 + REACH) * caps.lowest_w)
        on_devices("floor-not-reached", stuck, reach_w)
        with np.errstate(invalid="ignore"):
            read_w = np.concatenate((seen.draw_w, seen.level_w))
            coarse = meters.in_steps & (meters.resolution_w > COARSE * read_w)
        on_devices("frozen-meter", meters.frozen[:size], caps.counted_w)
        on_levels("frozen-meter", meters.frozen[size:], base.drawn_w)
        on_devices("coarse-meter", coarse[:size], meters.resolution_w[:size])
        on_levels("coarse-meter", coarse[size:], meters.resolution_w[size:])
        on_levels("short-meter", base.short, base.explained_w)
        self.current = tuple(found)

    def _notes(
        self, kind: str, which: Bools, watts: Floats, now_s: float, *, level: bool
    ) -> list[SafetyNote]:
        streak = self._streaks.setdefault((kind, level), no_streak(len(which)))
        since_s = streak.note(which, now_s)
        if not which.any():
            return []
        rows = np.flatnonzero(which & (since_s >= AFTER_S.get(kind, 1.0)))
        return [
            SafetyNote(kind, float(now_s - since_s[row]), float(watts[row]),
                 level=int(row) if level else -1, device=-1 if level else int(row))
            for row in rows
        ]  # fmt: skip

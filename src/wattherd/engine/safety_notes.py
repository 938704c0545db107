"""What the loop noticed, for operators: by kind, where, how much and since when. It orders nothing.

A note appears when its condition has held for as long as its kind takes to be worth a line, and
goes when the condition has.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from wattherd.engine.safety_base import BaseLoad
from wattherd.engine.safety_caps import CapBook
from wattherd.engine.safety_meters import Meters, Seen
from wattherd.engine.safety_terms import Bools, Fleet, Floats, Note, Streak, no_streak

AFTER_S = {"over-limit": 0.0, "base-load": 5.0, "floor-not-reached": 0.0, "swing": 0.0}
COARSE = 0.005
"""Share of a reading: meters in larger steps are coarse."""
BASE = 0.02
"""Share of a limit: less other load is not worth a line."""
SWING_LOOKS = 32
SWING = 0.15
"""Peak to peak, as a share of the mean."""
TURNS = 6
"""Crossings of the mean in that many looks make a swing of what may be two steps."""


class NoteBook:
    """Keeps since when each condition has held; `current` are the notes of the last cycle."""

    def __init__(self, fleet: Fleet) -> None:
        """Nothing was noticed."""
        self._fleet = fleet
        self.current: tuple[Note, ...] = ()
        self._streaks: dict[tuple[str, bool], Streak] = {}
        self._past: deque[Floats] = deque(maxlen=SWING_LOOKS)

    def take(
        self, caps: CapBook, base: BaseLoad, meters: Meters, seen: Seen, limit_w: Floats,
        now_s: float,
    ) -> None:  # fmt: skip
        """Look at a cycle."""
        fleet, size, found = self._fleet, self._fleet.size, list[Note]()

        def on_levels(kind: str, which: Bools, watts: Floats) -> None:
            found.extend(self._notes(kind, which, watts, now_s, level=True))

        def on_devices(kind: str, which: Bools, watts: Floats) -> None:
            found.extend(self._notes(kind, which, watts, now_s, level=False))

        over_w = base.drawn_w - limit_w
        on_levels("over-limit", over_w > 0, over_w)
        on_levels("base-load", base.now_w > BASE * np.maximum(base.drawn_w, 1.0), base.now_w)
        swing_w = self._swing(base.drawn_w)
        on_levels("swing", swing_w > 0, swing_w)
        on_levels("no-meter", ~fleet.level_read & np.isnan(seen.level_w), limit_w)
        on_devices("no-meter", ~fleet.device_read, fleet.max_w)
        on_devices("defiant", caps.defiant, caps.counted_w)
        on_devices("late", caps.late & ~caps.defiant, caps.held_w)
        reach_w = caps.response.reach_w
        on_devices("floor-not-reached", reach_w > fleet.floor_w * 1.01, reach_w)
        with np.errstate(invalid="ignore"):
            read_w = np.concatenate((seen.draw_w, seen.level_w))
            coarse = meters.resolution_w > COARSE * read_w
        on_devices("frozen-meter", meters.frozen[:size], caps.counted_w)
        on_levels("frozen-meter", meters.frozen[size:], base.drawn_w)
        on_devices("coarse-meter", coarse[:size], meters.resolution_w[:size])
        on_levels("coarse-meter", coarse[size:], meters.resolution_w[size:])
        self.current = tuple(found)

    def _notes(
        self, kind: str, which: Bools, watts: Floats, now_s: float, *, level: bool
    ) -> list[Note]:
        streak = self._streaks.setdefault((kind, level), no_streak(len(which)))
        since_s = streak.note(which, now_s)
        rows = np.flatnonzero(which & (since_s >= AFTER_S.get(kind, 1.0)))
        return [
            Note(kind, float(now_s - since_s[row]), float(watts[row]),
                 level=int(row) if level else -1, device=-1 if level else int(row))
            for row in rows
        ]  # fmt: skip

    def _swing(self, drawn_w: Floats) -> Floats:
        """Peak to peak (F + 1,) of levels that go up and down; 0 for the others."""
        self._past.append(drawn_w)
        if len(self._past) < SWING_LOOKS:
            return np.zeros_like(drawn_w)
        past_w = np.array(self._past)
        mean_w = past_w.mean(axis=0)
        span_w = past_w.max(axis=0) - past_w.min(axis=0)
        high = past_w > mean_w
        turns = (high[1:] != high[:-1]).sum(axis=0)
        return np.where((span_w > SWING * mean_w) & (turns >= TURNS), span_w, 0.0)

"""What a safety loop has learned, for the one that takes over: a restart forgets nothing.

Arrays over devices (N,) or levels (F + 1,), NaN for what is not known. Times are ages, so that a
successor's clock may start anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from wattherd.engine.safety.contract import Floats, Ints

BY_LEVEL = (
    "base_w", "base_rise_w", "base_peak_w", "base_away_w", "base_wait_s", "kept_w", "heat",
    "level_resolution_w",
)  # fmt: skip
"""The arrays over levels; all others are over devices."""


# Ages and not times, watts and not indices of anything: a successor may run on another machine,
# with another clock, over a fleet that has lost a row (`reordered`).
@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyState:
    """Hand-over from one loop to the next, see `SafetyLoop.state`.

    A successor believes what it is told here as its predecessor did, and reads everything back.
    """

    found_w: Floats
    """Caps before the first loop's first order, to be put back in the end."""
    ordered_w: Floats
    held_w: Floats
    """The highest caps that may be in force."""
    reach_w: Floats
    """Learned floors: what devices still draw where their cap is lower."""
    beyond_w: Floats
    """What devices were seen to draw beyond their caps."""
    resolution_w: Floats
    """The smallest step that each device's meter was seen to make."""
    stopped: Floats
    """1 where a device's job is stopped."""
    off_age_s: Floats
    """How long ago a device's outlet was switched off."""
    base_w: Floats
    """Other load of each level and what is below it."""
    base_rise_w: Floats
    """By how much it has risen before the loop could have answered."""
    base_peak_w: Floats
    """The highest that it ever was."""
    base_away_w: Floats
    """What of it went at once a while ago, and may come back at once."""
    base_wait_s: Floats
    """For how long that is waited for."""
    kept_w: Floats
    """What was kept of each limit for other load: one reading's noise must not free a watt."""
    heat: Floats
    """Thermal states of the breakers."""
    level_resolution_w: Floats

    def reordered(self, devices: Ints, levels: Ints) -> SafetyState:
        """For another fleet: row i takes what `devices[i]` (`levels[i]`) had; -1 knows nothing."""
        return replace(self, **{
            one.name: _taken(getattr(self, one.name), levels if one.name in BY_LEVEL else devices)
            for one in fields(self)
        })  # fmt: skip

    def as_lists(self) -> dict[str, list[float | None]]:
        """Plain lists, None for NaN: what JSON can hold."""
        return {one.name: _listed(getattr(self, one.name)) for one in fields(self)}

    @classmethod
    def from_lists(
        cls, lists: Mapping[str, Sequence[float | None]], *, size: int, levels: int
    ) -> SafetyState:
        """The same back; names that are missing, as of an older version, are unknown."""
        return cls(**{
            one.name: _read(lists.get(one.name, ()), levels if one.name in BY_LEVEL else size)
            for one in fields(cls)
        })  # fmt: skip


def nothing_known(size: int, levels: int) -> SafetyState:
    """The state of a loop that has read nothing yet."""
    return SafetyState.from_lists({}, size=size, levels=levels)


def _taken(values: Floats, rows: Ints) -> Floats:
    # The last entry is what a row of -1 takes: nothing is known of it.
    padded = np.append(values, np.nan)
    return np.asarray(padded[np.where(rows < 0, len(values), rows)])


# JSON has no NaN: a file that had one would be refused by most readers.
def _listed(values: Floats) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]


# Of another length is of another fleet: rows would belong to other devices. Unknown is always safe,
# since a successor reads everything back.
def _read(values: Sequence[float | None], count: int) -> Floats:
    if len(values) != count:
        return np.full(count, np.nan)
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

"""What meters make of a draw: steps, periods, averages, delays, and clocks of their own.

A meter shows the mean over its window, as it was at its last update, rounded to its resolution. It
repeats that until the next update; only some say when they measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattherd.engine.safety.contract import Bools, Floats, Ints

KEPT_S = 130.0
"""How far back meters may look."""
NOISE = 0.003


LOOKS = 10
"""How often in a second a meter is read that tells of the moment, whenever it is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantMeter:
    """One meter; all in watts and seconds.

    IPMI sensors of a 10 kW node have steps of 40 W, boards renew their readings every 1 to 10 s,
    NVML averages over a second, facility meters over up to a minute.
    """

    resolution_w: float = 0.0
    period_s: float = 0.0
    """Between updates; 0 is as often as it is read."""
    window_s: float = 0.0
    """What it averages over; 0 is a moment."""
    delay_s: float = 0.0
    """Between the measurement and its being readable."""
    skew_s: float = 0.0
    """Of its clock, added to the times it tells."""
    stamped: bool = False
    """Whether it tells when it measured; else whoever reads it takes the time of reading."""
    gain: float = 1.0
    noise: float = NOISE

    @property
    def quick(self) -> bool:
        """Whether it tells of the moment, whenever it is asked."""
        return self.period_s == self.window_s == self.delay_s == 0.0

    def of_second(self) -> PlantMeter:
        """The same, as whoever asks it ten times a second sees it."""
        return replace(self, window_s=1.0, noise=self.noise / math.sqrt(LOOKS))


PLAIN_METER = PlantMeter()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantMeters:
    """The meters of a room; None is no meter, a sequence has one entry for each feed."""

    device: PlantMeter | None = PLAIN_METER
    feed: PlantMeter | Sequence[PlantMeter | None] | None = PLAIN_METER
    site: PlantMeter | None = None
    sees_rest: bool = True
    """Whether devices' meters show the parts that no cap acts on, too (a node's meter does)."""

    def feeds(self, count: int) -> list[PlantMeter | None]:
        """One meter, or none, for each feed."""
        if self.feed is None or isinstance(self.feed, PlantMeter):
            return [self.feed] * count
        return list(self.feed)


PLAIN_METERS = PlantMeters()


class MeterBank:
    """All meters of a room at work: `note` what is drawn each step, `read` when asked."""

    def __init__(
        self,
        meters: Sequence[PlantMeter | None],
        first_w: Floats,
        step_s: float,
        rng: np.random.Generator,
    ) -> None:
        """`first_w` (M,) has been drawn for ever."""
        self._step_s, self._rng = step_s, rng
        some = [one or PlantMeter() for one in meters]
        self.present: Bools = np.array([one is not None for one in meters], dtype=np.bool_)
        self._resolution_w = _each(some, "resolution_w")
        self._window = np.maximum(np.rint(_each(some, "window_s") / step_s), 1).astype(np.int64)
        self._delay = np.rint(_each(some, "delay_s") / step_s).astype(np.int64)
        self._period = np.maximum(np.rint(_each(some, "period_s") / step_s), 1).astype(np.int64)
        # Boards do not update in step with each other.
        self._phase = rng.integers(0, self._period)
        self._skew_s, self._gain = _each(some, "skew_s"), _each(some, "gain")
        self._noise = _each(some, "noise")
        self._stamped = np.array([one.stamped for one in some], dtype=np.bool_)
        self._kept = round(KEPT_S / step_s)
        self._last = self._kept - 1
        history = np.arange(-self._last, 1)[:, None]
        self._joules: Floats = history * (first_w * step_s)
        self._updated: Ints = np.full(len(some), np.iinfo(np.int64).min)
        self._shown_w: Floats = np.zeros(len(some))

    def note(self, watts: Floats) -> None:
        """One more step at `watts` (M,)."""
        before = self._joules[self._last % self._kept]
        self._last += 1
        np.multiply(watts, self._step_s, out=self._joules[self._last % self._kept])
        self._joules[self._last % self._kept] += before

    def read(self) -> tuple[Floats, Floats]:
        """What is shown (M,) and when that was measured by the meters' word; NaN without one."""
        now = self._last - (self._kept - 1)
        latest = now - self._delay
        latest = latest - (latest - self._phase) % self._period
        ends = np.maximum(latest + self._kept - 1, self._last - self._kept + 2 + self._window)
        columns = np.arange(len(ends))
        late_j = self._joules[ends % self._kept, columns]
        early_j = self._joules[(ends - self._window) % self._kept, columns]
        fresh_w = (late_j - early_j) / (self._window * self._step_s)
        fresh_w = (
            fresh_w * self._gain * (1.0 + self._noise * self._rng.standard_normal(len(fresh_w)))
        )
        stepped = self._resolution_w > 0
        steps_w = np.where(stepped, self._resolution_w, 1.0)
        fresh_w = np.where(stepped, np.rint(fresh_w / steps_w) * steps_w, fresh_w)
        self._shown_w = np.where(latest != self._updated, fresh_w, self._shown_w)
        self._updated = latest
        at_s = np.where(self._stamped, latest * self._step_s, now * self._step_s) + self._skew_s
        return (
            np.where(self.present, self._shown_w, np.nan),
            np.where(self.present, at_s, np.nan),
        )


def _each(meters: Sequence[PlantMeter], name: str) -> Floats:
    return np.array([getattr(one, name) for one in meters], dtype=np.float64)

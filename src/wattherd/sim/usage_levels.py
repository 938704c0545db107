"""Devices in use and power over time, in a bounded number of steps that are time averages.

Steps begin short; whenever there would be more than `MOST_STEPS`, neighbours are merged and steps
become twice as long. Averages over steps keep integrals (energy, GPU time) exact; the peak of each
step is kept beside its average, so that no moment above a budget is smoothed away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.core.core import Core
from wattherd.model.command import Command
from wattherd.model.event import Event
from wattherd.sim.meter import UNMOVED, EnergyMeter

MOST_STEPS = 2000
FIRST_STEP_S = 1.0
COLUMNS = ("time_s", "gpus", "cpus", "run_w", "draw_w", "peak_w", "budget_w")
"""`gpus` and `cpus` in use, watts of running jobs, of everything, its peak, and the largest budget.

`time_s` is when a step begins; the budget is empty where there is none.
"""


@dataclass(slots=True)
class UseLevels:
    """Watches a core beside the meter that knows its watts, which must watch before it."""

    core: Core
    meter: EnergyMeter
    step_s: float = FIRST_STEP_S
    begin_s: float | None = None
    _at_s: float = 0.0
    _sums: NDArray[np.float64] = field(default_factory=lambda: np.zeros((MOST_STEPS, 4)))
    _held_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros(MOST_STEPS))
    _peaks: NDArray[np.float64] = field(default_factory=lambda: np.zeros(MOST_STEPS))
    _budgets: NDArray[np.float64] = field(default_factory=lambda: np.full(MOST_STEPS, -np.inf))
    _now: NDArray[np.float64] = field(default_factory=lambda: np.zeros(4))
    _stale: bool = True

    def until(self, now_s: float) -> None:
        """Add what is in use up to then."""
        if self.begin_s is None:
            self.begin_s = now_s
        self._at_s = max(self._at_s, self.begin_s)
        if now_s <= self._at_s:
            return
        if self._stale:
            self._look()
        self._add(now_s)

    def after(self, event: Event, commands: Sequence[Command]) -> None:
        """What is in use may have changed; it is looked at once time passes."""
        self._stale |= bool(commands) or type(event) not in UNMOVED

    def mark(self) -> tuple[float, list[NDArray[np.float64]]]:
        """What was counted so far (`sim.interval`)."""
        columns = self._sums, self._held_s, self._peaks, self._budgets
        return self.step_s, [one.copy() for one in columns]

    def rewind(self, mark: tuple[float, list[NDArray[np.float64]]]) -> None:
        """Forget what was counted since."""
        self.step_s, (self._sums, self._held_s, self._peaks, self._budgets) = mark

    def _look(self) -> None:
        held = self.core.held
        gpus, cpu_milli = int(held.gpu_count.sum()) - held.whole_gpus, held.used_cpu_milli
        self._now = np.array([gpus, cpu_milli / 1000, self.meter.run_w, self.meter.draw_w])
        self._stale = False

    def _add(self, now_s: float) -> None:
        """Spread the present levels over the steps from the last event to `now_s`."""
        begin_s = self.begin_s or 0.0
        while (now_s - begin_s) / self.step_s > MOST_STEPS:
            self._merge()
        first = int((self._at_s - begin_s) / self.step_s)
        last = min(int((now_s - begin_s) / self.step_s), MOST_STEPS - 1)
        steps = slice(first, last + 1)
        edges = begin_s + np.arange(first, last + 2) * self.step_s
        ends = np.minimum(edges[1:], now_s)
        ends[-1] = now_s
        held_s = ends - np.maximum(edges[:-1], self._at_s)
        budget_w = np.inf if self.meter.budget_w is None else self.meter.budget_w
        self._sums[steps] += held_s[:, None] * self._now
        self._held_s[steps] += held_s
        inside = np.flatnonzero(held_s > 0) + first
        self._peaks[inside] = np.maximum(self._peaks[inside], self._now[3])
        self._budgets[inside] = np.maximum(self._budgets[inside], budget_w)
        self._at_s = now_s

    def _merge(self) -> None:
        """Half as many steps, each twice as long."""
        half = MOST_STEPS // 2
        for name, join in (
            ("_sums", np.add),
            ("_held_s", np.add),
            ("_peaks", np.maximum),
            ("_budgets", np.maximum),
        ):
            column = getattr(self, name)
            joined = join(column[::2], column[1::2])
            column[:half] = joined
            column[half:] = -np.inf if name == "_budgets" else 0.0
        self.step_s *= 2

    def rows(self) -> list[tuple[object, ...]]:
        """By `COLUMNS`, one for each step that time has reached."""
        found: list[tuple[object, ...]] = []
        for step in np.flatnonzero(self._held_s > 0).tolist():
            mean = (self._sums[step] / self._held_s[step]).round(3).tolist()
            budget = float(self._budgets[step])
            found.append(
                (
                    round((self.begin_s or 0.0) + step * self.step_s, 3),
                    *mean,
                    round(float(self._peaks[step]), 3),
                    "" if np.isinf(budget) else budget,
                )
            )
        return found

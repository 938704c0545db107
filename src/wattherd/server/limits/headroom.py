"""Gives back what jobs do not draw: their measured demand, by the rules of the safety loop.

The same judgement of meters and the same bands as `power hold` (`engine.safety.meters`,
`engine.safety.wanted_caps`): a device that is close to its cap wants all it can get, at once; one
below it for a while keeps what it draws and a little more; a meter that is silent, stale, frozen or
senseless says nothing, and its device keeps its share. The core makes caps of that, and gives the
watts to others once the lower caps have been read back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattherd.engine.core.core import Core
from wattherd.engine.safety.contract import Bools, Breaker, Fleet, Floats, Readings, SafetyConfig
from wattherd.engine.safety.meters import Meters
from wattherd.engine.safety.wanted_caps import Wants
from wattherd.errors import ClusterError
from wattherd.local.devices import Machine
from wattherd.model.event import DemandMeasured
from wattherd.server.journal.core_loop import CoreLoop

STEP = 0.02
"""Of the highest draw: smaller changes of a demand are not worth an order."""
PATIENCE_S = 2.0
UNLIMITED_W = 1e12

DIP_S = 15.0
"""A job that draws less for so long lends its watts: who gets them may start a job of minutes."""


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A running job: its devices, the cap in force on each (None: none) and its known demand."""

    job_id: str
    attempt: int
    numbers: tuple[int, ...]
    cap_w: float | None
    demand_w: float | None


class Headroom:
    """Looks once a second at what devices draw; the core hears of demands that have changed."""

    def __init__(
        self, keeper: CoreLoop, machine: Machine, config: SafetyConfig | None = None
    ) -> None:
        """Nothing was read yet."""
        self._keeper, self._machine = keeper, machine
        self._config = config or SafetyConfig(idle_s=DIP_S)
        gpu, count = machine.gpu, len(machine.devices)
        floor_w = gpu.idle_w if gpu.min_cap_w is None else gpu.min_cap_w
        self._fleet = Fleet(
            feed=np.zeros(count, dtype=np.int64),
            floor_w=np.full(count, floor_w),
            max_w=np.full(count, gpu.max_w),
            breaker=Breaker(rated_w=np.array([UNLIMITED_W])),
        )
        self._meters = Meters(self._fleet, self._config)
        self._wants = Wants(self._fleet, self._config)

    def look(self, said: Sequence[float | None]) -> None:
        """`said` are watts by device as they were read just now, None from silent ones."""
        try:
            held = self._keeper.ask(lambda core: _held(core, self._machine)).result(PATIENCE_S)
        except (TimeoutError, ClusterError):
            return
        for event in self.news(said, held, time.time()):
            self._keeper.tell(event)

    def news(
        self, said: Sequence[float | None], held: Sequence[HeldJob], now_s: float
    ) -> list[DemandMeasured]:
        """Demands that are others than the core knows."""
        wanted_w = self._wanted(said, held, now_s)
        events = []
        for job in held:
            most_w = self._demand(wanted_w, job)
            if self._differs(most_w, job.demand_w):
                events.append(
                    DemandMeasured(at_s=0.0, job_id=job.job_id, attempt=job.attempt, most_w=most_w)
                )
        return events

    def _wanted(
        self, said: Sequence[float | None], held: Sequence[HeldJob], now_s: float
    ) -> Floats:
        """Caps (N,) with a use; NaN where the meter is not to be trusted."""
        count = self._fleet.size
        cap_w = self._fleet.max_w.copy()
        for job in held:
            if job.cap_w is not None:
                cap_w[list(job.numbers)] = np.minimum(cap_w[list(job.numbers)], job.cap_w)
        draw_w = np.array([np.nan if one is None else one for one in said])
        readings = Readings(
            now_s=now_s,
            draw_w=draw_w,
            draw_at_s=np.full(count, now_s),
            cap_w=cap_w,
            feed_w=np.zeros(0),
            feed_at_s=np.zeros(0),
            off=self._unused(held),
        )
        seen = self._meters.judge(readings)
        wanted_w = self._wants.caps(seen, cap_w, now_s)
        if seen.missing_share > self._config.missing_share:
            return np.full(count, np.nan)
        return np.where(np.isnan(seen.draw_w), np.nan, wanted_w)

    def _unused(self, held: Sequence[HeldJob]) -> Bools:
        """Devices (N,) without a job: what their meters say, or do not, is of no account."""
        unused = np.ones(self._fleet.size, dtype=np.bool_)
        for job in held:
            unused[list(job.numbers)] = False
        return unused

    def _demand(self, wanted_w: Floats, job: HeldJob) -> float | None:
        """The highest of a job's devices: its slowest rank sets the speed of all."""
        own_w = wanted_w[list(job.numbers)]
        if not len(own_w) or np.isnan(own_w).any():
            return None
        most_w = float(own_w.max())
        top_w = self._machine.gpu.max_w if job.cap_w is None else job.cap_w
        if most_w > top_w:
            return None  # close to its cap
        return most_w if most_w < top_w * (1.0 - STEP) else job.demand_w

    def _differs(self, most_w: float | None, known_w: float | None) -> bool:
        if most_w is None or known_w is None:
            return most_w is not known_w
        return abs(most_w - known_w) > STEP * self._machine.gpu.max_w


def _held(core: Core, machine: Machine) -> list[HeldJob]:
    return [
        HeldJob(
            job_id=job.id,
            attempt=job.attempt,
            numbers=machine.numbers(job.allocations),
            cap_w=job.cap_w,
            demand_w=core.watts.demands.of(job.id),
        )
        for job in core.jobs.values()
        if job.active
    ]

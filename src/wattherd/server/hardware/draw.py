"""What the site draws, second by second, and what every job has drawn so far."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattherd.engine.core.core import Core
from wattherd.errors import ClusterError
from wattherd.estimate.rates import Bill
from wattherd.local.devices import Machine
from wattherd.server.hardware.instruments import MODEL, SiteInstruments
from wattherd.server.journal.contract import JournalTime
from wattherd.server.journal.core_loop import CoreLoop
from wattherd.server.periodic import PeriodicThread
from wattherd.server.settings.energy_rates import times, without_cost

PERIOD_S = 1.0
LONGEST_S = 10.0
"""Between two samples that are taken for neighbours."""
WORST_CASE = "worst case"
"""Where watts are from while a device is silent."""
KEPT = 7200
"""Samples that are kept: two hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawSample:
    """Watts of the site and of every running job at one time; `stated` says where they are from."""

    at_s: float
    draw_w: float
    budget_w: float | None
    by_job: Mapping[str, float]
    stated: str
    by_device: tuple[float, ...] = ()
    """Watts of every device, in order; empty in samples that were read back."""
    read: tuple[float | None, ...] = ()
    """What their own meters said, None from silent ones; empty where devices have none."""


@dataclass(frozen=True, slots=True)
class _Running:
    """A run and the devices it holds."""

    job_id: str
    attempt: int
    numbers: tuple[int, ...]

    @property
    def devices(self) -> int:
        """How many."""
        return len(self.numbers)


@dataclass(slots=True)
class DrawBook:
    """The last samples, and joules by job."""

    samples: deque[DrawSample] = field(default_factory=lambda: deque(maxlen=KEPT))
    energy_j: dict[str, float] = field(default_factory=dict)
    over_s: float = 0.0
    over_j: float = 0.0
    site_j: float = 0.0
    bills: dict[str, Bill] = field(default_factory=dict)
    """What the energy of jobs has cost and emitted, since there were rates."""
    site_bill: Bill = field(default_factory=Bill)
    currency: str = ""
    of_one_watt: Callable[[float, float], tuple[Bill, str | None]] | None = None
    """What a watt costs from one time of the journal to another; None where there are no rates."""
    device_j: dict[int, float] = field(default_factory=dict)
    """Joules of the site and of every device since the service began."""

    def joules(self, job_id: str) -> float:
        """What a job has drawn so far."""
        return self.energy_j.get(job_id, 0.0)

    def add(self, sample: DrawSample) -> float:
        """Keep a sample; what was drawn since the last one is booked. The seconds since then.

        What was drawn while nobody looked is not guessed: a gap counts as one period.
        """
        past_s = sample.at_s - self.samples[-1].at_s if self.samples else 0.0
        if past_s > LONGEST_S:
            past_s = PERIOD_S
        for job_id, watts in sample.by_job.items():
            self.energy_j[job_id] = self.energy_j.get(job_id, 0.0) + watts * past_s
        self._bill(sample, past_s)
        self.site_j += sample.draw_w * past_s
        for number, watts in enumerate(sample.by_device):
            self.device_j[number] = self.device_j.get(number, 0.0) + watts * past_s
        if sample.budget_w is not None and sample.draw_w > sample.budget_w:
            self.over_s += past_s
            self.over_j += (sample.draw_w - sample.budget_w) * past_s
        self.samples.append(sample)
        return past_s

    def _bill(self, sample: DrawSample, past_s: float) -> None:
        if self.of_one_watt is None or past_s <= 0:
            return
        unit, currency = self.of_one_watt(sample.at_s - past_s, sample.at_s)
        if currency not in (None, self.currency):
            # Sums of two currencies mean nothing.
            self.bills = {job_id: without_cost(one) for job_id, one in self.bills.items()}
            self.site_bill, self.currency = without_cost(self.site_bill), currency or ""
        self.site_bill = self.site_bill.plus(times(unit, sample.draw_w))
        for job_id, watts in sample.by_job.items():
            one = self.bills.get(job_id, Bill())
            self.bills[job_id] = one.plus(times(unit, watts))


class DrawMeter(PeriodicThread):
    """Samples the site once a second, in a thread of its own.

    Where nothing can be measured, watts follow from processor time: a device draws its idle watts,
    and more in proportion to the vCPUs in use. Samples say so by `stated: model`.
    """

    def __init__(
        self,
        keeper: CoreLoop,
        machine: Machine,
        clock: JournalTime,
        usage: Callable[[], Mapping[tuple[str, int], tuple[float, int]]],
        *,
        book: DrawBook | None = None,
        keep: Callable[[DrawSample, float], None] = lambda *_: None,
        instruments: SiteInstruments | None = None,
    ) -> None:
        """`usage` gives vCPUs and bytes of every run, `instruments` watts of devices or of all.

        `keep` gets every sample and the seconds it stands for; `book` goes on from an earlier one.
        """
        super().__init__("draw", PERIOD_S)
        self.book = book or DrawBook()
        self._keep = keep
        self._keeper, self._machine, self._clock, self._usage = keeper, machine, clock, usage
        self._measure = instruments.meters if instruments is not None else None
        self._total = instruments.total if instruments is not None else None

    def look(self) -> None:
        """Take a sample."""
        try:
            running, budget_w = self._keeper.ask(lambda core: _running(core, self._machine)).result(
                PERIOD_S
            )
        except (TimeoutError, ClusterError):
            return
        sample = self.sample(running, budget_w)
        self._keep(sample, self.book.add(sample))

    def sample(self, running: list[_Running], budget_w: float | None) -> DrawSample:
        """What is drawn now."""
        by_device, stated, read = self._by_device(running)
        sharers = [0] * len(by_device)
        for run in running:
            for number in run.numbers:
                sharers[number] += 1
        by_job = {
            run.job_id: sum(by_device[number] / sharers[number] for number in run.numbers)
            for run in running
        }
        return DrawSample(
            at_s=self._clock.now_s(),
            draw_w=sum(by_device) + self._machine.node.idle_w,
            budget_w=budget_w,
            by_job=by_job,
            stated=stated,
            by_device=tuple(by_device),
            read=tuple(read),
        )

    def _by_device(
        self, running: list[_Running]
    ) -> tuple[list[float], str, Sequence[float | None]]:
        """Watts of every device, where they are from, and what the devices' own meters said.

        A device that does not say what it draws is taken to draw the most it can.
        """
        if self._measure is None:
            return (*self._shared_out(running), ())
        said = self._measure()
        worst_w = self._machine.gpu.max_w
        silent = any(watts is None for watts in said)
        told = [worst_w if watts is None else watts for watts in said]
        return told, WORST_CASE if silent else self._machine.stated, said

    def _shared_out(self, running: list[_Running]) -> tuple[list[float], str]:
        """What is measured of all together, in parts as they are modelled; else the model."""
        modelled = self._modelled(running)
        if self._total is None:
            return modelled, MODEL
        total_w = self._total.total_w()
        if total_w is None:
            return [self._machine.gpu.max_w] * len(modelled), WORST_CASE
        part = total_w / sum(modelled)
        return [watts * part for watts in modelled], self._machine.stated

    def _modelled(self, running: list[_Running]) -> list[float]:
        """Idle watts, and more in proportion to processor time."""
        gpu, slots = self._machine.gpu, self._machine.devices
        usage = self._usage()
        by_device = [gpu.idle_w] * len(slots)
        for run in running:
            vcpus = usage.get((run.job_id, run.attempt), (0.0, 0))[0]
            busy = min(float(run.devices), vcpus / slots[0].cpus)
            for number in run.numbers:
                by_device[number] += busy * (gpu.max_w - gpu.idle_w) / run.devices
        return by_device


def _running(core: Core, machine: Machine) -> tuple[list[_Running], float | None]:
    found = [
        _Running(job.id, job.attempt, machine.numbers(job.allocations))
        for job in core.jobs.values()
        if job.active
    ]
    return found, core.watts.stated_w


def sample_row(sample: DrawSample, span_s: float) -> dict[str, Any]:
    """A sample as a row of the store; it stands for `span_s` seconds."""
    return {
        "at_s": sample.at_s,
        "span_s": span_s,
        "draw_w": sample.draw_w,
        "budget_w": sample.budget_w,
        "by_job": json.dumps(sample.by_job),
        "stated": sample.stated,
    }


def sample_of(row: Mapping[str, Any]) -> DrawSample:
    """The sample that `sample_row` made a row of."""
    same = {name: row[name] for name in ("at_s", "draw_w", "budget_w", "stated")}
    return DrawSample(by_job=json.loads(row["by_job"]), **same)

"""Counts what happens, turn by turn, in the keeper's thread: quick, and reads nothing from disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram

from wattherd.engine.jobs.lifecycle import ACTIVE, TABLE, State
from wattherd.engine.jobs.record import JobRecord
from wattherd.model.allocation import device_of_rank
from wattherd.model.command import (
    Command,
    Compute,
    FinishJob,
    GiveNotice,
    RejectJob,
    SetBatch,
    SetCap,
    SleepNode,
    StartJob,
    StopJob,
    WakeNode,
)
from wattherd.model.event import (
    CapApplied,
    Event,
    JobExited,
    JobStarted,
    JobStopped,
    JobSubmitted,
    RankLagged,
)
from wattherd.model.job import JobSpec
from wattherd.server.site.metric_names import COUNTER, HISTOGRAM, METRICS
from wattherd.store.entry import JournalEntry

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
NEW = "New"
"""What a job is before it was handed in."""
_TRIGGERS = {(old, new): str(trigger) for (old, trigger), new in TABLE.items()}
_RESTING = frozenset({State.BLOCKED, State.BACKING_OFF})
"""States that a job may leave although no order is about it."""
_AT_ONCE: Mapping[type, str] = {
    GiveNotice: "notice",
    RejectJob: "reject",
    FinishJob: "finish",
    SleepNode: "sleep",
    WakeNode: "wake",
    Compute: "compute",
    SetBatch: "batch",
}
"""Orders of which nothing comes back that they could be told by."""


@dataclass(slots=True)
class _Job:
    """A job that is not over, as far as it was counted.

    `asked` is the cap that was ordered and when, until it is read back or given up.
    """

    spec: JobSpec
    state: str = NEW
    attempt: int = 0
    held_s: float = 0.0
    since_s: float | None = None
    waited: bool = False
    cap_w: float | None = None
    asked: tuple[float | None, float, str] | None = None


class MetricsTally:
    """Counters and histograms in a registry of their own; `told` after every turn."""

    def __init__(
        self,
        policy: str,
        energy_of: Callable[[str], float],
        jobs: Iterable[JobRecord] = (),
        nodes: Sequence[str] = (),
    ) -> None:
        """`energy_of` gives a job's joules; `jobs` are those known from before, `nodes` names."""
        self._nodes = nodes
        self.registry = CollectorRegistry()
        self._policy, self._energy_of = policy, energy_of
        self._made: dict[str, Any] = {
            metric.name: _made(metric.name, self.registry)
            for metric in METRICS.values()
            if metric.kind in (COUNTER, HISTOGRAM) and metric.name not in READ_ON_SCRAPE
        }
        self._jobs = {record.id: _known(record) for record in jobs}
        self._resting = {i for i, job in self._jobs.items() if job.state in _RESTING}

    def told(
        self, turns: Sequence[tuple[JournalEntry, Sequence[Command]]], live: Mapping[str, JobRecord]
    ) -> None:
        """Count entries and the core's answers; `live` is what it knows after them."""
        touched = dict.fromkeys(self._resting)
        for entry, commands in turns:
            if isinstance(entry.event, RankLagged):
                self._lagged(entry.event, live.get(entry.event.job_id))
            touched.update(dict.fromkeys(self._hear(entry.event)))
            for command in commands:
                touched.update(dict.fromkeys(self._obey(command, entry.event.at_s)))
        for job_id in touched:
            self._settle(job_id, live.get(job_id))

    def cycle(self, seconds: float) -> None:
        """A turn took so long."""
        self._of("wattherd_cycle_seconds", self._policy).observe(seconds)

    def fault(self, node: str, gpu: str, kind: str) -> None:
        """A device was found faulty."""
        self._of("wattherd_gpu_faults_total", node, gpu, kind).inc()

    def straggler(self, queue: str) -> None:
        """A task was found to lag behind."""
        self._of("wattherd_job_stragglers_total", queue).inc()

    def _lagged(self, event: RankLagged, record: JobRecord | None) -> None:
        held = () if record is None or record.attempt != event.attempt else record.allocations
        place = device_of_rank(held, event.rank, event.ranks)
        gpu = "" if place is None else str(place[1])
        self._of("wattherd_rank_stragglers_total", self._node(place), gpu).inc()

    def _node(self, place: tuple[int, int] | None) -> str:
        return "" if place is None else self._nodes[place[0]]

    def _of(self, name: str, *labels: str) -> Any:
        made = self._made[name]
        return made.labels(*labels) if labels else made

    def _settle(self, job_id: str, record: JobRecord | None) -> None:
        """What the core says has the last word."""
        job = self._jobs.get(job_id)
        if job is not None and record is not None:
            self._move(job, record.state)
        resting = job is not None and job.state in _RESTING
        (self._resting.add if resting else self._resting.discard)(job_id)

    def _move(self, job: _Job, to: str, reason: str = "") -> None:
        """One step; where two happened between two looks the one between them is counted, too."""
        if job.state == to:
            return
        if to == State.STARTING and job.state != State.QUEUED:
            self._move(job, State.QUEUED)
        why = reason or _TRIGGERS.get((State(job.state), State(to)), "") if job.state != NEW else ""
        self._of("wattherd_job_transitions_total", job.state, to, why or "submit").inc()
        job.state = str(to)

    # What happened ------------------------------------------------------------------------------

    def _hear(self, event: Event) -> list[str]:
        match event:
            case JobSubmitted():
                self._jobs.setdefault(event.job.id, _Job(event.job))
                return [event.job.id]
            case JobStarted() | JobStopped() | JobExited() | CapApplied():
                job = self._jobs.get(event.job_id)
                if job is not None and event.attempt == job.attempt:
                    self._hear_run(job, event)
                return [event.job_id]
        job_id = getattr(event, "job_id", None)
        return [] if job_id is None else [str(job_id)]

    def _hear_run(self, job: _Job, event: JobStarted | JobStopped | JobExited | CapApplied) -> None:
        if isinstance(event, CapApplied):
            self._capped(job, event)
        elif not isinstance(event, JobStarted):
            self._ended(job, event)
        elif job.state == State.STARTING:
            self._move(job, State.RUNNING)
            self._count("start", "started")

    def _ended(self, job: _Job, event: JobStopped | JobExited) -> None:
        if job.since_s is None:
            return
        job.held_s += event.at_s - job.since_s
        job.since_s = None
        self._give_up_cap(job, "dropped")
        if job.state == State.STARTING:
            self._count("start", "failed")
        elif job.state == State.STOPPING:
            self._count("stop", "stopped" if isinstance(event, JobStopped) else "exited")

    def _capped(self, job: _Job, event: CapApplied) -> None:
        if job.asked is None or job.asked[0] != event.cap_w:
            return
        _, ordered_s, direction = job.asked
        self._of("wattherd_cap_apply_seconds").observe(event.at_s - ordered_s)
        self._of("wattherd_cap_changes_total", direction, "applied").inc()
        self._count("cap", "applied")
        job.asked = None

    def _give_up_cap(self, job: _Job, result: str) -> None:
        if job.asked is not None:
            self._of("wattherd_cap_changes_total", job.asked[2], result).inc()
            self._count("cap", result)
            job.asked = None

    def _count(self, kind: str, outcome: str) -> None:
        self._of("wattherd_plan_items_total", kind, outcome).inc()

    # What is to be done -------------------------------------------------------------------------

    def _obey(self, command: Command, at_s: float) -> list[str]:
        at_once = _AT_ONCE.get(type(command))
        if at_once is not None:
            self._count(at_once, "ordered")
        job_id = str(getattr(command, "job_id", ""))
        job = self._jobs.get(job_id)
        if job is None:
            return []
        self._obey_about(job, command, at_s)
        return [job_id]

    def _obey_about(self, job: _Job, command: Command, at_s: float) -> None:
        match command:
            case StartJob():
                self._start(job, command, at_s)
            case StopJob():
                self._move(job, State.STOPPING, str(command.reason))
            case SetCap():
                self._ask_for_cap(job, command.cap_w, at_s)
            case FinishJob():
                self._finish(job, command.state)
            case RejectJob():
                self._move(job, State.FAILED)
                self._jobs.pop(job.spec.id)

    def _ask_for_cap(self, job: _Job, cap_w: float | None, at_s: float) -> None:
        if job.asked is not None and job.asked[0] == cap_w:
            return  # said again
        self._give_up_cap(job, "superseded")
        job.asked, job.cap_w = (cap_w, at_s, _direction(job.cap_w, cap_w)), cap_w

    def _start(self, job: _Job, command: StartJob, at_s: float) -> None:
        self._move(job, State.STARTING)
        job.attempt, job.since_s, job.cap_w = command.attempt, at_s, command.cap_w
        if not job.waited:
            job.waited = True
            waited_s = max(0.0, at_s - job.spec.submit_s)
            self._of("wattherd_job_wait_seconds", job.spec.queue).observe(waited_s)

    def _finish(self, job: _Job, state: str) -> None:
        self._move(job, state)
        spec = self._jobs.pop(job.spec.id).spec
        self._of("wattherd_job_run_seconds", spec.queue).observe(job.held_s)
        self._of("wattherd_job_energy_joules", spec.queue).observe(self._energy_of(spec.id))
        if state == State.SUCCEEDED and spec.duration_s:
            ratio = job.held_s / spec.duration_s
            self._of("wattherd_estimate_error_ratio", "duration").observe(ratio)


READ_ON_SCRAPE = frozenset(
    {
        "wattherd_power_overshoot_seconds_total",
        "wattherd_power_overshoot_joules_total",
        "wattherd_power_energy_joules_total",
        "wattherd_gpu_energy_joules_total",
        "wattherd_guard_strikes_total",
        "wattherd_job_energy_joules_total",
        "wattherd_level_over_seconds_total",
        "wattherd_energy_cost_total",
        "wattherd_energy_co2e_grams_total",
        "wattherd_energy_unpriced_joules_total",
        "wattherd_energy_unrated_joules_total",
        "wattherd_job_cost_total",
        "wattherd_job_co2e_grams_total",
    }
)
"""Counters that others keep."""


def _made(name: str, registry: CollectorRegistry) -> Any:
    metric = METRICS[name]
    if metric.kind == COUNTER:
        return Counter(name, metric.help, metric.labels, registry=registry)
    return Histogram(name, metric.help, metric.labels, buckets=metric.buckets, registry=registry)


def _known(record: JobRecord) -> _Job:
    """A job that was there before."""
    return _Job(
        spec=record.spec,
        state=str(record.state),
        attempt=record.attempt,
        held_s=record.attained_s,
        since_s=record.held_since_s if record.state in ACTIVE else None,
        waited=record.first_start_s is not None,
        cap_w=record.cap_w,
    )


def _direction(before_w: float | None, after_w: float | None) -> str:
    if after_w == before_w:
        return "repeat"
    if after_w is None:
        return "lift"
    return "lower" if before_w is None or after_w < before_w else "raise"

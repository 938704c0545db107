"""Speeds learned from what running jobs report: steps by the core's own clock, never theirs.

Each report says how far a run is. Between two of them, at least `WINDOW_S` apart, lies a *window*:
steps done by time gone, on the devices, at the batch and under the cap that held throughout. A
job's speed in one such way is the median of its last windows; a kind's is the median of its jobs'.
So what is wrong in fewer than half of the windows (a pause, an evaluation, a count that jumps, a
report that is made up) moves an estimate no further than the sound ones reach, and a job that is
wrong altogether is one voice among its kind's.

Nothing is learned from the first windows of a run, or after its devices, batch or cap changed: what
is compiled, cached or still being slowed down then is no pace. A count that goes back (from a
checkpoint) begins anew. Times are the core's: a job's clock is not asked. Everything here follows
from events, so that the same journal gives the same speeds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, NamedTuple

from wattherd.estimate.job_rate import JobRates, RatePoint, RateTable

WINDOW_S = 1.0
"""Reports closer together than this are one: how late a report is heard is a tenth of that."""
WARM_UP = 2
"""Windows of which nothing is learned, after a start or another way of running."""
LEAST_WINDOWS = 3
"""Fewer than these make no speed."""
MOST_WINDOWS = 31
"""The last ones of a job in one way; a speed that changes for good is learned after half of it."""
MOST_JOBS = 25
"""Of a kind in one way, those heard last; each is one voice, however long it runs."""
MOST_WAYS = 64
"""Of a job, or of a kind."""
MOST_KINDS = 1000
"""Of one tenant, those heard last: nobody's kinds push out another's."""
SPARE_JOBS = 100
"""Jobs that are over and still remembered, beyond as many as are live."""
_CAP_STEP = math.log(1.05)
"""Caps within 5 % of each other are one way of running."""
FASTEST = 1e9
"""Steps a second that no training does."""
LEAST_RELATIVE = 1e-3
"""Of what it does without a cap, a run under one is taken to do so much at least."""


class WayRun(NamedTuple):
    """How a run runs at the moment; what is None is not known. `cap_w` is W per GPU, in force."""

    gpu_model: str
    gpus: int
    nodes: int = 1
    batch: int | None = None
    accumulation: int | None = None
    cap_w: float | None = None

    @property
    def alike(self) -> WayRun:
        """The way that stands for it and for others that differ by no more than a little cap."""
        if self.cap_w is None or self.cap_w <= 0:
            return self._replace(cap_w=None)
        steps = round(math.log(self.cap_w) / _CAP_STEP)
        return self._replace(cap_w=round(math.exp(steps * _CAP_STEP), 3))


class JobSpeed(NamedTuple):
    """Steps per second of one job in one way, by the median of `windows` windows.

    `full_per_s` is what that would be without the cap, by the job's power curve.
    """

    per_s: float
    full_per_s: float
    windows: int


@dataclass(slots=True)
class _Run:
    """The window at hand of one run."""

    attempt: int
    way: WayRun
    at_s: float
    progress: float
    skipped: int = 0


@dataclass(slots=True)
class _Windows:
    """The last windows of a job in one way, and how fast its curve says it is under the cap."""

    per_s: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_WINDOWS))
    relative: float = 1.0

    def speed(self) -> JobSpeed | None:
        if len(self.per_s) < LEAST_WINDOWS:
            return None
        found = median(self.per_s)
        return JobSpeed(found, found / self.relative, len(self.per_s))


Ways = dict[WayRun, _Windows]
KindWays = dict[WayRun, dict[str, JobSpeed]]
"""By way, and by job id: the one heard last comes last."""


class LearnedRates:
    """What was learned of all jobs; changed by `heard` alone.

    The tables are kept and not worked out for each plan: a report changes one job and one kind.
    """

    def __init__(self) -> None:
        """Nothing is known."""
        self._runs: dict[str, _Run] = {}
        self._jobs: dict[str, Ways] = {}
        self._kinds: dict[str, dict[str, KindWays]] = {}
        """By tenant (what is before a kind's line break) and kind."""
        self._job_tables: dict[str, RateTable] = {}
        self._kind_table = RateTable()
        self._known: tuple[JobRates, JobRates] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be made again of a configuration, which is no part of a snapshot."""
        return {**self.__dict__, "_known": None}

    # What happened ------------------------------------------------------------------------------

    def heard(
        self, job_id: str, kind: str, attempt: int, way: WayRun, progress: float, now_s: float,
        *, relative: float = 1.0,
    ) -> bool:  # fmt: skip
        """A run has come to `progress`; returns whether a speed is another now.

        `relative` (above 0, at most 1) is how fast its power curve says it is under its cap.
        """
        run = self._runs.get(job_id)
        same = run is not None and run.attempt == attempt and run.way.alike == way.alike
        if run is None or not same or not progress >= run.progress:
            # Another way, a count from a checkpoint, or no number: whatever came before ends here.
            self._runs.pop(job_id, None)
            if math.isfinite(progress):
                self._runs[job_id] = _Run(attempt, way, now_s, progress)
            return False
        span_s = now_s - run.at_s
        if span_s < WINDOW_S or progress == run.progress:
            return False
        per_s = (progress - run.progress) / span_s
        run.at_s, run.progress = now_s, progress
        if run.skipped < WARM_UP:
            run.skipped += 1
            return False
        if not 0 < per_s < FASTEST:
            return False
        return self._learned(job_id, kind, way.alike, per_s, relative)

    def forget(self, live: Container[str], count: int) -> None:
        """Jobs that are over, where there are many; what their kinds learned from them stays."""
        if len(self._jobs) + len(self._runs) <= 2 * count + SPARE_JOBS:
            return
        known = {**self._runs, **self._jobs, **self._job_tables}
        for gone in [job_id for job_id in known if job_id not in live]:
            self._runs.pop(gone, None)
            self._jobs.pop(gone, None)
            self._job_tables.pop(gone, None)

    def _learned(self, job_id: str, kind: str, way: WayRun, per_s: float, relative: float) -> bool:
        ways = self._jobs.setdefault(job_id, {})
        windows = ways.pop(way, None) or _Windows()
        ways[way] = windows
        _only_last(ways, MOST_WAYS)
        windows.per_s.append(per_s)
        windows.relative = min(max(relative, LEAST_RELATIVE), 1.0)
        speed = windows.speed()
        if speed is None:
            return False
        own = {one: found for one, held in ways.items() if (found := held.speed()) is not None}
        self._job_tables[job_id] = RateTable(_points(job_id, own))
        if kind:
            self._teach(job_id, kind, way, speed)
        self._known = None
        return True

    def _teach(self, job_id: str, kind: str, way: WayRun, speed: JobSpeed) -> None:
        tenant = kind.rpartition("\n")[0]
        kinds = self._kinds.setdefault(tenant, {})
        ways = kinds.pop(kind, None) or {}
        kinds[kind] = ways
        for gone in _only_last(kinds, MOST_KINDS):
            self._kind_table.put(gone, ())
        jobs = ways.pop(way, None) or {}
        ways[way] = jobs
        _only_last(ways, MOST_WAYS)
        jobs.pop(job_id, None)
        jobs[job_id] = speed
        _only_last(jobs, MOST_JOBS)
        self._kind_table.put(kind, _points(kind, self.of_kind(kind)))

    # What is known ------------------------------------------------------------------------------

    def rates(self, base: JobRates) -> JobRates:
        """`base` with what was learned."""
        if self._known is None or self._known[0] is not base:
            with_learned = replace(
                base,
                learned_jobs=self._job_tables,
                learned_kinds=self._kind_table,
                _known={},
            )
            self._known = base, with_learned
        return self._known[1]

    def of_job(self, job_id: str) -> dict[WayRun, JobSpeed]:
        """Speeds of one job by way; none of a job that is long over."""
        found = ((way, held.speed()) for way, held in self._jobs.get(job_id, {}).items())
        return {way: speed for way, speed in found if speed is not None}

    def of_kind(self, kind: str) -> dict[WayRun, JobSpeed]:
        """Speeds of a kind by way: medians of its jobs, and as `windows` how many jobs they are."""
        ways = self._kinds.get(kind.rpartition("\n")[0], {}).get(kind, {})
        return {
            way: JobSpeed(
                median(one.per_s for one in jobs.values()),
                median(one.full_per_s for one in jobs.values()),
                len(jobs),
            )
            for way, jobs in ways.items()
        }

    def of_kinds(self) -> dict[str, dict[WayRun, tuple[JobSpeed, ...]]]:
        """The voices of all kinds, those of one tenant by when they were heard last."""
        return {
            kind: {way: tuple(jobs.values()) for way, jobs in ways.items()}
            for kinds in self._kinds.values()
            for kind, ways in kinds.items()
        }

    def recall(self, kinds: Mapping[str, Mapping[WayRun, Sequence[JobSpeed]]]) -> None:
        """These are the kinds that are known, as `of_kinds` told them, and no others."""
        self._kinds, self._kind_table, self._known = {}, RateTable(), None
        for kind, ways in kinds.items():
            known = self._kinds.setdefault(kind.rpartition("\n")[0], {})
            known[kind] = {
                way: {f"earlier {at}": one for at, one in enumerate(voices[-MOST_JOBS:])}
                for way, voices in list(ways.items())[-MOST_WAYS:]
            }
            for gone in _only_last(known, MOST_KINDS):
                self._kind_table.put(gone, ())
            self._kind_table.put(kind, _points(kind, self.of_kind(kind)))

    def taught(self, kind: str, job_id: str) -> dict[WayRun, JobSpeed]:
        """What one job has taught its kind, also when it is over."""
        ways = self._kinds.get(kind.rpartition("\n")[0], {}).get(kind, {})
        return {way: jobs[job_id] for way, jobs in ways.items() if job_id in jobs}


def _only_last(known: dict[Any, Any], most: int) -> list[Any]:
    """Leave the last ones of a dictionary in it; the keys that went."""
    gone = list(known)[: max(0, len(known) - most)]
    for key in gone:
        del known[key]
    return gone


def _points(kind: str, speeds: Mapping[WayRun, JobSpeed]) -> Iterator[RatePoint]:
    """A point for each way of running without caps, from the highest cap under which it was seen.

    The curve that takes a cap out of a speed is a belief, and errs the less the higher the cap.
    """
    highest: dict[WayRun, tuple[float, float]] = {}
    for way, speed in speeds.items():
        at_w = math.inf if way.cap_w is None else way.cap_w
        free = way._replace(cap_w=None)
        highest[free] = max(highest.get(free, (0.0, 0.0)), (at_w, speed.full_per_s))
    for way, (_, per_s) in highest.items():
        yield RatePoint(
            kind=kind, gpu_model=way.gpu_model, gpus=way.gpus, per_s=per_s, nodes=way.nodes,
            batch=way.batch, accumulation=way.accumulation,
        )  # fmt: skip

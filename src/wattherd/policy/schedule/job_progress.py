"""What a planner believes of a job's way to its end: how fast in which way, and how much is left.

Both tell work in units of their own, which cancel: steps where jobs report, seconds at a job's own
pace where these are stated. `ReportedProgress` knows what the core has learned of real jobs;
`StatedProgress` what a simulated workload says, by which simulated jobs run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar, NamedTuple, Protocol

from wattherd.estimate.job_kind import job_kind
from wattherd.estimate.job_rate import RateSource, step_s_at
from wattherd.estimate.learned_noise import ALIKE_STEPS
from wattherd.policy.contract import JobView, View

YOUNG_RESTARTS = 6.0
"""A job of which nothing tells how long it lasts is taken to last so many restarts at least."""
LEAST_YOUNG_S = 10.0
LEAST_LEFT = 1.0
"""Units that a job is taken to have left, however long it runs already."""
STATED = "as stated"
GUESSED = "a guess: as long again as it has run"


class WorkLeft(NamedTuple):
    """Units to go, and who says so; `told` where it is no guess."""

    units: float
    told: bool
    source: str


class JobProgress(Protocol):
    """Asked by planners.

    What `learns` may say something else of a job at every plan. All others' answers follow from
    specifications, and from `done` units, which planners count by `units_per_s`.
    """

    @property
    def learns(self) -> bool:
        """Whether speeds, lengths and restarts may be others at the next plan."""
        ...

    @property
    def usual_pause_s(self) -> float:
        """What a restart costs anyone of whom `pauses_s` says nothing."""
        ...

    def units_per_s(self, view: View, job: JobView, model: str, gpus: int) -> float:
        """How fast it is on so many GPUs of a model."""
        ...

    def varies(self, view: View, job: JobView) -> bool:
        """Whether that may be another at the next plan; else it is the same for jobs alike."""
        ...

    def left(self, view: View, job: JobView, done: float, per_s: float, young_s: float) -> WorkLeft:
        """What is left; a guess is of `young_s` at least, at `per_s` units a second."""
        ...

    def pauses_s(self, view: View, jobs: Sequence[JobView]) -> Mapping[str, float]:
        """What a restart costs each; nothing is said where all are alike."""
        ...

    def speed_source(self, view: View, job: JobView, model: str, gpus: int) -> str:
        """Who says how fast it is."""
        ...


def young_s(pauses_s: Mapping[str, float]) -> float:
    """For how long a job of which nothing tells is taken to last at least."""
    return max(YOUNG_RESTARTS * median(pauses_s.values()), LEAST_YOUNG_S) if pauses_s else 0.0


def guessed_s(served_s: float, young_s: float) -> float:
    """As long again as it has run, by powers of two: else jobs would change places for ever."""
    return young_s * 2.0 ** math.floor(math.log2(max(served_s / young_s, 1.0)))


@dataclass(frozen=True, slots=True)
class ReportedProgress:
    """By `View.rates`, `View.step_worth`, `View.steps_left` and `View.restart_time`."""

    learns: ClassVar[bool] = True
    usual_pause_s: ClassVar[float] = 0.0

    def units_per_s(self, view: View, job: JobView, model: str, gpus: int) -> float:
        """Steps, times their worth there; where none were seen, as jobs scale on average."""
        known = view.rates.steps_per_s(job.spec, model, gpus)
        worth = view.step_worth(job, gpus).share
        if known is not None:
            return known.per_s * worth
        asked = max(job.spec.gpus, 1)
        step_s = step_s_at({asked: 1.0}, gpus)
        return view.rates.rate(job.spec, model, gpus=asked).per_s / step_s * worth

    def varies(self, view: View, job: JobView) -> bool:
        """Of jobs that have told something, or of whose kind something is known."""
        rates, spec = view.rates, job.spec
        kinds = rates.learned_kinds.kinds
        return (
            spec.id in rates.learned_jobs
            or (bool(kinds) and job_kind(spec) in kinds)
            or view.step_worth(job, max(spec.gpus, 1)) != ALIKE_STEPS
        )

    def left(self, view: View, job: JobView, done: float, per_s: float, young_s: float) -> WorkLeft:
        """Steps by what it reports, where its speed is known; else as stated; else a guess."""
        del done  # the core notes it
        told = view.steps_left(job)
        if told is not None and self._known(view, job):
            asked = max(job.spec.gpus, 1)
            # Steps are of the width asked for; where others are worth more, fewer are needed.
            steps = told.steps * view.step_worth(job, asked).share
            return WorkLeft(steps, told=True, source=str(told.source))
        served_s, stated_s = job.service_s(view.now_s), job.spec.duration_s
        if stated_s is not None and served_s < stated_s:  # else it said wrong
            return WorkLeft(per_s * (stated_s - served_s), told=True, source=STATED)
        return WorkLeft(per_s * guessed_s(served_s, young_s), told=False, source=GUESSED)

    def _known(self, view: View, job: JobView) -> bool:
        """Whether steps are no mere number: their pace was seen on some model."""
        models = {node.gpu_model for node in view.nodes() if node.gpu_count}
        asked = max(job.spec.gpus, 1)
        return any(view.rates.steps_per_s(job.spec, model, asked) is not None for model in models)

    def pauses_s(self, view: View, jobs: Sequence[JobView]) -> Mapping[str, float]:
        """As learned; of who has not begun yet as the others', before it is a prior.

        The prior is that of large jobs. Beside restarts of seconds it would hold newcomers for
        jobs that last long.
        """
        told = {job.id: view.restart_time(job) for job in jobs}
        known = [one.seconds for one in told.values() if one.source is not RateSource.PRIOR]
        usual_s = median(known) if known else None
        return {
            name: one.seconds if usual_s is None or one.source is not RateSource.PRIOR else usual_s
            for name, one in told.items()
        }

    def speed_source(self, view: View, job: JobView, model: str, gpus: int) -> str:
        """As its rate says."""
        known = view.rates.steps_per_s(job.spec, model, gpus)
        return "prior" if known is None else str(known.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedProgress:
    """By stated durations and the rates of the cluster; what was done is counted by time.

    A cap slows jobs, which is not seen here: a capped job has a little more left than is believed.
    """

    restart_s: float = 0.0

    learns: ClassVar[bool] = False

    def units_per_s(self, view: View, job: JobView, model: str, gpus: int) -> float:
        """Seconds of its stated work a second."""
        return view.rates.rate(job.spec, model, gpus=gpus).per_s

    def varies(self, view: View, job: JobView) -> bool:
        """Nothing is learned."""
        del view, job
        return False

    def left(self, view: View, job: JobView, done: float, per_s: float, young_s: float) -> WorkLeft:
        """Its duration less what was done; a guess where it states none."""
        stated = job.spec.duration_s
        if stated is None:
            units = per_s * guessed_s(job.service_s(view.now_s), young_s)
            return WorkLeft(units, told=False, source=GUESSED)
        return WorkLeft(max(stated - done, LEAST_LEFT), told=True, source=STATED)

    def pauses_s(self, view: View, jobs: Sequence[JobView]) -> Mapping[str, float]:
        """As configured, for all."""
        del view, jobs
        return {}

    @property
    def usual_pause_s(self) -> float:
        """As configured."""
        return self.restart_s

    def speed_source(self, view: View, job: JobView, model: str, gpus: int) -> str:
        """As its rate says."""
        return str(view.rates.rate(job.spec, model, gpus=gpus).source)

"""What a scheduler foresees of running jobs: how fast in which shape, and how much is left.

`LossForesight` collects the losses that jobs report, fits their curves, and, if it has a judge,
believes only those that the judge finds predictable; without one it believes every fit, as Optimus
does. All it remembers lies in the planner's memory, so that replaying the events gives the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from wattherd.errors import UserError
from wattherd.estimate.curve_judge import CurveJudge, CurveLook, Point, look, thinned
from wattherd.estimate.job_rate import RateSource
from wattherd.estimate.speed import JobShape, PsBelief
from wattherd.policy.contract import JobView, View

SURE = 0.5
"""A job is predictable from this probability on (AITurbo)."""
BLIND_EPOCHS = 20
"""More, where a curve cannot be fitted or ends beyond the epochs that were asked for (the public
code of Optimus, estimator.est_epoch)."""
OVERDUE = 0.1
"""A job that has outlived its forecast is taken to need this share of its steps again."""


PUBLISHED_RESTART_S = 60.0
LEAST_TEMPO, MOST_TEMPO = 1 / 30, 1.0
"""Of all times among real jobs, over the published ones."""


class SpeedForecast(Protocol):
    """Asked by planners; `memory` is theirs."""

    @property
    def learns(self) -> bool:
        """Whether step times may be others at the next plan."""
        ...

    def note(self, view: View, job: JobView, memory: dict[str, Any]) -> bool:
        """Look at a job's latest report; returns whether it has just turned predictable."""
        ...

    def steps_left(self, view: View, job: JobView, memory: dict[str, Any]) -> float | None:
        """Steps to go, None while that cannot be told."""
        ...

    def guessed_steps(self, view: View, job: JobView, step_s: float, young_s: float) -> float:
        """Steps to go of a job that tells nothing: as many again, at least those of `young_s`."""
        ...

    def step_s(self, view: View, job: JobView, shape: JobShape) -> float | None:
        """Seconds per step in a shape, None where that is not known."""
        ...

    def pause_s(self, view: View, job: JobView) -> float | None:
        """What a restart costs the job; None: as the planner was told."""
        ...

    def sources(self, view: View, job: JobView, shape: JobShape) -> str:
        """Who says how much is left and how fast it is, for its story; empty: nothing to say."""
        ...

    def forget(self, live: Mapping[str, JobView], memory: dict[str, Any]) -> None:
        """Drop what was noted of jobs that are gone."""
        ...


def tempo_of(forecast: SpeedForecast, view: View, jobs: Sequence[JobView]) -> float:
    """How long restarts of real jobs take, over the published minute: so much faster all goes."""
    if not forecast.learns:
        return 1.0
    told = [view.restart_time(job) for job in jobs]
    known = sorted(one.seconds for one in told if one.source is not RateSource.PRIOR)
    if not known:
        return 1.0
    return min(max(known[len(known) // 2] / PUBLISHED_RESTART_S, LEAST_TEMPO), MOST_TEMPO)


def resized_words(
    before: JobShape, after: JobShape, times_s: tuple[float, float], pause_s: float, sources: str
) -> str:
    """`resized from 4 to 1 GPUs: ...`; `times_s` are to go before and after, restart included."""
    return (
        f"resized from {before.gpus} to {after.gpus} GPUs: {times_s[0]:,.0f} s to go before, "
        f"{times_s[1]:,.0f} s after, of which {pause_s:,.1f} s for the restart ({sources})"
    )


@dataclass(slots=True)
class _Seen:
    """Points of one job, the last look at them, and whether it was found predictable."""

    points: list[Point] = field(default_factory=list)
    looked: CurveLook | None = None
    looked_at: int = 0
    reports: int = 0
    predictable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LossForesight:
    """Speeds and targets by job id; fits are renewed after `renew` reports, or a twelfth more."""

    beliefs: Mapping[str, PsBelief]
    judge: CurveJudge | None = None
    renew: int = 2
    speeds: dict[tuple[str, JobShape], float | None] = field(default_factory=dict, repr=False)

    learns: ClassVar[bool] = False

    def note(self, view: View, job: JobView, memory: dict[str, Any]) -> bool:
        """Take the latest report in, and judge anew where there is something new."""
        del view
        belief = self.beliefs.get(job.id)
        seen: _Seen = memory.setdefault(job.id, _Seen())
        if belief is None or job.loss is None:
            return False
        if seen.points and job.progress <= seen.points[-1][0]:
            return False
        seen.points = thinned([*seen.points, (job.progress, job.loss)])
        seen.reports += 1
        if seen.reports - seen.looked_at < max(self.renew, seen.reports // 12):
            return False
        return self._look(seen, belief)

    def _look(self, seen: _Seen, belief: PsBelief) -> bool:
        seen.looked, seen.looked_at = look(seen.points, belief.target_loss), seen.reports
        before = seen.predictable
        if seen.looked is None:
            return False
        sure = 1.0 if self.judge is None else self.judge.predictability(seen.looked)
        seen.predictable = sure >= SURE
        return seen.predictable and not before

    def steps_left(self, view: View, job: JobView, memory: dict[str, Any]) -> float | None:
        """By the curve; without a judge, a fixed number of epochs where there is no end."""
        del view
        belief = self.beliefs.get(job.id)
        seen: _Seen | None = memory.get(job.id)
        if belief is None or seen is None:
            return None
        if seen.predictable and seen.looked is not None:
            ends = seen.looked.ends_at
            if self.judge is not None or ends <= belief.most_steps:
                ends = min(ends, belief.most_steps)
                return max(ends - job.progress, OVERDUE * job.progress, 1.0)
        return None if self.judge is not None else BLIND_EPOCHS * belief.epoch_steps

    def guessed_steps(self, view: View, job: JobView, step_s: float, young_s: float) -> float:
        """By the steps it has made."""
        del view
        return max(job.progress, young_s / step_s)

    def pause_s(self, view: View, job: JobView) -> float | None:
        """The planner was told."""
        del view, job
        return None

    def sources(self, view: View, job: JobView, shape: JobShape) -> str:
        """Nobody reads the stories of simulated jobs."""
        del view, job, shape
        return ""

    def step_s(self, view: View, job: JobView, shape: JobShape) -> float | None:
        """By the fitted model, where it was sampled."""
        del view
        key = job.id, shape
        if key not in self.speeds:
            self.speeds[key] = self._step_s(job, shape)
        return self.speeds[key]

    def _step_s(self, job: JobView, shape: JobShape) -> float | None:
        belief = self.beliefs.get(job.id)
        if belief is None:
            return None
        try:
            return belief.speed.step_s(shape)
        except UserError:
            return None

    def forget(self, live: Mapping[str, JobView], memory: dict[str, Any]) -> None:
        """Keep live jobs only."""
        for gone in [job_id for job_id in memory if job_id not in live]:
            del memory[gone]

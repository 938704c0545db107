"""Hyper-parameter search on top of any scheduler: jobs of one group are trials of one search.

The rule sees what trials report (`policy.schedule.search`). Trials that it pauses are hidden
from the scheduler below until it lets them go on; those that it ends leave for good, by way of the
guard, which lets nobody end a job that is no trial.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import fmean, median
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from wattherd.estimate.job_rate import JobRates
from wattherd.estimate.learned_noise import StepWorth
from wattherd.estimate.learned_restarts import RestartTime
from wattherd.estimate.learned_services import PastServices
from wattherd.estimate.learned_steps import StepsLeft
from wattherd.model.cluster import NodeSpec
from wattherd.model.event import Computed
from wattherd.model.job import JobSpec
from wattherd.model.reason import Reason, ReasonCode, StopReason
from wattherd.policy.contract import Draft, JobView, Planner, View
from wattherd.policy.eligibility import NodeMask

# --- Which trials of a search go on, which pause, which end: by the losses they report.
#
# Successive halving: at rung k, after `first` x eta^k of progress, the best of every eta go on and
# the others end. Synchronous (Jamieson & Talwalkar, AISTATS'16) it decides when all have come to
# the rung; asynchronous (ASHA: Li et al., MLSys'20) whoever is among the best 1/eta so far goes on
# at once. Median stopping (Golovin et al., KDD'17, section 3.2.1) ends a trial whose best loss is
# worse than the median of the others' running averages at the same progress.


class TrialVerdict(Enum):
    """What becomes of a trial."""

    GO = "go"
    PAUSE = "pause"
    END = "end"


@dataclass(slots=True)
class SearchTrial:
    """One trial of a group and the (progress, loss) points that were seen of it, in order.

    `over` when it reached its end, failed, or was ended: it reports nothing any more. `passed`
    counts the rungs it has passed for good.
    """

    job_id: str
    number: int
    points: list[tuple[float, float]] = field(default_factory=list)
    over: bool = False
    passed: int = 0

    def see(self, progress: float, loss: float) -> None:
        """Note a report; one that shows no progress over the last is no news."""
        if not self.points or progress > self.points[-1][0]:
            self.points.append((progress, loss))

    def loss_at(self, progress: float) -> float | None:
        """The first loss seen at or after some progress."""
        return next((loss for at, loss in self.points if at >= progress), None)


class Rule(Protocol):
    """Judges the trials of one group."""

    def judge(self, trials: Sequence[SearchTrial]) -> dict[str, TrialVerdict]:
        """A verdict for each trial that is not over."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessiveHalving:
    """Rungs at `first`, `first` x `eta`, ... progress, `rungs` of them."""

    first: float
    eta: int = 3
    rungs: int = 4
    asynchronous: bool = False

    def judge(self, trials: Sequence[SearchTrial]) -> dict[str, TrialVerdict]:
        """Look at the rungs from the lowest up; whoever passes one is looked at on the next."""
        verdicts: dict[str, TrialVerdict] = {}
        climbing = list(trials)
        for rung in range(self.rungs):
            climbing = self._pass(climbing, rung, verdicts)
        return verdicts

    def _pass(
        self, climbing: list[SearchTrial], rung: int, verdicts: dict[str, TrialVerdict]
    ) -> list[SearchTrial]:
        """Those who go beyond a rung; the verdicts on the others, and on those not there yet."""
        height = self.first * self.eta**rung
        losses = {one.job_id: one.loss_at(height) for one in climbing}
        there = [one for one in climbing if losses[one.job_id] is not None]
        there.sort(key=lambda one: (losses[one.job_id] or 0.0, one.number))
        coming = [one for one in climbing if losses[one.job_id] is None and not one.over]
        best = self._best(len(there), len(coming))
        for one in there[:best]:
            one.passed = max(one.passed, rung + 1)
        for one in there:
            if not one.over:
                verdicts[one.job_id] = _judged(one.passed > rung, waits=bool(coming))
        for one in coming:
            verdicts[one.job_id] = TrialVerdict.GO
        return [one for one in there if one.passed > rung]

    def _best(self, there: int, coming: int) -> int:
        """How many of those on a rung go on, while others are still coming."""
        if not coming:
            return max(math.ceil(there / self.eta), min(there, 1))
        return there // self.eta if self.asynchronous else 0


def _judged(goes_on: bool, *, waits: bool) -> TrialVerdict:  # noqa: FBT001
    if goes_on:
        return TrialVerdict.GO
    return TrialVerdict.PAUSE if waits else TrialVerdict.END


@dataclass(frozen=True, slots=True, kw_only=True)
class MedianStopping:
    """Judges from `grace` of progress on, where at least `least_trials` others came as far."""

    grace: float
    least_trials: int = 3

    def judge(self, trials: Sequence[SearchTrial]) -> dict[str, TrialVerdict]:
        """Nobody pauses here."""
        return {one.job_id: self._verdict(one, trials) for one in trials if not one.over}

    def _verdict(self, trial: SearchTrial, trials: Sequence[SearchTrial]) -> TrialVerdict:
        progress = trial.points[-1][0] if trial.points else 0.0
        if not trial.points or progress < self.grace:
            return TrialVerdict.GO
        averages = [
            fmean(loss for at, loss in other.points if at <= progress)
            for other in trials
            if other is not trial
            and other.points
            and other.points[0][0] <= progress <= other.points[-1][0]
        ]
        if len(averages) < self.least_trials:
            return TrialVerdict.GO
        best = min(loss for _, loss in trial.points)
        return TrialVerdict.END if best > median(averages) else TrialVerdict.GO


@dataclass(slots=True)
class _Memory:
    groups: dict[str, dict[str, SearchTrial]] = field(default_factory=dict)
    """Trials by group and job id; a group goes when all its trials have.

    Groups of two tenants are two, however they are called: nobody judges trials of others.
    """
    hidden: dict[str, None] = field(default_factory=dict)
    """Jobs that the scheduler below does not see."""
    shown: frozenset[str] = frozenset()
    """Jobs that the scheduler below saw at its last plan."""
    wake_s: float | None = None
    """When the scheduler below wants to be called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """`planner` schedules, `rule` judges trials every `look_s`."""

    planner: Planner
    rule: Rule
    look_s: float = 60.0

    def plan(self, view: View, draft: Draft) -> None:
        """Judge the trials, then let the scheduler below plan for those that go on."""
        memory: _Memory = view.memory.setdefault("search", _Memory())
        self._look(memory, view)
        self._judge(memory, view, draft)
        due = memory.wake_s is not None and memory.wake_s <= view.now_s
        if due:
            memory.wake_s = None
        seen = _Seen(view, memory.hidden, memory.shown, woke=view.woke and due)
        self.planner.plan(seen, cast("Draft", _Wakes(draft, memory)))
        memory.shown = frozenset(job.id for job in seen.live())
        self._wake(memory, view, draft)

    def _look(self, memory: _Memory, view: View) -> None:
        """Note what trials reported, and which are over."""
        for job in view.left():
            for trial in _trials(memory, job):
                trial.over = True
        for job in view.live():
            if job.spec.group:
                group = memory.groups.setdefault(_group_of(job), {})
                trial = group.setdefault(job.id, SearchTrial(job.id, job.number))
                trial.over = False
                if job.loss is not None:
                    trial.see(job.progress, job.loss)
        for name in [
            n for n, group in memory.groups.items() if all(t.over for t in group.values())
        ]:
            del memory.groups[name]

    def _judge(self, memory: _Memory, view: View, draft: Draft) -> None:
        jobs = {job.id: job for job in view.live()}
        memory.hidden = {one: None for one in memory.hidden if one in jobs}
        for name in sorted(memory.groups):
            trials = list(memory.groups[name].values())
            for job_id, verdict in sorted(self.rule.judge(trials).items()):
                if job_id in jobs:
                    self._apply(verdict, jobs[job_id], memory, draft, view.now_s)

    def _apply(
        self, verdict: TrialVerdict, job: JobView, memory: _Memory, draft: Draft, now_s: float
    ) -> None:
        if verdict is TrialVerdict.GO:
            memory.hidden.pop(job.id, None)
        elif verdict is TrialVerdict.PAUSE:
            if job.id not in memory.hidden:
                draft.stop(job, StopReason.TRIAL_PAUSED)
                draft.wait(job, _awaits(job, now_s))
            memory.hidden[job.id] = None
        elif draft.end(job, StopReason.TRIAL_ENDED) is None:
            memory.hidden[job.id] = None

    def _wake(self, memory: _Memory, view: View, draft: Draft) -> None:
        """Call again when either side wants it; nothing is to be seen of trials that all wait."""
        times = [] if memory.wake_s is None else [memory.wake_s]
        if any(job.spec.group and job.wanted for job in view.live()):
            times.append(view.now_s + self.look_s)
        if times:
            draft.wake_at(min(times))


def _trials(memory: _Memory, job: JobView) -> list[SearchTrial]:
    trial = memory.groups.get(_group_of(job), {}).get(job.id)
    return [] if trial is None else [trial]


def _group_of(job: JobView) -> str:
    spec = job.spec
    return f"{spec.tenant}\n{spec.group}" if spec.tenant else spec.group


def _awaits(job: JobView, now_s: float) -> Reason:
    return Reason(
        code=ReasonCode.WAITING_FOR_TRIALS,
        since_s=now_s,
        asked=job.loss,
        unit="loss",
        unblocks=f"other trials of {job.spec.group} report theirs",
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """A view without the `hidden` jobs: who is hidden has left, who is shown again has entered.

    `before` are those that the scheduler below saw at its last plan. Only they can leave it: a job
    that lost its plan counts as entered too, and must still be told of when it is hidden.
    """

    view: View
    hidden: Mapping[str, None]
    before: Collection[str]
    woke: bool

    @property
    def now_s(self) -> float:
        return self.view.now_s

    @property
    def memory(self) -> dict[str, Any]:
        return self.view.memory

    def live(self) -> Sequence[JobView]:
        return [job for job in self.view.live() if job.id not in self.hidden]

    def entered(self) -> Sequence[JobView]:
        known = {job.id for job in self.view.entered()}
        return [job for job in self.live() if job.id in known or job.id not in self.before]

    def left(self) -> Sequence[JobView]:
        gone = [job for job in self.view.left() if job.id in self.before]
        told = {job.id for job in gone}
        hidden = [
            job
            for job in self.view.live()
            if job.id in self.hidden and job.id in self.before and job.id not in told
        ]
        return [*gone, *hidden]

    def replanned(self) -> Sequence[JobView]:
        return [job for job in self.view.replanned() if job.id not in self.hidden]

    def gpus_per_node(self) -> NDArray[np.int64]:
        return self.view.gpus_per_node()

    def gpu_total(self) -> int:
        return self.view.gpu_total()

    def usable(self) -> NDArray[np.bool_]:
        return self.view.usable()

    def drained(self) -> Collection[tuple[int, int]]:
        return self.view.drained()

    def nodes(self) -> Sequence[NodeSpec]:
        return self.view.nodes()

    def eligible(self, spec: JobSpec, role: int = 0) -> NodeMask | None:
        return self.view.eligible(spec, role)

    @property
    def rates(self) -> JobRates:
        return self.view.rates

    def steps_left(self, job: JobView) -> StepsLeft | None:
        return self.view.steps_left(job)

    def restart_time(self, job: JobView) -> RestartTime:
        return self.view.restart_time(job)

    def step_worth(self, job: JobView, gpus: int) -> StepWorth:
        """What a step of a job is worth on so many GPUs."""
        return self.view.step_worth(job, gpus)

    def past_services(self) -> PastServices:
        return self.view.past_services()

    @property
    def stopped(self) -> Mapping[str, float]:
        return self.view.stopped

    def computed(self, kind: str) -> Computed | None:
        return self.view.computed(kind)


class _Wakes:
    """A draft that keeps wake-ups back; everything else goes through."""

    def __init__(self, draft: Draft, memory: _Memory) -> None:
        self._draft, self._memory = draft, memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self._draft, name)

    def wake_at(self, at_s: float) -> None:
        """Remember when the scheduler below wants to be called."""
        self._memory.wake_s = at_s

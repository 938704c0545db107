"""What planners of a core that learns are told of jobs: steps left, restarts, rates by width."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass, field

import pytest

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.core.view import JobSpeeds
from wattherd.estimate.job_kind import job_kind
from wattherd.estimate.job_rate import JobRates, RateSource
from wattherd.estimate.learned_restarts import PRIOR, RestartTime
from wattherd.estimate.learned_steps import StepsLeft, StepsSource
from wattherd.model.event import JobProgressed, JobStarted, JobSubmitted, Woke
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.contract import Draft, JobView, Share, View
from wattherd.testing.timed_world import t4_nodes


@dataclass
class Looking:
    """Starts every job on one GPU and keeps what it was told last."""

    left: dict[str, StepsLeft | None] = field(default_factory=dict)
    restart: dict[str, RestartTime] = field(default_factory=dict)
    per_s: dict[str, float | None] = field(default_factory=dict)

    def plan(self, view: View, draft: Draft) -> None:
        for job in view.live():
            if not job.wanted:
                draft.start(job, [Share(0, 1)])
            self._look(view, job)

    def _look(self, view: View, job: JobView) -> None:
        rate = view.rates.steps_per_s(job.spec, "T4", 1)
        self.left[job.id] = view.steps_left(job)
        self.restart[job.id] = view.restart_time(job)
        self.per_s[job.id] = None if rate is None else rate.per_s


def core_of(planner: Looking, *, learns: bool = True) -> Core:
    rates = JobRates(models=("T4",), unknown_equal=True)
    return Core(CoreConfig(cluster=t4_nodes(4), planner=planner, learns=learns, job_rates=rates))


def run(core: Core, *, reports: int = 12, total: float | None = 200.0, **more: float) -> None:
    spec = JobSpec(id="a", submit_s=0.0, roles=(TaskRole(command=("train",)),))
    core.handle(JobSubmitted(at_s=0.0, job=spec))
    core.handle(JobStarted(at_s=1.0, job_id="a", attempt=1))
    for n in range(1, reports + 1):
        core.handle(
            JobProgressed(
                at_s=5.0 + 2.0 * n, job_id="a", attempt=1, progress=10.0 * n, total=total, **more
            )
        )
    core.handle(Woke(at_s=5.0 + 2.0 * reports, key="plan"))


def test_a_planner_sees_steps_left_restart_and_speed() -> None:
    planner = Looking()
    run(core_of(planner))
    assert planner.left["a"] == (80.0, StepsSource.TOTAL)
    assert planner.restart["a"] == (7.0, RateSource.LEARNED_JOB)
    assert planner.per_s["a"] == pytest.approx(5.0)


def test_a_silent_job_is_known_by_nothing_but_priors() -> None:
    planner = Looking()
    run(core_of(planner), reports=0)
    assert (planner.left["a"], planner.restart["a"], planner.per_s["a"]) == (None, PRIOR, None)


def test_the_speed_that_a_job_claims_counts_for_nothing() -> None:
    planner = Looking()
    run(core_of(planner), rate_per_s=0.0, loss=math.nan)
    assert planner.per_s["a"] == pytest.approx(5.0)


def test_a_core_that_does_not_learn_tells_nothing() -> None:
    planner = Looking()
    run(core_of(planner, learns=False))
    assert (planner.left["a"], planner.restart["a"], planner.per_s["a"]) == (None, PRIOR, None)


def known_of(speeds: JobSpeeds, core: Core) -> tuple[StepsLeft | None, RestartTime]:
    """Steps left of job `a` and what a restart costs it."""
    job = core.jobs["a"]
    left = speeds.steps.left("a", core.now_s, job.held_since_s if job.active else None)
    return left, speeds.restarts.of("a", job_kind(job.spec))


def test_what_was_learned_is_part_of_the_state() -> None:
    planner = Looking()
    core = core_of(planner)
    run(core)
    kept = pickle.loads(pickle.dumps(core.speeds))
    assert known_of(kept, core) == (planner.left["a"], planner.restart["a"])


def test_a_core_that_takes_over_knows_what_was_learned_of_its_jobs() -> None:
    planner = Looking()
    before = core_of(planner)
    run(before)
    after = core_of(Looking())
    run(after, reports=0)
    after.speeds = before.speeds.of_jobs(after.jobs)
    assert known_of(after.speeds, after) == (planner.left["a"], planner.restart["a"])

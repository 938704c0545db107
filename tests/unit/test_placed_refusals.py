"""Jobs placed one by one for whom there is room but no watts: they start when there are."""

from __future__ import annotations

import numpy as np
import pytest

from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.placement.placer import Placer
from wattherd.experiments.placement.policies import build_placer, place_policy
from wattherd.model.command import StartJob
from wattherd.model.event import BudgetChanged, JobExited, JobStarted, JobSubmitted
from wattherd.model.job import JobSpec
from wattherd.policy.schedule.per_job_placement import PerJobPlacement
from wattherd.workload.cluster_text import parse_cluster

CLUSTER = parse_cluster("1x4:T4", known=GPUS)
IDLE_W = 4 * GPUS["T4"].idle_w
FLOOR_W = 60.0
"""The least cap of a T4."""


def best_fit() -> Placer:
    draws = np.random.default_rng(0)
    return build_placer(CLUSTER, (), place_policy("best-fit"), draws=draws)


def core_at(free_w: float | None) -> Core:
    core = Core(CoreConfig(cluster=CLUSTER, planner=PerJobPlacement(best_fit)))
    tell(core, BudgetChanged(at_s=0.0, budget_w=budget_w(free_w)))
    return core


def budget_w(jobs: float | None) -> float | None:
    return None if jobs is None else IDLE_W + jobs * (FLOOR_W - GPUS["T4"].idle_w)


def tell(core: Core, event: object) -> list[str]:
    """The jobs that start, at once."""
    started = [one.job_id for one in core.handle(event) if isinstance(one, StartJob)]
    for job_id in started:
        core.handle(JobStarted(at_s=core.now_s, job_id=job_id, attempt=1))
    return started


def submit(core: Core, *names: str) -> list[str]:
    specs = [JobSpec(id=name, submit_s=0.0) for name in names]
    return [one for spec in specs for one in tell(core, JobSubmitted(at_s=0.0, job=spec))]


@pytest.mark.parametrize(("raised", "then"), [(2.0, ["b"]), (3.0, ["b", "c"]), (None, ["b", "c"])])
def test_a_raised_budget_starts_those_it_has_watts_for_in_order(
    raised: float | None, then: list[str]
) -> None:
    core = core_at(1.0)
    assert submit(core, "a", "b", "c") == ["a"]
    assert core.jobs["b"].reason is not None
    assert "Power" in str(core.jobs["b"].reason.code)
    assert tell(core, BudgetChanged(at_s=1.0, budget_w=budget_w(raised))) == then


def test_watts_given_back_start_the_next_one() -> None:
    core = core_at(1.0)
    submit(core, "a", "b", "c")
    assert tell(core, JobExited(at_s=1.0, job_id="a", attempt=1)) == ["b"]


def test_all_that_wait_alike_are_told_the_same_reason() -> None:
    core = core_at(1.0)
    submit(core, "a", "b", "c")
    tell(core, BudgetChanged(at_s=1.0, budget_w=budget_w(1.5)))
    told = {core.jobs[name].reason.text() for name in ("b", "c")}  # type: ignore[union-attr]
    assert len(told) == 1
    assert "25 W" in told.pop()

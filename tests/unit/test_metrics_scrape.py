"""What a scrape reads: little time of the core, sensors that are silent, jobs of one's own only."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="the extra `server` is not installed")

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.model.event import BudgetChanged, JobStarted, JobSubmitted, NodeLost
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.schedule.drf import Drf
from wattherd.server.api.metrics import Moment, last_heard_s, moment_of
from wattherd.server.documents.documents import SiteView
from wattherd.server.hardware.draw import DrawBook, DrawSample
from wattherd.server.journal.job_history import PastJob
from wattherd.testing.timed_world import t4_nodes


def a_job(number: int, gpus: int = 1, tenant: str = "a") -> JobSpec:
    roles = (TaskRole(count=gpus),)
    return JobSpec(id=f"j-{number}", submit_s=0.0, roles=roles, tenant=tenant, queue="q")


def a_look(*specs: JobSpec, nodes: int = 1) -> SiteView:
    core = Core(CoreConfig(cluster=t4_nodes(*[8] * nodes), planner=Drf(), round_s=3600.0))
    history: dict[str, Any] = {}
    for spec in specs:
        core.handle(JobSubmitted(at_s=0.0, job=spec))
        history[spec.id] = PastJob(
            spec=spec, paper={"name": "n"}, by="ann", progress=1.0, total=4.0
        )
    core.handle(BudgetChanged(at_s=1.0, budget_w=5e3))
    machine: Any = SimpleNamespace()
    return SiteView(core, history, DrawBook(), machine, 0.0)


def nobody(spec: JobSpec) -> bool:
    del spec
    return False


def test_jobs_are_counted_by_state_reason_and_queue() -> None:
    look = a_look(*(a_job(n, gpus=4) for n in range(5)))
    look.core.handle(JobStarted(at_s=1.0, job_id="j-0", attempt=1))
    found = moment_of(look, nobody)
    assert sum(found.jobs.values()) == 5
    assert sum(found.pending.values()) == sum(
        count for (state, _), count in found.jobs.items() if state == "Queued"
    )
    assert found.budget_w == 5e3
    assert found.nodes == {"ready": 1, "lost": 0}
    look.core.handle(NodeLost(at_s=2.0, node="n0"))
    assert moment_of(look, nobody).nodes == {"ready": 0, "lost": 1}


def test_only_jobs_that_a_caller_sees_are_named() -> None:
    look = a_look(a_job(1), a_job(2, tenant="b"))
    found = moment_of(look, lambda spec: spec.tenant == "b")
    assert [owner[0] for owner in found.owners] == ["j-2"]
    assert found.progress == {"j-2": 0.25}
    assert moment_of(look, nobody).owners == []


def test_a_scrape_of_ten_thousand_jobs_takes_little_time_of_the_core() -> None:
    look = a_look(*(a_job(n) for n in range(10_000)))
    taken: list[float] = []
    found = Moment()
    for _ in range(5):
        begun_s = time.process_time()
        found = moment_of(look, nobody)
        taken.append(time.process_time() - begun_s)
    assert sum(found.jobs.values()) == 10_000
    assert min(taken) < 0.1


def sample(at_s: float, stated: str) -> DrawSample:
    return DrawSample(at_s=at_s, draw_w=1.0, budget_w=None, by_job={}, stated=stated)


def test_a_silent_device_makes_a_sensor_old() -> None:
    assert last_heard_s([sample(1.0, "measured"), sample(2.0, "measured")]) == 2.0
    assert last_heard_s([sample(1.0, "measured"), sample(2.0, "worst case")]) == 1.0
    assert last_heard_s([sample(3.0, "worst case"), sample(4.0, "worst case")]) == 3.0

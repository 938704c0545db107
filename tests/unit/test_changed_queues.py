"""Queues and tenants' limits that change under a core at work: nothing runs anew, replay agrees."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from wattherd.engine.core.core import Core
from wattherd.local.devices import slots
from wattherd.model.command import FinishJob, RejectJob, StartJob, StopJob, WakeAt
from wattherd.model.event import JobStarted, JobSubmitted, QueuesChanged, TenantLimited, Woke
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.reason import ReasonCode
from wattherd.server.journal.replay_state import ReplayState
from wattherd.server.journal.snapshot_codec import FrozenState, freeze, thaw
from wattherd.server.journal.succession import succeed
from wattherd.server.settings.blueprint import Blueprint
from wattherd.server.settings.config import ServeConfig
from wattherd.store.event_log import event_of, plain


def tree(**guaranteed: float) -> dict[str, Any]:
    children = [
        {"name": name, "guaranteed_pct": part, "user_limit_factor": 9}
        for name, part in guaranteed.items()
    ]
    return {"name": "root", "children": children}


def blueprint(queues: Any, policy: str = "capacity") -> Blueprint:
    config = ServeConfig.model_validate({"policy": policy, "queues": queues})
    return Blueprint.of(config, slots("here", 4))


def core_of(queues: Any = None, policy: str = "capacity") -> Core:
    found = blueprint(queues or tree(prod=50, dev=50), policy)
    return Core(found.core_config(found.scheduler()))


def a_job(job_id: str, *, gpus: int = 1, **more: Any) -> JobSpec:
    role = TaskRole(count=gpus, gpu_count=1, command=("true",))
    return JobSpec(id=job_id, submit_s=0.0, roles=(role,), user="ann", **more)


def tell(core: Core, *events: Any) -> list[Any]:
    """Hand events in, and wake the core as it asks for."""
    said = [command for event in events for command in core.handle(event)]
    for command in list(said):
        if isinstance(command, WakeAt) and command.at_s <= core.now_s:
            said += core.handle(Woke(at_s=core.now_s, key=command.key))
    return said


def started(said: list[Any]) -> list[str]:
    return [one.job_id for one in said if isinstance(one, StartJob)]


def test_a_change_starts_what_may_now_run_and_stops_nothing() -> None:
    core = core_of(tree(prod=50, dev=50))
    said = tell(core, JobSubmitted(at_s=0.0, job=a_job("j-1", gpus=2, queue="prod")))
    tell(core, JobStarted(at_s=1.0, job_id="j-1", attempt=1))
    assert started(said) == ["j-1"]
    refused = core.handle(JobSubmitted(at_s=2.0, job=a_job("j-2", queue="lab")))
    assert [type(one) for one in refused] == [RejectJob]
    changed = tell(core, QueuesChanged(at_s=3.0, queues=tree(prod=40, dev=40, lab=20)))
    assert not [one for one in changed if isinstance(one, StopJob | FinishJob)]
    said = tell(core, JobSubmitted(at_s=4.0, job=a_job("j-3", queue="lab")))
    assert started(said) == ["j-3"]
    assert core.jobs["j-1"].attempt == 1


def test_the_event_survives_the_journal() -> None:
    event = QueuesChanged(at_s=3.0, queues=tree(prod=40, dev=60), cause="set dev")
    assert event_of(plain(event), "here") == event
    limit = TenantLimited(at_s=3.0, tenant="a", most_gpus=None)
    assert event_of(plain(limit), "here") == limit


def test_a_snapshot_remembers_the_queues_of_its_time() -> None:
    core = core_of()
    tell(core, QueuesChanged(at_s=1.0, queues=tree(lab=100)))
    found = blueprint(tree(prod=50, dev=50))
    body = freeze(FrozenState(core, ReplayState(), {}, 0))
    again = thaw(body, found.core_config(found.scheduler())).core
    said = [
        tell(one, JobSubmitted(at_s=2.0, job=a_job("j-1", queue="lab"))) for one in (core, again)
    ]
    assert started(said[0]) == started(said[1]) == ["j-1"]
    assert again.queues == tree(lab=100)


def test_whoever_takes_over_keeps_limits_and_queues() -> None:
    core = core_of()
    tell(core, QueuesChanged(at_s=1.0, queues=tree(lab=100)))
    tell(core, TenantLimited(at_s=1.0, tenant="a", most_gpus=1))
    tell(core, JobSubmitted(at_s=2.0, job=a_job("j-1", queue="lab", tenant="a")))
    state, said = succeed(FrozenState(core, ReplayState(), {}, 0), core_of(), core.queues)
    assert not [one for one in said if isinstance(one, RejectJob)]
    assert (state.core.limits, state.core.queues) == ({"a": 1}, tree(lab=100))


@pytest.mark.parametrize("policy", ["capacity", "fifo-backfill", "drf", "srtf"])
def test_a_tenant_never_gets_more_than_its_limit(policy: str) -> None:
    core = core_of(policy=policy)
    tell(core, TenantLimited(at_s=0.0, tenant="a", most_gpus=2))
    said = []
    for number in range(3):
        job = a_job(f"a-{number}", queue="prod", tenant="a", duration_s=60)
        said += tell(core, JobSubmitted(at_s=1.0, job=job))
    said += tell(core, JobSubmitted(at_s=2.0, job=a_job("b-1", queue="dev", tenant="b")))
    assert sorted(started(said)) == ["a-0", "a-1", "b-1"]  # those behind are not held up
    reason = core.jobs["a-2"].reason
    assert reason is not None
    assert (reason.code, reason.in_use) == (ReasonCode.QUOTA_EXCEEDED, 2)
    assert started(tell(core, TenantLimited(at_s=3.0, tenant="a", most_gpus=3))) == ["a-2"]
    tell(core, TenantLimited(at_s=4.0, tenant="a", most_gpus=0))
    assert sum(job.active for job in core.jobs.values()) == 4  # what runs goes on

"""Gavel's rounds: who is furthest behind runs, newcomers wait for new shares, leases go on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.core.invariants import validate
from wattherd.errors import UserError
from wattherd.estimate.throughput_table import ThroughputTable
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import Command, Compute, StartJob, StopJob
from wattherd.model.event import Event, JobExited, JobSubmitted, NodeLost, NodeReturned
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.reason import ReasonCode, StopReason
from wattherd.policy.schedule.gavel import Gavel, GavelAccount, WorkerTypeShuffle
from wattherd.policy.schedule.gavel_lp import KIND
from wattherd.sim.gavel_plant import GavelPlant
from wattherd.sim.world import RunRecording, SimWorld

TABLE = ThroughputTable(
    {
        "v100": {("m", 1): 2.0, ("m", 2): 4.0},
        "p100": {("m", 1): 1.0, ("m", 2): 2.0},
    },
    {},
)


def nodes(**count: int) -> ClusterSpec:
    models = {"v100": "V100M16", "p100": "P100"}
    return ClusterSpec(
        tuple(
            NodeSpec(name=f"{name}{i}", cpu_milli=0, memory_mib=0, gpu_count=1,
                     gpu_model=models[name])
            for name, many in count.items()
            for i in range(many)
        )
    )  # fmt: skip


def a_job(name: str, at_s: float = 0.0, steps: int = 1000, gpus: int = 1) -> JobSpec:
    roles = (TaskRole(count=gpus),)
    return JobSpec(id=name, submit_s=at_s, roles=roles, profile="m", steps=steps)


def evenly(payload: Any) -> Any:
    """Everybody the same share of every type, as much as fits."""
    jobs, types = len(payload["rates"]), len(payload["gpus"])
    share = min(1.0, min(payload["gpus"]) / sum(payload["scale"])) / types
    return {"shares": [[share] * types] * jobs, "objective": 0.0}


def run(
    planner: Gavel,
    cluster: ClusterSpec,
    jobs: Sequence[JobSpec],
    events: Sequence[Event] = (),
    computer: Any = evenly,
) -> tuple[RunRecording, Core]:
    core = Core(CoreConfig(cluster=cluster, planner=planner))
    given = [*events, *(JobSubmitted(at_s=job.submit_s, job=job) for job in jobs)]
    plant = GavelPlant(TABLE, cluster, round_s=360.0)
    world = SimWorld(core, plant, given, computers={KIND: computer})
    handle = core.handle

    def checked(event: Event) -> list[Command]:
        commands = handle(event)
        validate(core)
        return commands

    core.handle = checked  # type: ignore[method-assign]
    return world.run(), core


def ends(recording: RunRecording) -> dict[str, float]:
    return {e.job_id: e.at_s for e in recording.events if isinstance(e, JobExited)}


def starts(recording: RunRecording) -> list[str]:
    return [c.job_id for c in recording.commands if isinstance(c, StartJob)]


FIFO = Gavel(table=TABLE, goal="fifo")


# --- rounds ----------------------------------------------------------------------------------


def test_a_job_alone_keeps_its_lease_until_done() -> None:
    recording, _ = run(FIFO, nodes(v100=1, p100=1), [a_job("a", steps=2000)])
    assert ends(recording) == {"a": 1000.0}
    assert starts(recording) == ["a"]


def test_jobs_take_turns_on_what_they_share() -> None:
    jobs = [a_job("a", steps=1440), a_job("b", steps=1440)]
    recording, _ = run(Gavel(table=TABLE), nodes(v100=1), jobs)
    assert starts(recording) == ["a", "b", "a", "b"]
    assert ends(recording) == {"a": 1080.0, "b": 1440.0}
    why = [command.reason for command in recording.commands if isinstance(command, StopJob)]
    assert why == [StopReason.PREEMPTED_FOR_PRIORITY] * 2


def test_a_freed_device_waits_for_the_next_round() -> None:
    jobs = [a_job("a", steps=100), a_job("b", steps=1440)]
    recording, _ = run(Gavel(table=TABLE), nodes(v100=1), jobs)
    # The round of a is over when a is: nobody else works in it.
    assert ends(recording) == {"a": 50.0, "b": 770.0}


def test_a_newcomer_waits_for_new_shares_and_is_told_so() -> None:
    jobs = [a_job("a", steps=20_000), a_job("b", 100.0, steps=200)]
    cluster = nodes(v100=1, p100=1)
    core = Core(CoreConfig(cluster=cluster, planner=FIFO))
    given = [JobSubmitted(at_s=job.submit_s, job=job) for job in jobs]
    world = SimWorld(core, GavelPlant(TABLE, cluster, round_s=360.0), given)
    world.run(until_s=350.0)
    reason = core.jobs["b"].reason
    assert reason is not None
    assert reason.code is ReasonCode.WAITING_FOR_GPUS
    assert "next round at 360 s" in reason.unblocks
    recording = world.run()
    # Shares are worked out anew at 1800 s at the earliest if they were at 0; at 0 they may always
    # be, so b is seen at 360 s already. A third job must wait.
    assert ends(recording)["b"] == 360.0 + 200.0
    late = [*jobs, a_job("c", 400.0, steps=200)]
    recording, _ = run(FIFO, cluster, late)
    assert ends(recording)["c"] == 2520.0 + 200.0


def test_large_jobs_wait_without_blocking_and_get_one_type_only() -> None:
    jobs = [a_job("big", gpus=2, steps=1440), a_job("small", steps=1440)]
    recording, _ = run(Gavel(table=TABLE), nodes(v100=1, p100=2), jobs)
    big = next(c for c in recording.commands if isinstance(c, StartJob) and c.job_id == "big")
    assert sorted(allocation.node for allocation in big.allocations) == [1, 2]


def test_a_job_that_no_type_can_hold_is_told_at_once() -> None:
    _, core = run(FIFO, nodes(v100=1, p100=1), [a_job("wide", gpus=2), a_job("a")])
    reason = core.jobs["wide"].reason
    assert reason is not None
    assert (reason.code, reason.asked, reason.available) == (ReasonCode.NEVER_FITS, 2, 1)


def test_a_lost_node_moves_the_job_and_shares_follow_the_cluster() -> None:
    asked: list[list[int]] = []

    def noted(payload: Any) -> Any:
        asked.append(payload["gpus"])
        return evenly(payload)

    lost = [NodeLost(at_s=400.0, node="v1000"), NodeReturned(at_s=3000.0, node="v1000")]
    planner, jobs = Gavel(table=TABLE), [a_job("a", steps=8000)]
    recording, _ = run(planner, nodes(v100=1, p100=1), jobs, lost, noted)
    assert set(ends(recording)) == {"a"}
    assert asked[0] == [1, 1]
    assert [1, 0] in asked


def test_old_shares_hold_where_no_answer_was_found() -> None:
    answers = iter([True, False, True, True])

    def moody(payload: Any) -> Any:
        return evenly(payload) if next(answers) else None

    jobs = [a_job("a", steps=9000), a_job("b", 100.0, steps=360)]
    recording, _ = run(Gavel(table=TABLE), nodes(v100=1, p100=1), jobs, (), moody)
    assert set(ends(recording)) == {"a", "b"}
    assert sum(isinstance(command, Compute) for command in recording.commands) >= 3


# --- idle times ------------------------------------------------------------------------------

IDLE = [
    a_job("a", 2000.0, steps=400),
    a_job("b", 2100.0, steps=400),
    a_job("c", 9000.0, steps=400),
]
"""a is allotted at 2000 s and ends at 2200 s; b comes too late for that and is alone then."""


def test_an_idle_cluster_has_shares_worked_out_at_once() -> None:
    recording, _ = run(FIFO, nodes(v100=1, p100=1), IDLE)
    assert ends(recording) == {"a": 2200.0, "b": 2400.0, "c": 9200.0}


def test_the_published_simulator_waits_for_the_next_submission() -> None:
    planner = Gavel(table=TABLE, goal="fifo", last_submit_s=9000.0)
    recording, _ = run(planner, nodes(v100=1, p100=1), IDLE)
    # At 9000 s both are allotted, b first: it takes the faster type.
    assert ends(recording) == {"a": 2200.0, "b": 9200.0, "c": 9400.0}


# --- the account -----------------------------------------------------------------------------


def test_priority_is_the_share_over_the_fraction_of_time_received() -> None:
    account = GavelAccount(types=1, half_round_s=180.0)
    account.enter("a", 0)
    account.enter("b", 1)
    account.reset(0.0)
    account.grant({"a": [0.75], "b": [0.25]})
    account.book("b", 0, 360.0)
    one, two = account.standings["a"], account.standings["b"]
    assert account.priority(one, 0) == pytest.approx(0.75 / (180 / 720))
    assert account.priority(two, 0) == pytest.approx(0.25 / (540 / 720))
    assert [standing.job_id for _, standing in account.ranked(0)] == ["a", "b"]


def test_what_was_owed_and_not_received_is_carried_over() -> None:
    account = GavelAccount(types=1, half_round_s=180.0)
    account.enter("a", 0)
    account.enter("b", 1)
    account.reset(0.0)
    account.grant({"a": [0.5], "b": [0.5]})
    account.book("a", 0, 720.0)
    account.reset(1000.0)
    assert account.standings["a"].deficit_s == [500.0 - 720.0]
    assert account.standings["b"].deficit_s == [500.0]
    assert account.standings["a"].received_s == [180.0]
    assert account.received_s == [360.0]
    # Equal priorities: the larger deficit decides, then the share, then who came first.
    assert [standing.job_id for _, standing in account.ranked(0)] == ["b", "a"]


def test_who_has_no_share_comes_last() -> None:
    account = GavelAccount(types=1, half_round_s=180.0)
    for number, name in enumerate("abc"):
        account.enter(name, number)
    account.grant({"b": [0.5], "c": [0.0]})
    ranked = [(priority, standing.job_id) for priority, standing in account.ranked(0)]
    assert ranked == [(0.5e9, "b"), (0.0, "a"), (0.0, "c")]


@pytest.mark.parametrize("seed", [0, 1, 42])
def test_orders_are_those_of_the_published_generator(seed: int) -> None:
    published = random.Random()
    published.seed(seed + 5)
    ours = WorkerTypeShuffle(seed)
    for _ in range(500):
        types = ["v100", "p100", "k80"]
        published.shuffle(types)
        assert ours.shuffled(["v100", "p100", "k80"]) == types


def test_an_unknown_goal_is_refused() -> None:
    with pytest.raises(UserError, match="no Gavel goal 'fastest'"):
        Gavel(table=TABLE, goal="fastest")

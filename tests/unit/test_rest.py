"""Nodes that sleep when idle and wake when needed, in the core and in the simulated world."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.errors import UserError
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import Command, SleepNode, StartJob, WakeAt, WakeNode
from wattherd.model.event import (
    Event,
    JobExited,
    JobSubmitted,
    NodeAsleep,
    NodeAwake,
    NodeLost,
    NodeReturned,
    Woke,
)
from wattherd.policy.rebalance.sleep import AfterIdle
from wattherd.policy.schedule.drf import Drf
from wattherd.sim.machines import SwitchTimes
from wattherd.sim.meter import EnergyMeter
from wattherd.sim.world import SimWorld
from wattherd.testing.timed_world import TimedPlant, timed

T4_IDLE_W, T4_MAX_W = 10.0, 70.0


def two_nodes(idle_w: float = 0.0) -> ClusterSpec:
    return ClusterSpec(
        tuple(
            NodeSpec(
                name=name,
                cpu_milli=8000,
                memory_mib=8000,
                gpu_count=2,
                gpu_model="T4",
                idle_w=idle_w,
            )
            for name in ("a", "b")
        )
    )


def a_core(after_s: float = 60.0, spare: int = 0) -> Core:
    sleep = AfterIdle(after_s=after_s, spare=spare)
    return Core(CoreConfig(cluster=two_nodes(), planner=Drf(), sleep=sleep))


def names(commands: list[Command], kind: type[SleepNode | WakeNode]) -> list[str]:
    return [one.node for one in commands if isinstance(one, kind)]


def asleep_core() -> Core:
    """Both nodes have been off since 60 s."""
    core = a_core()
    core.handle(NodeReturned(at_s=0.0, node="a"))
    assert names(core.handle(Woke(at_s=60.0, key="rest")), SleepNode) == ["a", "b"]
    for name in ("a", "b"):
        core.handle(NodeAsleep(at_s=61.0, node=name))
    assert core.rest.asleep == (0, 1)
    return core


def test_idle_nodes_are_looked_at_when_their_time_has_come() -> None:
    commands = a_core(after_s=60.0).handle(NodeReturned(at_s=5.0, node="a"))
    assert [c.at_s for c in commands if isinstance(c, WakeAt)] == [65.0]


def test_a_job_waits_until_its_node_is_awake() -> None:
    core = asleep_core()
    commands = core.handle(JobSubmitted(at_s=100.0, job=timed("j", 2)))
    (woken,) = names(commands, WakeNode)
    assert not [c for c in commands if isinstance(c, StartJob)]
    assert core.rest.waking == (("a", "b").index(woken),)
    started = core.handle(NodeAwake(at_s=220.0, node=woken))
    assert [c.job_id for c in started if isinstance(c, StartJob)] == ["j"]


def test_a_node_that_is_still_falling_asleep_is_woken_once_it_sleeps() -> None:
    core = a_core()
    core.handle(NodeReturned(at_s=0.0, node="a"))
    core.handle(Woke(at_s=60.0, key="rest"))
    first = core.handle(JobSubmitted(at_s=61.0, job=timed("j", 2)))
    assert names(first, WakeNode) == []
    commands = core.handle(NodeAsleep(at_s=70.0, node="a"))
    commands += core.handle(NodeAsleep(at_s=70.0, node="b"))
    assert len(names(commands, WakeNode)) == 1


def test_late_and_foreign_news_change_nothing() -> None:
    core = asleep_core()
    for event in (
        NodeAwake(at_s=62.0, node="a"),
        NodeAsleep(at_s=62.0, node="b"),
        NodeAwake(at_s=62.0, node="unheard-of"),
    ):
        assert core.handle(event) == []
    assert core.rest.asleep == (0, 1)


def test_a_lost_node_is_awake_when_it_returns() -> None:
    core = asleep_core()
    core.handle(NodeLost(at_s=70.0, node="a"))
    assert core.rest.asleep == (1,)
    core.handle(NodeReturned(at_s=80.0, node="a"))
    commands = core.handle(JobSubmitted(at_s=81.0, job=timed("j", 2)))
    assert [c.job_id for c in commands if isinstance(c, StartJob)] == ["j"]


def test_a_spare_node_stays_on() -> None:
    core = a_core(spare=1)
    core.handle(NodeReturned(at_s=0.0, node="a"))
    assert names(core.handle(Woke(at_s=60.0, key="rest")), SleepNode) == ["a"]


@pytest.mark.parametrize(("after_s", "spare"), [(-1.0, 0), (float("nan"), 0), (1.0, -1)])
def test_a_rest_that_makes_no_sense_is_refused(after_s: float, spare: int) -> None:
    with pytest.raises(UserError, match="sleep"):
        AfterIdle(after_s=after_s, spare=spare)


@given(
    st.dictionaries(st.integers(0, 9), st.floats(0, 100), max_size=8),
    st.integers(0, 3),
    st.floats(0, 200),
)
def test_whoever_is_due_at_the_next_time_is_tired_then(
    idle_since_s: dict[int, float], spare: int, after_s: float
) -> None:
    policy = AfterIdle(after_s=after_s, spare=spare)
    next_s = policy.next_s(idle_since_s)
    if next_s is None:
        assert len(idle_since_s) <= spare
    else:
        assert policy.tired(idle_since_s, next_s)


# --- the world -------------------------------------------------------------------------------


def test_energy_of_a_night_with_one_job() -> None:
    """Two nodes of 2 x 10 W idle GPUs and 30 W beside; off from 110 s on, one on at 500 s."""
    core = Core(CoreConfig(cluster=two_nodes(30.0), planner=Drf(), sleep=AfterIdle(after_s=100.0)))
    meter = EnergyMeter(core, boot_j=1000.0)
    job = timed("j", 2, at_s=500.0, lasts_s=1000.0)
    events: list[Event] = [NodeReturned(at_s=0.0, node="a"), JobSubmitted(at_s=500.0, job=job)]
    switch = SwitchTimes(sleep_s=10.0, wake_s=50.0)
    world = SimWorld(core, TimedPlant(), events, watchers=[meter], switch=switch)
    recording = world.run()
    exits = [event.at_s for event in recording.events if isinstance(event, JobExited)]
    assert exits == [1550.0]
    energy = meter.energy_j()
    gpus_w, rest_w = 2 * T4_IDLE_W, 30.0
    assert energy["run"] == pytest.approx(2 * T4_MAX_W * 1000)
    assert energy["wake"] == pytest.approx((gpus_w + rest_w) * 50 + 1000)
    # Both nodes for 110 s, the machine beside its busy GPUs, and 110 s until it sleeps again.
    assert energy["idle"] == pytest.approx(2 * 50 * 110 + rest_w * 1000 + 50 * 110)
    assert core.rest.asleep == (0, 1)


def test_without_a_policy_nothing_sleeps() -> None:
    core = Core(CoreConfig(cluster=two_nodes(), planner=Drf()))
    world = SimWorld(core, TimedPlant(), [JobSubmitted(at_s=0.0, job=timed("j", 1))])
    kinds = {type(command) for command in world.run().commands}
    assert SleepNode not in kinds
    assert core.rest.asleep == ()

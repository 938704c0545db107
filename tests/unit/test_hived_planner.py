"""HiveD on a running cluster: guarantees, opportunistic jobs, lazy preemption, broken nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wattherd.errors import UserError
from wattherd.model.command import RejectJob, StartJob
from wattherd.model.event import (
    DeviceDrained,
    DeviceReturned,
    NodeLost,
    NodeReturned,
    QueueStopped,
)
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.reason import ReasonCode
from wattherd.model.topology import chains_of
from wattherd.policy.queue.tree import CapacityQueue, QueueTree
from wattherd.policy.schedule.hived import HiveD, everything_for, promised_shares
from wattherd.testing.timed_world import Story, t4_nodes, timed

CLUSTER = t4_nodes(4, 4)
HALVES = {"a": {"T4x4": {"node": 1}}, "b": {"T4x4": {"node": 1}}}


def hived(shares: dict[str, dict[str, dict[str, int]]] | None = None, **more: bool) -> HiveD:
    chains = chains_of(CLUSTER, within={4: (2, 2)})
    return HiveD(chains=chains, shares=shares or HALVES, **more)


def story(jobs: list[object], planner: HiveD | None = None, **more: object) -> Story:
    planner = planner or hived()
    return Story(planner, CLUSTER, jobs, quota=planner, **more)  # type: ignore[arg-type]


def test_a_guaranteed_job_gets_its_cells_from_opportunistic_ones_at_once() -> None:
    jobs = [timed(f"o{n}", 4, queue="b", priority=-1, lasts_s=60.0) for n in range(2)]
    told = story([*jobs, timed("g", 4, queue="a", at_s=10.0)])
    assert told.starts("g") == [10.0]
    stops = told.stops("o0") + told.stops("o1")
    assert stops == [10.0]
    assert len(told.starts("o0") + told.starts("o1")) == 3


def test_sharing_is_no_anomaly_the_neighbour_never_makes_me_wait() -> None:
    """Ten jobs of b and an opportunistic crowd: a's job starts when it is submitted."""
    crowd = [timed(f"o{n}", 1, queue="b", priority=-1, at_s=float(n)) for n in range(30)]
    of_b = [timed(f"b{n}", 2, queue="b", at_s=2.0 * n) for n in range(10)]
    of_a = [timed(f"a{n}", 4, queue="a", at_s=7.0 + 100.0 * n, lasts_s=50.0) for n in range(3)]
    told = story([*crowd, *of_b, *of_a])
    assert [told.starts(f"a{n}") for n in range(3)] == [[7.0], [107.0], [207.0]]


def test_a_virtual_cluster_cannot_take_more_than_its_cells_but_may_ask_for_idle_ones() -> None:
    jobs = [timed("a0", 4, queue="a"), timed("a1", 4, queue="a")]
    told = story(jobs, until_s=50.0)
    assert told.running() == {"a0": 4}
    assert told.why("a1") == (
        "QuotaExceeded: asked 4 GPUs, in use 4 GPUs, available 0 GPUs "
        "(virtual cluster 'a' has no cells free for it)"
    )
    lent = story([jobs[0], timed("o", 4, queue="a", priority=-1)], until_s=50.0)
    assert lent.running() == {"a0": 4, "o": 4}


def test_a_downgraded_job_goes_on_until_its_place_is_needed() -> None:
    jobs = [
        timed("low", 4, queue="a", lasts_s=500.0),
        timed("high", 4, queue="a", priority=5, at_s=10.0, lasts_s=500.0),
        timed("other", 4, queue="b", at_s=20.0, lasts_s=30.0),
    ]
    told = story(jobs)
    assert told.starts("high") == [10.0]
    assert told.starts("other") == [20.0]
    assert told.stops("low") == [20.0]
    assert told.starts("low") == [0.0, 510.0]  # guaranteed again when its cell is free
    eager = story(jobs, hived(lazy=False))
    assert eager.stops("low") == [10.0]


def test_a_wide_gang_is_not_overtaken_for_ever_by_narrow_ones() -> None:
    stream = [timed(f"s{n}", queue="a", at_s=5.0 * n, lasts_s=18.0) for n in range(100)]
    told = story([*stream, timed("wide", 4, queue="a", at_s=50.0)])
    assert told.starts("wide")[0] <= 50.0 + 2 * 18.0


def test_a_single_virtual_cluster_may_have_everything() -> None:
    chains = chains_of(CLUSTER, within={4: (2, 2)}, per_rack=2)
    shares = everything_for("all", chains)
    assert shares == {"all": {"T4x4-racks": {"rack": 1}}}
    planner = HiveD(chains=chains, shares=shares)
    assert story([timed("g", 8, queue="all")], planner, until_s=1.0).running() == {"g": 8}


def test_queues_have_the_cells_that_they_are_promised_the_largest_first() -> None:
    """Of 8 GPUs: five are a node and a GPU, a little less than three a pair, a hundredth none."""
    chains = chains_of(CLUSTER, within={4: (2, 2)})
    promised = {"a": 5 / 8, "b": 3 / 8 - 0.01, "c": 0.01}
    leaves = [
        CapacityQueue(name=name, guaranteed_pct=100 * share) for name, share in promised.items()
    ]
    tree = QueueTree(CapacityQueue(name="root", children=tuple(leaves)))
    assert promised_shares(tree, chains) == {
        "a": {"T4x4": {"node": 1, "gpu": 1}},
        "b": {"T4x4": {"2-gpu": 1}},
        "c": {"T4x4": {}},
    }
    planner = hived(promised_shares(tree, chains))
    told = story([timed("a0", 5, queue="a"), timed("b0", 2, queue="b")], planner, until_s=50.0)
    assert told.running() == {"a0": 5, "b0": 2}
    none = planner.never(JobSpec(id="c0", submit_s=0.0, queue="c"), 1, 8, 0.0)
    assert none is not None
    assert none.code is ReasonCode.NEVER_FITS


def test_what_never_fits_is_rejected_with_the_cells_there_are() -> None:
    told = story([timed("a", 5, queue="a"), timed("x", queue="x"), timed("o", 9, priority=-1)])
    details = [c.detail for _, c in told.commands if isinstance(c, RejectJob)]
    assert details == [
        "NeverFits: asked 5 GPUs (virtual cluster 'a' has 1 x node of T4x4)",
        "UnknownQueue (no virtual cluster is called 'x'; there are a, b)",
        "NeverFits: asked 9 GPUs (no node has as many)",
    ]


def test_gpus_of_a_task_are_those_of_its_cell() -> None:
    shares = {"a": {"T4x4": {"2-gpu": 2}}, "b": {"T4x4": {"node": 1}}}
    jobs = [timed(f"a{n}", queue="a", roles=(TaskRole(count=1, gpu_count=2),)) for n in range(2)]
    told = story([timed("one", queue="b"), *jobs], hived(shares), until_s=1.0)
    starts = {c.job_id: c.allocations for _, c in told.commands if isinstance(c, StartJob)}
    assert sorted((one.node, one.gpus) for n in range(2) for one in starts[f"a{n}"]) == [
        (1, (0, 1)),
        (1, (2, 3)),
    ]


def test_a_lost_node_is_bound_around_and_used_again_when_it_is_back() -> None:
    jobs = [timed("a", 4, queue="a", lasts_s=100.0), timed("b", 4, queue="b", lasts_s=100.0)]
    events = [NodeLost(at_s=10.0, node="n0"), NodeReturned(at_s=30.0, node="n0")]
    away = story(jobs, events=events, until_s=20.0)
    assert list(away.running()) == ["b"]
    assert away.why("a").endswith("has no cells free for it; 1 node lost)")
    assert story(jobs, events=events, until_s=40.0).running() == {"a": 4, "b": 4}


def test_a_drained_gpu_is_in_no_cell_until_it_is_back() -> None:
    """Two nodes of four GPUs, each with one out: three jobs of `a` run, and `b` needs a node."""
    jobs = [timed(f"a{n}", 1, queue="a", at_s=5.0) for n in range(4)]
    jobs += [timed("b", 4, queue="b", at_s=5.0)]
    out = DeviceDrained(at_s=1.0, node="n0", gpu=0)
    events = [out, replace(out, node="n1")]
    away = story(jobs, events=events, until_s=20.0)
    assert away.running() == {"a0": 1, "a1": 1, "a2": 1}, "by pairs, of which one has one GPU"
    assert "2 GPUs of others, or out of use, in no cell: n0 (1), n1 (1)" in away.why("b")
    back = DeviceReturned(at_s=30.0, node="n1", gpu=0)
    later = story(jobs, events=[*events, back], until_s=40.0)
    assert later.running()["b"] == 4


def test_tasks_without_gpus_find_room_beside_the_others() -> None:
    roles = (TaskRole(count=2), TaskRole(name="ps", count=1, gpu_count=0, cpu_milli=30_000))
    told = story([timed("g", queue="b", roles=roles)], until_s=1.0)
    ((_, start),) = [(at, c) for at, c in told.commands if isinstance(c, StartJob)]
    assert [(one.node, one.role, one.tasks) for one in start.allocations] == [(0, 0, 2), (0, 1, 1)]


def test_a_job_the_guard_refuses_leaves_everybody_where_he_is() -> None:
    """The cells are there, but another job has taken the CPU: nobody is evicted in vain."""
    hog = (TaskRole(count=1, cpu_milli=60_000),)
    jobs = [
        timed("hog0", queue="a", roles=hog),
        timed("hog1", queue="b", roles=hog),
        timed("o", 3, queue="a", priority=-1),
        timed("g", queue="b", roles=hog, at_s=10.0),
    ]
    told = story(jobs, until_s=50.0)
    assert sorted(told.running()) == ["hog0", "hog1", "o"]
    assert told.stops("o") == []
    assert told.why("g") == "Fragmented: asked 60000 milli-vCPU, available 4000 milli-vCPU"


def test_a_stopped_virtual_cluster_starts_nothing() -> None:
    jobs = [timed("a", queue="a", at_s=5.0), timed("o", queue="a", priority=-1, at_s=5.0)]
    told = story(jobs, events=[QueueStopped(at_s=1.0, queue="a")], until_s=50.0)
    assert told.running() == {}
    assert (
        told.why("a")
        == told.why("o")
        == ("QueueStopped (virtual cluster 'a' is stopped; start it)")
    )


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ({"a": {"V100": {"node": 1}}}, "virtual cluster a: unknown cell chain 'V100'"),
        ({"a": {"T4x4": {"rack": 1}}}, "cell chain T4x4: level: no level 'rack'"),
        ({"a": {"T4x4": {"node": 3}}}, "virtual cluster a: there are not enough cells of level"),
    ],
)
def test_shares_that_do_not_exist_are_refused(
    shares: dict[str, dict[str, dict[str, int]]], told: str
) -> None:
    with pytest.raises(UserError) as caught:
        hived(shares)
    assert str(caught.value).startswith(told)

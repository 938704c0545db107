"""What HiveD's feature demonstrations and its stateful tests promise, as jobs on GPUs.

The clusters are those of example/feature/file/hived-config-*.yaml of microsoft/hivedscheduler (K80
nodes of two pairs in a pool, one node of another model), the sequences those of its feature README
and of hived_algorithm_test.go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from test_hived_design import CLUSTER as DESIGN
from test_hived_design import CT1, DGX2, V100, hived, pods

from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.event import Event, NodeLost, NodeReturned
from wattherd.model.job import JobSpec
from wattherd.model.topology import stated_chain
from wattherd.policy.schedule.hived import HiveD, PinnedCell
from wattherd.testing.timed_world import Story

K80, M60 = "K80", "T4"
PAIRS = {"2-gpu": 2, "node": 2}


def nodes_of(model: str, gpus: int, *names: str) -> list[NodeSpec]:
    return [
        NodeSpec(name=name, cpu_milli=0, memory_mib=0, gpu_count=gpus, gpu_model=model)
        for name in names
    ]


POOL = ("k18", "k19", "k23", "k24")
FEATURES = ClusterSpec(tuple(nodes_of(K80, 4, *POOL) + nodes_of(M60, 4, "m26")))


def demo(others: int = 2, *, lazy: bool = True) -> HiveD:
    """VC1 has a node of each model, `default` so many K80 nodes of the four."""
    chains = (
        stated_chain(FEATURES, "K80-POOL", {**PAIRS, "pool": 4}, POOL),
        stated_chain(FEATURES, "M60-POOL", PAIRS, ["m26"]),
    )
    shares = {
        "VC1": {"K80-POOL": {"node": 1}, "M60-POOL": {"node": 1}},
        "default": {"K80-POOL": {"node": others}},
    }
    return HiveD(chains=chains, shares=shares, lazy=lazy)


def story(
    planner: HiveD,
    jobs: Sequence[JobSpec],
    cluster: ClusterSpec = FEATURES,
    events: Sequence[Event] = (),
) -> Story:
    """The jobs one second after the other, from 10 s on."""
    apart = [replace(job, submit_s=10.0 + number) for number, job in enumerate(jobs)]
    return Story(planner, cluster, apart, quota=planner, until_s=500.0, events=events)


def homes(told: Story, *names: str, cluster: ClusterSpec = FEATURES) -> set[str]:
    """The nodes that jobs were started on first."""
    return {cluster.nodes[place[0]].name for name in names for place in told.places(name)[0]}


def singles(count: int, queue: str, model: str, priority: int = 1) -> list[JobSpec]:
    return [pods(f"s{n}", queue, model, 1, priority=priority) for n in range(count)]


def test_sixteen_small_jobs_of_one_tenant_never_scatter_over_the_others_node() -> None:
    cluster = ClusterSpec(tuple(nodes_of(V100, 16, "d0", "d1")))
    shares = {name: {"DGX2": {"node": 1}} for name in ("VC1", "VC2")}
    planner = HiveD(chains=(stated_chain(cluster, "DGX2", DGX2, ["d0", "d1"]),), shares=shares)
    jobs = singles(16, "VC1", V100)
    told = story(planner, [*jobs, pods("whole", "VC2", V100, 16)], cluster)
    assert len(told.running()) == 17
    assert len(homes(told, *(job.id for job in jobs), cluster=cluster)) == 1


def test_a_pinned_node_is_for_who_names_it_and_the_others_stay_off() -> None:
    names = ["p19", "p25", "p26", "p23", "p24"]
    cluster = ClusterSpec(tuple(nodes_of(K80, 4, *names)))
    chains = (
        stated_chain(cluster, "3-K80", {**PAIRS, "3-node": 3}, names[:3]),
        stated_chain(cluster, "2-K80", {**PAIRS, "2-node": 2}, names[3:]),
    )
    planner = HiveD(
        chains=chains,
        shares={
            "VC1": {"3-K80": {"node": 1}},
            "VC2": {"3-K80": {"node": 1}},
            "default": {"2-K80": {"2-node": 1}},
        },
        pins={"VC1-K80": PinnedCell(chain="3-K80", level="node", index=1)},
    )
    jobs = [
        pods("pinned", "VC1-K80", K80, 1, 1, 1, 1),
        pods("free", "VC1", K80, 1, 1, 1, 1),
        pods("other", "VC2", K80, 4),
        pods("pair", "default", K80, 4, 4),
        pods("more", "default", K80, 1),
    ]
    told = story(planner, jobs, cluster)
    assert homes(told, "pinned", cluster=cluster) == {"p25"}
    assert homes(told, "free", "other", cluster=cluster) == {"p19", "p26"}
    assert homes(told, "pair", cluster=cluster) == {"p23", "p24"}
    assert "more" not in told.running()


@pytest.mark.parametrize(
    ("model", "priority", "running", "nodes"), [(K80, 1, 4, 1), ("", 1, 8, 2), (K80, -1, 8, 2)]
)
def test_a_model_narrows_no_model_widens_and_guests_go_beyond_what_is_promised(
    model: str, priority: int, running: int, nodes: int
) -> None:
    """Eight single jobs of who has a node of each model: the demonstrations of SKU types,
    incremental scheduling, guaranteed and opportunistic jobs."""
    told = story(demo(), singles(8, "VC1", model, priority))
    assert len(told.running()) == running
    assert len(homes(told, *told.running())) == nodes


def test_a_guest_uses_models_that_its_tenant_has_none_of() -> None:
    told = story(hived(), [pods("guest", "VC2", V100, 16, priority=-1)], DESIGN)
    assert told.starts("guest") == [10.0]


def test_a_gang_beyond_its_cells_keeps_nobody_from_starting() -> None:
    jobs = [pods("six", "VC1", K80, *[1] * 6), pods("four", "VC1", K80, *[1] * 4)]
    assert sorted(story(demo(), jobs).running()) == ["four"]


@pytest.mark.parametrize("lazy", [True, False])
def test_on_the_only_node_of_a_model_the_higher_priority_goes_first_at_once(lazy: bool) -> None:
    jobs = [pods("test", "VC1", M60, 4, priority=0), pods("prod", "VC1", M60, 4, priority=100)]
    told = story(demo(3, lazy=lazy), jobs)
    assert told.stops("test") == told.starts("prod") == [11.0]


@pytest.mark.parametrize(("lazy", "stopped"), [(True, 12.0), (False, 11.0)])
def test_who_is_downgraded_goes_when_another_tenant_wants_all_its_nodes(
    lazy: bool, stopped: float
) -> None:
    jobs = [
        pods("test", "VC1", K80, 4, priority=0),
        pods("prod", "VC1", K80, 4, priority=100),
        pods("others", "default", K80, 4, 4, 4, priority=100),
    ]
    told = story(demo(3, lazy=lazy), jobs)
    assert (told.starts("prod"), told.starts("others")) == ([11.0], [12.0])
    assert told.stops("test")[-1] == stopped if lazy else stopped in told.stops("test")
    assert not told.stops("prod")


@pytest.mark.parametrize(("wanted", "stops"), [(3, [11.0]), (2, [])])
def test_a_guest_on_two_nodes_goes_only_if_the_owner_needs_one_of_them(
    wanted: int, stops: list[float]
) -> None:
    guest = pods("guest", "VC1", K80, 4, 4, priority=-1)
    owner = pods("owner", "default", K80, *[4] * wanted, priority=100)
    told = story(demo(3), [guest, owner])
    assert told.starts("owner") == [11.0]
    assert told.stops("guest") == stops


def test_of_four_guests_one_goes_for_one_node() -> None:
    guests = [pods(f"g{n}", "VC1", K80, 4, priority=-1) for n in range(4)]
    told = story(demo(), [*guests, pods("owner", "default", K80, 4)])
    assert told.starts("owner") == [14.0]
    assert sum(len(told.stops(guest.id)) for guest in guests) == 1


def test_two_tasks_of_one_gang_are_buddies_and_so_are_the_gpus_of_one_task() -> None:
    alone = story(demo(), [pods("two", "VC1", K80, 1, 1)])
    assert [place[1:] for place in alone.places("two")[0]] == [(0,), (1,)]
    beside = story(demo(), [pods("one", "VC1", K80, 1), pods("two", "VC1", K80, 2)])
    assert [place[1:] for place in beside.places("two")[0]] == [(2, 3)]


def test_equal_priority_waits_and_takes_nothing() -> None:
    told = story(demo(), [pods("a", "VC1", M60, 4), pods("b", "VC1", M60, 4)])
    assert sorted(told.running()) == ["a"]
    assert not told.stops("a")


def test_a_job_waits_for_the_only_node_of_its_model_and_starts_when_it_is_back() -> None:
    events = [NodeLost(at_s=1.0, node="m26"), NodeReturned(at_s=50.0, node="m26")]
    told = story(demo(), [pods("x", "VC1", K80, 1), pods("m", "VC1", M60, 4)], events=events)
    assert (told.starts("x"), told.starts("m")) == ([10.0], [50.0])


def test_a_gang_that_lost_nodes_keep_waiting_does_not_keep_narrower_jobs_waiting() -> None:
    """Its two pinned nodes are one for now. No end of a job would help it, so nothing is held."""
    pinned = "VC1-YQW-DGX2"
    jobs = [pods("both", pinned, V100, 16, 16), pods("one", pinned, V100, 16)]
    lost, back = NodeLost(at_s=1.0, node="0.0.3.1"), NodeReturned(at_s=100.0, node="0.0.3.1")
    away = story(hived(), jobs, DESIGN, [lost])
    assert (away.starts("both"), away.starts("one")) == ([], [11.0])
    # Once it is back, what the gang needs is held from others again.
    later = replace(pods("late", pinned, V100, 16), submit_s=200.0)
    jobs[1] = replace(jobs[1], duration_s=200.0)
    apart = [replace(job, submit_s=10.0 + number) for number, job in enumerate(jobs)]
    planner = hived()
    told = Story(
        planner, DESIGN, [*apart, later], quota=planner, until_s=500.0, events=[lost, back]
    )
    assert (told.starts("one"), told.starts("both"), told.starts("late")) == ([11.0], [211.0], [])


def test_each_higher_priority_takes_a_pinned_cell_from_those_before_it() -> None:
    """HiveD's stateful preemption, where stops take no time: who was to come goes again, too."""
    pinned = "VC1-YQW-DGX2"
    jobs = [
        pods("p28", pinned, V100, 16, 16, priority=1),
        pods("p29", pinned, V100, 16, priority=2),
        pods("p30", pinned, V100, 16, priority=2),
        pods("p31", pinned, V100, 16, priority=2),
        pods("p32", pinned, V100, 16, 16, priority=3),
        pods("p33", pinned, V100, 16, priority=4),
    ]
    told = story(hived(lazy=False), jobs, DESIGN)
    assert told.stops("p28") == [11.0]
    assert (told.starts("p29")[0], told.starts("p30"), told.starts("p31")) == (11.0, [12.0], [])
    assert told.stops("p29") == told.stops("p30") == told.starts("p32") == [14.0]
    assert told.stops("p32") == told.starts("p33") == [15.0]
    assert homes(told, "p33", cluster=DESIGN) == {"0.0.3.0"}


@pytest.mark.parametrize(("lazy", "stops"), [(True, (12.0, None)), (False, (11.0, 12.0))])
def test_three_priorities_on_two_nodes_of_one_promised(
    lazy: bool, stops: tuple[float, float | None]
) -> None:
    """Lazily the second only downgrades the first, and the third has the first go."""
    jobs = [pods(f"p{24 + n}", "VC2", CT1, 2, priority=n) for n in range(3)]
    told = story(hived(lazy=lazy), jobs, DESIGN)
    first, second = stops
    assert told.stops("p24") == [first]
    assert told.stops("p25") == ([] if second is None else [second])
    assert told.starts("p26") == [12.0]

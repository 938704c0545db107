"""Cells, buddies and virtual clusters in small cases that can be followed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from wattherd.errors import Bug, UserError
from wattherd.model.topology import Chain, chains_of
from wattherd.policy.queue.cells import CellJournal, PhysicalCells
from wattherd.policy.queue.hive import Hive
from wattherd.policy.queue.hive_invariants import check_safety, validate
from wattherd.policy.queue.topology import TaskSite, closest, pack
from wattherd.testing.builders import a_cluster, a_node


def a_chain(**other: Any) -> Chain:
    """Racks of two nodes with four GPUs in pairs; two racks unless told."""
    fields = {
        "name": "c",
        "levels": ("gpu", "pair", "node", "rack"),
        "fanout": (2, 2, 2),
        "node_level": 2,
        "nodes": (0, 1, 2, 3),
    }
    return Chain(**{**fields, **other})


def cells(chain: Chain) -> PhysicalCells:
    physical = PhysicalCells(chain, CellJournal())
    for level in range(chain.top + 1):
        physical.promise(level, 4)  # as many as the tests take
    return physical


# --- chains ------------------------------------------------------------------------------------


def test_a_chain_knows_its_sizes() -> None:
    chain = a_chain()
    assert (chain.sizes, chain.gpus, chain.top) == ((1, 2, 4, 8), 16, 3)
    assert [chain.count(level) for level in range(4)] == [16, 8, 4, 2]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"fanout": (2, 2)}, "cell chain c: fanout: (2, 2) do not join 4 levels"),
        ({"fanout": (2, 0, 2)}, "cell chain c: fanout: (2, 0, 2) do not join 4 levels"),
        ({"node_level": 4}, "cell chain c: node_level: 4 is none of"),
        ({"nodes": (0, 1, 2)}, "cell chain c: nodes: 3 nodes do not fill cells of 2"),
        ({"nodes": ()}, "cell chain c: nodes: 0 nodes do not fill cells of 2"),
    ],
)
def test_a_chain_that_does_not_add_up_is_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as caught:
        a_chain(**wrong)
    assert str(caught.value).startswith(told)


def test_a_cluster_gives_one_chain_for_each_kind_of_node() -> None:
    nodes = [a_node(f"a{i}", gpus=8, model="A100") for i in range(5)]
    nodes += [a_node("c", gpus=0), a_node("t", gpus=1, model="T4")]
    chains = chains_of(a_cluster(*nodes), within={8: (2, 4)}, per_rack=2)
    assert [(c.name, c.levels, c.fanout, c.nodes, c.gpu_model) for c in chains] == [
        ("A100x8-racks", ("gpu", "2-gpu", "node", "rack"), (2, 4, 2), (0, 1, 2, 3), "A100"),
        ("A100x8", ("gpu", "2-gpu", "node"), (2, 4), (4,), "A100"),
        ("T4x1", ("gpu", "node"), (1,), (6,), "T4"),
    ]
    with pytest.raises(UserError, match=r"nodes with 8 x A100: within: \(2, 2\) make 4 GPUs"):
        chains_of(a_cluster(*nodes), within={8: (2, 2)})


# --- buddies -----------------------------------------------------------------------------------


def test_taking_a_small_cell_splits_all_around_it_and_giving_it_back_merges_them() -> None:
    physical = cells(a_chain())
    whole = list(physical.free_cells())
    assert whole == [(3, 0), (3, 1)]
    physical.take(0, 5)
    assert list(physical.free_cells()) == [(0, 4), (1, 3), (2, 0), (3, 1)]
    physical.take(0, 4)
    physical.take(1, 3)
    assert list(physical.free_cells()) == [(2, 0), (3, 1)]
    physical.give(1, 3)
    physical.give(0, 5)
    assert list(physical.free_cells()) == [(0, 5), (1, 3), (2, 0), (3, 1)]
    physical.give(0, 4)
    assert list(physical.free_cells()) == whole


def test_what_is_not_free_cannot_be_taken_nor_given_back_twice() -> None:
    physical = cells(a_chain())
    physical.take(2, 1)
    with pytest.raises(Bug, match="cell 3 of level 1 is not free"):
        physical.take(1, 3)
    with pytest.raises(Bug, match="cell 0 of level 2 is given back twice"):
        physical.give(2, 0)


def test_splittable_counts_what_no_promise_needs() -> None:
    """Two racks; promised are a rack, a node and three pairs: a pair may still be split."""
    hive = Hive(a_chain(), {"x": {"rack": 1, "node": 1}, "y": {"pair": 1}})
    # rack 2 - 1 = 1; node 0 - 1 + 1 x 2 = 1; pair 0 - 1 + 1 x 2 = 1; gpu 0 - 0 + 1 x 2 = 2
    assert hive.physical.splittable() == [2, 1, 1, 1]
    with pytest.raises(UserError) as caught:
        Hive(a_chain(), {"x": {"rack": 1, "node": 1}, "y": {"pair": 2, "gpu": 1}})
    assert str(caught.value) == (
        "virtual cluster y: there are not enough cells of level 'gpu' for it and those before it "
        "(hint: chain 'c' is too small)"
    )


def test_the_smallest_cell_that_will_do_is_split() -> None:
    physical = cells(a_chain())
    physical.take(2, 3)
    assert physical.find(1, lambda _: True, 1) is None  # all else is promised to racks and nodes
    for level in (2, 3):
        physical.promise(level, -physical.promised[level])
    assert physical.find(1, lambda _: True, 1) == 4  # in node 2, not in the whole rack 0


# --- places for tasks --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("able", "gpus", "found"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], 2, (0, 1)),
        ([1, 2, 4, 5], 2, (4, 5)),
        ([1, 3, 5, 7], 2, (1, 3)),
        ([0, 2, 3, 4, 5, 6], 3, (0, 2, 3)),
        ([0, 1, 2, 3, 4, 6], 2, (0, 1)),
        ([0, 4, 5, 6], 3, (4, 5, 6)),
        ([0, 1, 2, 4, 5, 6, 7], 5, (0, 1, 2, 4, 5)),
        ([0, 1], 3, ()),
    ],
)
def test_gpus_of_a_task_share_the_lowest_cell(
    able: list[int], gpus: int, found: tuple[int, ...]
) -> None:
    """A node of eight GPUs in pairs and fours; of equal cells the one with fewest to spare."""
    assert closest(able, gpus, 8, (2, 2, 2)) == found


def test_nobody_must_leave_where_an_equally_close_cell_is_idle() -> None:
    assert closest([2, 3, 0, 1], 2, 4, (2, 2), cost={0, 1}) == (2, 3)
    assert closest([3, 0, 1, 2], 2, 4, (2, 2), cost={0, 1, 2}) == (2, 3)


def test_wide_tasks_choose_first_and_full_nodes_are_filled_first() -> None:
    sites = [TaskSite((0,), 4, [0, 1, 2, 3]), TaskSite((1,), 4, [2, 3]), TaskSite((2,), 4, [1])]
    assert pack((1, 4, 2), sites, (2, 2)) == [
        ((2,), (1,)), ((0,), (0, 1, 2, 3)), ((1,), (2, 3)),
    ]  # fmt: skip
    assert pack((4, 4), sites, (2, 2)) is None


# --- virtual clusters --------------------------------------------------------------------------


def test_a_gang_stays_under_the_lowest_cell_that_holds_it() -> None:
    hive = Hive(a_chain(), {"x": {"rack": 2}})
    granted = hive.place("g", "x", (4, 4))
    assert granted is not None
    assert granted.tasks == ((0, 1, 2, 3), (4, 5, 6, 7))
    hive.place("one", "x", (1,))
    wide = hive.place("wide", "x", (2, 1))
    assert wide is not None
    # one node of rack 1 holds "one" and both tasks
    assert {gpu // 4 for task in wide.tasks for gpu in task} == {hive.jobs["one"].gpus[0] // 4}


def test_opportunistic_jobs_leave_when_a_guaranteed_one_needs_their_cell() -> None:
    hive = Hive(a_chain(), {"x": {"rack": 1}, "y": {"rack": 1}})
    for name in ("o0", "o1", "o2", "o3"):
        assert hive.borrow(name, "y", (4,)) is not None
    granted = hive.place("g", "x", (4,))
    assert granted is not None
    assert len(granted.evicted) == 1
    assert sorted([*hive.jobs]) == sorted({"o0", "o1", "o2", "o3", "g"} - set(granted.evicted))


def test_cells_with_fewer_opportunistic_gpus_are_bound_first() -> None:
    hive = Hive(a_chain(), {"x": {"node": 1}, "y": {"node": 3}})
    hive.borrow("o", "y", (2,))
    granted = hive.place("g", "x", (4,))
    assert granted is not None
    assert granted.evicted == []


def test_lazy_preemption_lets_the_victim_go_on_where_nobody_needs_its_place() -> None:
    hive = Hive(a_chain(), {"x": {"node": 1}, "y": {"node": 1}})
    hive.place("low", "x", (4,), priority=0)
    before = hive.jobs["low"].gpus
    granted = hive.place("high", "x", (4,), priority=1)
    assert granted is not None
    assert (granted.downgraded, granted.evicted) == (["low"], [])
    assert hive.jobs["low"].gpus == before
    assert set(hive.jobs["high"].gpus).isdisjoint(before)
    validate(hive)


def test_without_lazy_preemption_the_victim_leaves_at_once() -> None:
    hive = Hive(a_chain(), {"x": {"node": 1}, "y": {"node": 1}})
    hive.place("low", "x", (4,), priority=0)
    granted = hive.place("high", "x", (2,), priority=1, lazy=False)
    assert granted is not None
    assert (granted.downgraded, granted.evicted) == ([], ["low"])


def test_equal_priorities_do_not_preempt_each_other() -> None:
    hive = Hive(a_chain(), {"x": {"node": 1}})
    hive.place("first", "x", (4,), priority=1)
    assert hive.place("second", "x", (1,), priority=1) is None


def test_bad_nodes_are_shunned_while_healthy_ones_can_be_had() -> None:
    hive = Hive(a_chain(), {"x": {"node": 2}, "y": {"node": 2}})
    hive.set_health(0, healthy=False)
    for number in range(2):
        granted = hive.place(f"x{number}", "x", (4,))
        assert granted is not None
        assert 0 not in {gpu // 4 for gpu in granted.tasks[0]}
    assert hive.place("y0", "y", (4,)) is not None
    assert hive.place("y1", "y", (4,)) is None
    hive.set_health(0, healthy=True)
    assert hive.place("y1", "y", (4,)) is not None
    check_safety(hive)


def test_a_node_inside_a_bound_rack_is_bound_around_a_bad_one() -> None:
    hive = Hive(a_chain(), {"x": {"rack": 1}, "y": {"rack": 1}})
    hive.set_health(0, healthy=False)
    hive.set_health(2, healthy=False)
    granted = hive.place("g", "x", (4,))
    assert granted is not None
    assert {gpu // 4 for gpu in granted.tasks[0]} <= {1, 3}
    assert hive.place("h", "x", (4,)) is None
    hive.set_health(0, healthy=True)
    hive.set_health(2, healthy=True)
    assert hive.place("h", "x", (4,)) is not None
    validate(hive)


def test_a_whole_rack_is_bound_where_all_its_nodes_are_healthy() -> None:
    """Rack 0 has a bad node: a gang of a whole rack takes the other, though split before."""
    hive = Hive(a_chain(nodes=tuple(range(6))), {"x": {"rack": 1}, "y": {"node": 4}})
    hive.set_health(1, healthy=False)
    granted = hive.place("g", "x", (4, 4))
    assert granted is not None
    assert {gpu // 4 for task in granted.tasks for gpu in task} == {2, 3}
    check_safety(hive)


def preempting(lower: int, others: int) -> tuple[Hive, set[int]]:
    """The first cell of y is idle and can only be bound to a bad node; `lower` ones can preempt.

    Returns the nodes of those who would make room.
    """
    hive = Hive(a_chain(), {"x": {"node": others}, "y": {"node": lower + 1}})
    for number in range(others):
        assert hive.place(f"x{number}", "x", (4,)) is not None
    gone = hive.place("gone", "y", (4,))
    assert gone is not None
    low = [hive.place(f"low{number}", "y", (2, 2)) for number in range(lower)]
    used = {gpu // 4 for granted in low if granted for task in granted.tasks for gpu in task}
    assert len(used) == lower
    hive.release("gone")
    hive.set_health(gone.tasks[0][0] // 4, healthy=False)
    return hive, used


def test_a_gang_that_needs_more_nodes_than_are_healthy_waits_though_it_could_preempt() -> None:
    """Its idle cell takes the node of those who make room, whose own then finds none."""
    hive, _ = preempting(1, others=2)
    before = dict(hive.jobs)
    assert hive.place("g", "y", (1,) * 8, priority=1) is None
    assert hive.jobs == before
    assert hive.place("h", "y", (1,) * 4, priority=1) is not None
    check_safety(hive)


def test_a_gang_takes_the_nodes_of_lower_priorities_where_an_idle_cell_has_none() -> None:
    hive, used = preempting(2, others=1)
    granted = hive.place("g", "y", (4, 4), priority=1)
    assert granted is not None
    assert {gpu // 4 for task in granted.tasks for gpu in task} == used
    check_safety(hive)

"""The one way in: what it books, what it sees of others' changes, and how it draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from wattherd.engine.placement.placer import Placer
from wattherd.model.allocation import Allocation
from wattherd.model.job import Request
from wattherd.testing.builders import (
    a_cluster,
    a_node,
    a_placer,
    a_state,
    cpu_only,
    exclusive,
    sharing,
)

TWINS = a_cluster(*(a_node(f"n{n}", cpu_milli=8_000, memory_mib=100, gpus=2) for n in range(4)))
BOTH = pytest.mark.parametrize("compiled", [True, False], ids=["kernels", "definitions"])


def nodes_of(placer: Placer, requests: list[Request]) -> list[int | None]:
    found = [placer.place_one(request) for request in requests]
    return [None if one is None else one.node for one in found]


@BOTH
def test_choosing_books_nothing(compiled: bool) -> None:
    state = a_state(TWINS)
    placer = a_placer(state, "first-fit", compiled=compiled)
    chosen = placer.choose(exclusive(1_000, 2))
    assert chosen == placer.choose(exclusive(1_000, 2))
    assert chosen is not None
    assert (chosen.node, chosen.gpus) == (0, (0, 1))
    assert state.changes == 0


@BOTH
def test_placing_books_what_was_chosen(compiled: bool) -> None:
    state = a_state(TWINS)
    placer = a_placer(state, "first-fit", compiled=compiled)
    assert nodes_of(placer, [exclusive(1_000, 2)] * 5) == [0, 1, 2, 3, None]
    assert state.used_gpu_milli == 8_000
    assert nodes_of(placer, [cpu_only(7_000)]) == [0]


@BOTH
@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (cpu_only(8_001), "CPU"),
        (cpu_only(1, memory_mib=101), "memory"),
        (exclusive(1, 3), "GPUs"),
        (exclusive(1, 1, "T4"), "model"),
        (Request(cpu_milli=1, gpu_count=1, gpu_milli=1001), "more than a GPU"),
    ],
)
def test_what_fits_nowhere_gets_nothing(request_: Request, reason: str, compiled: bool) -> None:
    state = a_state(TWINS)
    assert a_placer(state, "fgd", compiled=compiled).place_one(request_) is None, reason
    assert state.changes == 0


@BOTH
def test_memory_is_not_part_of_the_score_but_of_the_choice(compiled: bool) -> None:
    """The best node by score lacks the memory: the next best one is taken."""
    state = a_state(TWINS)
    placer = a_placer(state, "best-fit", compiled=compiled)
    assert nodes_of(placer, [sharing(100, 100, memory_mib=60)] * 4) == [0, 1, 2, 3]
    assert nodes_of(placer, [sharing(100, 100, memory_mib=40)] * 4) == [0, 1, 2, 3]
    assert nodes_of(placer, [sharing(100, 100, memory_mib=1)]) == [None]
    assert nodes_of(placer, [sharing(100, 100)]) == [0]


@BOTH
def test_equal_nodes_are_taken_in_cluster_order(compiled: bool) -> None:
    state = a_state(TWINS.reordered((2, 0, 3, 1)))
    placer = a_placer(state, "best-fit", compiled=compiled)
    found = placer.place_one(exclusive(1, 2))
    assert found is not None
    assert state.cluster.nodes[found.node].name == "n2"


@BOTH
def test_changes_made_by_others_are_seen(compiled: bool) -> None:
    state = a_state(TWINS)
    placer = a_placer(state, "gpu-packing", compiled=compiled)
    other = a_placer(state, "first-fit", compiled=not compiled)
    first = placer.place_one(sharing(1_000, 300))
    assert first is not None
    assert nodes_of(other, [exclusive(1_000, 2)] * 3) == [1, 2, 3]
    assert nodes_of(placer, [sharing(1_000, 300), exclusive(1_000, 1)]) == [0, 0]
    assert nodes_of(placer, [exclusive(1_000, 1)]) == [None]
    state.release(first)
    assert nodes_of(placer, [sharing(1_000, 300)]) == [0]


@BOTH
@pytest.mark.parametrize("beyond", [-1, 0, 1, 2, 1000])
def test_a_long_absence_is_caught_up_with(beyond: int, compiled: bool) -> None:
    """As many changes as the log remembers, and more: then the shape is scored anew."""
    state = a_state(TWINS)
    placer = a_placer(state, "fgd", compiled=compiled)
    assert nodes_of(placer, [exclusive(1_000, 2)]) == [0]
    seen = state.changes - 1  # the placer has scored before it booked
    state.place(Allocation(exclusive(1, 2), 1, (0, 1)))  # the first that the log forgets
    moved = Allocation(cpu_only(1), 3)
    while state.changes - seen < len(state.log) + beyond:
        state.place(moved)
        if state.changes - seen < len(state.log) + beyond:
            state.release(moved)
    assert nodes_of(placer, [exclusive(1_000, 2)] * 3) == [2, 3, None]


@BOTH
def test_more_shapes_than_the_first_table_holds(compiled: bool) -> None:
    state = a_state(a_cluster(a_node("a", cpu_milli=10**6), a_node("b", cpu_milli=10**6)))
    placer = a_placer(state, "best-fit", compiled=compiled)
    wanted = [cpu_only(cpu) for cpu in range(200)]
    assert nodes_of(placer, wanted) == [0] * 200
    assert nodes_of(placer, wanted[:3]) == [0] * 3


# --- draws -----------------------------------------------------------------------------------


def shares(
    policy: str, *, compiled: bool, ties: bool, key: Callable[[Placer], object], count: int = 3000
) -> Counter[object]:
    state = a_state(TWINS)
    placer = a_placer(
        state, policy, compiled=compiled, random_ties=ties, draws=np.random.default_rng(1)
    )
    return Counter(key(placer) for _ in range(count))


def a_node_for_a_share(placer: Placer) -> object:
    found = placer.choose(sharing(1, 500))
    return None if found is None else found.node


def a_gpu_for_a_share(placer: Placer) -> object:
    found = placer.choose(sharing(1, 500))
    return None if found is None else found.gpus


def even(counts: Counter[object], among: int) -> bool:
    """Whether all of `among` outcomes came up within five standard deviations of evenly."""
    total = counts.total()
    slack = 5 * (total * (1 / among) * (1 - 1 / among)) ** 0.5
    return len(counts) == among and all(abs(n - total / among) < slack for n in counts.values())


@BOTH
@pytest.mark.parametrize(("policy", "ties"), [("fgd", True), ("pwr+fgd:0.1", True),
                                              ("best-fit", True), ("random", False)])  # fmt: skip
def test_random_ties_fall_evenly_on_equal_nodes(policy: str, ties: bool, compiled: bool) -> None:
    count = 3000 if compiled else 800
    found = shares(policy, compiled=compiled, ties=ties, key=a_node_for_a_share, count=count)
    assert even(found, 4)


@BOTH
def test_random_draws_the_gpu_too_and_others_do_not(compiled: bool) -> None:
    drawn = shares("random", compiled=compiled, ties=False, key=a_gpu_for_a_share, count=800)
    assert even(drawn, 2)
    kept = shares("fgd", compiled=compiled, ties=True, key=a_gpu_for_a_share, count=100)
    assert set(kept) == {(0,)}


@BOTH
def test_random_ties_never_leave_the_best_nodes(compiled: bool) -> None:
    state = a_state(TWINS)
    placer = a_placer(state, "gpu-packing", compiled=compiled, random_ties=True)
    first = placer.place_one(sharing(1, 100))
    assert first is not None
    again = {placer.choose(sharing(1, 100)) for _ in range(50)}
    assert {(one.node, one.gpus) for one in again if one} == {(first.node, first.gpus)}


def test_equal_streams_give_equal_decisions_on_both_paths() -> None:
    wanted = [sharing(100, 300), exclusive(1, 1), cpu_only(500)] * 6
    runs = [
        nodes_of(
            a_placer(a_state(TWINS), "random", compiled=compiled, draws=np.random.default_rng(7)),
            wanted,
        )
        for compiled in (True, False, True)
    ]
    assert runs[0] == runs[1] == runs[2]


@BOTH
@pytest.mark.parametrize("policy", ["fgd", "pwr+fgd:0.1", "wattherd"])
def test_among_some_nodes_the_others_might_as_well_not_be(policy: str, compiled: bool) -> None:
    """Masked nodes neither win nor count in what scores are compared with."""
    state = a_state(TWINS)
    placer = a_placer(state, policy, compiled=compiled)
    state.place(Allocation(sharing(1_000, 500), 0, (0,)))
    state.place(Allocation(exclusive(2_000, 1), 2, (1,)))
    for request in (sharing(1_000, 300), exclusive(1_000, 1), cpu_only(500)):
        among = np.ones(4, dtype=np.bool_)
        found = []
        while (chosen := placer.choose(request, among)) is not None:
            assert among[chosen.node]
            twin = a_placer(state, policy, compiled=compiled)
            state.close(np.flatnonzero(~among).tolist())
            assert twin.choose(request) == chosen
            state.close(())
            found.append(chosen.node)
            among[chosen.node] = False
        assert sorted(found) == [0, 1, 2, 3]

"""The state of the cluster: what placing and releasing change, what they refuse, and undoing."""

from __future__ import annotations

import numpy as np
import pytest

from wattherd.engine.placement.kernels import CHANGES
from wattherd.engine.placement.state import MAX_GPUS_PER_NODE, ClusterState, ShapeBook
from wattherd.errors import Bug, UserError
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

NODE = a_node(cpu_milli=8_000, memory_mib=1024, gpus=4, model="T4")
BARE = a_node("bare", cpu_milli=4_000, memory_mib=2048, gpus=0)


def a_small_state() -> ClusterState:
    return a_state(a_cluster(NODE, BARE), [sharing(1_000, 400), exclusive(2_000, 2)])


def everything(state: ClusterState) -> bytes:
    """All that a decision could depend on, as bytes (the count of changes is a clock)."""
    totals = np.delete(state.totals, CHANGES)
    return b"".join(array.tobytes() for array in (*state.world.nodes, totals))


def on(node: int, request: Request, *gpus: int) -> Allocation:
    return Allocation(request, node, gpus)


# --- what changes ----------------------------------------------------------------------------


def test_everything_is_free_at_first() -> None:
    nodes = a_small_state().world.nodes
    assert nodes.cpu_free.tolist() == [8_000, 4_000]
    assert nodes.memory_free.tolist() == [1024, 2048]
    assert nodes.gpu_free.tolist() == [[1000] * 4, [0] * 4]
    assert nodes.idle.tolist() == [4000, 0]
    assert nodes.model.tolist() == [0, -1]
    assert not nodes.pods.any()
    assert not nodes.kinds.any()


def test_a_sharing_pod_takes_its_part_of_one_gpu() -> None:
    state = a_small_state()
    state.place(on(0, sharing(1_500, 300, memory_mib=24), 2))
    nodes = state.world.nodes
    assert (nodes.cpu_free[0], nodes.memory_free[0]) == (6_500, 1000)
    assert nodes.gpu_free[0].tolist() == [1000, 1000, 700, 1000]
    assert (nodes.pods[0], nodes.active[0], nodes.idle[0]) == (1, 1, 3700)
    assert nodes.kinds[0].tolist() == [1, 0, 0, 0, 0]
    assert (state.used_gpu_milli, state.idle_gpu_milli, state.changes) == (300, 3700, 1)


def test_an_exclusive_pod_takes_the_gpus_it_is_given() -> None:
    state = a_small_state()
    state.place(on(0, exclusive(1_000, 3), 0, 1, 3))
    nodes = state.world.nodes
    assert nodes.gpu_free[0].tolist() == [0, 0, 1000, 0]
    assert nodes.kinds[0].tolist() == [0, 0, 0, 1, 0]
    assert (nodes.active[0], state.used_gpu_milli) == (3, 3000)


def test_a_cpu_only_pod_belongs_to_no_kind() -> None:
    state = a_small_state()
    state.place(on(1, cpu_only(4_000, memory_mib=2048)))
    nodes = state.world.nodes
    assert (nodes.cpu_free[1], nodes.memory_free[1], nodes.pods[1]) == (0, 0, 1)
    assert not nodes.kinds.any()
    assert state.used_gpu_milli == 0


def test_releasing_in_any_order_restores_every_array_bit_for_bit() -> None:
    state = a_small_state()
    before = everything(state)
    placed = [
        on(0, sharing(333, 333, memory_mib=3), 0),
        on(1, cpu_only(1_000)),
        on(0, sharing(999, 667), 0),
        on(0, exclusive(1_111, 2), 1, 3),
        on(0, cpu_only(1, memory_mib=1)),
    ]
    for allocation in placed:
        state.place(allocation)
    for index in (2, 0, 4, 3, 1):
        state.release(placed[index])
    assert everything(state) == before
    assert state.changes == 10


# --- what is refused -------------------------------------------------------------------------

NO_ROOM = {
    "CPU": on(0, cpu_only(8_001)),
    "memory": on(0, cpu_only(1, memory_mib=1025)),
    "a GPU in use": on(0, exclusive(1, 1), 0),
    "a GPU's rest": on(0, sharing(1, 601), 0),
    "a GPU that is not there": on(0, sharing(1, 1), 4),
    "a GPU number beyond all": on(0, sharing(1, 1), 64),
    "a negative GPU number": on(0, sharing(1, 1), -1),
    "the same GPU twice": on(0, exclusive(1, 2), 1, 1),
    "the same GPU twice, adding up to another": on(0, exclusive(1, 1), 1, 1),
    "fewer GPUs than asked": on(0, exclusive(1, 2), 1),
    "more GPUs than asked": on(0, exclusive(1, 1), 1, 2),
    "GPUs that were not asked for": on(0, cpu_only(1), 1),
    "no GPU for a sharing pod": on(0, sharing(1, 1)),
    "GPUs of a node without": on(1, sharing(1, 1), 0),
    "a node beyond all": on(2, cpu_only(1)),
    "a negative node": on(-1, cpu_only(1)),
}


@pytest.mark.parametrize("what", NO_ROOM)
def test_placing_without_room_is_a_bug_and_changes_nothing(what: str) -> None:
    state = a_small_state()
    state.place(on(0, sharing(0, 400), 0))
    before, changes = everything(state), state.changes
    with pytest.raises(Bug, match="cannot place"):
        state.place(NO_ROOM[what])
    assert (everything(state), state.changes) == (before, changes)


NEVER_PLACED = {
    "CPU": on(0, cpu_only(1_001)),
    "memory": on(0, cpu_only(1, memory_mib=101)),
    "an idle GPU": on(0, sharing(1, 1), 1),
    "more of a GPU than is used": on(0, sharing(1, 401), 0),
    "a kind that is not there": on(0, exclusive(1, 1), 0),
    "an empty node": on(1, cpu_only(0)),
}


@pytest.mark.parametrize("what", NEVER_PLACED)
def test_releasing_more_than_was_used_is_a_bug_and_changes_nothing(what: str) -> None:
    state = a_small_state()
    state.place(on(0, sharing(1_000, 400, memory_mib=100), 0))
    before = everything(state)
    with pytest.raises(Bug, match="cannot release"):
        state.release(NEVER_PLACED[what])
    assert everything(state) == before


def test_two_shares_of_a_gpu_are_not_released_as_a_whole_one() -> None:
    state = a_small_state()
    for part in (400, 600):
        state.place(on(0, sharing(0, part), 0))
    with pytest.raises(Bug, match="cannot release"):
        state.release(on(0, exclusive(0, 1), 0))


def test_the_message_names_the_node_and_what_is_free() -> None:
    state = a_small_state()
    state.place(on(0, sharing(1_000, 400), 1))
    with pytest.raises(Bug, match=r"n0 has 7000 milli-CPU, 1024 MiB and GPUs \[1000-600-1000-1000"):
        state.place(on(0, cpu_only(9_000)))


def test_a_node_holds_1001_pods() -> None:
    state = a_small_state()
    for _ in range(1001):
        state.place(on(1, cpu_only(0)))
    with pytest.raises(Bug):
        state.place(on(1, cpu_only(0)))


@pytest.mark.long
@pytest.mark.parametrize("gpus", [MAX_GPUS_PER_NODE + 1, 128])
def test_a_node_wider_than_a_decision_can_name_is_refused(gpus: int) -> None:
    with pytest.raises(UserError, match=r"node 'wide': gpu: .* more than the 63 .*hint:"):
        a_state(a_cluster(NODE, a_node("wide", gpus=gpus)))


@pytest.mark.parametrize("compiled", [True, False])
def test_the_widest_node_works_up_to_its_last_gpu(compiled: bool) -> None:
    wide = a_node("wide", cpu_milli=999_000, gpus=MAX_GPUS_PER_NODE)
    state = a_state(a_cluster(wide), [sharing(1, 500)])
    placer = a_placer(state, "fgd", compiled=compiled)
    first = placer.place_one(exclusive(1, MAX_GPUS_PER_NODE - 1))
    assert first is not None
    assert first.gpus == tuple(range(MAX_GPUS_PER_NODE - 1))
    last = placer.place_one(sharing(1, 500))
    assert last is not None
    assert last.gpus == (MAX_GPUS_PER_NODE - 1,)
    state.release(last)
    state.release(first)
    assert state.idle_gpu_milli == 1000 * MAX_GPUS_PER_NODE


# --- undo ------------------------------------------------------------------------------------


def test_what_is_taken_back_is_as_if_it_had_never_been() -> None:
    state = a_small_state()
    kept = on(0, sharing(1_000, 400), 0)
    state.place(kept)
    before = everything(state)
    tried = [on(0, exclusive(1_000, 2), 1, 2), on(0, exclusive(1_000, 1), 0)]
    state.place(tried[0])
    state.release(kept)
    state.place(tried[1])
    with pytest.raises(Bug):
        state.place(tried[1])  # refused: nothing to take back
    state.release(tried[1])
    state.place(kept)
    state.release(tried[0])
    assert everything(state) == before


# --- shapes ----------------------------------------------------------------------------------


def test_requests_of_one_shape_share_a_number() -> None:
    book = ShapeBook(("G2", "T4"))
    same = [
        sharing(1, 500, "T4", "G2"),
        sharing(1, 500, "G2", "T4", "T4"),
        sharing(1, 500, "T4", "G2", memory_mib=7),
    ]
    assert {book.intern(request) for request in same} == {0}
    others = [sharing(1, 500), sharing(1, 500, "T4"), sharing(2, 500), exclusive(1, 1)]
    assert [book.intern(request) for request in others] == [1, 2, 3, 4]
    assert len(book) == 5


def test_models_of_a_cpu_only_request_do_not_matter() -> None:
    book = ShapeBook(("G2",))
    assert book.intern(Request(cpu_milli=1, models=("T4",))) == book.intern(cpu_only(1))
    assert book.columns.allowed[0].tolist() == [True, False]


def test_shapes_survive_the_growth_of_the_book() -> None:
    state = a_small_state()
    wanted = [sharing(cpu, 1 + cpu % 999) for cpu in range(300)]
    numbers = [state.intern(request) for request in wanted]
    assert numbers == list(range(300))
    assert [state.intern(request) for request in wanted] == numbers
    assert state.world.shapes.cpu_milli[:300].tolist() == list(range(300))
    assert state.world.shapes.gpu_milli[299] == wanted[299].gpu_milli
    assert state.world.shapes.sharing[:300].all()

"""HiveD's promise under any history: a hundred thousand steps with failures, and a judge apart.

The judge plays every tenant's private cluster by brute force on plain sets: whatever it could
have given, the shared cluster must give too, as long as no hardware is broken.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.model.topology import Chain
from wattherd.policy.queue.hive import Granted, Hive
from wattherd.policy.queue.hive_invariants import check_safety, validate

CHAIN = Chain(
    name="dgx",
    levels=("gpu", "pair", "socket", "node", "rack"),
    fanout=(2, 2, 2, 4),
    node_level=3,
    nodes=tuple(range(16)),
)
SHARES = {
    "red": {"rack": 1, "node": 2, "pair": 1},
    "green": {"node": 3, "socket": 3},
    "blue": {"node": 1, "socket": 1, "gpu": 4},
}
TASKS = [(1,), (2,), (3,), (4,), (5,), (8,), (1, 1), (2, 4), (8, 8), (4, 4, 4), (8, 8, 8, 8)]


def free_lists(hive: Hive) -> list[tuple[int, int]]:
    return list(hive.physical.free_cells())


class Walk:
    """Random steps; every one leaves the safety invariant intact."""

    def __init__(self, hive: Hive, seed: int, *, failing: float = 0.025) -> None:
        self.hive = hive
        self.chances = (0.35, 0.2, 0.425 - failing, failing, 0.025)
        self.rng = np.random.default_rng(seed)
        self.number = 0
        self.granted = self.denied = self.lent = self.evicted = self.downgraded = 0

    def step(self) -> None:
        kind = self.rng.choice(5, p=self.chances)
        (self.place, self.borrow, self.release, self.fail, self.repair)[kind]()

    def place(self) -> None:
        tenant = str(self.rng.choice(list(SHARES)))
        tasks = TASKS[self.rng.integers(len(TASKS))]
        self.number += 1
        granted = self.hive.place(
            f"g{self.number}",
            tenant,
            tasks,
            priority=int(self.rng.integers(3)),
            lazy=bool(self.rng.integers(2)),
        )
        if granted is None:
            self.denied += 1
            return
        self.granted += 1
        self.evicted += len(granted.evicted)
        self.downgraded += len(granted.downgraded)
        assert [len(task) for task in granted.tasks] == list(tasks)
        size = self.hive.chain.sizes[self.hive.chain.node_level]
        for task in granted.tasks:
            (node,) = {gpu // size for gpu in task}
            assert node not in self.hive.physical.bad

    def borrow(self) -> None:
        self.number += 1
        tasks = TASKS[self.rng.integers(len(TASKS))]
        self.lent += self.hive.borrow(f"o{self.number}", "red", tasks) is not None

    def release(self) -> None:
        if self.hive.jobs:
            jobs = list(self.hive.jobs)
            self.hive.release(jobs[self.rng.integers(len(jobs))])

    def fail(self) -> None:
        """A node breaks: what ran there is gone, as the core has it."""
        node, size = int(self.rng.integers(len(self.hive.chain.nodes))), 8
        self.hive.set_health(node, healthy=False)
        for job, held in list(self.hive.jobs.items()):
            if any(gpu // size == node for gpu in held.gpus):
                self.hive.release(job)

    def repair(self) -> None:
        for node in list(self.hive.physical.bad)[:2]:
            self.hive.set_health(node, healthy=True)


@pytest.mark.parametrize("steps", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_the_safety_invariant_survives_a_long_walk(steps: int) -> None:
    hive = Hive(CHAIN, SHARES)
    empty = free_lists(hive)
    walk = Walk(hive, seed=7)
    for number in range(steps):
        walk.step()
        check_safety(hive)
        if number % 200 == 0:
            validate(hive)
    assert min(walk.granted, walk.denied, walk.lent, walk.evicted, walk.downgraded) > steps // 250
    for job in list(hive.jobs):
        hive.release(job)
    for node in list(hive.physical.bad):
        hive.set_health(node, healthy=True)
    validate(hive)
    assert free_lists(hive) == empty


# --- nobody is denied what a cluster of his own would have given --------------------------------


def private(tenant: str) -> Hive:
    """The tenant alone."""
    return Hive(CHAIN, {tenant: SHARES[tenant]})


def room_of_his_own(hive: Hive, tenant: str, priority: int) -> list[int]:
    """GPUs on every virtual node that are idle or whose user must make way."""
    room = []
    for cell in hive.tenants[tenant].cells:
        size = min(len(cell.users), 8)
        for first in range(0, len(cell.users), size):
            users = cell.users[first : first + size]
            room.append(sum(u is None or hive.jobs[u].priority < priority for u in users))
    return room


def would_fit(room: list[int], tasks: tuple[int, ...]) -> bool:
    """Equal tasks fit greedily or not at all."""
    assert len(set(tasks)) == 1
    return sum(gpus // tasks[0] for gpus in room) >= len(tasks)


EQUAL = [tasks for tasks in TASKS if len(set(tasks)) == 1]
MOVES = st.lists(
    st.tuples(
        st.sampled_from(["place", "place", "place", "borrow", "release"]),
        st.sampled_from(list(SHARES)),
        st.sampled_from(EQUAL),
        st.integers(0, 2),
        st.integers(0, 999),
    ),
    max_size=60,
)


@given(moves=MOVES)
def test_no_tenant_is_denied_a_cell_that_his_own_cluster_would_have_given(
    moves: list[tuple[str, str, tuple[int, ...], int, int]],
) -> None:
    shared, alone = Hive(CHAIN, SHARES), {tenant: private(tenant) for tenant in SHARES}
    for number, (move, tenant, tasks, priority, pick) in enumerate(moves):
        own = alone[tenant]
        if move == "borrow":
            shared.borrow(f"o{number}", tenant, tasks)
        elif move == "release" and shared.jobs:
            job = list(shared.jobs)[pick % len(shared.jobs)]
            shared.release(job)
            for hive in alone.values():
                if job in hive.jobs:
                    hive.release(job)
        elif move == "place":
            fits = would_fit(room_of_his_own(shared, tenant, priority), tasks)
            got = shared.place(f"g{number}", tenant, tasks, priority=priority)
            private_ = own.place(f"g{number}", tenant, tasks, priority=priority)
            assert (got is not None) == (private_ is not None) == fits
            if got is not None:
                assert shared.jobs[f"g{number}"].virtual == own.jobs[f"g{number}"].virtual
        validate(shared)


# --- with broken nodes, only broken nodes are an excuse ------------------------------------------


def healthy_node_within(hive: Hive, level: int, index: int) -> bool:
    size = hive.chain.sizes[level]
    gpus = range(index * size, (index + 1) * size)
    free = [n for n in range(16) if n not in hive.physical.bad and (3, n) not in hive.taken]
    return (
        any(gpu // 8 in free for gpu in gpus)
        if level >= 3
        else gpus[0] // 8 not in hive.physical.bad
    )


def obtainable(hive: Hive, level: int) -> bool:
    """Whether some cell of a level with a healthy node can be had without breaking a promise."""
    spare = hive.physical.splittable()
    for high in range(level, hive.chain.top + 1):
        if any(spare[one] < 1 for one in range(level + 1, high + 1)):
            return False
        width = hive.chain.sizes[high] // hive.chain.sizes[level]
        for index in hive.physical.free[high]:
            parts = range(index * width, (index + 1) * width)
            if any(healthy_node_within(hive, level, part) for part in parts):
                return True
    return False


def has_an_excuse(hive: Hive, tenant: str, gpus: int) -> bool:
    """Whether every virtual node with room for one task has only broken nodes to be bound to."""
    for cell in hive.tenants[tenant].cells:
        size, unit = min(len(cell.users), 8), min(cell.level, 3)
        for index in range(len(cell.users) // size):
            users = cell.users[index * size : (index + 1) * size]
            if sum(user is None for user in users) < gpus:
                continue
            top, node = cell.bound.get((cell.level, 0)), cell.bound.get((unit, index))
            if node is not None:
                usable = node * size // 8 not in hive.physical.bad
            elif top is not None:
                usable = healthy_node_within(hive, cell.level, top)
            else:
                usable = obtainable(hive, cell.level)
            if usable:
                return False
    return True


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_broken_nodes_are_the_only_excuse(seed: int) -> None:
    hive = Hive(CHAIN, SHARES)
    walk, full, excused = Walk(hive, seed, failing=0.1), 0, 0
    for number in range(1500):
        walk.step()
        tenant, gpus = list(SHARES)[number % 3], (1, 2, 4, 8)[number % 4]
        if hive.place("probe", tenant, (gpus,), priority=0) is None:
            has_room = would_fit(room_of_his_own(hive, tenant, 0), (gpus,))
            full, excused = full + (not has_room), excused + has_room
            assert not has_room or has_an_excuse(hive, tenant, gpus)
        else:
            validate(hive)
            hive.release("probe")
    assert min(full, excused) > 10


@given(moves=MOVES, seed=st.integers(0, 99))
def test_everything_can_be_undone_exactly(
    moves: list[tuple[str, str, tuple[int, ...], int, int]], seed: int
) -> None:
    def everything(hive: Hive) -> tuple[object, ...]:
        cells = [
            (list(cell.users), [list(used) for used in cell.used], dict(cell.bound))
            for virtual in hive.tenants.values()
            for cell in virtual.cells
        ]
        physical = hive.physical
        counts = [list(map(list, counts)) for counts in (physical.guests, physical.healthy)]
        return free_lists(hive), cells, counts, dict(hive.jobs), list(hive.users), dict(hive.taken)

    hive = Hive(CHAIN, SHARES)
    walk = Walk(hive, seed)
    for _ in range(30):
        walk.step()
    before, mark = everything(hive), hive.journal.begin()
    for number, (move, tenant, tasks, priority, pick) in enumerate(moves):
        if move == "release" and hive.jobs:
            hive.release(list(hive.jobs)[pick % len(hive.jobs)])
        elif move == "borrow":
            hive.borrow(f"x{number}", tenant, tasks)
        elif move == "place":
            got = hive.place(f"x{number}", tenant, tasks, priority=priority)
            assert got is None or isinstance(got, Granted)
    hive.journal.undo(mark)
    assert everything(hive) == before


# --- around the GPUs of others -------------------------------------------------------------------


class Crowded(Walk):
    """Others come and go, on GPUs that nobody has."""

    def step(self) -> None:
        if self.rng.random() < 0.1:
            idle = [gpu for gpu, user in enumerate(self.hive.users) if user is None]
            count = min(len(idle), int(self.rng.integers(12)))
            self.hive.set_foreign({int(gpu) for gpu in self.rng.choice(idle, count, replace=False)})
        else:
            super().step()


@pytest.mark.parametrize("seed", range(3))
def test_nobody_is_put_on_a_gpu_of_others_and_promises_stay(seed: int) -> None:
    hive = Hive(CHAIN, SHARES)
    empty = free_lists(hive)
    walk = Crowded(hive, seed)
    for number in range(1_000):
        walk.step()
        assert all(hive.users[gpu] is None for gpu in hive.physical.foreign)
        check_safety(hive)
        if number % 50 == 0:
            validate(hive)
    assert min(walk.granted, walk.denied, walk.lent, walk.evicted) > 10
    for job in list(hive.jobs):
        hive.release(job)
    for node in list(hive.physical.bad):
        hive.set_health(node, healthy=True)
    hive.set_foreign(())
    validate(hive)
    assert free_lists(hive) == empty


@given(
    nodes=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    width=st.integers(1, 4),
    count=st.integers(1, 8),
    data=st.data(),
)
def test_a_gang_finds_what_others_leave_of_its_nodes(
    nodes: list[int], width: int, count: int, data: st.DataObject
) -> None:
    """All nodes of four GPUs are one tenant's; of each so many are not others'."""
    chain = Chain(name="c", levels=("gpu", "node"), fanout=(4,), node_level=1,
                  nodes=tuple(range(len(nodes))))  # fmt: skip
    hive = Hive(chain, {"red": {"node": len(nodes)}})
    others: set[int] = set()
    for node, left in enumerate(nodes):
        inside = data.draw(st.permutations(range(4)))[left:]
        others |= {4 * node + gpu for gpu in inside}
    hive.set_foreign(others)
    granted = hive.place("gang", "red", (width,) * count)
    assert (granted is not None) == (sum(left // width for left in nodes) >= count)
    if granted is not None:
        assert not others & {gpu for task in granted.tasks for gpu in task}
    validate(hive)

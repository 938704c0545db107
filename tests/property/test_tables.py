"""Score tables over several blocks of nodes: never stale, whoever changes the cluster."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from wattherd.engine.placement.placer import Placer
from wattherd.engine.placement.score_table import BLOCK
from wattherd.engine.placement.state import ClusterState
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import ClusterSpec
from wattherd.model.job import Request
from wattherd.policy.place.registry import BUILT_IN
from wattherd.testing.builders import (
    a_cluster,
    a_node,
    a_placer,
    a_state,
    cpu_only,
    exclusive,
    sharing,
    spellings,
)
from wattherd.workload.generate import generate_cluster, generate_pods

SHAPES = (
    ("G2", 4, 16_000),
    ("T4", 2, 12_000),
    ("", 0, 8_000),
    ("P100", 1, 4_000),
    ("G2", 4, 33_000),
)
REQUESTS = (
    cpu_only(3_000),
    cpu_only(7_000, memory_mib=600),
    sharing(1_000, 250),
    sharing(2_000, 700, "T4", "P100"),
    sharing(500, 460, memory_mib=300),
    exclusive(3_000, 1),
    exclusive(4_000, 2, "G2"),
    exclusive(6_000, 4),
)


def a_wide_cluster() -> ClusterSpec:
    """Nodes over three blocks, the last one short; memory is the scarce thing on some."""
    kinds = np.random.default_rng(5).integers(len(SHAPES), size=2 * BLOCK + 9).tolist()
    return a_cluster(
        *(
            a_node(
                f"n{n}",
                model=SHAPES[kind][0],
                gpus=SHAPES[kind][1],
                cpu_milli=SHAPES[kind][2],
                memory_mib=1000 if n % 3 else 400,
            )
            for n, kind in enumerate(kinds)
        )
    )


class Bystander:
    """Somebody else who places and releases on the same cluster."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.rng = np.random.default_rng(9)
        self.first_fit = a_placer(state, "random", draws=self.rng)
        self.live: list[Allocation] = []

    def meddle(self) -> None:
        for request in REQUESTS:
            for _ in range(4):
                found = self.first_fit.place_one(request)
                if found is not None:
                    self.live.append(found)
        for _ in range(len(self.live) // 3):
            self.state.release(self.live.pop(int(self.rng.integers(len(self.live)))))


def decisions(placer: Placer, request: Request) -> list[Allocation | None]:
    """By the placer as it is, by one made afresh, and by the definitions."""
    draws = copy.deepcopy(placer._draws)
    found = [placer.choose(request)]
    for compiled in (True, False):
        fresh = a_placer(
            placer.state,
            placer.policy.name,
            draws=copy.deepcopy(draws),
            random_ties=placer._random_ties,
            compiled=compiled,
        )
        found.append(fresh.choose(request))
    return found


@pytest.mark.parametrize("policy", spellings())
@pytest.mark.parametrize("ties", [False, True], ids=["first of equals", "random of equals"])
def test_tables_over_several_blocks_are_never_stale(policy: str, ties: bool) -> None:
    state = a_state(a_wide_cluster(), REQUESTS)
    placer = a_placer(state, policy, random_ties=ties)
    twin = a_placer(state, policy, random_ties=ties, compiled=False)
    other = Bystander(state)
    rng = np.random.default_rng(7)
    live: list[Allocation] = []
    for step in range(160):
        request = REQUESTS[int(rng.integers(len(REQUESTS)))]
        if step % 40 == 20:
            if not placer.policy.looks_ahead:  # see the last test
                assert len(set(decisions(placer, request))) == 1
                twin.choose(request)  # keeps its stream in step
            other.meddle()
        expected, found = twin.choose(request), placer.place_one(request)
        assert found == expected
        if found is not None:
            live.append(found)
        if step % 3 == 2:
            state.release(live.pop(int(rng.integers(len(live)))))
    assert {one.node // BLOCK for one in (*live, *other.live)} == {0, 1, 2}


# --- a decision depends on the cluster alone -------------------------------------------------


def restored(state: ClusterState, live: list[Allocation]) -> ClusterState:
    """The same cluster in the same state, as after a restart."""
    world = state.world
    outlook = world.outlook._replace(level=np.zeros_like(world.outlook.level))
    again = ClusterState(state.cluster, world.target, world.power, outlook)
    for allocation in live:
        again.place(allocation)
    return again


@pytest.mark.parametrize(
    "policy",
    [name for name, scorer in BUILT_IN.items() if not scorer.random_ties],
)
def test_a_restored_cluster_is_decided_like_a_running_one(policy: str) -> None:
    cluster = generate_cluster(nodes=60, seed=1)
    pods = generate_pods(family="gpuspec33", seed=1, gpu_capacity_milli=cluster.gpu_milli, load=1.3)
    wanted = [pod.request for pod in pods]
    state = a_state(cluster, wanted)
    placer = a_placer(state, policy)
    live: list[Allocation] = []
    for step, request in enumerate(wanted):
        if step % 7 == 3:
            after_restart = a_placer(restored(state, live), policy)
            assert after_restart.choose(request) == placer.choose(request)
        found = placer.place_one(request)
        if found is not None:
            live.append(found)

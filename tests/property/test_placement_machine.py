"""Any sequence of placing, releasing and undoing, under any policy, on any small cluster.

Four judges watch every decision: the plain restatement of the published rules (where there is
one), a placer made afresh on the same state (so stale tables show), the NumPy definitions, and
the definitions made afresh. A plain copy of the cluster is kept by hand and compared throughout.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from effort import times
from wattherd.engine.placement.kernels import CHANGES
from wattherd.engine.placement.state import ClusterState
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import ClusterSpec
from wattherd.model.job import Request
from wattherd.policy.place.registry import parse_policy
from wattherd.testing.builders import a_placer, a_state
from wattherd.testing.oracle import decide, weighed
from wattherd.testing.plain_cluster import (
    Task,
    cpu_watts,
    exact_fragment,
    gpu_watts,
    plain_nodes,
    tasks,
)
from wattherd.testing.strategies import clusters, histories, policies, requests


def everything(state: ClusterState) -> bytes:
    """All that a decision could depend on, bit for bit (the count of changes is a clock)."""
    totals = np.delete(state.totals, CHANGES)
    return b"".join(array.tobytes() for array in (*state.world.nodes, totals))


def is_exact(workload: list[Task]) -> bool:
    """Whether expectations over it are free of rounding, so that they truncate alike."""
    return all(Fraction(task.share).denominator <= 4096 for task in workload)


class Placement(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.live: list[Allocation] = []

    @initialize(
        cluster=clusters(),
        history=histories(),
        policy=policies(),
        ties=st.booleans(),
        seed=st.integers(0, 9),
    )
    def begin(
        self, cluster: ClusterSpec, history: list[Request], policy: str, ties: bool, seed: int
    ) -> None:
        self.policy, self.ties = policy, ties
        self.state = a_state(cluster, history)
        self.empty = everything(self.state)
        self.draws = np.random.default_rng(seed)
        self.placer = a_placer(self.state, policy, draws=self.draws, random_ties=ties)
        self.twin = a_placer(
            self.state, policy, draws=np.random.default_rng(seed), random_ties=ties, compiled=False
        )
        self.nodes = plain_nodes(cluster)
        weights = self.state.world.target.weight.tolist()
        self.workload = [
            replace(task, share=weight)
            for task, weight in zip(tasks(history), weights, strict=True)
        ]
        self.blend = None if ties else weighed(parse_policy(policy))
        if self.blend and "pwrexp" in policy and not is_exact(self.workload):
            self.blend = None

    # --- steps -------------------------------------------------------------------------------

    @rule(wanted=st.lists(requests(), min_size=1, max_size=4))
    def place(self, wanted: list[Request]) -> None:
        for request in wanted:
            self.place_one(request)

    def place_one(self, request: Request) -> None:
        draws = copy.deepcopy(self.draws)
        judged = self.judge(request, draws)
        found = self.placer.place_one(request)
        assert judged == found
        if found is None:
            assert not any(node.fits(request) for node in self.nodes)
        else:
            self.nodes[found.node].place(request, found.gpus)
            self.live.append(found)

    def judge(self, request: Request, draws: np.random.Generator) -> Allocation | None:
        """The decision by every other way; all agree."""
        ways = [self.twin.choose(request)]
        # A placer that looks ahead remembers the load at which it began to (see test_tables.py).
        for compiled in () if self.placer.policy.looks_ahead else (True, False):
            fresh = a_placer(
                self.state,
                self.policy,
                draws=copy.deepcopy(draws),
                random_ties=self.ties,
                compiled=compiled,
            )
            ways.append(fresh.choose(request))
        if self.blend is not None:
            told = decide(self.nodes, request, self.blend, self.workload)
            ways.append(None if told is None else Allocation(request, *told))
        assert all(way == ways[0] for way in ways), ways
        return ways[0]

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 999))
    def release(self, pick: int) -> None:
        gone = self.live.pop(pick % len(self.live))
        self.state.release(gone)
        self.nodes[gone.node].release(gone.request, gone.gpus)

    @rule(request=requests())
    def place_and_release(self, request: Request) -> None:
        before = everything(self.state)
        self.twin.choose(request)  # keeps its stream in step
        found = self.placer.place_one(request)
        if found is not None:
            assert everything(self.state) != before
            self.state.release(found)
        assert everything(self.state) == before

    @rule(requests_=st.lists(requests(), max_size=4), newest_first=st.booleans())
    def try_several(self, requests_: list[Request], newest_first: bool) -> None:
        before = everything(self.state)
        tried = []
        for request in requests_:
            self.twin.choose(request)  # keeps its stream in step
            found = self.placer.place_one(request)
            tried += [] if found is None else [found]
        for one in reversed(tried) if newest_first else tried:
            self.state.release(one)
        assert everything(self.state) == before

    # --- what always holds -------------------------------------------------------------------

    @invariant()
    def nothing_is_over_committed(self) -> None:
        nodes = self.state.world.nodes
        assert (nodes.cpu_free >= 0).all()
        assert (nodes.memory_free >= 0).all()
        assert (nodes.gpu_free >= 0).all()
        assert (nodes.gpu_free <= 1000).all()
        assert (nodes.pods <= 1001).all()
        for allocation in self.live:
            spec = self.state.cluster.nodes[allocation.node]
            assert allocation.request.fits(spec)
            assert len(set(allocation.gpus)) == allocation.request.gpu_count
            assert all(0 <= gpu < spec.gpu_count for gpu in allocation.gpus)

    @invariant()
    def the_arrays_are_those_kept_by_hand(self) -> None:
        nodes = self.state.world.nodes
        width = nodes.gpu_free.shape[1]
        for n, node in enumerate(self.nodes):
            assert nodes.cpu_free[n] == node.cpu
            assert nodes.memory_free[n] == node.memory
            assert nodes.gpu_free[n].tolist() == node.gpus + [0] * (width - len(node.gpus))
            assert nodes.pods[n] == len(node.pods)
            assert nodes.idle[n] == sum(node.gpus)
            assert nodes.active[n] == sum(free < 1000 for free in node.gpus)
            kinds = [0 if pod.is_sharing else pod.gpu_count for pod, _ in node.pods
                     if pod.gpu_count]  # fmt: skip
            assert nodes.kinds[n].tolist() == [kinds.count(kind) for kind in range(width + 1)]

    @invariant()
    def totals_equal_recomputation(self) -> None:
        state, nodes = self.state, self.nodes
        assert state.idle_gpu_milli == sum(node.idle for node in nodes)
        assert state.used_gpu_milli == state.cluster.gpu_milli - state.idle_gpu_milli
        assert state.used_gpu_milli == sum(one.request.total_gpu_milli for one in self.live)
        assert state.cpu_power_w == float(sum(cpu_watts(node) for node in nodes))
        assert state.gpu_power_w == float(sum(gpu_watts(node) for node in nodes))
        exact = float(sum(exact_fragment(node, self.workload) for node in nodes))
        assert state.fragment_gpu_milli == pytest.approx(exact, abs=1e-6)

    def teardown(self) -> None:
        if not hasattr(self, "state"):
            return
        for allocation in reversed(self.live):
            self.state.release(allocation)
        assert everything(self.state) == self.empty


Placement.TestCase.settings = settings(max_examples=times(300), stateful_step_count=40)
TestPlacement = Placement.TestCase

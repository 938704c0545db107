"""The one way in for placement: `place_one(request)` decides, checks and books.

The simulator's `sim pack`, the core's cycle and the Kubernetes extender all come through here.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from wattherd.engine.placement.reference import decide_reference
from wattherd.engine.placement.score_table import NEVER, NO_NODE, ScoreTable, empty_table, plan_of
from wattherd.engine.placement.score_table import decide as decide_by_kernels
from wattherd.engine.placement.state import ClusterState
from wattherd.estimate.expected_packing import follow
from wattherd.jit import HAVE_JIT
from wattherd.model.allocation import Allocation
from wattherd.model.job import Request
from wattherd.policy.place.contract import ScoredWorld
from wattherd.policy.place.registry import PlacePolicy

_ORDERED = -1.0
_NO_MEMORY = -1
"""Less than any request asks for."""


# Why one door. Three callers place single pods (the simulator, the core's planner
# `per_job_placement`, the Kubernetes extender). What is closed or parked for one is so for all.
class Placer:
    """A policy at work on a state.

    `draws` is the stream for policies that draw; `random_ties` makes any policy choose uniformly
    among equally good nodes instead of taking the first. `compiled` False forces the NumPy
    definitions, which give the same decisions.
    """

    def __init__(
        self,
        state: ClusterState,
        policy: PlacePolicy,
        *,
        draws: Generator,
        random_ties: bool = False,
        compiled: bool = HAVE_JIT,
    ) -> None:
        """Tables start empty and fill as shapes are asked for."""
        self.state = state
        self.policy = policy
        self._draws = draws
        self._random_ties = random_ties or policy.random_ties
        self._plan = plan_of(policy)
        # A flag and no bound method: that would be a cycle, and tables of megabytes would wait for
        # the collector of garbage where a cluster's nodes come and go.
        self._compiled = compiled and policy.compiled
        self._table = self._sized_table()
        self._level = np.full_like(state.world.outlook.level, np.nan)
        self._parked: list[Allocation] = []

    def _sized_table(self) -> ScoreTable:
        shapes, nodes = self.state.shapes.capacity, len(self.state.cluster.nodes)
        return empty_table(len(self.policy.parts), shapes, nodes)

    # A choice books nothing, so that a caller may ask, compare and not take it; scores need no
    # repair, as nothing has changed.
    def choose(self, request: Request, among: NDArray[np.bool_] | None = None) -> Allocation | None:
        """Where the policy wants `request`, or None if it fits nowhere now; books nothing.

        `among` (N,) are the only nodes to choose from, and to compare with each other.
        """
        shape = self.state.intern(request)
        # The new table is empty, and every shape is scored anew. That happens only as often as the
        # number of shapes has doubled.
        if len(self._table.cursor) < self.state.shapes.capacity:
            self._table = self._sized_table()
        if self.policy.looks_ahead:
            self._follow_load()
        # Drawn whether or not there is a tie: the stream must not depend on scores, or one changed
        # key would shift all draws after it.
        pick = float(self._draws.random()) if self._random_ties else _ORDERED
        pick_gpu = float(self._draws.random()) if self.policy.random_gpu else _ORDERED
        world = self.state.world if among is None else _only(self.state.world, among)
        decide = self._by_kernels if self._compiled else self._by_definition
        node, mask = decide(world, shape, request.memory_mib, pick, pick_gpu)
        return None if node == NO_NODE else Allocation(request, node, _bits(mask))

    def _follow_load(self) -> None:
        """Tell policies that look ahead of load and pressure; where they moved, score anew.

        Told every time: another placer on the same state may have been told an older level.
        """
        state = self.state
        # Scores of all nodes follow from the outlook, so that a level that moved leaves none of
        # them valid.
        if follow(state.world.outlook, state.used_gpu_milli, state.idle_by_model, self._level):
            self._table.cursor[:] = NEVER

    def place_one(
        self, request: Request, among: NDArray[np.bool_] | None = None
    ) -> Allocation | None:
        """`choose` and book; None if the request fits nowhere now."""
        allocation = self.choose(request, among)
        if allocation is not None:
            self.state.place(allocation)
        return allocation

    def release(self, allocation: Allocation) -> None:
        """Take back what was placed."""
        self.state.release(allocation)

    def close(self, nodes: Collection[int], gpus: Collection[tuple[int, int]] = ()) -> None:
        """Place nothing on `nodes`, nor on what is free of `gpus`, and on all others again.

        What is free of a GPU is held in nobody's name. On a closed node nothing can be held.
        """
        # Given back first, so that what is parked now is what is free without them.
        for allocation in self._parked:
            self.state.release(allocation)
        self.state.close(nodes)
        self._parked = [
            Allocation(Request(cpu_milli=0, gpu_count=1, gpu_milli=int(milli)), node, (gpu,))
            for node, gpu in gpus
            if node not in nodes and (milli := self.state.world.nodes.gpu_free[node, gpu]) > 0
        ]
        for allocation in self._parked:
            self.state.place(allocation)

    def _by_kernels(
        self, world: ScoredWorld, shape: int, memory: int, pick: float, pick_gpu: float
    ) -> tuple[int, int]:
        state = self.state
        node, mask = decide_by_kernels(
            world,
            self._table,
            self._plan,
            state.log,
            state.totals,
            shape,
            memory,
            self.policy.direct,
            pick,
            pick_gpu,
        )
        # Uncompiled (NUMBA_DISABLE_JIT), kernels answer in NumPy's integers.
        return int(node), int(mask)

    def _by_definition(
        self, world: ScoredWorld, shape: int, memory: int, pick: float, pick_gpu: float
    ) -> tuple[int, int]:
        state, table = self.state, self._table
        return decide_reference(state, world, table, self.policy, shape, memory, pick, pick_gpu)


def _only(world: ScoredWorld, among: NDArray[np.bool_]) -> ScoredWorld:
    """`world` in which all other nodes are short of memory: the one thing no score looks at.

    So the score tables stay as they are, whoever may go where.
    """
    free = np.where(among, world.nodes.memory_free, _NO_MEMORY)
    return world._replace(nodes=world.nodes._replace(memory_free=free))


_SINGLE = tuple((gpu,) for gpu in range(64))


def _bits(mask: int) -> tuple[int, ...]:
    """Numbers of the set bits, ascending."""
    if mask and not mask & (mask - 1):
        return _SINGLE[mask.bit_length() - 1]
    return tuple(gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1)

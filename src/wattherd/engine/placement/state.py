"""The state of the cluster as arrays: what is free on every node and GPU.

The only mutable state of a placement run. `place` and `release` are exact inverses: everything
they touch is an integer or is recomputed from integers, so that releasing restores the state bit
for bit. Whoever tries something out takes it back by the inverse; planners of the core, which try
whole plans, do so on the core's books (`engine.core.draft`).
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from wattherd.engine.placement.kernels import (
    CHANGES,
    CPU_MW,
    FRAGMENT,
    FRAGMENT_UNIT,
    GPU_MW,
    IDLE_MILLI,
    TOTALS,
    USED_MILLI,
    add_to_totals,
    change,
    derive,
)
from wattherd.errors import Bug, UserError
from wattherd.estimate.expected_packing import PackingOutlook, no_outlook
from wattherd.estimate.node_power import PowerColumns
from wattherd.estimate.target_workload import TargetWorkload
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import WHOLE_GPU_MILLI, ClusterSpec
from wattherd.model.job import Request
from wattherd.policy.place.contract import Ints, Nodes, RequestShapes, ScoredWorld

# --- Requests interned as small integers, so that score tables can be arrays.
#
# Requests that differ only in memory or in the spelling of their model list share a shape: no score
# looks at memory, and membership does not depend on spelling.

_FIRST_CAPACITY = 64


# Numbers are given in order of first sight and never taken back: tables are indexed by them.
# Doubling keeps the cost of growing to a constant per shape.
class ShapeBook:
    """Shapes in order of first sight; `columns` has room for `capacity` of them."""

    def __init__(self, models: tuple[str, ...]) -> None:
        """`models` are the cluster's GPU models, in the order of the node columns' indices."""
        self.models = models
        self.columns = _columns(_FIRST_CAPACITY, len(models))
        self._index: dict[tuple[int, int, int, frozenset[str]], int] = {}
        self._seen: dict[Request, int] = {}

    def __len__(self) -> int:
        """How many shapes are known."""
        return len(self._index)

    @property
    def spellings(self) -> int:
        """How many requests were seen, those that share a shape counted apart."""
        return len(self._seen)

    @property
    def capacity(self) -> int:
        """How many shapes fit the present arrays."""
        return len(self.columns.cpu_milli)

    def intern(self, request: Request) -> int:
        """The number of the request's shape, new or known."""
        known = self._seen.get(request)
        if known is not None:
            return known
        key = (
            request.cpu_milli,
            request.gpu_milli,
            request.gpu_count,
            frozenset(request.models if request.gpu_count else ()),
        )
        if key not in self._index:
            self._index[key] = self._append(request)
        self._seen[request] = self._index[key]
        return self._index[key]

    def _append(self, request: Request) -> int:
        shape = len(self._index)
        if shape == self.capacity:
            self._grow()
        self.columns.cpu_milli[shape] = request.cpu_milli
        self.columns.gpu_milli[shape] = request.gpu_milli
        self.columns.gpu_count[shape] = request.gpu_count
        self.columns.sharing[shape] = request.is_sharing
        # The last column stays false. It is what a node without GPUs, whose model is -1, comes to.
        self.columns.allowed[shape, :-1] = [request.allows(model) for model in self.models]
        return shape

    def _grow(self) -> None:
        larger = _columns(2 * self.capacity, len(self.models))
        for old, new in zip(self.columns, larger, strict=True):
            new[: len(old)] = old
        self.columns = larger


def _columns(capacity: int, models: int) -> RequestShapes:
    return RequestShapes(
        cpu_milli=np.zeros(capacity, dtype=np.int64),
        gpu_milli=np.zeros(capacity, dtype=np.int64),
        gpu_count=np.zeros(capacity, dtype=np.int64),
        sharing=np.zeros(capacity, dtype=np.bool_),
        allowed=np.zeros((capacity, models + 1), dtype=np.bool_),
    )


_PLACE, _RELEASE = 1, -1
# Any number above the most pods per node; added and taken away like pods, so that pods which are on
# a closed node may leave it and be counted.
_CLOSED = 1 << 40
"""Counted as pods: a closed node takes no more of them."""
MAX_GPUS_PER_NODE = 63
"""The GPUs of a decision are bits of a signed 64-bit integer."""


# Invariants. `totals` are the sums over nodes of what `add_to_totals` says of each, at any time: a
# change takes a node's part out, changes the node, and puts its new part in. Fragmentation is a
# float by nature, so it is rounded per node to 1e-9 milli-GPU and summed as integers: the sum then
# does not depend on the order of events, and release gives back exactly what place took. `log`
# names nodes that changed, so that a score table can rescore those alone; who is further behind
# than the ring is long rescores all.
class ClusterState:
    """Free resources of `cluster`, with running totals of use, fragmentation and power."""

    def __init__(
        self,
        cluster: ClusterSpec,
        target: TargetWorkload,
        power: PowerColumns,
        outlook: PackingOutlook | None = None,
    ) -> None:
        """Start with everything free.

        Raises:
            UserError: a node has more than `MAX_GPUS_PER_NODE` GPUs.
        """
        _check_width(cluster)
        self.cluster = cluster
        self.shapes = ShapeBook(cluster.gpu_models)
        self.world = ScoredWorld(
            _empty_nodes(cluster, target),
            self.shapes.columns,
            target,
            power,
            outlook if outlook is not None else no_outlook(),
        )
        self.totals: Ints = np.zeros(TOTALS + 1 + len(cluster.gpu_models), dtype=np.int64)
        self.log: Ints = np.zeros(max(1024, 4 * len(cluster.nodes)), dtype=np.int64)
        """Ring of the nodes that changed last; `totals[CHANGES]` counts all changes."""
        self._closed: set[int] = set()
        for n in range(len(cluster.nodes)):
            derive(self.world, n)
            add_to_totals(self.world, self.totals, n, 1)

    @property
    def used_gpu_milli(self) -> int:
        """Allocated GPU, in milli-GPU."""
        return int(self.totals[USED_MILLI])

    @property
    def idle_gpu_milli(self) -> int:
        """GPU not allocated, in milli-GPU."""
        return int(self.totals[IDLE_MILLI])

    @property
    def idle_by_model(self) -> Ints:
        """GPU not allocated, in milli-GPU, of each model of the cluster."""
        return self.totals[TOTALS + 1 :]

    @property
    def fragment_gpu_milli(self) -> float:
        """Idle GPU that the target workload is expected not to be able to use, in milli-GPU."""
        return float(self.totals[FRAGMENT] * FRAGMENT_UNIT)

    @property
    def cpu_power_w(self) -> float:
        """Estimated draw of all CPUs, in watts."""
        return float(self.totals[CPU_MW] / 1000)

    @property
    def gpu_power_w(self) -> float:
        """Estimated draw of all GPUs, in watts."""
        return float(self.totals[GPU_MW] / 1000)

    @property
    def changes(self) -> int:
        """How many times a node changed since the start."""
        return int(self.totals[CHANGES])

    # Refusals are bugs and not answers: whoever places has chosen on this very state, and what does
    # not fit was never chosen from it.
    def place(self, allocation: Allocation) -> None:
        """Give `allocation` its resources.

        Raises:
            Bug: the node or one of its GPUs has less room than that.
        """
        self._change(allocation, _PLACE)

    def release(self, allocation: Allocation) -> None:
        """Take back what `place` gave.

        Raises:
            Bug: more would be free than there is.
        """
        self._change(allocation, _RELEASE)

    def _change(self, allocation: Allocation, sign: int) -> None:
        verb = "place" if sign == _PLACE else "release"
        # Kernels do not check indices.
        if not 0 <= allocation.node < len(self.cluster.nodes):
            raise Bug(f"cannot {verb} {allocation}: no such node")
        shape = self.intern(allocation.request)
        memory = allocation.request.memory_mib
        mask = _bits_of(allocation.gpus)
        if mask < 0 or not change(
            self.world, self.totals, self.log, shape, memory, allocation.node, mask, sign
        ):
            raise Bug(f"cannot {verb} {allocation}: {self.describe(allocation.node)}")

    def close(self, nodes: Collection[int]) -> None:
        """From now on nothing is placed on `nodes`, and on all others again.

        What is free there still counts as idle; whatever is on them must be released first.
        """
        # Only nodes whose state changes are touched and logged: each is rescored for every shape.
        for n in sorted(self._closed ^ set(nodes)):
            self.world.nodes.pods[n] += -_CLOSED if n in self._closed else _CLOSED
            self.log[self.totals[CHANGES] % len(self.log)] = n
            self.totals[CHANGES] += 1
        self._closed = set(nodes)

    def intern(self, request: Request) -> int:
        """Shape number of `request`; refreshes the view if the book grew."""
        shape = self.shapes.intern(request)
        # A book that grew has new arrays; kernels that hold the old ones would read shapes that are
        # not there.
        if self.world.shapes is not self.shapes.columns:
            self.world = self.world._replace(shapes=self.shapes.columns)
        return shape

    def describe(self, node: int) -> str:
        """One node in words, for messages."""
        nodes = self.world.nodes
        gpus = "-".join(str(milli) for milli in nodes.gpu_free[node, : nodes.gpu_count[node]])
        return (
            f"{self.cluster.nodes[node].name} has {nodes.cpu_free[node]} milli-CPU, "
            f"{nodes.memory_free[node]} MiB and GPUs [{gpus}] free"
        )


def _check_width(cluster: ClusterSpec) -> None:
    widest = max(cluster.nodes, key=lambda node: node.gpu_count)
    if widest.gpu_count > MAX_GPUS_PER_NODE:
        raise UserError(
            f"{widest.gpu_count} GPUs are more than the {MAX_GPUS_PER_NODE} a node may have here",
            where=f"node {widest.name!r}",
            field="gpu",
            hint="describe it as several nodes",
        )


def _bits_of(gpus: tuple[int, ...]) -> int:
    """GPU numbers as bits; negative if one repeats or is no GPU's number."""
    if len(set(gpus)) != len(gpus) or not all(0 <= gpu < MAX_GPUS_PER_NODE for gpu in gpus):
        return -1
    return sum(1 << gpu for gpu in gpus)


def _empty_nodes(cluster: ClusterSpec, target: TargetWorkload) -> Nodes:
    specs = cluster.nodes
    rows, gpus = len(specs), max([1, *(node.gpu_count for node in specs)])
    tasks = len(target.weight)
    count = np.array([node.gpu_count for node in specs], dtype=np.int64)
    models = {model: index for index, model in enumerate(cluster.gpu_models)}
    cpu = np.array([node.cpu_milli for node in specs], dtype=np.int64)
    memory = np.array([node.memory_mib for node in specs], dtype=np.int64)
    return Nodes(
        cpu_capacity=cpu,
        cpu_free=cpu.copy(),
        memory_capacity=memory,
        memory_free=memory.copy(),
        # GPUs that a node does not have count as taken: the NumPy definitions look at whole rows.
        gpu_free=np.where(np.arange(gpus) < count[:, None], WHOLE_GPU_MILLI, 0),
        gpu_count=count,
        model=np.array([models[n.gpu_model] if n.gpu_count else -1 for n in specs]),
        pods=np.zeros(rows, dtype=np.int64),
        kinds=np.zeros((rows, gpus + 1), dtype=np.int64),
        active=np.zeros(rows, dtype=np.int64),
        idle=np.zeros(rows, dtype=np.int64),
        fragment=np.zeros(rows, dtype=np.float64),
        roomy=np.zeros((rows, tasks), dtype=np.int64),
        small=np.zeros((rows, tasks), dtype=np.int64),
    )

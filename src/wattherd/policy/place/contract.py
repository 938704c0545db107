"""What a placement policy sees and what it answers.

A policy is one or more *scorers*. A scorer gives every (request shape, node) pair an integer key,
higher is better, and, for sharing requests, the GPU it would use. Keys depend on the state of
that one node only, so the engine keeps them in tables and recomputes just the nodes that changed.

The engine owns the arrays below and is the only one to write to them. They are named tuples
because compiled kernels take those as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wattherd.estimate.expected_packing import PackingOutlook
from wattherd.estimate.node_power import PowerColumns
from wattherd.estimate.target_workload import TargetWorkload
from wattherd.model.allocation import Allocation
from wattherd.model.job import Request

Ints = NDArray[np.int64]

INFEASIBLE = -(2**62)
NO_GPU = -1


class Nodes(NamedTuple):
    """The cluster's state, N nodes x G GPUs; free milli of an absent GPU is 0, its model -1.

    `kinds` (N, G + 1) counts the pods on each node by kind: column 0 sharing, column k exclusive
    with k GPUs. `active` counts GPUs with any allocation, `idle` sums the free milli.
    """

    cpu_capacity: Ints
    cpu_free: Ints
    memory_capacity: Ints
    memory_free: Ints
    gpu_free: Ints
    gpu_count: Ints
    model: Ints
    pods: Ints
    kinds: Ints
    active: Ints
    idle: Ints
    fragment: NDArray[np.float64]
    roomy: Ints
    small: Ints


class RequestShapes(NamedTuple):
    """Distinct requests without their memory (no score looks at memory), S rows."""

    cpu_milli: Ints
    gpu_milli: Ints
    gpu_count: Ints
    sharing: NDArray[np.bool_]
    allowed: NDArray[np.bool_]


class ScoredWorld(NamedTuple):
    """Everything a scorer may read."""

    nodes: Nodes
    shapes: RequestShapes
    target: TargetWorkload
    power: PowerColumns
    outlook: PackingOutlook


class Normalise(IntEnum):
    """How raw keys of the feasible nodes become 0..100 before they are weighted."""

    NONE = 0
    SPREAD = 1
    """(raw - min) * 100 // (max - min); all equal gives 0."""
    SPREAD_OR_FULL = 2
    """As SPREAD; all equal gives 100."""


class Rows(Protocol):
    """The NumPy definition of a scorer."""

    def __call__(
        self, world: ScoredWorld, shape: int, rows: Ints, options: NDArray[np.float64]
    ) -> tuple[Ints, Ints]:
        """Keys and GPUs (`NO_GPU` where none is to be named) of `rows`, all of them feasible."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """A named way to score nodes.

    `rows` defines it; `kernel_id`, where given, names the compiled twin in `dispatch`. `options`
    are numbers that a user may set by name; `tokens` are words that stand for a number. One that
    `looks_ahead` reads `ScoredWorld.outlook`; its keys hold while the load stays in one band.
    """

    name: str
    doc: str
    rows: Rows
    kernel_id: int | None = None
    normalise: Normalise = Normalise.NONE
    options: Mapping[str, float] = field(default_factory=dict)
    tokens: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    random_ties: bool = False
    random_gpu: bool = False
    blendable: bool = True
    looks_ahead: bool = False


class PlacementDesk(Protocol):
    """A placement policy at work on its own account of a cluster."""

    def place_one(
        self, request: Request, among: NDArray[np.bool_] | None = None
    ) -> Allocation | None:
        """Choose, among some nodes (N,) if given, and book; None if it fits nowhere now."""
        ...

    def release(self, allocation: Allocation) -> None:
        """Take back what was placed."""
        ...

    def close(self, nodes: Collection[int], gpus: Collection[tuple[int, int]] = ()) -> None:
        """Place nothing on `nodes`, nor on what is free of `gpus`, and on all others again.

        `gpus` are (node, GPU); what is released on them later is free until this is called anew.
        """
        ...

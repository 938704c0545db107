"""On which nodes a job may run at all, by what only the shell knows.

Taints, affinity, volumes, partitions and features of nodes are the world's affair. They reach the
core as a mask over nodes for each role of a job; what the core knows itself (GPU models, lost and
drained nodes, what is free) is no part of it. The guard refuses what lies outside of a mask, and
planners look for places inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wattherd.model.cluster import NodeSpec
from wattherd.model.job import JobSpec

NodeMask = NDArray[np.bool_]
"""Nodes (N,) that may be used."""
RoleMasks = tuple[NodeMask | None, ...]
"""The nodes that each role may use, None: all; empty where no role is bound to any."""


class Eligibility(Protocol):
    """Says which nodes tasks may run on.

    The answer must follow from specification and role alone: the same events are then answered by
    the same commands, today and in a replay. It is asked for often, so keep what takes long to
    work out. Nobody changes an array that was handed out.
    """

    def nodes(self, spec: JobSpec, role: int) -> NodeMask | None:
        """Nodes (N,) on which tasks of role number `role` may run; None: on all of them."""
        ...


class KnowsEligibility(Protocol):
    """A view, of which only this is asked."""

    def eligible(self, spec: JobSpec, role: int = 0) -> NodeMask | None:
        """As `Eligibility.nodes`."""
        ...


def inside(column: NDArray[np.int64], mask: NodeMask | None) -> NDArray[np.int64]:
    """`column` (N,) with nothing on nodes outside of `mask`."""
    return column if mask is None else np.where(mask, column, 0)


class SeesNodes(KnowsEligibility, Protocol):
    """A view, of which only nodes and eligibility are asked."""

    def nodes(self) -> Sequence[NodeSpec]:
        """All nodes in the order of their indices."""
        ...


def able_nodes(view: SeesNodes, spec: JobSpec, role: int = 0) -> NodeMask | None:
    """Nodes (N,) that a role could ever use: eligible, and of a GPU model it takes; None: all.

    For planners that count what would be free if others went: `Draft.room` knows the models, but
    only of what is free now.
    """
    mask = view.eligible(spec, role)
    if not spec.gpu_models or not spec.roles[role].gpu_count:
        return mask
    models = np.array([node.gpu_model in spec.gpu_models for node in view.nodes()], dtype=np.bool_)
    return models if mask is None else models & mask


def common_mask(
    view: KnowsEligibility, spec: JobSpec, *, gpus_only: bool = False
) -> NodeMask | None:
    """Nodes (N,) on which every role of a job may run (or every role with GPUs); None: all."""
    common: NodeMask | None = None
    for number, role in enumerate(spec.roles):
        mask = None if gpus_only and not role.gpu_count else view.eligible(spec, number)
        if mask is not None:
            common = mask if common is None else common & mask
    return common


def role_masks(view: KnowsEligibility, spec: JobSpec) -> RoleMasks:
    """Which nodes each role of a job may use."""
    masks = tuple(view.eligible(spec, number) for number in range(len(spec.roles)))
    return () if all(mask is None for mask in masks) else masks


def eligibility_key(view: KnowsEligibility, spec: JobSpec) -> tuple[bytes, ...]:
    """Equal for jobs of as many roles that may use the same nodes; empty for those bound to none.

    Planners that tell one job what they told another like it must compare this as well.
    """
    return mask_keys(role_masks(view, spec))


def mask_keys(masks: RoleMasks) -> tuple[bytes, ...]:
    """Equal for equal masks."""
    return tuple(b"" if mask is None else mask.tobytes() for mask in masks)

"""Nodes and the cluster they form: capacities only, never what is in use.

Units: CPU in milli-vCPU (1000 = one vCPU), memory in MiB, GPU shares in milli-GPU
(1000 = one whole GPU), as in the public traces.
"""

from __future__ import annotations

from dataclasses import dataclass

from wattherd.errors import UserError

WHOLE_GPU_MILLI = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One machine: `gpu_count` devices of one model (`gpu_model` is empty where there are none).

    `idle_w` is what the machine draws beside its GPUs while it is on; 0 leaves that out of account.
    """

    name: str
    cpu_milli: int
    memory_mib: int
    gpu_count: int = 0
    gpu_model: str = ""
    cpu_model: str = ""
    idle_w: float = 0.0

    @property
    def gpu_milli(self) -> int:
        """Capacity of all devices together, in milli-GPU."""
        return self.gpu_count * WHOLE_GPU_MILLI


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """Nodes in tie order: among equally good nodes the first one wins.

    Raises:
        UserError: two nodes carry the same name, or there is no node.
    """

    nodes: tuple[NodeSpec, ...]

    def __post_init__(self) -> None:
        """Refuse what no policy could tell apart."""
        if not self.nodes:
            raise UserError("the cluster has no node")
        seen: set[str] = set()
        for node in self.nodes:
            if node.name in seen:
                raise UserError(f"node {node.name!r} appears twice", hint="node names are unique")
            seen.add(node.name)

    @property
    def gpu_milli(self) -> int:
        """GPU capacity of the cluster, in milli-GPU."""
        return sum(node.gpu_milli for node in self.nodes)

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """The GPU models present, sorted."""
        return tuple(sorted({node.gpu_model for node in self.nodes if node.gpu_count}))

    def reordered(self, order: tuple[int, ...]) -> ClusterSpec:
        """The same nodes in another tie order; `order` lists every index once."""
        return ClusterSpec(tuple(self.nodes[index] for index in order))

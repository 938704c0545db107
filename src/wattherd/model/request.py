"""What a pod asks for, and the pod itself.

A *sharing* request wants part of one GPU, an *exclusive* one wants whole GPUs, a *CPU-only* one
wants none. `models` keeps the spelling of the input (order and repetition included), because the
published target workload groups by spelling while placement tests plain membership
(FGD, ATC'23, artifact).
"""

from __future__ import annotations

from dataclasses import dataclass

from wattherd.model.cluster import WHOLE_GPU_MILLI, NodeSpec
from wattherd.model.quick import maker, quick


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """CPU in milli-vCPU, memory in MiB, `gpu_count` GPUs at `gpu_milli` milli each."""

    cpu_milli: int
    memory_mib: int = 0
    gpu_count: int = 0
    gpu_milli: int = 0
    models: tuple[str, ...] = ()

    @property
    def total_gpu_milli(self) -> int:
        """GPU demand over all devices, in milli-GPU."""
        return self.gpu_count * self.gpu_milli

    @property
    def is_sharing(self) -> bool:
        """Whether it asks for a part of a single GPU."""
        return self.gpu_count == 1 and self.gpu_milli < WHOLE_GPU_MILLI

    def allows(self, model: str) -> bool:
        """Whether a GPU of `model` will do; CPU-only requests and empty lists take any."""
        return not self.gpu_count or not self.models or model in self.models

    def fits(self, node: NodeSpec) -> bool:
        """Whether an empty `node` could ever hold it."""
        return (
            self.cpu_milli <= node.cpu_milli
            and self.memory_mib <= node.memory_mib
            and self.gpu_count <= node.gpu_count
            and self.allows(node.gpu_model)
        )


make_request = maker(Request)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePod:
    """A request with a name and, where the trace gives them, submit time and run time (s)."""

    name: str
    request: Request
    submit_s: float | None = None
    duration_s: float | None = None

"""What a pod waits for: one token, the numbers behind it, and what would let it start.

Texts follow from the state of the cluster alone, so that equal states are told in equal words.
"""

from __future__ import annotations

from dataclasses import dataclass

from wattherd.kube.facts.refusal import RefusalToken
from wattherd.model.reason import ReasonCode
from wattherd.units import counted


@dataclass(frozen=True, slots=True)
class PodFinding:
    """`facts` with numbers, and `unblocks`: what would help, of which any part is enough."""

    token: str
    facts: str
    unblocks: str = ""

    @property
    def text(self) -> str:
        """Behind the token, in conditions and events."""
        return f"{self.facts}; {self.unblocks}" if self.unblocks else self.facts

    @property
    def lasting(self) -> bool:
        """Whether nothing that ends would help."""
        return self.token in _LASTING

    def line(self) -> str:
        """As it stands in conditions and events."""
        return f"{self.token}: {self.text}"


_LASTING = frozenset(
    {str(ReasonCode.NEVER_FITS), *(str(token) for token in RefusalToken if token.lasting)}
)
ADVICE = {
    RefusalToken.INVALID_POD: "correct the pod",
    RefusalToken.UNSUPPORTED: "leave the pod to another scheduler",
    RefusalToken.UNKNOWN_NODE: "wait until the node is known",
    RefusalToken.UNSCHEDULABLE: "uncordon or repair a node",
    RefusalToken.TAINT: "add a toleration to the pod, or take the taint off a node",
    RefusalToken.SELECTOR: "change the pod's node selector, or label a node",
    RefusalToken.AFFINITY: "change the pod's node affinity, or label a node",
    RefusalToken.ANTI_AFFINITY: "wait until those pods end, or relax what keeps them apart",
    RefusalToken.VOLUME: "move the volume, or add a node that reaches it",
    RefusalToken.GPU_UNKNOWN: "set the label wattherd.dev/gpu-model on a node to a catalog name",
    RefusalToken.GPU_MODEL: "ask for a model that is there, or add a node",
    RefusalToken.GPU_SHARES: "ask as the nodes give GPUs: docs/guides/kubernetes.md, GPUs",
    RefusalToken.HOST_PORT: "wait until the port is free, or take another one",
    RefusalToken.TOO_MANY_PODS: "wait until a pod ends, or add a node",
}
"""What would help against a refusal that needs no numbers."""


def gpus(milli: int) -> str:
    """Whole GPUs by number, parts in thousandths."""
    if milli and milli < 1000:
        return f"{milli}/1000 of a GPU"
    return counted(milli / 1000, "GPU")


def cpus(milli: int) -> str:
    """As in `1 CPU`, `0.5 CPUs`."""
    return counted(milli / 1000, "CPU")


def memory(mib: int) -> str:
    """Of MiB, in the units in which pods ask for them."""
    return f"{mib / 1024:.4g} GiB of memory" if mib >= 1024 else f"{mib} MiB of memory"


def watts_up(mw: int) -> str:
    """Milliwatts in watts, rounded up: what is said to be enough is enough."""
    return f"{-(-mw // 1000):,} W"


def watts_down(mw: int) -> str:
    """Milliwatts in watts, rounded down: what is said to be there is there."""
    return f"{mw // 1000:,} W"

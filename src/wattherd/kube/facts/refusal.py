"""Why a node will not take a pod, or nobody can: a token, and a text with numbers.

The tokens are for programs and stay; the texts are for people. kube-scheduler counts nodes by equal
text in its events, so texts of nodes carry no number that differs from node to node.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RefusalToken(StrEnum):
    """What stands in the way, most fundamental first: of several, the first is told."""

    INVALID_POD = "InvalidPod"
    UNSUPPORTED = "Unsupported"
    UNKNOWN_NODE = "UnknownNode"
    UNSCHEDULABLE = "NodeUnschedulable"
    TAINT = "TaintNotTolerated"
    SELECTOR = "NodeSelectorMismatch"
    AFFINITY = "NodeAffinityMismatch"
    ANTI_AFFINITY = "PodAntiAffinity"
    VOLUME = "VolumeNodeConflict"
    GPU_UNKNOWN = "GpuModelUnknown"
    GPU_MODEL = "GpuModelMismatch"
    GPU_SHARES = "GpuSharesDiffer"
    HOST_PORT = "HostPortTaken"
    TOO_MANY_PODS = "TooManyPods"
    RESOURCE = "ResourceShort"
    ROOM = "NoRoom"
    UNKNOWN_QUEUE = "UnknownQueue"
    NEVER_FITS = "NeverFits"
    QUOTA = "QuotaExceeded"
    POWER = "PowerBudget"
    NOT_CHOSEN = "NotChosen"

    @property
    def lasting(self) -> bool:
        """Whether evicting other pods would not help (kube-scheduler: unresolvable)."""
        return self in _LASTING


_LASTING = frozenset(
    {
        *(
            RefusalToken.INVALID_POD,
            RefusalToken.UNSUPPORTED,
            RefusalToken.UNKNOWN_NODE,
            RefusalToken.UNSCHEDULABLE,
        ),
        *(
            RefusalToken.TAINT,
            RefusalToken.SELECTOR,
            RefusalToken.AFFINITY,
            RefusalToken.VOLUME,
            RefusalToken.GPU_UNKNOWN,
        ),
        *(RefusalToken.GPU_MODEL, RefusalToken.GPU_SHARES),
    }
)


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """`token`, then what was found, in words."""

    token: RefusalToken
    text: str

    def line(self) -> str:
        """As it stands in conditions and events."""
        return f"{self.token}: {self.text}"


class PodRefused(Exception):
    """No node can take the pod as it is."""

    def __init__(self, refusal: NodeRefusal) -> None:
        """Keep the refusal."""
        self.refusal = refusal
        super().__init__(refusal.line())

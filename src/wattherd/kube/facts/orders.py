"""What the second scheduler wants done; what came of it is seen in the API, or told to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wattherd.kube.api.objects import OwnerReference, Requirement
from wattherd.kube.facts.pod_groups import GroupId


@dataclass(frozen=True, slots=True)
class BindPod:
    """Bind this pod to this node, with these annotations."""

    uid: str
    key: str
    node: str
    decision: str
    annotations: dict[str, str]


@dataclass(frozen=True, slots=True)
class ReleasePod:
    """Take our gate off this pod, with these annotations; nodes it may go to `need` all of this."""

    uid: str
    key: str
    decision: str
    annotations: dict[str, str]
    needs: tuple[Requirement, ...]


@dataclass(frozen=True, slots=True)
class EvictPod:
    """Have a pod stopped through the eviction API, and why."""

    uid: str
    key: str
    why: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class StopRun:
    """Stop pods of one job that are told so `notice_s` before; their `owner` may be suspended."""

    evictions: tuple[EvictPod, ...]
    owner: OwnerReference | None = None
    notice_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TellPod:
    """Why a pod waits, as soon as it is known and whenever that changed."""

    uid: str
    key: str
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class TellGroup:
    """Why a gang waits, or (`waits` False) that all its pods have their places."""

    group: GroupId
    uid: str
    reason: str
    text: str
    waits: bool = True


@dataclass(frozen=True, slots=True)
class CapPod:
    """Ask the agent on its node to hold a pod's GPUs to `cap_w` together; None lifts the cap.

    With `forgets`, what the agent read back last is taken off the pod: a higher cap was asked for
    since and may be in force, so that only what is read back from now on counts.
    """

    uid: str
    key: str
    cap_w: float | None
    forgets: bool = False


@dataclass(frozen=True, slots=True)
class StopPods:
    """Stop pods for want of watts: by suspending what owns them, else by eviction.

    `needs_w` are the watts by power domain without which they shall not run again.
    """

    uids: tuple[str, ...]
    namespace: str
    owner: OwnerReference | None
    needs_w: Mapping[str, float]
    priority: int
    why: str


@dataclass(frozen=True, slots=True)
class ResumeOwner:
    """Let a suspended job (its path in the API) run again."""

    uid: str
    path: str


@dataclass(frozen=True, slots=True)
class ResizeOwner:
    """Have a Job make so many pods, and let it run if it was suspended for that."""

    uid: str
    namespace: str
    name: str
    pods: int


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Have the scheduler of a pod look at it again: what it was refused for is not so any more."""

    uid: str
    key: str


Order = (
    BindPod
    | ReleasePod
    | EvictPod
    | TellPod
    | TellGroup
    | CapPod
    | StopPods
    | ResumeOwner
    | ResizeOwner
)

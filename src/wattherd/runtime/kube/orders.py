"""What the second scheduler wants done; what came of it is seen in the API, or told to it."""

from __future__ import annotations

from dataclasses import dataclass

from wattherd.runtime.kube.groups import GroupId
from wattherd.runtime.kube.objects import Requirement


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


Order = BindPod | ReleasePod | EvictPod | TellPod | TellGroup

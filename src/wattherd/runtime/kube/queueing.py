"""Which pods wait to be placed, together with whom, and what they must wait for first.

A gang waits until it has its members; from then on they are placed together or not at all. Members
that come when their gang runs already (it is scaled up, or one of them was replaced) go alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from wattherd.model.reason import ReasonCode
from wattherd.runtime.kube.admissible import Volumes
from wattherd.runtime.kube.api_objects import PodGroup
from wattherd.runtime.kube.groups import GroupId, group_of, least_members, stated_size
from wattherd.runtime.kube.objects import Pod
from wattherd.runtime.kube.pod_ask import Ask, ask_of
from wattherd.runtime.kube.refusal import PodRefused
from wattherd.runtime.kube.way import Way
from wattherd.runtime.kube.works import Member

_UNDOING = (str(ReasonCode.WAITING_FOR_GANG), "pods of its gang are being evicted")
_NOTHING = Ask(cpu_milli=0, memory_mib=0)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Pods that wait together; `refusal` (token, text) must change before they are tried."""

    members: tuple[Member, ...]
    refusal: tuple[str, str] | None = None

    @property
    def ready(self) -> bool:
        """Whether they may be placed."""
        return self.refusal is None

    @property
    def uids(self) -> frozenset[str]:
        """Of all of them."""
        return frozenset(member.uid for member in self.members)


class Queueing:
    """Sorts the pods of one scheduler; `pods` and `groups` are kept by somebody else."""

    def __init__(
        self,
        way: Way,
        pods: Mapping[str, Pod],
        groups: Mapping[GroupId, PodGroup],
        volumes: Volumes,
    ) -> None:
        """`way` says which of them wait."""
        self._way = way
        self._pods = pods
        self._groups = groups
        self._volumes = volumes
        self._read: dict[str, tuple[Pod, Member, tuple[str, str] | None]] = {}
        """By uid: what was made of a pod, as long as it is the same."""

    def forget(self) -> None:
        """Volumes changed."""
        self._read.clear()

    def waiting(self, held: Collection[str], leaving: Collection[str]) -> list[Waiting]:
        """All that wait, and those of `held` (uids) whose binding is not seen yet.

        A gang of which pods are being evicted (`leaving`) waits until they are gone.
        """
        by_group: dict[GroupId | str, list[Pod]] = {}
        begun: dict[GroupId, int] = {}
        for uid, pod in self._pods.items():
            group = group_of(pod)
            if group is not None and (self._way.seat(pod) or uid in held):
                begun[group] = begun.get(group, 0) + 1
            if self._way.waits(pod):
                by_group.setdefault(group or uid, []).append(pod)
        found: list[Waiting] = []
        undone = {group_of(self._pods[uid]) for uid in leaving if uid in self._pods}
        for key, pods in by_group.items():
            if not isinstance(key, str) and key in undone:
                found += [Waiting((self._member(pod)[0],), _UNDOING) for pod in pods]
            elif isinstance(key, str) or begun.get(key, 0):
                found += [self._alone(pod) for pod in pods]
            else:
                found.append(self._together(key, pods))
        return found

    def _alone(self, pod: Pod) -> Waiting:
        member, refusal = self._member(pod)
        return Waiting((member,), refusal)

    def _together(self, group: GroupId, pods: list[Pod]) -> Waiting:
        found = [self._member(pod) for pod in pods]
        members = tuple(member for member, _ in found)
        refusal = next((refusal for _, refusal in found if refusal is not None), None)
        least = self._least(group, pods)
        if refusal is None and len(pods) < least:
            text = f"{len(pods)} of {least} pods of {group.name} are there; create the others"
            refusal = (str(ReasonCode.WAITING_FOR_GANG), text)
        return Waiting(members, refusal)

    def _least(self, group: GroupId, pods: list[Pod]) -> int:
        known = self._groups.get(group)
        if known is not None:
            return least_members(known)
        return max((stated_size(pod) or 1 for pod in pods), default=1)

    def _member(self, pod: Pod) -> tuple[Member, tuple[str, str] | None]:
        known = self._read.get(pod.metadata.uid)
        if known is None or known[0] is not pod:
            known = self._read[pod.metadata.uid] = (pod, *self._made(pod))
        return known[1:]

    def _made(self, pod: Pod) -> tuple[Member, tuple[str, str] | None]:
        try:
            ask = ask_of(pod)
        except PodRefused as refused:
            return Member(pod, _NOTHING), (str(refused.refusal.token), refused.refusal.text)
        refusal = self._way.refusal(pod, self._volumes)
        if refusal is not None:
            return Member(pod, ask), (str(refusal.token), refusal.text)
        return Member(pod, ask), None

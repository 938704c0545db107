"""Which pods wait to be placed, together with whom, and what they must wait for first.

A gang waits until it has its members; from then on they are placed together or not at all. Members
that come when their gang runs already (it is scaled up, or one of them was replaced) go alone, and
so do those beyond the number that its group object says must start together. A group that is made
by an object is not known before that object is: news of pods may be faster than those of groups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from wattherd.kube.account.binding_mode import BindingMode
from wattherd.kube.api.api_objects import PodGroup
from wattherd.kube.api.objects import Pod
from wattherd.kube.facts.node_filter import Volumes
from wattherd.kube.facts.pod_groups import (
    GroupId,
    GroupKind,
    group_of,
    least_members,
    set_of,
    stated_size,
)
from wattherd.kube.facts.pod_request import PodRequest, ask_of
from wattherd.kube.facts.refusal import PodRefused
from wattherd.kube.facts.workload import WorkloadPod, check_told
from wattherd.model.reason import ReasonCode

_UNDOING = (str(ReasonCode.WAITING_FOR_GANG), "pods of its gang are being evicted")
_NOTHING = PodRequest(cpu_milli=0, memory_mib=0)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Pods that wait together; `refusal` (token, text) must change before they are tried.

    `group` is the gang that they are, all of it.
    """

    members: tuple[WorkloadPod, ...]
    refusal: tuple[str, str] | None = None
    group: GroupId | None = None

    @property
    def ready(self) -> bool:
        """Whether they may be placed."""
        return self.refusal is None

    @property
    def uids(self) -> frozenset[str]:
        """Of all of them."""
        return frozenset(member.uid for member in self.members)


Key = GroupId | str
"""What waits together: a gang, or one pod by its uid."""


@dataclass(frozen=True, slots=True)
class News:
    """What was stirred since the last look: pods by uid, and all who wait of their groups now."""

    uids: tuple[str, ...]
    waiting: tuple[Waiting, ...]


class Queueing:
    """Sorts the pods of one scheduler; `pods` and `groups` are kept by somebody else.

    A look costs as much as happened since the last one, not as much as there are pods: whoever
    changes anything about a pod says so.
    """

    def __init__(
        self,
        way: BindingMode,
        pods: Mapping[str, Pod],
        groups: Mapping[GroupId, PodGroup],
        volumes: Volumes,
    ) -> None:
        """`way` says which of them wait."""
        self._way = way
        self._pods = pods
        self._groups = groups
        self._volumes = volumes
        self._stated: set[GroupKind] = {GroupKind.NATIVE}
        """Kinds of which every group has an object that says how many members it needs."""
        self._unread: set[GroupKind] = set()
        """Kinds whose objects we may not read."""
        self._read: dict[str, tuple[Pod, WorkloadPod, tuple[str, str] | None]] = {}
        """By uid: what was made of a pod, as long as it is the same."""
        self._key_of: dict[str, Key] = {}
        self._uids: dict[Key, dict[str, None]] = {}
        self._waiting: dict[Key, tuple[Waiting, ...]] = {}
        self._stirred: dict[str, None] = {}
        self._stirred_keys: dict[Key, None] = {}

    # What changed ---------------------------------------------------------------------------------

    def note(self, pod: Pod) -> None:
        """A pod is there, or changed."""
        uid = pod.metadata.uid
        key, before = group_of(pod) or uid, self._key_of.get(uid)
        if before is not None and before != key:
            self._leave(uid, before)
        self._key_of[uid] = key
        self._uids.setdefault(key, {})[uid] = None
        self.stir(uid)

    def drop(self, uid: str) -> None:
        """A pod is gone."""
        self._stirred[uid] = None
        self._read.pop(uid, None)
        key = self._key_of.pop(uid, None)
        if key is not None:
            self._leave(uid, key)

    def _leave(self, uid: str, key: Key) -> None:
        self._stirred_keys[key] = None
        del self._uids[key][uid]
        if not self._uids[key]:
            del self._uids[key]

    def stir(self, uid: str) -> None:
        """Something about this pod is not as it was: where it is held, whether it must leave."""
        self._stirred[uid] = None
        if uid in self._key_of:
            self._stirred_keys[self._key_of[uid]] = None

    def stir_group(self, group: GroupId) -> None:
        """A group changed, or is gone; so did the groups of a set that has several."""
        self._stirred_keys[group] = None
        if group.kind is GroupKind.LWS:
            kind, namespace = group.kind, group.namespace
            self._stirred_keys |= {
                key: None
                for key in self._uids
                if isinstance(key, GroupId) and (key.kind, key.namespace) == (kind, namespace)
            }

    def stir_all(self) -> None:
        """Look at every pod as if it had just come, the oldest first."""
        by_age = sorted(self._pods.values(), key=lambda pod: pod.metadata.creation_timestamp or "")
        for pod in by_age:
            self.stir(pod.metadata.uid)

    def state(self, kind: GroupKind, *, stated: bool) -> None:
        """Whether groups of a kind are objects; native ones always are."""
        if kind is not GroupKind.NATIVE and stated is not (kind in self._stated):
            (self._stated.add if stated else self._stated.discard)(kind)
            self.stir_all()

    def bar(self, kind: GroupKind, *, unread: bool) -> None:
        """Whether we may not read what says how large groups of a kind are: those wait."""
        (self._unread.add if unread else self._unread.discard)(kind)
        self.stir_all()

    def forget(self) -> None:
        """Volumes changed."""
        self._read.clear()
        self._stirred_keys.update(dict.fromkeys(self._waiting))

    # Who waits ------------------------------------------------------------------------------------

    @property
    def waiting(self) -> list[Waiting]:
        """All that wait, as of the last look."""
        return [one for found in self._waiting.values() for one in found]

    def waits_with(self, uid: str) -> tuple[WorkloadPod, ...]:
        """The pods that wait together with this one, itself among them; none if it does not."""
        for one in self.waiting:
            if any(member.uid == uid for member in one.members):
                return one.members
        return ()

    def mates(self, uid: str) -> Collection[str]:
        """All pods of the gang of this one, waiting or not; none if it is of no gang."""
        key = self._key_of.get(uid)
        return self._uids.get(key, ()) if isinstance(key, GroupId) else ()

    def look(self, held: Collection[str], leaving: Collection[str]) -> News:
        """Who waits of those that were stirred, also pods of `held` whose binding is not seen yet.

        A gang of which pods are being evicted (`leaving`) waits until they are gone.
        """
        uids, keys = tuple(self._stirred), self._stirred_keys
        self._stirred, self._stirred_keys = {}, {}
        undone = {self._key_of.get(uid) for uid in leaving}
        news: list[Waiting] = []
        for key in keys:
            found = self._found(key, held, undone=key in undone)
            self._waiting.pop(key, None)
            if found:
                self._waiting[key] = found
                news += found
        return News(uids, tuple(news))

    def _found(self, key: Key, held: Collection[str], *, undone: bool) -> tuple[Waiting, ...]:
        there = [self._pods[uid] for uid in self._uids.get(key, ())]
        pods = [pod for pod in there if self._way.waits(pod)]
        if not pods:
            return ()
        if isinstance(key, str):
            return tuple(self._alone(pod) for pod in pods)
        if undone:
            return tuple(Waiting((self._member(pod)[0],), _UNDOING) for pod in pods)
        if any(self._way.seat(pod) or pod.metadata.uid in held for pod in there):
            surplus = self._surplus(key, there)
            if surplus is not None:
                return tuple(Waiting((self._member(pod)[0],), surplus) for pod in pods)
            return tuple(self._alone(pod) for pod in pods)
        return self._gang(key, pods)

    def _alone(self, pod: Pod) -> Waiting:
        member, refusal = self._member(pod)
        return Waiting((member,), refusal)

    def _surplus(self, group: GroupId, there: list[Pod]) -> tuple[str, str] | None:
        """Why nobody joins an elastic Job that runs: it was made smaller, and has pods yet to lose.

        Its controller deletes them one after another; which ones is not ours to guess.
        """
        known = self._groups.get(group)
        if group.kind is not GroupKind.JOB or known is None or known.status.phase:
            return None
        least = least_members(known)
        stay = sum(pod.metadata.deletion_timestamp is None for pod in there)
        return self._missing(group, stay, least) if stay > least else None

    def _gang(self, group: GroupId, pods: list[Pod]) -> tuple[Waiting, ...]:
        """Those who must start together, and those who may follow them."""
        known = self._stated_by(group, pods[0])
        if known is None and group.kind in self._unread:
            found = [self._member(pod)[0] for pod in pods]
            return (Waiting(tuple(found), _unread(group), group),)
        if known is None:
            least = max((stated_size(pod) or 1 for pod in pods), default=1)
            return (self._together(group, pods, least),)
        least = least_members(known)
        if group.kind is GroupKind.JOB and not known.status.phase:
            return (self._together(group, pods, least),)  # those beyond are about to be deleted
        pods = sorted(pods, key=lambda pod: self._member(pod)[1] is not None)
        first = self._together(group, pods[:least], least)
        if least == 1:
            return (first, *map(self._alone, pods[1:]))
        why = f"the first {least} pods of {group.name} start together, this one after them"
        follow = (str(ReasonCode.WAITING_FOR_GANG), why)
        return (first, *(Waiting((self._member(pod)[0],), follow) for pod in pods[least:]))

    def _stated_by(self, group: GroupId, pod: Pod) -> PodGroup | None:
        """The object that says how many members the group of a pod needs."""
        known = self._groups.get(group)
        if known is None and group.kind is GroupKind.LWS:
            above = set_of(pod)
            known = None if above is None else self._groups.get(above)
        return known

    def _together(self, group: GroupId, pods: list[Pod], least: int) -> Waiting:
        found = [self._member(pod) for pod in pods]
        members = tuple(member for member, _ in found)
        refusal = next((refusal for _, refusal in found if refusal is not None), None)
        refusal = refusal or self._missing(group, len(pods), least)
        return Waiting(members, refusal, group)

    def _missing(self, group: GroupId, there: int, least: int) -> tuple[str, str] | None:
        """What a gang lacks before it may start."""
        if there < least:
            text = f"{there} of {least} pods of {group.name} are there; create the others"
        elif group.kind is GroupKind.JOB and there > least:
            text = f"{there} pods of {group.name} are there, {least} are to be"
        elif group.kind in self._stated and group not in self._groups:
            text = f"the PodGroup {group.name} is not there; create it"
        else:
            return None
        return str(ReasonCode.WAITING_FOR_GANG), text

    def _member(self, pod: Pod) -> tuple[WorkloadPod, tuple[str, str] | None]:
        known = self._read.get(pod.metadata.uid)
        if known is None or known[0] is not pod:
            known = self._read[pod.metadata.uid] = (pod, *self._made(pod))
        return known[1:]

    def _made(self, pod: Pod) -> tuple[WorkloadPod, tuple[str, str] | None]:
        try:
            ask = ask_of(pod)
            check_told(pod)
        except PodRefused as refused:
            return WorkloadPod(pod, _NOTHING), (str(refused.refusal.token), refused.refusal.text)
        refusal = self._way.refusal(pod, self._volumes)
        if refusal is not None:
            return WorkloadPod(pod, ask), (str(refusal.token), refusal.text)
        return WorkloadPod(pod, ask), None


def _unread(group: GroupId) -> tuple[str, str]:
    """A gang of which part might start alone, did it not wait."""
    text = (
        f"wattherd may not read what says how many pods of {group.name} start together "
        f"({group.kind}); let its account read that"
    )
    return str(ReasonCode.WAITING_FOR_GANG), text

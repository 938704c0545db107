"""Why pods wait that somebody else places: told beside what their own scheduler says; pure.

A stock kube-scheduler counts nodes by what each lacks, and of a gang that is not complete it says
nothing at all. So pods that it found no node for, and pods of groups, are told the one thing that
keeps them, counted on our account. Where that account finds nothing wanting, others have the word;
if it was ours before, its scheduler is made to ask again: it waits for news of pods and nodes,
which tell nothing of a budget or a queue, and may reach it before they reach us.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from wattherd.kube.api.api_objects import PodGroup
from wattherd.kube.api.objects import Pod
from wattherd.kube.facts.finding import PodFinding
from wattherd.kube.facts.orders import AskAgain, TellGroup, TellPod
from wattherd.kube.facts.pod_groups import GroupId, group_of, least_members
from wattherd.kube.facts.pod_request import ask_of
from wattherd.kube.facts.refusal import PodRefused
from wattherd.kube.facts.workload import WorkloadPod
from wattherd.model.reason import ReasonCode

MOST_AT_ONCE = 16
"""Pods that one look goes through: each takes about a millisecond from who asks for nodes."""
STUCK_S = 10.0
"""So long may another scheduler leave a pod that nothing keeps; kube-scheduler's own is 300 s."""
_TURN = str(ReasonCode.WAITING_FOR_TURN)
Why = Callable[[WorkloadPod, int], PodFinding]
"""What keeps a pod, and how many pods like it that need a place as well."""


# kube-scheduler may refuse a pod for watts that are free (1.36; it seems to count a claim twice,
# while that is written), and looks at it no more until news come of what it was refused for.
@dataclass(slots=True)
class StuckPods:
    """Pods that found no node although nothing keeps them, by uid, and since when."""

    _since_s: dict[str, float] = field(default_factory=dict)
    _woken_s: float = -STUCK_S

    def note(self, uid: str, at_s: float) -> None:
        """Nothing keeps it, and it waits."""
        self._since_s.setdefault(uid, at_s)

    def forget(self, uid: str) -> None:
        """Something keeps it, or it waits no more."""
        self._since_s.pop(uid, None)

    def are_due(self, at_s: float) -> bool:
        """Whether their scheduler is to be woken, which is done then."""
        due = at_s - STUCK_S
        if self._woken_s > due or all(since_s > due for since_s in self._since_s.values()):
            return False
        self._woken_s = at_s
        return True


@dataclass(slots=True)
class ForeignReasons:
    """Of the pods of whom `minds` holds; `groups` are kept by somebody else."""

    minds: Callable[[Pod], bool]
    why: Why
    groups: Mapping[GroupId, PodGroup]
    relents: Callable[[str], bool] = lambda _: False
    """Whether we refused a pod, by uid, and not since this was last said."""
    _waiting: dict[str, Pod] = field(default_factory=dict)
    _members: dict[GroupId, dict[str, None]] = field(default_factory=dict)
    _group_of: dict[str, GroupId] = field(default_factory=dict)
    _next: int = 0

    def pod_seen(self, pod: Pod) -> None:
        """A pod is there, or changed."""
        uid, group = pod.metadata.uid, group_of(pod)
        if group is not None:
            self._members.setdefault(group, {})[uid] = None
            self._group_of[uid] = group
        self._waiting.pop(uid, None)
        if self.waits(pod):
            self._waiting[uid] = pod

    def pod_gone(self, uid: str) -> None:
        """A pod was deleted, or ended."""
        self._waiting.pop(uid, None)
        group = self._group_of.pop(uid, None)
        if group is not None:
            del self._members[group][uid]
            if not self._members[group]:
                del self._members[group]

    def waits(self, pod: Pod) -> bool:
        """Whether it is not on a node, and may be worth a word."""
        free = not pod.spec.node_name and pod.metadata.deletion_timestamp is None
        gated = bool(pod.spec.scheduling_gates)
        return free and not gated and (_found_no_node(pod) or group_of(pod) is not None)

    def waiting(self) -> list[WorkloadPod]:
        """All that wait for a scheduler that is minded, and ask for what can be read."""
        found = []
        for pod in self._waiting.values():
            if self.minds(pod):
                with suppress(PodRefused):
                    found.append(WorkloadPod(pod, ask_of(pod)))
        return found

    def group_of(self, uid: str) -> GroupId | None:
        """The group that a pod was seen in."""
        return self._group_of.get(uid)

    def rests(self, group: GroupId) -> bool:
        """Whether none of a group waits."""
        return not any(uid in self._waiting for uid in self._members.get(group, ()))

    def some(self) -> list[str]:
        """Who is to be looked at now, by uid; everybody has a turn."""
        uids = list(self._waiting)
        first = self._next if self._next < len(uids) else 0
        self._next = first + MOST_AT_ONCE
        return uids[first : self._next]

    def told(self, uid: str) -> list[TellPod | TellGroup | AskAgain]:
        """What there is to say of a pod, and of its group."""
        pod = self._waiting.get(uid)
        if pod is None or not self.minds(pod):
            return []
        group = self._group_of.get(uid)
        found = self._of_group(group) or self._of_pod(pod, group)
        key = f"{pod.metadata.namespace}/{pod.metadata.name}"
        if found is None:
            return [AskAgain(uid, key)] if self.relents(uid) else []
        said: list[TellPod | TellGroup | AskAgain] = [TellPod(uid, key, found.token, found.text)]
        if group is not None and group in self.groups:
            about = self.groups[group].metadata.uid
            said.append(TellGroup(group, about, found.token, found.text))
        return said

    def _of_group(self, group: GroupId | None) -> PodFinding | None:
        """Members that its group lacks."""
        if group is None or group not in self.groups:
            return None
        there, least = len(self._members.get(group, ())), least_members(self.groups[group])
        if there >= least:
            return None
        facts = f"{there} of {least} pods of {group.name} are there"
        return PodFinding(str(ReasonCode.WAITING_FOR_GANG), facts, "create the others")

    def _of_pod(self, pod: Pod, group: GroupId | None) -> PodFinding | None:
        try:
            ask = ask_of(pod)
        except PodRefused as refused:
            return PodFinding(str(refused.refusal.token), refused.refusal.text)
        known = group is not None and group in self.groups
        kin = self._members[group] if group is not None and known else {}
        behind = sum(1 for uid in kin if uid in self._waiting) - 1
        found = self.why(WorkloadPod(pod, ask), max(0, behind))
        return None if found.token == _TURN else found


def _found_no_node(pod: Pod) -> bool:
    """Whether its scheduler says so."""
    conditions = pod.status.conditions or ()
    return any(
        one.type == "PodScheduled" and one.status == "False" and one.reason == "Unschedulable"
        for one in conditions
    )

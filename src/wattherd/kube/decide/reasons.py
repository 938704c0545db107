"""What is new of why pods and gangs wait: a reason is told when it comes, and when it changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from wattherd.kube.account.pending_pods import Waiting
from wattherd.kube.api import names
from wattherd.kube.api.api_objects import PodGroup
from wattherd.kube.decide.diagnosis import Diagnosis
from wattherd.kube.facts.finding import PodFinding
from wattherd.kube.facts.orders import Order, TellGroup, TellPod
from wattherd.kube.facts.pod_groups import GroupId, group_of
from wattherd.kube.facts.reason_throttle import SCHEDULED
from wattherd.kube.facts.workload import Workload, WorkloadPod
from wattherd.model.reason import Reason, ReasonCode
from wattherd.units import counted

_ADVICE = {
    ReasonCode.QUOTA_EXCEEDED: "or wait until pods of its queue end",
    ReasonCode.UNKNOWN_QUEUE: f"create the Queue, or change the pod's label {names.QUEUE}",
    ReasonCode.WAITING_FOR_BUDGET_RISE: "wait until the budget rises, or raise it",
}


class Reasons:
    """Keeps what was told; `groups` are kept by somebody else."""

    def __init__(self, diagnosis: Diagnosis, groups: Mapping[GroupId, PodGroup]) -> None:
        """Nothing was told yet."""
        self.diagnosis = diagnosis
        self._groups = groups
        self._told: dict[str | GroupId, tuple[str, str]] = {}

    def forget(self, who: str | GroupId) -> None:
        """A pod (by uid) or a group is gone."""
        self._told.pop(who, None)

    def told(self, who: str | GroupId) -> str:
        """The line that was told last; empty without one."""
        return ": ".join(self._told.get(who, ()))

    def tell(
        self,
        waiting: Iterable[Waiting],
        held: Collection[str],
        why: Callable[[WorkloadPod], PodFinding | None],
    ) -> list[Order]:
        """What is to be told of those who wait; pods in `held` (uids) have a place."""
        orders: list[Order] = []
        for one in waiting:
            for member in one.members:
                if member.uid not in held:
                    orders += self._tell_pod(member, one.refusal, why)
            orders += self._tell_group(one, held)
        return orders

    def _tell_pod(
        self,
        member: WorkloadPod,
        refusal: tuple[str, str] | None,
        why: Callable[[WorkloadPod], PodFinding | None],
    ) -> list[Order]:
        found = None if refusal is not None else why(member)
        told = refusal if found is None else (found.token, found.text)
        if told is None or self._told.get(member.uid) == told:
            return []
        self._told[member.uid] = told
        return [TellPod(member.uid, member.key, *told)]

    def _tell_group(self, waiting: Waiting, held: Collection[str]) -> list[Order]:
        """A gang waits for what its first pod waits for."""
        group, first = waiting.group, waiting.members[0].uid
        told = self._told.get(first)
        if group is None or group not in self._groups or first in held:
            return []
        if told is None or self._told.get(group) == told:
            return []
        self._told[group] = told
        return [TellGroup(group, self._groups[group].metadata.uid, *told)]

    def gang_starts(self, work: Workload) -> list[Order]:
        """Its pods have their places: a group that was told to wait is told so."""
        group = group_of(work.members[0].pod)
        if group is None or self._told.pop(group, None) is None:
            return []
        text = f"{len(work.members)} pods have their nodes"
        uid = self._groups[group].metadata.uid
        return [TellGroup(group, uid, SCHEDULED, text, waits=False)]

    def hopeless(self, reason: Reason, work: Workload | None) -> PodFinding:
        """What can never be placed, as the core says: one of its pods, or all of them together."""
        for member in work.members if work is not None else ():
            found = self.diagnosis.of(member)
            if found.lasting:
                return found
        if reason.code is ReasonCode.NEVER_FITS:
            pods, room = reason.asked or 0, reason.available or 0
            facts = f"{pods:g} such pods, and room for {room:g} if all were free"
            return PodFinding(str(reason.code), facts, "ask for less, or add nodes")
        return finding_of(reason)


def finding_of(reason: Reason) -> PodFinding:
    """What the core says, and what would help."""
    code = str(reason.code)
    facts = reason.text().removeprefix(code).removeprefix(": ").strip()
    if facts.startswith("("):  # no numbers, and in brackets what would stand behind them
        facts = facts.removeprefix("(").removesuffix(")")
    return PodFinding(code, facts, _ADVICE.get(reason.code, ""))


def place_is_kept(stopping: int, lowering: int) -> PodFinding:
    """Of a pod that has its place in the plan: what is awaited.

    Args:
        stopping: pods that still are in its place.
        lowering: works that are being brought to other caps.
    """
    if not stopping and lowering:
        what = f"{counted(lowering, 'job')} must first be seen to draw less"
        return PodFinding(str(ReasonCode.WAITING_FOR_POWER), f"its place is kept; {what}")
    if not stopping:
        text = "its place is kept; what was there is still on its way out"
        return PodFinding(str(ReasonCode.WAITING_FOR_PREEMPTION), text)
    text = f"{counted(stopping, 'pod')} of lower priority, or lent to, must stop first"
    return PodFinding(str(ReasonCode.WAITING_FOR_PREEMPTION), text)

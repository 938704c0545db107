"""The works that the core knows of, and which pods each stands for.

After every look at the cluster the book says what the core must be told, as events: works whose
pods are not those they were made for are over, pods found on nodes run, pods that wait are
submitted. Only works of pods that were stirred are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import count

from wattherd.engine.core.core import Core
from wattherd.kube.account.binding_mode import BindingMode
from wattherd.kube.account.fleet import NodeFleet
from wattherd.kube.account.pending_pods import News, Waiting
from wattherd.kube.api.api_objects import PodGroup
from wattherd.kube.api.objects import Pod
from wattherd.kube.facts.finding import PodFinding
from wattherd.kube.facts.pod_groups import GroupId, group_of, priority_of
from wattherd.kube.facts.workload import FOREIGN, Workload, WorkloadPod, seated_work, work_of
from wattherd.model.allocation import Allocation
from wattherd.model.event import Event, JobCancelled, JobExited, JobSubmitted
from wattherd.model.request import Request
from wattherd.policy.contract import Share


class WorkloadIndex:
    """Works by job id; `pods` are all that are known, by uid, `way` says which are ours to stop."""

    def __init__(
        self,
        way: BindingMode,
        fleet: NodeFleet,
        pods: Mapping[str, Pod],
        groups: Mapping[GroupId, PodGroup],
    ) -> None:
        """No work is known yet."""
        self.works: dict[str, Workload] = {}
        self.rejected: dict[str, PodFinding] = {}
        """Why the core will never run a work."""
        self._way = way
        self._fleet = fleet
        self._pods = pods
        self._groups = groups
        self._work_of: dict[str, str] = {}
        self._since_s: dict[str, float] = {}
        """Of pods that wait: when they were first submitted, whichever core was told then."""
        self._serial = count(1)

    def clear(self) -> None:
        """Nothing was told to anybody: for a core that is new."""
        self.works.clear()
        self.rejected.clear()
        self._work_of.clear()

    def drop(self, uid: str) -> None:
        """A pod is gone."""
        self._since_s.pop(uid, None)

    def id_of(self, uid: str) -> str:
        """The work that stands for a pod; empty without one."""
        return self._work_of.get(uid, "")

    def of(self, uid: str) -> Workload | None:
        """The work that stands for a pod."""
        return self.works.get(self.id_of(uid))

    def seated(self, work: Workload, allocations: Iterable[Allocation]) -> None:
        """A work was started; from now on it is as one that was found on its nodes."""
        shares = [Share(one.node, one.tasks, one.role, gpus=one.gpus) for one in allocations]
        for uid in work.uids:
            self._since_s.pop(uid, None)
        self.works[work.id] = replace(work, seated=True, shares=tuple(shares))

    def differences(
        self, core: Core, news: News, moved: AbstractSet[str], at_s: float
    ) -> list[Event]:
        """What is not as the core was told, and from now on will be.

        Pods that `moved`, and those who are with them on a node, may have other seats than before.
        """
        wanted = {one.uids: one for one in news.waiting if one.ready}
        stirred = dict.fromkeys((*news.uids, *sorted(moved)))
        for waiting in news.waiting:
            stirred.update(dict.fromkeys(member.uid for member in waiting.members))
        events: list[Event] = []
        for work in self._works_of(stirred):
            held = sum(self._is_seated(uid) for uid in work.uids)
            # One that was started and holds nothing was not bound: the core begins anew with it.
            as_told = held == len(work.members) if work.seated else not held and work.uids in wanted
            if as_told and moved.isdisjoint(work.uids):
                continue
            events += self._end(work, core, at_s)
            stirred.update(dict.fromkeys(member.uid for member in work.members))
        events += self._seat_those_there(stirred, at_s)
        for one in wanted.values():
            if not any(uid in self._work_of for uid in one.uids):
                events.append(self._submit(one, at_s))
        return events

    def _works_of(self, uids: Iterable[str]) -> list[Workload]:
        ids = dict.fromkeys(self._work_of[uid] for uid in uids if uid in self._work_of)
        return [self.works[job_id] for job_id in ids]

    def _is_seated(self, uid: str) -> bool:
        return bool(self._fleet.seats(uid)) if uid in self._fleet.holdings else False

    def _end(self, work: Workload, core: Core, at_s: float) -> list[Event]:
        """Its pods are not those it was made for any more."""
        for uid in work.uids:
            self._work_of.pop(uid, None)
        del self.works[work.id]
        self.rejected.pop(work.id, None)
        job = core.jobs.get(work.id)
        if job is None:
            return []
        if job.active:
            return [JobExited(at_s=at_s, job_id=work.id, attempt=job.attempt)]
        return [JobCancelled(at_s=at_s, job_id=work.id)]

    def _seat_those_there(self, uids: Iterable[str], at_s: float) -> list[Event]:
        """Of these pods, those on nodes that no work stands for, by gang."""
        there: dict[GroupId | str, list[WorkloadPod]] = {}
        for uid in uids:
            pod = self._pods.get(uid)
            if pod is not None and uid not in self._work_of and self._is_seated(uid):
                ask = self._fleet.holdings[uid].ask
                there.setdefault(group_of(pod) or uid, []).append(WorkloadPod(pod, ask))
        return [self._found(members, at_s) for members in there.values()]

    def _found(self, members: Sequence[WorkloadPod], at_s: float) -> Event:
        seats = [seat for member in members for seat in self._fleet.seats(member.uid)]
        ours = all(self._way.is_ours(one.pod) for one in members)
        priority = self._priority(members) if ours else FOREIGN
        work = seated_work(self._new_id(members), members, seats, at_s, priority=priority)
        self._know(work)
        return JobSubmitted(at_s=at_s, job=work.spec)

    def _submit(self, waiting: Waiting, at_s: float) -> Event:
        members = waiting.members
        requests = [self._plain(member) for member in members]
        since_s = min(self._since_s.setdefault(member.uid, at_s) for member in members)
        priority = self._priority(members)
        work = work_of(self._new_id(members), members, requests, since_s, priority=priority)
        self._know(work)
        return JobSubmitted(at_s=at_s, job=work.spec)

    def _priority(self, members: Sequence[WorkloadPod]) -> int:
        return priority_of([one.pod for one in members], self._groups)

    def _plain(self, member: WorkloadPod) -> Request:
        """What a pod asks for, before it is known how a node gives GPUs."""
        known = self._fleet.requests(member.ask)
        return known[0][0] if known else member.ask.without_gpus()

    def _new_id(self, members: Sequence[WorkloadPod]) -> str:
        return f"{members[0].key}#{next(self._serial)}"

    def _know(self, work: Workload) -> None:
        self.works[work.id] = work
        for uid in work.uids:
            self._work_of[uid] = work.id

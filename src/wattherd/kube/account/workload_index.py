"""The works that the core knows of, and which pods each stands for.

After every look at the cluster the book says what the core must be told, as events: works whose
pods are not those they were made for are over, pods found on nodes run, pods that wait are
submitted. Only works of pods that were stirred are looked at.

A job that the core stopped is not over (`keeps_jobs`): its owner makes pods anew, and these are the
same job, with its turn and all the service that it received. Pods are known to be of the job by
their gang, else by what controls them; a pod that nothing controls does not come back.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import count

from wattherd.engine.core.core import Core
from wattherd.engine.jobs.lifecycle import State
from wattherd.kube.account.binding_mode import BindingMode
from wattherd.kube.account.eligibility import wish_of
from wattherd.kube.account.enforcement_tally import owner_of
from wattherd.kube.account.fleet import NodeFleet
from wattherd.kube.account.pending_pods import News, Waiting
from wattherd.kube.api.api_objects import PodGroup
from wattherd.kube.api.objects import Pod
from wattherd.kube.facts.finding import PodFinding
from wattherd.kube.facts.node_filter import has_wishes
from wattherd.kube.facts.orders import ResizeOwner
from wattherd.kube.facts.pod_groups import (
    GroupId,
    GroupKind,
    group_of,
    least_members,
    priority_of,
)
from wattherd.kube.facts.workload import (
    FOREIGN,
    Workload,
    WorkloadPod,
    elastic,
    seated_work,
    told_of,
    work_of,
)
from wattherd.model.allocation import Allocation
from wattherd.model.command import StartJob
from wattherd.model.event import (
    Event,
    JobCancelled,
    JobExited,
    JobHeld,
    JobReleased,
    JobStopped,
    JobSubmitted,
)
from wattherd.model.job import JobSpec, Request
from wattherd.policy.contract import Share


@dataclass(frozen=True, slots=True)
class Service:
    """What a job received: seconds in which it held devices, and GPU seconds."""

    seconds: float
    gpu_s: float


@dataclass(frozen=True, slots=True)
class _Unclaimed:
    """What a job received before its core gave way, kept for its pods of now and of `until_s`."""

    service: Service
    uids: frozenset[str]
    until_s: float


Lineage = GroupId | str
"""By what pods are known to be of a job that was stopped."""
KILLED = 137
"""The exit code of a run of which a pod failed, or was deleted: over, but not a success."""
AWAITED_S, MANY = 3600.0, 1024
"""For the pods of a stopped job to be made anew, before it is forgotten."""


class WorkloadIndex:
    """Works by job id; `pods` are all that are known, by uid, `way` says which are ours to stop."""

    def __init__(
        self,
        way: BindingMode,
        fleet: NodeFleet,
        pods: Mapping[str, Pod],
        groups: Mapping[GroupId, PodGroup],
        topology: Callable[[WorkloadPod], Hashable] = lambda _: None,
    ) -> None:
        """No work is known yet; members are of one role only where they want to be in one place."""
        self.works: dict[str, Workload] = {}
        self.rejected: dict[str, PodFinding] = {}
        """Why the core will never run a work."""
        self._way = way
        self._fleet = fleet
        self._pods = pods
        self._groups = groups
        self._topology = topology
        self._work_of: dict[str, str] = {}
        self._since_s: dict[str, float] = {}
        """Of pods that wait: when they were first submitted, whichever core was told then."""
        self._serial = count(1)
        self.keeps_jobs = False
        """Whether jobs that the core stopped wait for their pods to be made anew."""
        self._stopping: Counter[Lineage] = Counter()
        """Jobs that were told to stop and of which pods are there still."""
        self._parked: dict[Lineage, deque[tuple[float, Workload]]] = {}
        """Jobs that stopped, and since when they wait for pods."""
        self._early: dict[Lineage, dict[frozenset[str], Waiting]] = {}
        """Pods that came before those of the run before them were gone."""
        self._held: set[str] = set()
        """Parked jobs of which the core knows that they have no pods."""
        self._leaving: set[str] = set()
        """Jobs that were told to stop, or are undone."""
        self._undone: set[str] = set()
        """Those of them that the core knows nothing of: their pods are to be made anew."""
        self.awaited: dict[str, tuple[float, StartJob]] = {}
        """Jobs that were started and whose pods are still to be made, since when and on what."""
        self._immovable: set[str] = set()
        """Pods that should have been gone, and are not."""
        self._ages: dict[tuple[Lineage, str], tuple[float, float]] = {}
        """When gangs that are made anew came first, and when that was asked for last."""
        self._most_ages = MANY
        self._ended_well: set[str] = set()
        """Pods that have succeeded, of works that are not known to be over."""
        self._there: set[str] = set()
        """Works that were found on their nodes and that the core has not started yet."""
        self._served: dict[Lineage, _Unclaimed] = {}
        """What jobs received of cores before this one, until it is told or their pods are gone."""

    def clear(self, core: Core | None, at_s: float) -> None:
        """Nothing was told to anybody: for a core that is new, and takes over from `core`."""
        self._served = self._service_of(core, at_s) if self.keeps_jobs and core else {}
        self.works.clear()
        self.rejected.clear()
        self._work_of.clear()
        self._stopping.clear()
        self._parked.clear()
        self._early.clear()
        self._ended_well.clear()
        self._held.clear()
        self._leaving.clear()
        self._undone.clear()
        self._there.clear()
        self.awaited.clear()

    def _service_of(self, core: Core, at_s: float) -> dict[Lineage, _Unclaimed]:
        """What jobs received up to now, by what their pods are known by."""
        parked = [work for line in self._parked.values() for _, work in line]
        away = self._leaving | {work.id for work in parked}
        found = dict(self._served)
        for work in (*self.works.values(), *parked):
            job = core.jobs.get(work.id)
            if job is not None and job.service_s(at_s):
                service = Service(job.service_s(at_s), job.service_gpu_s(at_s))
                comes_back = work.id in away and _is_made_anew(work)
                until_s = at_s + AWAITED_S if comes_back else at_s
                found[lineage_of(work.members)] = _Unclaimed(service, work.uids, until_s)
        return found

    def _forget_served(self, at_s: float) -> None:
        """What was received by jobs whose pods are gone, and are not awaited."""
        for lineage, one in list(self._served.items()):
            if one.until_s <= at_s and self._pods.keys().isdisjoint(one.uids):
                del self._served[lineage]

    def credit(self, events: Iterable[Event]) -> dict[str, Service]:
        """By job that is submitted by `events`: what it received of earlier cores."""
        found = {}
        for event in events if self._served else ():
            if isinstance(event, JobSubmitted):
                lineage = lineage_of(self.works[event.job.id].members)
                if lineage in self._served:
                    found[event.job.id] = self._served.pop(lineage).service
        return found

    def drop(self, uid: str) -> None:
        """A pod is gone."""
        self._since_s.pop(uid, None)
        self._immovable.discard(uid)

    def ended_well(self, uid: str) -> None:
        """A pod has succeeded."""
        if uid in self._work_of:
            self._ended_well.add(uid)

    def id_of(self, uid: str) -> str:
        """The work that stands for a pod; empty without one."""
        return self._work_of.get(uid, "")

    def of(self, uid: str) -> Workload | None:
        """The work that stands for a pod."""
        return self.works.get(self.id_of(uid))

    def returns(self, job_id: str) -> bool:
        """Whether all pods of a job are made anew by what controls them."""
        work = self.works.get(job_id)
        return work is None or _is_made_anew(work)

    def came_s(self, job_id: str) -> float:
        """When a job came, by the cluster's clock; 0 where that is not known."""
        work = self.works.get(job_id) or self._parked_of(job_id)
        return 0.0 if work is None else work.came_s

    def is_there(self, job_id: str) -> bool:
        """Whether a job was found on its nodes, and is not known to run yet."""
        return job_id in self._there

    def known_to_run(self, job_id: str) -> None:
        """The core has started it as it was found."""
        self._there.discard(job_id)

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
        self._forget_served(at_s)
        events, parts = list[Event](), False
        for work in self._works_of(stirred):
            held = sum(self._is_seated(uid) for uid in work.uids)
            if self._is_leaving(work, core, held):
                continue
            # One that was started and holds nothing was not bound: the core begins anew with it.
            as_told = held == len(work.members) if work.seated else not held and work.uids in wanted
            if as_told and moved.isdisjoint(work.uids) and not self._is_parting(work):
                continue
            parts |= held > 0 and work.seated
            events += self._end(work, core, at_s)
            stirred.update(dict.fromkeys(member.uid for member in work.members))
        events += self._seat_those_there(stirred, at_s)
        if parts and self.keeps_jobs:
            events = self._while_nobody_starts(events, core, at_s)
        for one in (*wanted.values(), *self._early_ones()):
            if not any(uid in self._work_of for uid in one.uids):
                events += self._submit(one, at_s)
        return events + self._hold_those_without_pods(core, at_s)

    # Jobs that outlive their pods -----------------------------------------------------------------

    def stops(self, job_id: str) -> None:
        """The core has told a job to stop."""
        work = self.works.get(job_id)
        if self.keeps_jobs and work is not None and work.id not in self._leaving:
            self._leaving.add(work.id)
            self._stopping[lineage_of(work.members)] += 1

    def undoes(self, job_id: str) -> None:
        """Not all pods of a job could be bound: it starts anew once the others are gone."""
        self.stops(job_id)
        if job_id in self._leaving:
            self._undone.add(job_id)

    def _is_leaving(self, work: Workload, core: Core, held: int) -> bool:
        """Whether pods of a job that is to stop are there still: it is over with the last."""
        if not (self.keeps_jobs and held and work.id in self._leaving):
            return False
        return self._is_to_return(core, work.id)

    def _is_to_return(self, core: Core, job_id: str) -> bool:
        """Whether a job that leaves was told to by the core, or undone while it ran."""
        job = core.jobs.get(job_id)
        if job is None:
            return False
        return job.state is State.STOPPING or (job.active and job_id in self._undone)

    def _outlives(self, work: Workload, core: Core) -> bool:
        """Whether a run's end is not the end of its job: it was stopped, or was never bound."""
        if not self.keeps_jobs:
            return False
        returns = self._is_to_return(core, work.id)
        if self._leaves(work) and returns:
            return True
        pods = [self._pods.get(uid) for uid in work.uids]
        return all(pod is not None and self._way.waits(pod) for pod in pods)

    def _leaves(self, work: Workload) -> bool:
        """Its last pod is gone; whether it was told to stop."""
        if work.id not in self._leaving:
            return False
        self._leaving.discard(work.id)
        self._undone.discard(work.id)
        lineage = lineage_of(work.members)
        self._stopping[lineage] -= 1
        if not self._stopping[lineage]:
            del self._stopping[lineage]
        return True

    def _early_ones(self) -> list[Waiting]:
        """Pods whose predecessors are gone by now."""
        found = []
        for lineage in [one for one in self._early if not self._stopping[one]]:
            for one in self._early.pop(lineage).values():
                pods = [self._pods.get(uid) for uid in one.uids]
                if all(pod is not None and self._way.waits(pod) for pod in pods):
                    found.append(one)
        return found

    def await_pods(self, order: StartJob, at_s: float) -> ResizeOwner | None:
        """A job was started of which the pods are not there, or not as many as it is to have.

        What has its owner make them; None where their owner makes as many by itself.
        """
        self.awaited[order.job_id] = at_s, order
        work = self.works.get(order.job_id) or self._parked_of(order.job_id)
        owner = owner_of(work.members[0].pod) if work is not None else None
        if work is None or owner is None or work.spec.most_width == work.spec.least_width:
            return None
        pods = sum(one.tasks for one in order.allocations)
        return ResizeOwner(owner.uid, work.members[0].pod.metadata.namespace, owner.name, pods)

    def _parked_of(self, job_id: str) -> Workload | None:
        line = (work for parked in self._parked.values() for _, work in parked)
        return next((work for work in line if work.id == job_id), None)

    def give_up(self, job_id: str, at_s: float, cause: str) -> list[Event]:
        """Pods of a started job are not waited for any more: it is held until they are there."""
        stopped = self.await_no_more(job_id, at_s, cause)
        if job_id in self.works:
            return [stopped]
        self._held.add(job_id)
        return [stopped, JobHeld(at_s=at_s, job_id=job_id, cause=cause)]

    def await_no_more(self, job_id: str, at_s: float, cause: str) -> Event:
        """It is to stop before its pods are there; perhaps it starts at once in another size."""
        _, order = self.awaited.pop(job_id)
        return JobStopped(at_s=at_s, job_id=job_id, attempt=order.attempt, cause=cause)

    def _hold_those_without_pods(self, core: Core, at_s: float) -> list[Event]:
        """Jobs whose pods are gone, or that wait for new ones for too long.

        One that is planned to run again, elsewhere or in another size, is not held: its places are
        kept, and it is started on them as soon as its pods are made.
        """
        events: list[Event] = []
        for lineage in list(self._parked):
            line = self._parked[lineage]
            for since_s, work in list(line):
                returns = not isinstance(lineage, str) or not lineage.startswith(_ALONE)
                if at_s - since_s > AWAITED_S or not (returns or work.uids & self._pods.keys()):
                    line.remove((since_s, work))
                    self._held.discard(work.id)
                    events.append(JobCancelled(at_s=at_s, job_id=work.id))
                elif work.id not in self._held and work.id not in self.awaited:
                    job = core.jobs.get(work.id)
                    if job is not None and job.wanted:
                        continue
                    self._held.add(work.id)
                    events.append(JobHeld(at_s=at_s, job_id=work.id, cause="its pods are gone"))
            if not line:
                del self._parked[lineage]
        return events

    def _adopt(self, waiting: Waiting, made: Workload, at_s: float) -> list[Event] | None:
        """Take pods for those of a job that was stopped; None if there is no such job."""
        lineage = lineage_of(waiting.members)
        line = self._parked.get(lineage, ())
        known = next((one for one in line if one[1].spec.roles == made.spec.roles), None)
        if known is None:
            return None
        self._parked[lineage].remove(known)
        if not self._parked[lineage]:
            del self._parked[lineage]
        job = known[1]
        self._know(Workload(job.spec, made.members, came_s=job.came_s), at_s)
        if job.id not in self._held:
            return []
        self._held.discard(job.id)
        return [JobReleased(at_s=at_s, job_id=job.id, cause="its pods are there again")]

    def stays(self, work: Workload, core: Core, at_s: float) -> list[Event]:
        """A run that was taken for stopped does not go: it is another job, nobody's to move."""
        self._leaves(work)
        self._immovable |= work.uids
        for uid in work.uids:
            self._work_of.pop(uid, None)
        del self.works[work.id]
        self._there.discard(work.id)
        job = core.jobs.get(work.id)
        if job is None:
            return self._seat_those_there(sorted(work.uids), at_s)
        nodes = {one.node for one in job.allocations}
        ahead = [
            other.id
            for other in core.jobs.values()
            if not other.active and any(one.node in nodes for one in other.wanted)
        ]
        why = "pods do not go from its places"
        return [
            *(JobHeld(at_s=at_s, job_id=one, cause=why) for one in ahead),
            JobExited(at_s=at_s, job_id=work.id, attempt=job.attempt),
            *self._seat_those_there(sorted(work.uids), at_s),
            *(JobReleased(at_s=at_s, job_id=one, cause=why) for one in ahead),
        ]

    def _works_of(self, uids: Iterable[str]) -> list[Workload]:
        ids = dict.fromkeys(self._work_of[uid] for uid in uids if uid in self._work_of)
        return [self.works[job_id] for job_id in ids]

    def _is_seated(self, uid: str) -> bool:
        return bool(self._fleet.seats(uid)) if uid in self._fleet.holdings else False

    # Pods of a gang that somebody deletes are on their way out, and their watts come back then. As
    # long as they are told of as a part of their gang, a cut would stop others for these watts.
    def _is_parting(self, work: Workload) -> bool:
        """Whether some of its pods go, and others stay."""
        if not (self.keeps_jobs and work.seated and len(work.members) > 1):
            return False
        going = [self._goes(uid) for uid in work.uids]
        return any(going) and not all(going)

    def _goes(self, uid: str) -> bool:
        pod = self._pods.get(uid)
        deleted = pod is not None and pod.metadata.deletion_timestamp is not None
        return deleted and uid not in self._immovable

    def _while_nobody_starts(self, events: list[Event], core: Core, at_s: float) -> list[Event]:
        """With those held that are planned to start on what others hold.

        A gang of which only a part is left is over, for the core, before that part is told of as
        another job: nobody may start on its devices and watts between the two.
        """
        why = "of a gang some run on"
        ahead = [one.id for one in core.jobs.values() if one.wanted and not one.active]
        return [
            *(JobHeld(at_s=at_s, job_id=one, cause=why) for one in ahead),
            *events,
            *(JobReleased(at_s=at_s, job_id=one, cause=why) for one in ahead),
        ]

    def _end(self, work: Workload, core: Core, at_s: float) -> list[Event]:
        """Its pods are not those it was made for any more."""
        for uid in work.uids:
            self._work_of.pop(uid, None)
        del self.works[work.id]
        self._there.discard(work.id)
        self.rejected.pop(work.id, None)
        job = core.jobs.get(work.id)
        well = work.uids <= self._ended_well
        self._ended_well -= work.uids
        if work.id in self.awaited and not work.seated:
            self._parked.setdefault(lineage_of(work.members), deque()).append((at_s, work))
            return []
        outlives = self._outlives(work, core)
        if job is None:
            return []
        if outlives and job.active:
            self._parked.setdefault(lineage_of(work.members), deque()).append((at_s, work))
            return [JobStopped(at_s=at_s, job_id=work.id, attempt=job.attempt)]
        if job.active:
            if self.keeps_jobs and any(self._is_seated(uid) for uid in work.uids):
                # The others run on, as another job: what they received goes with them.
                service = Service(job.service_s(at_s), job.service_gpu_s(at_s))
                unclaimed = _Unclaimed(service, work.uids, at_s)
                self._served[lineage_of(work.members)] = unclaimed
            code = 0 if well else KILLED
            return [JobExited(at_s=at_s, job_id=work.id, attempt=job.attempt, exit_code=code)]
        return [JobCancelled(at_s=at_s, job_id=work.id)]

    def _seat_those_there(self, uids: Iterable[str], at_s: float) -> list[Event]:
        """Of these pods, those on nodes that no work stands for, by gang; who goes is apart."""
        there: dict[tuple[bool, GroupId | str], list[WorkloadPod]] = {}
        for uid in uids:
            pod = self._pods.get(uid)
            if pod is not None and uid not in self._work_of and self._is_seated(uid):
                ask = self._fleet.holdings[uid].ask
                goes = self.keeps_jobs and self._goes(uid)
                there.setdefault((goes, group_of(pod) or uid), []).append(WorkloadPod(pod, ask))
        # What the gang received goes on with those who stay, who are told of first.
        ranked = sorted(there.items(), key=lambda item: item[0][0])
        return [self._found(members, at_s) for _, members in ranked]

    def _found(self, members: Sequence[WorkloadPod], at_s: float) -> Event:
        seats = [seat for member in members for seat in self._fleet.seats(member.uid)]
        ours = all(self._way.is_ours(one.pod) for one in members)
        ours = ours and not any(one.uid in self._immovable for one in members)
        priority = self._priority(members) if ours else FOREIGN
        work = seated_work(self._new_id(members), members, seats, at_s, priority=priority)
        if self.keeps_jobs:
            work = replace(work, spec=self._told(work, group_of(work.members[0].pod)))
        self._know(work, at_s)
        self._there.add(work.id)
        return JobSubmitted(at_s=at_s, job=work.spec)

    def _told(self, work: Workload, group: GroupId | None) -> JobSpec:
        """What its pods say of the job; one that is all of its `group` may change its size."""
        spec, members = told_of(work.spec, work.members), work.members
        known = self._groups.get(group) if group is not None else None
        if known is None or group is None or group.kind is not GroupKind.JOB:
            return spec
        whole = least_members(known) == len(members) and not known.status.phase
        return elastic(spec, members) if whole else spec

    def _submit(self, waiting: Waiting, at_s: float) -> list[Event]:
        members = waiting.members
        if self.keeps_jobs and self._stopping[lineage_of(members)]:
            self._early.setdefault(lineage_of(members), {})[waiting.uids] = waiting
            return []
        requests = [self._plain(member) for member in members]
        since_s = min(self._since_s.setdefault(member.uid, at_s) for member in members)
        priority = self._priority(members)
        apart = len(members) > 1 and any(has_wishes(member.pod) for member in members)
        wishes = [
            (wish_of(one.pod), self._topology(one), one.uid if apart else "") for one in members
        ]
        if not self.keeps_jobs:
            wishes = []
        work = work_of(
            self._new_id(members), members, requests, since_s, priority=priority, wishes=wishes
        )
        if self.keeps_jobs:
            work = replace(work, spec=self._told(work, waiting.group))
            adopted = self._adopt(waiting, work, at_s)
            if adopted is not None:
                return adopted
        self._know(work, at_s)
        return [JobSubmitted(at_s=at_s, job=work.spec)]

    def _priority(self, members: Sequence[WorkloadPod]) -> int:
        return priority_of([one.pod for one in members], self._groups)

    def _plain(self, member: WorkloadPod) -> Request:
        """What a pod asks for, before it is known how a node gives GPUs."""
        known = self._fleet.requests(member.ask)
        return known[0][0] if known else member.ask.without_gpus()

    def _new_id(self, members: Sequence[WorkloadPod]) -> str:
        return f"{members[0].key}#{next(self._serial)}"

    def _know(self, work: Workload, at_s: float) -> None:
        work = self._as_old_as_ever(work, at_s)
        self.works[work.id] = work
        for uid in work.uids:
            self._work_of[uid] = work.id

    # A gang may be handed in anew as another job: its pods went too slowly, or were not all bound.
    def _as_old_as_ever(self, work: Workload, at_s: float) -> Workload:
        """The work with the age of the first pods of its gang, whichever its pods are now."""
        owner = owner_of(work.members[0].pod)
        if not self.keeps_jobs or owner is None or group_of(work.members[0].pod) is None:
            return work
        gang = lineage_of(work.members), owner.uid
        came_s, _ = self._ages.get(gang, (work.came_s, at_s))
        self._ages[gang] = came_s, at_s
        if len(self._ages) > self._most_ages:
            there = {lineage_of(one.members) for one in self.works.values()} | self._parked.keys()
            self._ages = {
                gang: age
                for gang, age in self._ages.items()
                if gang[0] in there or at_s - age[1] <= AWAITED_S
            }
            self._most_ages = max(MANY, 2 * len(self._ages))
        return replace(work, came_s=came_s)


def _is_made_anew(work: Workload) -> bool:
    return all(owner_of(one.pod) is not None for one in work.members)


_ALONE = "pod "


def lineage_of(members: Sequence[WorkloadPod]) -> Lineage:
    """By what pods that are made anew are known: their gang, what controls them, else nothing."""
    first = members[0].pod
    owner = owner_of(first)
    alone = _ALONE + first.metadata.uid
    return group_of(first) or (alone if owner is None else f"{owner.kind} {owner.uid}")

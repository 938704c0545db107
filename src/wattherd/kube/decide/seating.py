"""Places for all pods of a work on the account as the plan would have it, or for none; why not.

The `Seats` of the core's `Gang`. Members are placed one by one, each by a placement policy. What
found no place is not tried again without need: single pods that are alike share the finding of the
first, gangs that lack room are tried anew only now and then (`GangFeasibility`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from wattherd.kube.account.chooser import Chooser
from wattherd.kube.account.confinement import ConfinedPods, ConfinementTrial
from wattherd.kube.account.fleet import Holding, Mask, NodeFleet, Spot
from wattherd.kube.account.gang_feasibility import GangFeasibility
from wattherd.kube.account.planned_fleet import PlannedFleet
from wattherd.kube.account.topology_places import TopologyPlaces, TopologyTrial
from wattherd.kube.decide.diagnosis import Diagnosis
from wattherd.kube.facts.finding import PodFinding
from wattherd.kube.facts.workload import Workload, WorkloadPod, role_of
from wattherd.model.reason import Reason, ReasonCode
from wattherd.policy.contract import Draft, JobView, Share, View
from wattherd.policy.eligibility import NodeMask
from wattherd.policy.schedule.gang import Need

FOR_ROOM = frozenset({str(ReasonCode.WAITING_FOR_GPUS), str(ReasonCode.FRAGMENTED)})
"""Reasons of those whom room would help."""
_CODES = {str(code): code for code in ReasonCode}
_MOST_AGAIN = 32


@dataclass(slots=True)
class Seating:
    """Seats `works` (by job id) by `chooser`, on the account of `planned`.

    `allowed` are the nodes (N,) that a member may go to at all, kin are `confined` to one place
    and gangs to one of `topology`, `preferred` are nodes in the order in which it would have them,
    `diagnosis` says why a member finds none.
    """

    works: Mapping[str, Workload]
    planned: PlannedFleet
    chooser: Chooser
    allowed: Callable[[WorkloadPod], Mask]
    confined: ConfinedPods
    topology: TopologyPlaces
    preferred: Callable[[WorkloadPod], Sequence[Mask]]
    diagnosis: Diagnosis
    findings: dict[str, PodFinding] = field(default_factory=dict)
    """By id of each work that found no place: why, as far as it is not for the core to say."""
    stale: dict[str, None] = field(default_factory=dict)
    """Works that wait and have not been looked at since others took room."""
    _now_s: float = 0.0
    _closed: Mask | None = None
    _prospect: GangFeasibility = field(init=False)

    def __post_init__(self) -> None:
        """Nobody was tried yet."""
        self._prospect = GangFeasibility(self._fleet)

    @property
    def _fleet(self) -> NodeFleet:
        return self.planned.fleet

    # As the planner asks --------------------------------------------------------------------------

    def at(self, view: View, draft: Draft) -> Seating:
        """For one plan."""
        self.planned.renew()
        del draft
        self._now_s = view.now_s
        return self

    def find(self, job: JobView, closed: NodeMask | None, *, trial: bool) -> list[Share] | Reason:
        """Places for all members, held until `follow`, or why there are none."""
        work = self.works.get(job.id)
        if work is None or work.seated:
            why = "its pods are being evicted"
            return Reason(code=ReasonCode.WAITING_FOR_TURN, since_s=self._now_s, unblocks=why)
        self._closed = closed
        if trial and self._prospect.lacks_room(work, closed):
            return self._reason(None)
        spots, failed = self._seat(work, tells="" if trial else work.id)
        if failed is not None:
            return self._reason(None if trial else self.findings[work.id])
        self.findings.pop(work.id, None)
        return [
            Share(
                spot.allocation.node,
                1,
                role_of(work, number),
                gpus=spot.allocation.gpus,
                gpu_milli=_part(work, role_of(work, number), spot),
            )
            for number, spot in enumerate(spots)
        ]

    def follow(self, job: JobView) -> None:
        """The account is as the plan."""
        self.planned.follow(job.id, self.works.get(job.id), job.wanted)
        if job.wanted or job.id not in self.works:
            self.forget(job.id)
        if job.wanted:
            self.stale.update(dict.fromkeys(self.findings))

    def need(self, job: JobView) -> Need:
        """The same for single pods that may go to the same nodes and ask for the same."""
        work = self.works.get(job.id)
        if work is None or work.seated or len(work.members) > 1:
            return (job.id,)
        (member,) = work.members
        told = job.spec.power_profile, job.spec.profile
        return member.ask.key, self.allowed(member).tobytes(), *told

    def _reason(self, found: PodFinding | None) -> Reason:
        token, text = ("", "") if found is None else (found.token, found.text)
        code = _CODES.get(token, ReasonCode.WAITING_FOR_TURN)
        return Reason(code=code, since_s=self._now_s, unblocks=text)

    def forget(self, job_id: str) -> None:
        """A work waits no more."""
        self.findings.pop(job_id, None)
        self.stale.pop(job_id, None)
        self._prospect.forget(job_id)

    def look_again(self) -> bool:
        """Find out anew why those wait who were not tried, some at a time; whether there were any.

        Gangs keep what was found when they were tried. Alike ones are looked at once.
        """
        some = list(self.stale)[:_MOST_AGAIN]
        known: dict[tuple[object, ...], PodFinding] = {}
        for job_id in some:
            del self.stale[job_id]
            work = self.works.get(job_id)
            if work is None or len(work.members) > 1 or job_id not in self.findings:
                continue
            (member,) = work.members
            wish = member.ask.key, self._reaches(member).tobytes()
            if wish not in known:
                known[wish] = self.diagnosis.of(member)
            self.findings[job_id] = known[wish]
        return bool(some)

    # One after the other --------------------------------------------------------------------------

    def _seat(self, work: Workload, tells: str) -> tuple[list[Spot], WorkloadPod | None]:
        """As `_seat_all`; a gang that lacks room is told so anew only now and then."""
        found = self.findings.get(work.id)
        gang = len(work.members) > 1
        if (
            gang
            and found is not None
            and found.token in FOR_ROOM
            and self._prospect.known_in_vain(work, self._now_s, self._closed)
        ):
            return [], work.members[0]
        spots, failed = self._seat_all(work.members, tells=tells)
        if failed is not None and gang and tells:
            self._prospect.tried(work.id, self._now_s)
        return spots, failed

    def _seat_all(
        self, members: Sequence[WorkloadPod], *, tells: str
    ) -> tuple[list[Spot], WorkloadPod | None]:
        """Places for all, held; or the first member that found none, and nothing held.

        Why it found none is noted for the work that `tells` names.
        """
        trial = self.confined.trial(self._fleet)
        together = self.topology.trial(members, self._reaches)
        while True:
            spots, failed = self._seat_once(members, trial, together, tells=tells)
            if failed is None or not (trial.elsewhere(failed) or together.elsewhere(failed)):
                return spots, failed

    def _seat_once(
        self,
        members: Sequence[WorkloadPod],
        trial: ConfinementTrial,
        together: TopologyTrial,
        *,
        tells: str,
    ) -> tuple[list[Spot], WorkloadPod | None]:
        spots: list[Spot] = []
        seated: list[WorkloadPod] = []
        for member in members:
            may = together.narrowed(member, trial.narrowed(member, self._may(member)))
            spot, added = self._choose(member, may)
            if spot is None:
                if tells:
                    self._note(tells, seated, members[len(seated) :], trial, together)
                for one in seated:
                    self._fleet.let_go(one.uid)
                return spots, member
            self._fleet.hold(_holding(member, spot, added))
            trial.took(member, spot.node)
            spots.append(spot)
            seated.append(member)
        return spots, None

    def _choose(self, member: WorkloadPod, may: Mask) -> tuple[Spot | None, int]:
        """By the policy, among the nodes that a member would rather have, as long as one will do.

        Scores of policies have no common scale by which a weight could be added to them.
        """
        for liked in self.preferred(member):
            if (may & liked).any():
                spot, added = self.chooser.choose(member.ask, may & liked)
                if spot is not None:
                    return spot, added
        return self.chooser.choose(member.ask, may)

    def _may(self, member: WorkloadPod) -> Mask:
        return self._reaches(member) & self._fleet.open_for(member.ask)

    def _reaches(self, member: WorkloadPod) -> Mask:
        """Nodes that it may go to, but for those that are closed."""
        allowed = self.allowed(member)
        return allowed if self._closed is None else allowed & ~self._closed

    def _note(
        self,
        job_id: str,
        seated: Sequence[WorkloadPod],
        left: Sequence[WorkloadPod],
        trial: ConfinementTrial,
        together: TopologyTrial,
    ) -> None:
        """Why the first of those `left` finds no place while `seated` have one."""
        member = left[0]
        unshared = together.why(member)
        if unshared is not None:
            self.findings[job_id] = unshared
            return
        within = together.narrowed(member, trial.narrowed(member, self._reaches(member)))
        if not within.any() and job_id in self.findings:
            return
        behind = sum(1 for other in left if other.ask.key == member.ask.key) - 1
        found = self.diagnosis.of(member, behind, within)
        if seated:
            of = len(seated) + len(left)
            facts = f"{len(seated)} of {of} pods of its gang find a place, the next: {found.facts}"
            found = replace(found, facts=facts)
        self.findings[job_id] = found


def _holding(member: WorkloadPod, spot: Spot, added_mw: int) -> Holding:
    return Holding(
        uid=member.uid,
        key=member.key,
        ask=member.ask,
        node=spot.node,
        gpus=spot.allocation.gpus,
        watts_mw=added_mw,
    )


def _part(work: Workload, role: int, spot: Spot) -> int | None:
    """Of a GPU, where a node gives it in other parts than the role says."""
    request = spot.allocation.request
    if not request.gpu_count or request.gpu_milli == work.spec.roles[role].gpu_milli:
        return None
    return request.gpu_milli

"""Places for all members of a work, held on the account of the cluster, or for none; and why not.

Members are placed one by one, each by a placement policy, as by
`policy.schedule.per_job_placement`. What found no place is not tried again without need: single
pods that are alike share the finding of the first, gangs that lack room are tried anew only now and
then (`prospect`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from wattherd.kube.account.chooser import Chooser
from wattherd.kube.account.confinement import ConfinedPods, ConfinementTrial
from wattherd.kube.account.fleet import Holding, Mask, NodeFleet, Spot
from wattherd.kube.account.gang_feasibility import GangFeasibility
from wattherd.kube.account.precedence import FOR_ROOM, KeptNodes
from wattherd.kube.decide.diagnosis import Diagnosis
from wattherd.kube.facts.finding import PodFinding
from wattherd.kube.facts.workload import Workload, WorkloadPod


@dataclass(slots=True)
class Seating:
    """Seats by `chooser`; `allowed` are the nodes (N,) that a member may go to at all.

    Kin are `confined` to one place; `diagnosis` says why a member finds none.
    """

    chooser: Chooser
    allowed: Callable[[WorkloadPod], Mask]
    confined: ConfinedPods
    diagnosis: Diagnosis
    kept: KeptNodes | None = None
    """Between plans: what is kept for whom; in a plan: only while somebody behind it is tried."""
    findings: dict[str, PodFinding] = field(default_factory=dict)
    """By id of each work that found no place: why, as far as it is not for the core to say."""
    _prospect: GangFeasibility = field(init=False)
    _in_vain: dict[tuple[object, ...], PodFinding] = field(default_factory=dict)
    """What found no place since room was last given back, and why."""

    def __post_init__(self) -> None:
        """Nobody was tried yet."""
        self._prospect = GangFeasibility(self._fleet)

    @property
    def _fleet(self) -> NodeFleet:
        return self.chooser.fleet

    def forget(self, job_id: str) -> None:
        """A work waits no more."""
        self.findings.pop(job_id, None)
        self._prospect.forget(job_id)

    def room_was_given_back(self) -> None:
        """What was in vain may not be so again."""
        self._in_vain.clear()

    def seat(self, work: Workload, now_s: float) -> tuple[list[Spot], WorkloadPod | None]:
        """Places for all its members, held; or the first that finds none, with its finding.

        Of many single pods that are alike only the first is tried in vain.
        """
        if len(work.members) > 1:
            return self._seat_gang(work, now_s)
        (member,) = work.members
        wish = self._wish(member)
        if wish in self._in_vain:
            self.findings[work.id] = self._in_vain[wish]
            return [], member
        spots, failed = self._seat_all(work.members, now_s, tells=work.id)
        if failed is not None:
            self._in_vain[wish] = self.findings[work.id]
        return spots, failed

    def fits(self, work: Workload, now_s: float) -> bool:
        """Whether all its members would find places; nothing is held."""
        if self._prospect.lacks_room(work, self._closed()):
            return False
        _, failed = self._seat_all(work.members, now_s)
        if failed is None:
            self.let_go(work.members)
        return failed is None

    def let_go(self, members: Iterable[WorkloadPod]) -> None:
        """They hold their places no more."""
        for member in members:
            self._fleet.let_go(member.uid)

    def find_again(self, works: Iterable[Workload]) -> None:
        """Why these single pods wait, as the account is now; alike ones are looked at once."""
        known: dict[tuple[object, ...], PodFinding] = {}
        for work in works:
            (member,) = work.members
            wish = self._wish(member)
            if wish not in known:
                known[wish] = self.diagnosis.of(member)
            self.findings[work.id] = known[wish]

    # One after the other --------------------------------------------------------------------------

    def _seat_gang(self, work: Workload, now_s: float) -> tuple[list[Spot], WorkloadPod | None]:
        """As `_seat_all`; one that lacks room is told so anew only now and then."""
        found = self.findings.get(work.id)
        for_room = found is not None and found.token in FOR_ROOM
        if for_room and self._prospect.known_in_vain(work, now_s, self._closed()):
            return [], work.members[0]
        spots, failed = self._seat_all(work.members, now_s, tells=work.id)
        if failed is not None:
            self._prospect.tried(work.id, now_s)
        return spots, failed

    def _closed(self) -> Mask | None:
        """Nodes (N,) that are kept from who is tried now."""
        return None if self.kept is None else self.kept.nodes

    def _wish(self, member: WorkloadPod) -> tuple[object, ...]:
        """The same for pods that may go to the same nodes and ask for the same."""
        return member.ask.key, self._reaches(member).tobytes(), self.kept is None

    def _seat_all(
        self, members: Sequence[WorkloadPod], now_s: float, *, tells: str = ""
    ) -> tuple[list[Spot], WorkloadPod | None]:
        """Places for all, held; or the first member that found none, and nothing held.

        Why it found none is noted for the work that `tells` names.
        """
        trial = self.confined.trial(self._fleet)
        while True:
            spots, failed = self._seat_once(members, trial, now_s, tells=tells)
            if failed is None or not trial.elsewhere(failed):
                return spots, failed

    def _seat_once(
        self, members: Sequence[WorkloadPod], trial: ConfinementTrial, now_s: float, *, tells: str
    ) -> tuple[list[Spot], WorkloadPod | None]:
        spots: list[Spot] = []
        seated: list[WorkloadPod] = []
        for member in members:
            may = trial.narrowed(member, self._may(member))
            spot, added = self.chooser.choose(member.ask, may)
            if spot is None:
                if tells:
                    self._note(tells, seated, members[len(seated) :], trial)
                self.let_go(seated)
                return spots, member
            self._fleet.hold(_holding(member, spot, added, now_s))
            trial.took(member, spot.node)
            spots.append(spot)
            seated.append(member)
        return spots, None

    def _may(self, member: WorkloadPod) -> Mask:
        return self._reaches(member) & self._fleet.open_for(member.ask)

    def _reaches(self, member: WorkloadPod) -> Mask:
        """Nodes that it may go to, but for those that are kept for another one."""
        allowed = self.allowed(member)
        return allowed if self.kept is None else allowed & ~self.kept.nodes

    def _note(
        self,
        job_id: str,
        seated: Sequence[WorkloadPod],
        left: Sequence[WorkloadPod],
        trial: ConfinementTrial,
    ) -> None:
        """Why the first of those `left` finds no place while `seated` have one."""
        member = left[0]
        reaches = self._reaches(member)
        if self.kept is not None and not reaches.any() and self.allowed(member).any():
            self.findings[job_id] = self.kept.told
            return
        within = trial.narrowed(member, reaches)
        if not within.any() and job_id in self.findings:
            return
        behind = sum(1 for other in left if other.ask.key == member.ask.key) - 1
        found = self.diagnosis.of(member, behind, within)
        if seated:
            of = len(seated) + len(left)
            facts = f"{len(seated)} of {of} pods of its gang find a place, the next: {found.facts}"
            found = replace(found, facts=facts)
        self.findings[job_id] = found


def _holding(member: WorkloadPod, spot: Spot, added_mw: int, now_s: float) -> Holding:
    return Holding(
        uid=member.uid,
        key=member.key,
        ask=member.ask,
        node=spot.node,
        gpus=spot.allocation.gpus,
        since_s=now_s,
        watts_mw=added_mw,
    )

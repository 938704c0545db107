"""The planner of the second scheduler: gangs placed pod by pod by a placement policy, or not.

Works are tried by priority, then in order of coming. One that finds no room waits and is tried
again when there may be more; one of higher priority may have works of lower priority stopped (the
lowest and newest first, none that does not help), and takes their place when they are gone.

Single pods are placed exactly as by `policy.schedule.placed`: by `Placer.choose`, one at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from wattherd.model.reason import Reason, ReasonCode, StopReason
from wattherd.policy.contract import Draft, JobView, Share, View
from wattherd.policy.queue.tree import QueueTree
from wattherd.runtime.kube.pods.chooser import Chooser
from wattherd.runtime.kube.pods.confined import Confined, Trial
from wattherd.runtime.kube.pods.fleet import Fleet, Holding, Mask, Spot
from wattherd.runtime.kube.queues.turns import Turns
from wattherd.runtime.kube.reasons.diagnosis import Diagnosis
from wattherd.runtime.kube.reasons.finding import Finding
from wattherd.runtime.kube.reasons.reasons import finding_of
from wattherd.runtime.kube.scheduler.precedence import FOR_ROOM, Kept, Precedence, turn
from wattherd.runtime.kube.scheduler.prospect import Prospect
from wattherd.runtime.kube.scheduler.works import Member, Work, role_of

_CODES = {str(code): code for code in ReasonCode}
_MOST_AGAIN = 32
_TURN = str(ReasonCode.WAITING_FOR_TURN)
_OF_QUEUES = (ReasonCode.QUOTA_EXCEEDED, ReasonCode.UNKNOWN_QUEUE, ReasonCode.NEVER_FITS)
_KEPT_FINDINGS = frozenset({_TURN, *map(str, _OF_QUEUES)})
"""What a look at the nodes alone would not find again."""


@dataclass(slots=True)
class GangPlanner:
    """Plans by `chooser` on the account of the cluster; `works` are the jobs by id.

    `allowed` are the nodes (N,) that a member may go to at all; kin are `confined` to one place.
    `diagnosis` says why a member finds none.
    """

    chooser: Chooser
    works: Mapping[str, Work]
    allowed: Callable[[Member], Mask]
    confined: Confined
    diagnosis: Diagnosis
    precedence: Precedence
    changed: bool = True
    """Whether anything happened that may have made room; whoever knows sets it."""
    waiting: dict[str, JobView] = field(default_factory=dict)
    unseated: dict[str, JobView] = field(default_factory=dict)
    """Works whose pods are on nodes, for which the guard finds too little."""
    excess: dict[str, None] = field(default_factory=dict)
    """Of these, the ones that the budgets cannot bear."""
    victims: dict[str, frozenset[str]] = field(default_factory=dict)
    """Of each work that has others stopped: which ones."""
    findings: dict[str, Finding] = field(default_factory=dict)
    """Of each work that found no place: why, as far as it is not for the core to say."""
    queues: QueueTree | None = None
    """Who is promised how much; None: nobody is promised anything."""
    preempting: frozenset[str] = frozenset()
    """Queues in which less important works are stopped for quota, too."""
    prospect: Prospect = field(init=False)
    _turns: Turns | None = None
    _kept: Kept | None = None
    """Between plans: what is kept for whom; in a plan: only while somebody behind it is tried."""
    stale: dict[str, None] = field(default_factory=dict)
    """Single pods that wait and have not been looked at since others took room."""
    _priority_of: dict[str, int] = field(default_factory=dict)
    """Of works that have their place, or had it and are not gone yet."""
    _priorities: Counter[int] = field(default_factory=Counter)
    _in_vain: dict[tuple[object, ...], Finding] = field(default_factory=dict)
    """What found no place in this plan, and why; nothing is given back before the next one."""

    def __post_init__(self) -> None:
        """Nobody was tried yet."""
        self.prospect = Prospect(self.chooser.fleet)

    @property
    def fleet(self) -> Fleet:
        """The account of the cluster."""
        return self.chooser.fleet

    def plan(self, view: View, draft: Draft) -> None:
        """Seat those who are there, then try those who wait."""
        for job in view.left():
            self.waiting.pop(job.id, None)
            self.victims.pop(job.id, None)
            self.unseated.pop(job.id, None)
            self.findings.pop(job.id, None)
            self.prospect.forget(job.id)
            self._falls(job)
        for job_id in [one for one in self.unseated if one not in self.works]:
            del self.unseated[job_id]
        fresh = self._hear(view)
        self._sit_down(view, draft)
        before, kept = self._kept, self._keep(view)
        if before is not None and (kept is None or kept.job.id != before.job.id):
            self.changed = True  # its nodes are for everybody again
        trying = list(self.waiting.values()) if self.changed else fresh
        self.changed = False
        self._in_vain.clear()
        for job in self._in_turn(trying, view):
            held_up = kept is not None and kept.job.id in self.waiting and kept.holds_up(job)
            self._kept = kept if held_up else None
            self._try(job, view, draft)
        self._kept = kept

    def _in_turn(self, trying: Iterable[JobView], view: View) -> Iterable[JobView]:
        """By priority, then in order of coming; among queues by what each is promised."""
        self._turns = None
        if self.queues is None:
            return sorted(trying, key=turn)
        self._turns = Turns(self.queues, view, self.waiting.values(), turn, self.preempting)
        return self._turns.in_turn(list(trying))

    def _keep(self, view: View) -> Kept | None:
        return self.precedence.kept(self.waiting.values(), self.works, self.findings, view.now_s)

    def _hear(self, view: View) -> list[JobView]:
        """Who came; those who are seated are to sit down."""
        fresh: list[JobView] = []
        for job in view.entered():
            if job.wanted:
                continue
            if self.works[job.id].seated:
                self.unseated[job.id] = job
            else:
                self.waiting[job.id] = job
                fresh.append(job)
        return fresh

    def _sit_down(self, view: View, draft: Draft) -> None:
        """Pods on nodes are facts; the guard may find neither room nor watts for all of them."""
        for job in sorted(self.unseated.values(), key=turn):
            refused = draft.start(job, self.works[job.id].shares)
            if refused is None:
                del self.unseated[job.id]
                self._stands(job)
                continue
            draft.wait(job, replace(refused, since_s=view.now_s))
            if refused.code is ReasonCode.WAITING_FOR_POWER:
                self.excess[job.id] = None

    def _try(self, job: JobView, view: View, draft: Draft) -> None:
        if self._busy(job.id):
            return
        self.stale.pop(job.id, None)
        refused = None if self._turns is None else self._turns.refused(job)
        if refused is not None:
            self.findings[job.id] = finding_of(refused)
            if not (self._stops_for_quota(job) and self._stop_some(job, view, draft)):
                draft.wait(job, refused)
            return
        work = self.works[job.id]
        spots, failed = self._seats(work, view.now_s)
        if failed is None:
            self._placed(job)
            shares = [
                Share(spot.allocation.node, 1, role_of(work, number), gpus=spot.allocation.gpus)
                for number, spot in enumerate(spots)
            ]
            if draft.start(job, shares) is None:
                del self.waiting[job.id]
                self._stands(job)
            else:
                self._let_go(work.members)
            return
        self._wait(job, view, draft)

    def _placed(self, job: JobView) -> None:
        self.findings.pop(job.id, None)
        self.stale.update(dict.fromkeys(self.findings))

    def look_again(self) -> bool:
        """Find out anew why those wait who were not tried, some at a time; whether there were any.

        Gangs keep what was found when they were tried.
        """
        some = list(self.stale)[:_MOST_AGAIN]
        known: dict[tuple[object, ...], Finding] = {}
        for job_id in some:
            del self.stale[job_id]
            work = self.works.get(job_id)
            token = self.findings[job_id].token if job_id in self.findings else _TURN
            if token not in _KEPT_FINDINGS and work is not None and len(work.members) == 1:
                wish = self._wish(work.members[0])
                if wish not in known:
                    known[wish] = self.diagnosis.of(work.members[0])
                self.findings[job_id] = known[wish]
        return bool(some)

    def _busy(self, job_id: str) -> bool:
        """Whether works that were stopped for it are not gone yet."""
        mine = self.victims.get(job_id, frozenset())
        there = mine & self.fleet.holdings.keys()
        if mine and not there:
            del self.victims[job_id]
        return bool(there)

    def _seats(self, work: Work, now_s: float) -> tuple[list[Spot], Member | None]:
        """As `_seat_all`; of many single pods that are alike only the first is tried in vain."""
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

    def _seat_gang(self, work: Work, now_s: float) -> tuple[list[Spot], Member | None]:
        """As `_seat_all`; one that lacks room is told so anew only now and then."""
        found = self.findings.get(work.id)
        for_room = found is not None and found.token in FOR_ROOM
        if for_room and self.prospect.known_in_vain(work, now_s, self._closed()):
            return [], work.members[0]
        spots, failed = self._seat_all(work.members, now_s, tells=work.id)
        if failed is not None:
            self.prospect.tried(work.id, now_s)
        return spots, failed

    def _closed(self) -> Mask | None:
        """Nodes (N,) that are kept from who is tried now."""
        return None if self._kept is None else self._kept.nodes

    def _wish(self, member: Member) -> tuple[object, ...]:
        """The same for pods that may go to the same nodes and ask for the same."""
        return member.ask.key, self._reaches(member).tobytes(), self._kept is None

    def _seat_all(
        self, members: Sequence[Member], now_s: float, *, tells: str = ""
    ) -> tuple[list[Spot], Member | None]:
        """Places for all, held; or the first member that found none, and nothing held.

        Why it found none is noted for the work that `tells` names.
        """
        trial = self.confined.trial(self.fleet)
        while True:
            spots, failed = self._seat_once(members, trial, now_s, tells=tells)
            if failed is None or not trial.elsewhere(failed):
                return spots, failed

    def _seat_once(
        self, members: Sequence[Member], trial: Trial, now_s: float, *, tells: str
    ) -> tuple[list[Spot], Member | None]:
        spots: list[Spot] = []
        seated: list[Member] = []
        for member in members:
            may = trial.narrowed(member, self._may(member))
            spot, added = self.chooser.choose(member.ask, may)
            if spot is None:
                if tells:
                    self._note(tells, seated, members[len(seated) :], trial)
                self._let_go(seated)
                return spots, member
            self.fleet.hold(_holding(member, spot, added, now_s))
            trial.took(member, spot.node)
            spots.append(spot)
            seated.append(member)
        return spots, None

    def _may(self, member: Member) -> Mask:
        return self._reaches(member) & self.fleet.open_for(member.ask)

    def _reaches(self, member: Member) -> Mask:
        """Nodes that it may go to, but for those that are kept for another one."""
        allowed = self.allowed(member)
        return allowed if self._kept is None else allowed & ~self._kept.nodes

    def _let_go(self, members: Iterable[Member]) -> None:
        for member in members:
            self.fleet.let_go(member.uid)

    def _note(
        self, job_id: str, seated: Sequence[Member], left: Sequence[Member], trial: Trial
    ) -> None:
        """Why the first of those `left` finds no place while `seated` have one."""
        member = left[0]
        reaches = self._reaches(member)
        if self._kept is not None and not reaches.any() and self.allowed(member).any():
            self.findings[job_id] = self._kept.told
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

    def _stops_for_quota(self, job: JobView) -> bool:
        return self._turns is not None and self._turns.stops_for_quota(job)

    def _stop_some(self, job: JobView, view: View, draft: Draft) -> bool:
        """Have others stopped for a work that then waits for that; whether there are any."""
        stopped = self._make_room(job, view, draft)
        if not stopped:
            return False
        self.victims[job.id] = stopped
        self.findings.pop(job.id, None)
        why = "of lower priority" if self._turns is None else "of lower priority, or lent to,"
        text = f"{len(stopped)} pods {why} are being stopped"
        code = ReasonCode.WAITING_FOR_PREEMPTION
        draft.wait(job, Reason(code=code, since_s=view.now_s, unblocks=text))
        return True

    def _wait(self, job: JobView, view: View, draft: Draft) -> None:
        if self._stop_some(job, view, draft):
            return
        found = self.findings[job.id]
        code = _CODES.get(found.token, ReasonCode.WAITING_FOR_TURN)
        draft.wait(job, Reason(code=code, since_s=view.now_s, unblocks=found.text))

    def _make_room(self, job: JobView, view: View, draft: Draft) -> frozenset[str]:
        """Stop the fewest works of lower priority, newest of the lowest first; which pods."""
        work = self.works[job.id]
        if any(member.pod.spec.preemption_policy == "Never" for member in work.members):
            return frozenset()
        taken = self._enough(job, work, self._may_stop(job, view), view.now_s)
        for other in taken:
            same = other.spec.priority < job.spec.priority
            draft.stop(other, StopReason.PREEMPTED_FOR_PRIORITY if same else StopReason.RECLAIMED)
        return frozenset(uid for other in taken for uid in self.works[other.id].uids)

    def _may_stop(self, job: JobView, view: View) -> list[JobView]:
        """Who may be stopped for a work, in order."""
        if self._turns is not None:
            running = [one for one in view.live() if one.wanted and self._ours(one)]
            return self._turns.may_stop(job, running)
        if min(self._priorities, default=job.spec.priority) >= job.spec.priority:
            return []
        lower = [
            other
            for other in view.live()
            if other.wanted and other.spec.priority < job.spec.priority and self._ours(other)
        ]
        return sorted(lower, key=lambda other: (other.spec.priority, -other.number))

    def _stands(self, job: JobView) -> None:
        """It has its place, and may have to make room for more important ones."""
        self._falls(job)
        self._priority_of[job.id] = job.spec.priority
        self._priorities[job.spec.priority] += 1

    def _falls(self, job: JobView) -> None:
        before = self._priority_of.pop(job.id, None)
        if before is not None:
            self._priorities[before] -= 1
            if not self._priorities[before]:
                del self._priorities[before]

    def _ours(self, job: JobView) -> bool:
        return all(member.pod.metadata.deletion_timestamp is None
                   for member in self.works[job.id].members)  # fmt: skip

    def _enough(
        self, job: JobView, work: Work, lower: list[JobView], now_s: float
    ) -> list[JobView]:
        """Of `lower` those whose going makes room, tried out on the account and put back."""
        gone: list[tuple[JobView, list[Holding]]] = []
        needed: list[JobView] = []
        fits = False
        for other in lower:
            held = self._held(other)
            self._release(held)
            gone.append((other, held))
            needed.append(other)
            fits = self._has_quota(job, needed) and self._fits(work, now_s)
            if fits:
                break
        if not fits:
            needed.clear()
        for other, held in reversed(gone[:-1] if fits else []):
            # The most important first: who need not go, stays.
            self._restore(held)
            others = [one for one in needed if one is not other]
            if self._has_quota(job, others) and self._fits(work, now_s):
                needed = others
            else:
                self._release(held)
        for _, held in gone:
            self._restore(held)
        return needed

    def _has_quota(self, job: JobView, without: Iterable[JobView]) -> bool:
        return self._turns is None or self._turns.refused(job, without) is None

    def _held(self, job: JobView) -> list[Holding]:
        holdings = self.fleet.holdings
        uids = sorted(self.works[job.id].uids)
        return [holdings[uid] for uid in uids if uid in holdings]

    def _release(self, held: Iterable[Holding]) -> None:
        for one in held:
            self.fleet.let_go(one.uid)

    def _restore(self, held: Iterable[Holding]) -> None:
        for one in held:
            self.fleet.hold(one)

    def _fits(self, work: Work, now_s: float) -> bool:
        if self.prospect.lacks_room(work, self._closed()):
            return False
        _, failed = self._seat_all(work.members, now_s)
        if failed is None:
            self._let_go(work.members)
        return failed is None


def _holding(member: Member, spot: Spot, added_mw: int, now_s: float) -> Holding:
    return Holding(
        uid=member.uid,
        key=member.key,
        ask=member.ask,
        node=spot.node,
        gpus=spot.allocation.gpus,
        since_s=now_s,
        watts_mw=added_mw,
    )

"""The planner of the second scheduler: gangs placed pod by pod by a placement policy, or not.

Works are tried by priority, then in order of coming. One that finds no room waits and is tried
again when there may be more; one of higher priority may have works of lower priority stopped
(`preemption`), and takes their place when they are gone.

Single pods are placed exactly as by `policy.schedule.per_job_placement`: by `Placer.choose`, one at
a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from wattherd.kube.account.fleet import Spot
from wattherd.kube.account.precedence import KeptNodes, Precedence, turn
from wattherd.kube.account.queue_turns import QueueTurns
from wattherd.kube.api.objects import Pod
from wattherd.kube.decide.preemption import Preemption
from wattherd.kube.decide.reasons import finding_of
from wattherd.kube.decide.seating import Seating
from wattherd.kube.facts.finding import PodFinding
from wattherd.kube.facts.workload import Workload, role_of
from wattherd.model.reason import Reason, ReasonCode
from wattherd.policy.contract import Draft, JobView, Share, View
from wattherd.policy.queue.tree import QueueTree

_CODES = {str(code): code for code in ReasonCode}
_MOST_AGAIN = 32
_TURN = str(ReasonCode.WAITING_FOR_TURN)
_OF_QUEUES = (ReasonCode.QUOTA_EXCEEDED, ReasonCode.UNKNOWN_QUEUE, ReasonCode.NEVER_FITS)
_KEPT_FINDINGS = frozenset({_TURN, *map(str, _OF_QUEUES)})
"""What a look at the nodes alone would not find again."""


@dataclass(slots=True)
class GangPlanner:
    """Plans for `works`, the jobs by id; `seating` finds places and says why there are none."""

    works: Mapping[str, Workload]
    seating: Seating
    precedence: Precedence
    pods: Mapping[str, Pod]
    """By uid, as they were seen last."""
    changed: bool = True
    """Whether anything happened that may have made room; whoever knows sets it."""
    waiting: dict[str, JobView] = field(default_factory=dict)
    unseated: dict[str, JobView] = field(default_factory=dict)
    """Works whose pods are on nodes, for which the guard finds too little."""
    queues: QueueTree | None = None
    """Who is promised how much; None: nobody is promised anything."""
    preempting: frozenset[str] = frozenset()
    """Queues in which less important works are stopped for quota, too."""
    stale: dict[str, None] = field(default_factory=dict)
    """Single pods that wait and have not been looked at since others took room."""
    _preemption: Preemption = field(init=False)
    _turns: QueueTurns | None = None

    def __post_init__(self) -> None:
        """Nobody was tried yet."""
        self._preemption = Preemption(self.works, self.seating, self.pods)

    @property
    def findings(self) -> dict[str, PodFinding]:
        """Of each work that found no place: why, as far as it is not for the core to say."""
        return self.seating.findings

    def plan(self, view: View, draft: Draft) -> None:
        """Seat those who are there, then try those who wait."""
        for job in view.left():
            self._forget(job.id)
        for job_id in [one for one in self.unseated if one not in self.works]:
            del self.unseated[job_id]
        fresh = self._hear(view)
        self._sit_down(view, draft)
        before, kept = self.seating.kept, self._keep(view)
        if before is not None and (kept is None or kept.job.id != before.job.id):
            self.changed = True  # its nodes are for everybody again
        trying = list(self.waiting.values()) if self.changed else fresh
        self.changed = False
        self.seating.room_was_given_back()
        for job in self._in_turn(trying, view):
            held_up = kept is not None and kept.job.id in self.waiting and kept.holds_up(job)
            self.seating.kept = kept if held_up else None
            self._try(job, view, draft)
        self.seating.kept = kept

    def _forget(self, job_id: str) -> None:
        self.waiting.pop(job_id, None)
        self.unseated.pop(job_id, None)
        self.seating.forget(job_id)
        self._preemption.forget(job_id)

    def _in_turn(self, trying: Iterable[JobView], view: View) -> Iterable[JobView]:
        """By priority, then in order of coming; among queues by what each is promised."""
        self._turns = None
        if self.queues is None:
            return sorted(trying, key=turn)
        self._turns = QueueTurns(self.queues, view, self.waiting.values(), turn, self.preempting)
        return self._turns.in_turn(list(trying))

    def _keep(self, view: View) -> KeptNodes | None:
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
        """Pods on nodes are facts; the guard may not find room for all of them."""
        for job in sorted(self.unseated.values(), key=turn):
            refused = draft.start(job, self.works[job.id].shares)
            if refused is None:
                del self.unseated[job.id]
                self._preemption.stands(job)
                continue
            draft.wait(job, replace(refused, since_s=view.now_s))

    # Those who wait -------------------------------------------------------------------------------

    def _try(self, job: JobView, view: View, draft: Draft) -> None:
        if self._preemption.is_awaited(job.id):
            return
        self.stale.pop(job.id, None)
        refused = None if self._turns is None else self._turns.refused(job)
        if refused is not None:
            self.findings[job.id] = finding_of(refused)
            if not (self._stops_for_quota(job) and self._stop_some(job, view, draft)):
                draft.wait(job, refused)
            return
        spots, failed = self.seating.seat(self.works[job.id], view.now_s)
        if failed is None:
            self._start(job, spots, draft)
        else:
            self._wait(job, view, draft)

    def _start(self, job: JobView, spots: Iterable[Spot], draft: Draft) -> None:
        """Its members have places; what the guard refuses all the same, waits."""
        self._placed(job)
        work = self.works[job.id]
        shares = [
            Share(spot.allocation.node, 1, role_of(work, number), gpus=spot.allocation.gpus)
            for number, spot in enumerate(spots)
        ]
        if draft.start(job, shares) is None:
            del self.waiting[job.id]
            self._preemption.stands(job)
        else:
            self.seating.let_go(work.members)

    def _placed(self, job: JobView) -> None:
        self.findings.pop(job.id, None)
        self.stale.update(dict.fromkeys(self.findings))

    def _stops_for_quota(self, job: JobView) -> bool:
        return self._turns is not None and self._turns.stops_for_quota(job)

    def _stop_some(self, job: JobView, view: View, draft: Draft) -> bool:
        """Have others stopped for a work that then waits for that; whether there are any."""
        stopped = self._preemption.make_room(job, view, draft, self._turns)
        if not stopped:
            return False
        self.findings.pop(job.id, None)
        why = "of lower priority" if self._turns is None else "of lower priority, or lent to,"
        text = f"{stopped} pods {why} are being stopped"
        code = ReasonCode.WAITING_FOR_PREEMPTION
        draft.wait(job, Reason(code=code, since_s=view.now_s, unblocks=text))
        return True

    def _wait(self, job: JobView, view: View, draft: Draft) -> None:
        if self._stop_some(job, view, draft):
            return
        found = self.findings[job.id]
        code = _CODES.get(found.token, ReasonCode.WAITING_FOR_TURN)
        draft.wait(job, Reason(code=code, since_s=view.now_s, unblocks=found.text))

    def gives_up(self, now_s: float) -> bool:
        """Whether somebody waits no longer for pods that do not go, and is to be tried anew."""
        return self._preemption.gives_up(now_s)

    def look_again(self) -> bool:
        """Find out anew why those wait who were not tried, some at a time; whether there were any.

        Gangs keep what was found when they were tried.
        """
        some = list(self.stale)[:_MOST_AGAIN]
        for job_id in some:
            del self.stale[job_id]
        self.seating.find_again([self.works[one] for one in some if self._is_to_be_found_anew(one)])
        return bool(some)

    def _is_to_be_found_anew(self, job_id: str) -> bool:
        token = self.findings[job_id].token if job_id in self.findings else _TURN
        work = self.works.get(job_id)
        return token not in _KEPT_FINDINGS and work is not None and len(work.members) == 1

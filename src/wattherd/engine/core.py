"""The decision core: events in, commands out.

`handle` is the only way to change anything. It notes what happened (events are facts and never
refused), lets the planner make a plan when one is due, and turns the difference between what is
and what is planned into commands. The same events in the same order give the same commands; the
core reads no clock and draws no chance.

Two states of the cluster are kept. `planned` is what every job will hold once all orders are
carried out: planners work on it. `held` is what jobs hold at this moment: a job is started only
when what it was given is really free, so that a plan may hand devices from one job to another
while the first is still writing its checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.book import Book
from wattherd.engine.draft import WAKE, GuardedDraft
from wattherd.engine.feasibility import Feasibility
from wattherd.engine.ledger import Entry, JobRecord, may_run
from wattherd.engine.lifecycle import FINAL, State, Trigger
from wattherd.engine.questions import Questions
from wattherd.engine.roster import Roster
from wattherd.engine.watts import CurveOf, Watts, prior
from wattherd.errors import Bug
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import (
    Command,
    FinishJob,
    RejectJob,
    SetCap,
    StartJob,
    StopJob,
    WakeAt,
)
from wattherd.model.event import (
    BudgetChanged,
    CapApplied,
    Computed,
    Event,
    JobCancelled,
    JobExited,
    JobHeld,
    JobProgressed,
    JobReleased,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeLost,
    NodeReturned,
    QueueStarted,
    QueueStopped,
    RunEvent,
    Woke,
)
from wattherd.model.job import JobSpec
from wattherd.model.reason import Reason, ReasonCode, StopReason
from wattherd.policy.contract import Planner, Quota
from wattherd.policy.power.contract import PowerPolicy
from wattherd.policy.power.water_filling import WaterFilling

ROUND = "round"
EXIT_REQUEUE = 143
"""Exit code of a job that checkpointed on request and wants to be queued again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreConfig:
    """`round_s` None plans after every event that could change the plan, else every `round_s`."""

    cluster: ClusterSpec
    planner: Planner
    quota: Quota | None = None
    round_s: float | None = None
    power: PowerPolicy = field(default_factory=WaterFilling)
    curve_of: CurveOf = prior


@dataclass(slots=True)
class _Look:
    """Implements `policy.contract.View`."""

    core: Core
    now_s: float
    memory: dict[str, Any]
    woke: bool = False

    def live(self) -> Sequence[JobRecord]:
        """Jobs that run or may run now, in order of submission."""
        return self.core.roster.jobs()

    def entered(self) -> Sequence[JobRecord]:
        """Jobs that came, or lost their plan, since the last plan."""
        return list(self.core.roster.entered.values())

    def left(self) -> Sequence[JobRecord]:
        """Jobs that went since the last plan."""
        return list(self.core.roster.left.values())

    def gpus_per_node(self) -> NDArray[np.int64]:
        """GPUs of each usable node."""
        count = self.core.planned.gpu_count.copy()
        if self.core.lost:
            count[list(self.core.lost)] = 0
        return count

    def usable(self) -> NDArray[np.bool_]:
        """Which nodes are not lost."""
        usable = np.ones(len(self.core.config.cluster.nodes), dtype=np.bool_)
        usable[list(self.core.lost)] = False
        return usable

    def nodes(self) -> Sequence[NodeSpec]:
        """All nodes in the order of their indices."""
        return self.core.config.cluster.nodes

    @property
    def stopped(self) -> Mapping[str, float]:
        """Stopped queues, and since when."""
        return self.core.stopped

    def computed(self, kind: str) -> Computed | None:
        """The answer to the latest question of this kind."""
        return self.core.questions.answer(kind)


@dataclass(slots=True)
class _Batch:
    """Commands of one call of `handle`; whether to plan again, soon or at once, and why."""

    commands: list[Command] = field(default_factory=list)
    replan: bool = False
    due: bool = False
    woke: bool = False


class Core:
    """One pool of nodes and the jobs on it."""

    def __init__(self, config: CoreConfig) -> None:
        """Start empty, with all nodes usable."""
        self.config = config
        self.jobs: dict[str, JobRecord] = {}
        """Live jobs only; final ones leave with their `FinishJob`."""
        self.finished: dict[str, State] = {}
        self.now_s = 0.0
        self.watts = Watts(config.cluster, config.power, config.curve_of)
        self.lost: set[int] = set()
        self.stopped: dict[str, float] = {}
        """Stopped queues, and since when (s)."""
        self.planned = Book(config.cluster)
        self.held = Book(config.cluster)
        self.roster = Roster()
        self._feasibility = Feasibility(config.cluster)
        self._touched: dict[str, None] = {}
        """Jobs that changed since the last plan was carried out."""
        self._capping = False
        """Whether a budget holds, or caps of an earlier one may still be in force."""
        self.questions = Questions()
        self._memory: dict[str, Any] = {}
        self._nodes = {node.name: index for index, node in enumerate(config.cluster.nodes)}
        self._starting: dict[str, None] = {}
        """Jobs with a plan that wait for their devices to be given back, oldest plan first."""
        self._children: dict[str, set[str]] = {}
        self._submitted = 0
        self._round_set = False

    def handle(self, event: Event) -> list[Command]:
        """Take one event and say what to do.

        Raises:
            Bug: an invariant of the core is broken; carries the job's story.
        """
        self.now_s = max(self.now_s, event.at_s)
        batch = _Batch()
        self._note(event, batch)
        if self.config.round_s is not None:
            self._ask_for_round(event, batch)
        if batch.due or (batch.replan and self.config.round_s is None):
            self._plan(batch)
        self._hand_over(batch)
        return batch.commands

    def story(self, job_id: str) -> list[Entry]:
        """What happened to a live job, oldest first."""
        return list(self.jobs[job_id].story)

    # What happened ------------------------------------------------------------------------------

    def _note(self, event: Event, batch: _Batch) -> None:
        match event:
            case JobSubmitted():
                self._submitted_job(event, batch)
            case JobHeld():
                self._hold(event, batch)
            case JobReleased():
                self._release_hold(event, batch)
            case JobCancelled():
                self._cancel(event, batch)
            case RunEvent():
                self._note_run(event, batch)
            case NodeLost():
                self._lose(event, batch)
            case NodeReturned():
                self.lost.discard(self._nodes.get(event.node, -1))
                batch.replan = True
            case QueueStopped() | QueueStarted():
                self._note_queue(event, batch)
            case BudgetChanged():
                self.watts.budget_w = event.budget_w
                self._capping = True
                self._keep_budget(batch)
                batch.replan = True
            case Computed():
                batch.due = self.questions.note(event)
            case Woke():
                self._woke(event, batch)
            case _:
                raise Bug(f"the core knows no event {type(event).__name__}")

    def _submitted_job(self, event: JobSubmitted, batch: _Batch) -> None:
        spec = event.job
        if spec.id in self.jobs or spec.id in self.finished:
            return  # a repeated message; the first one counts
        reason = self._never(spec)
        if reason is not None:
            self.finished[spec.id] = State.FAILED
            batch.commands.append(RejectJob(job_id=spec.id, reason=reason, detail=reason.text()))
            self._orphan(spec.id, batch)
            return
        job = JobRecord(spec=spec, number=self._submitted, state_since_s=self.now_s)
        job.held_since_s = self.now_s
        job.story.append(Entry(self.now_s, "submitted", event.cause))
        self._submitted += 1
        self.jobs[spec.id] = job
        self._changed(job)
        job.waits_for = {one for one in spec.after if self.finished.get(one) is not State.SUCCEEDED}
        for parent in sorted(job.waits_for):
            self._children.setdefault(parent, set()).add(spec.id)
        if job.waits_for:
            self._block(job, batch)
        batch.replan = True

    def _never(self, spec: JobSpec) -> Reason | None:
        """Why the job can never run, or None."""
        cluster, quota = self.config.cluster, self.config.quota
        refusal = None
        if quota is not None:
            total = sum(node.gpu_count for node in cluster.nodes)
            refusal = quota.never(spec, spec.least_gpus, total, self.now_s)
        return refusal or self._feasibility.never_fits(spec, self.now_s) or self._circle(spec)

    def _circle(self, spec: JobSpec) -> Reason | None:
        """Why `spec` would wait for itself by way of others, or None."""
        known, ahead = {spec.id}, list(spec.after)
        while ahead:
            parent = self.jobs.get(ahead.pop())
            if parent is None or parent.id in known:
                continue
            known.add(parent.id)
            if spec.id in parent.waits_for:
                why = f"job {parent.id} waits for it in turn"
                return Reason(code=ReasonCode.INVALID_SPEC, since_s=self.now_s, unblocks=why)
            ahead.extend(sorted(parent.waits_for))
        return None

    def _block(self, job: JobRecord, batch: _Batch) -> None:
        """Wait for other jobs; in vain if one of them is over without success."""
        self._move(job, Trigger.BLOCK, f"after {', '.join(sorted(job.waits_for))}")
        dead = sorted(one for one in job.waits_for if one in self.finished)
        if dead:
            self._end(job, Trigger.FAIL, f"{dead[0]} did not succeed", batch)

    def _hold(self, event: JobHeld, batch: _Batch) -> None:
        job = self.jobs.get(event.job_id)
        if job is None or job.state is State.HELD:
            return
        if job.state is State.STOPPING:
            if job.after_stop is Trigger.REQUEUE:
                job.after_stop = Trigger.HOLD
                self._changed(job)
        elif job.active:
            self._stop(job, StopReason.USER_REQUEST, Trigger.HOLD, batch)
        else:
            self._move(job, Trigger.HOLD, event.cause)
        self._forget_plan(job)
        batch.replan = True

    def _release_hold(self, event: JobReleased, batch: _Batch) -> None:
        job = self.jobs.get(event.job_id)
        if job is None:
            return
        if job.state is State.STOPPING and job.after_stop is Trigger.HOLD:
            job.after_stop = Trigger.REQUEUE
            self._changed(job)
        elif job.state is State.HELD:
            self._move(job, Trigger.RELEASE, event.cause)
            if job.waits_for:
                self._block(job, batch)
        batch.replan = True

    def _cancel(self, event: JobCancelled, batch: _Batch) -> None:
        job = self.jobs.get(event.job_id)
        if job is None:
            return
        self._forget_plan(job)
        if job.state is State.STOPPING:
            job.after_stop = Trigger.CANCEL
            self._changed(job)
        elif job.active:
            self._stop(job, StopReason.USER_REQUEST, Trigger.CANCEL, batch)
        else:
            self._end(job, Trigger.CANCEL, event.cause, batch)
        batch.replan = True

    def _note_run(self, event: RunEvent, batch: _Batch) -> None:
        job = self.jobs.get(event.job_id)
        if job is None or event.attempt != job.attempt or not job.active:
            return  # late news of a run that is over
        match event:
            case JobStarted():
                if job.state is State.STARTING:
                    self._move(job, Trigger.STARTED, event.cause)
                    self._limit_time(job, batch)
            case JobProgressed():
                job.progress = event.progress
                job.rate_per_s = event.rate_per_s
                job.loss = event.loss
            case CapApplied():
                job.cap_w = event.cap_w
                self._capping = True
                self.watts.note(job)
            case JobStopped():
                if event.progress is not None:
                    job.progress = event.progress
                trigger = job.after_stop if job.state is State.STOPPING else Trigger.REQUEUE
                self._give_back(job)
                self._end(job, trigger, event.cause, batch)
                batch.replan = True
            case JobExited():
                self._exited(job, event, batch)
            case _:
                raise Bug(f"the core knows no run event {type(event).__name__}")

    def _exited(self, job: JobRecord, event: JobExited, batch: _Batch) -> None:
        then = job.after_stop if job.state is State.STOPPING else Trigger.REQUEUE
        self._give_back(job)
        if event.exit_code == 0:
            trigger = Trigger.SUCCEED
        elif event.exit_code == EXIT_REQUEUE or then is not Trigger.REQUEUE:
            # A cancelled or held job that is killed because it will not stop has not failed.
            trigger = then
        elif job.failures < job.spec.restarts:
            trigger = Trigger.RETRY
        else:
            trigger = Trigger.FAIL
        if trigger in (Trigger.SUCCEED, Trigger.FAIL, Trigger.RETRY):
            self._forget_plan(job)
        self._end(job, trigger, f"exit code {event.exit_code}", batch)
        batch.replan = True

    def _lose(self, event: NodeLost, batch: _Batch) -> None:
        node = self._nodes.get(event.node)
        if node is None or node in self.lost:
            return
        self.lost.add(node)
        for job in list(self.jobs.values()):
            if any(allocation.node == node for allocation in job.wanted):
                self._forget_plan(job)
            if any(allocation.node == node for allocation in job.allocations):
                self._lose_part(job, node, batch)
        batch.replan = True

    def _lose_part(self, job: JobRecord, node: int, batch: _Batch) -> None:
        """A gang without one of its nodes is over; ranks elsewhere hold devices until stopped."""
        rest = tuple(allocation for allocation in job.allocations if allocation.node != node)
        self._give_back(job, rest)
        if not rest:
            trigger = job.after_stop if job.state is State.STOPPING else Trigger.REQUEUE
            self._end(job, trigger, f"node {self.config.cluster.nodes[node].name} lost", batch)
        elif job.state is not State.STOPPING:
            self._stop(job, StopReason.NODE_LOST, Trigger.REQUEUE, batch)

    def _note_queue(self, event: QueueStopped | QueueStarted, batch: _Batch) -> None:
        if isinstance(event, QueueStopped):
            self.stopped.setdefault(event.queue, self.now_s)
        else:
            self.stopped.pop(event.queue, None)
        batch.replan = True

    def _woke(self, event: Woke, batch: _Batch) -> None:
        kind, _, job_id = event.key.partition(":")
        job = self.jobs.get(job_id.rpartition("#")[0])
        if event.key == ROUND:
            self._round_set = False
            self._plan(batch)
        elif event.key == WAKE:
            batch.due = batch.woke = True
        elif job is not None and event.key == self._key(kind, job):
            if kind == "backoff" and job.state is State.BACKING_OFF:
                self._move(job, Trigger.BACKOFF_OVER)
                batch.replan = True
            elif kind == "limit" and job.state in (State.STARTING, State.RUNNING):
                self._forget_plan(job)
                self._stop(job, StopReason.TIME_LIMIT, Trigger.TIME_OUT, batch)
                batch.replan = True

    # What follows -------------------------------------------------------------------------------

    def _key(self, kind: str, job: JobRecord) -> str:
        return f"{kind}:{job.id}#{job.attempt}"

    def _limit_time(self, job: JobRecord, batch: _Batch) -> None:
        if job.spec.time_limit_s is not None:
            left = job.spec.time_limit_s - job.service_s(self.now_s)
            key = self._key("limit", job)
            batch.commands.append(WakeAt(at_s=self.now_s + max(left, 0.0), key=key))

    def _stop(self, job: JobRecord, why: StopReason, then: Trigger, batch: _Batch) -> None:
        """Ask a starting or running job to stop; `then` is what becomes of it."""
        job.after_stop = then
        self._move(job, Trigger.STOP, str(why))
        job.preemptions += then is Trigger.REQUEUE
        batch.commands.append(
            StopJob(job_id=job.id, attempt=job.attempt, reason=why, grace_s=job.spec.grace_s)
        )

    def _move(self, job: JobRecord, trigger: Trigger, cause: str = "") -> None:
        """Take a step of the lifecycle."""
        job.apply(trigger, self.now_s, cause)
        self._changed(job)

    def _changed(self, job: JobRecord) -> None:
        """Remember that a job's orders, and whether planners may use it, are to be seen to."""
        self._touched[job.id] = None
        self.roster.put(job, eligible=may_run(job))

    def _give_back(self, job: JobRecord, rest: tuple[Allocation, ...] = ()) -> None:
        """The run is over, but for its ranks on `rest`: what else it held is free."""
        for allocation in job.allocations:
            if allocation not in rest:
                self.held.release(allocation)
        job.settle(self.now_s, rest)
        self.watts.note(job)

    def _forget_plan(self, job: JobRecord) -> None:
        """Take a job out of the plan."""
        if not job.wanted:
            return
        for allocation in job.wanted:
            self.planned.release(allocation)
        job.wanted = ()
        self._starting.pop(job.id, None)
        self._touched[job.id] = None
        self.roster.unplanned(job)

    def _end(self, job: JobRecord, trigger: Trigger, cause: str, batch: _Batch) -> None:
        """Apply the trigger that ends a run (or a wait) and do what its new state asks for."""
        if trigger is Trigger.RETRY:
            job.failures += 1
        self._move(job, trigger, cause)
        if job.state in FINAL:
            self._forget_plan(job)
            self._finish(job, batch)
        elif job.state is State.BACKING_OFF:
            wait_s = job.spec.backoff_s * 2 ** (job.failures - 1)
            batch.commands.append(WakeAt(at_s=self.now_s + wait_s, key=self._key("backoff", job)))

    def _finish(self, job: JobRecord, batch: _Batch) -> None:
        del self.jobs[job.id]
        self.finished[job.id] = job.state
        batch.commands.append(FinishJob(job_id=job.id, state=str(job.state)))
        if job.state is not State.SUCCEEDED:
            self._orphan(job.id, batch)
            return
        for child in sorted(self._children.pop(job.id, ())):
            waiting = self.jobs.get(child)
            if waiting is not None:
                waiting.waits_for.discard(job.id)
                if not waiting.waits_for and waiting.state is State.BLOCKED:
                    self._move(waiting, Trigger.UNBLOCK, f"{job.id} succeeded")

    def _orphan(self, parent: str, batch: _Batch) -> None:
        """Jobs that wait for one that will never succeed fail; so do those that wait for them.

        A held one is told when its hold is over.
        """
        for child in sorted(self._children.pop(parent, ())):
            waiting = self.jobs.get(child)
            if waiting is not None and waiting.state is State.BLOCKED:
                self._end(waiting, Trigger.FAIL, f"{parent} did not succeed", batch)

    # Planning -----------------------------------------------------------------------------------

    def _ask_for_round(self, event: Event, batch: _Batch) -> None:
        """Rounds fall on whole multiples of `round_s` and are asked for while there are jobs."""
        round_s = self.config.round_s
        if round_s is None or self._round_set or not self.jobs:
            return
        count = int(self.now_s // round_s)
        on_time = count * round_s == self.now_s and not isinstance(event, Woke) and count > 0
        at_s = self.now_s if on_time else (count + 1) * round_s
        batch.commands.append(WakeAt(at_s=at_s, key=ROUND))
        self._round_set = True

    def _plan(self, batch: _Batch) -> None:
        draft = self._draft()
        self._shed(draft)
        self.config.planner.plan(_Look(self, self.now_s, self._memory, batch.woke), draft)
        batch.commands.extend(draft.orders)
        self.questions.plans += 1
        self.roster.planned()
        self._carry_all_out(draft, batch)

    def _keep_budget(self, batch: _Batch) -> None:
        """A new budget holds at once, whenever the next plan is due."""
        draft = self._draft()
        self._shed(draft)
        self._carry_all_out(draft, batch)

    def _draft(self) -> GuardedDraft:
        return GuardedDraft(
            self.planned,
            self.jobs,
            self.lost,
            self.watts,
            self.questions,
            self.now_s,
            self.config.quota,
            self.stopped,
        )

    def _shed(self, draft: GuardedDraft) -> None:
        """While the least needs exceed the budget: stop the least important, newest job."""
        if not draft.over_budget():
            return
        running = [job for job in self.jobs.values() if job.wanted]
        for job in sorted(running, key=lambda job: (job.spec.priority, -job.number)):
            if not draft.over_budget():
                return
            draft.stop(job, StopReason.BUDGET_CUT)
            self.roster.unplanned(job)
            need_mw = self.watts.needs_mw(job, job.allocations)
            draft.wait(job, self.watts.refusal(need_mw, 0, self.now_s))

    def _carry_all_out(self, draft: GuardedDraft, batch: _Batch) -> None:
        touched = self._touched | draft.touched
        self._touched = {}
        changed = [self.jobs[job_id] for job_id in touched if job_id in self.jobs]
        for job in sorted(changed, key=_number):
            self._carry_out(job, draft, batch)
        if self._capping:
            self._cap(batch)

    def _cap(self, batch: _Batch) -> None:
        """Share the watts out anew; without a budget once more, to lift the caps."""
        jobs = list(self.jobs.values())
        self.watts.share(jobs)
        for job in jobs:
            self._lower(job, batch)
        capped = any(job.cap_w is not None or job.wanted_cap_w is not None for job in jobs)
        self._capping = capped or self.watts.budget_w is not None

    def _carry_out(self, job: JobRecord, draft: GuardedDraft, batch: _Batch) -> None:
        """Turn the difference between a job's plan and what it holds into orders."""
        job.reason = None if job.wanted else draft.reasons.get(job.id, job.reason)
        stays = job.wanted == job.allocations and job.state in (State.STARTING, State.RUNNING)
        if job.wanted and not stays:
            self._starting.setdefault(job.id, None)
        else:
            self._starting.pop(job.id, None)
        if job.active and not stays and job.state is not State.STOPPING:
            why = draft.stops.get(job.id, StopReason.PREEMPTED_FOR_PRIORITY)
            self._stop(job, why, Trigger.REQUEUE, batch)

    def _lower(self, job: JobRecord, batch: _Batch) -> None:
        """Order lower caps at once; higher ones wait until `_raise` finds them room."""
        cap_w = job.wanted_cap_w
        runs = job.state in (State.STARTING, State.RUNNING) and job.wanted == job.allocations
        if runs and cap_w is not None and (job.cap_w is None or cap_w < job.cap_w):
            batch.commands.append(SetCap(job_id=job.id, attempt=job.attempt, cap_w=cap_w))

    def _raise(self, job: JobRecord, batch: _Batch) -> None:
        """Order a higher cap once what others gave up has been read back."""
        runs = job.state in (State.STARTING, State.RUNNING) and job.wanted == job.allocations
        cap_w = job.wanted_cap_w
        higher = job.cap_w is not None and (cap_w is None or cap_w > job.cap_w)
        if runs and higher and self.watts.fits(job, job.allocations):
            # In force from the order on: the device may draw more before it is read back.
            job.cap_w = cap_w
            self.watts.note(job)
            batch.commands.append(SetCap(job_id=job.id, attempt=job.attempt, cap_w=cap_w))

    def _hand_over(self, batch: _Batch) -> None:
        """Start every planned job whose devices are really free now."""
        if self._capping and (self.watts.budget_w is not None or batch.replan):
            for job in list(self.jobs.values()):
                self._raise(job, batch)
        for job_id in list(self._starting) if self._starting else ():
            job = self.jobs[job_id]
            if job.state is State.QUEUED and self._take(job):
                del self._starting[job_id]
                self._start(job, batch)

    def _take(self, job: JobRecord) -> bool:
        return self.watts.fits(job, job.wanted) and self.held.place_all(job.wanted)

    def _start(self, job: JobRecord, batch: _Batch) -> None:
        job.attempt += 1
        job.allocations = job.wanted
        job.cap_w = job.wanted_cap_w
        job.held_since_s = self.now_s
        self.watts.note(job)
        if job.first_start_s is None:
            job.first_start_s = self.now_s
        self._move(job, Trigger.START, f"attempt {job.attempt}")
        batch.commands.append(
            StartJob(
                job_id=job.id,
                attempt=job.attempt,
                allocations=job.allocations,
                cap_w=job.cap_w,
            )
        )


def _number(job: JobRecord) -> int:
    return job.number

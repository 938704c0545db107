"""The decision core: events in, commands out.

`handle` is the only way to change anything. It notes what happened (events are facts and never
refused), lets the planner make a plan when one is due, and turns the difference between what is
and what is planned into commands (`engine.conduct`), in time for what is to come
(`engine.foresight`). The same events in the same order give the same commands; the core reads no
clock and draws no chance.
"""

from __future__ import annotations

from dataclasses import replace

from wattherd.engine.conduct import ROUND, Batch
from wattherd.engine.core_config import CoreConfig
from wattherd.engine.draft import WAKE
from wattherd.engine.drains import Drains
from wattherd.engine.edits import amended, amendment, differences
from wattherd.engine.feasibility import circle
from wattherd.engine.foresight import BUDGET, FALL, LOOKOUTS, Foresight
from wattherd.engine.least_power import Shortage
from wattherd.engine.ledger import Entry, JobRecord
from wattherd.engine.lifecycle import State, Trigger
from wattherd.engine.waits import unmet
from wattherd.errors import Bug, UserError
from wattherd.model.command import Command, RejectJob, wake_at
from wattherd.model.event import (
    ArrayLimited,
    BatchApplied,
    BudgetAnnounced,
    BudgetChanged,
    CapApplied,
    Computed,
    DemandMeasured,
    DeviceDrained,
    DeviceReturned,
    Event,
    JobCancelled,
    JobDrew,
    JobEdited,
    JobEntered,
    JobExited,
    JobHeld,
    JobMeasured,
    JobProgressed,
    JobReleased,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeAsleep,
    NodeAwake,
    NodeLost,
    NodeReturned,
    QueuesChanged,
    QueueStarted,
    QueueStopped,
    RankLagged,
    RunEvent,
    TenantLimited,
    Woke,
)
from wattherd.model.job import JobSpec
from wattherd.model.reason import Reason, StopReason

__all__ = ["EXIT_REQUEUE", "ROUND", "Core", "CoreConfig"]

BEGIN = "begin"
"""Kind of wake-ups for jobs that may not start before a time."""
EXIT_REQUEUE = 143
"""Exit code of a job that checkpointed on request and wants to be queued again."""
_PROGRESS = frozenset({JobStarted, JobProgressed, JobMeasured, JobDrew, BatchApplied, JobEntered})


class Core(Foresight, Drains):
    """One pool of nodes and the jobs on it."""

    def handle(self, event: Event) -> list[Command]:
        """Take one event and say what to do.

        Raises:
            Bug: an invariant of the core is broken; carries the job's story.
        """
        if event.at_s > self.now_s:
            if self._careful:
                self._settle(event.at_s)
            self.now_s = event.at_s
        batch, round_s = Batch(), self.config.round_s
        if isinstance(event, RunEvent):  # first, as most events are
            self._note_run(event, batch)
        else:
            self._note(event, batch)
        if self._careful and self._joules.any:
            self._watch_joules(batch)
        if round_s:
            self._ask_for_round(event, batch)
        elif batch.replan and round_s is not None:
            self._ask_for_instant(batch)
        if batch.due or (batch.replan and round_s is None):
            self._plan(batch)
        if batch.commands or type(event) not in _PROGRESS or self._hands_over():
            self._hand_over(batch)
        if self._careful or self.budgets.pending:
            self._look_ahead(batch)
        return batch.commands

    def _hands_over(self) -> bool:
        """Whether watts may have become free, or nodes; news of progress free no devices."""
        return self.watts.limited or self.config.sleep is not None

    def story(self, job_id: str) -> list[Entry]:
        """What happened to a live job, oldest first."""
        return list(self.jobs[job_id].story)

    def set_aside(self) -> list[tuple[JobRecord, Reason]]:
        """Waiting jobs that no budget in sight lets run now, and why."""
        waiting = [job for job in self.jobs.values() if not job.wanted and not job.active]
        if self._aside.due:  # budgets have changed, and no plan was made since
            judged = [(job, self._aside.why(job.spec, self.now_s)) for job in waiting]
        else:
            judged = [(job, job.aside) for job in waiting]
        return [(job, why) for job, why in judged if why is not None]

    def below_idle(self) -> list[Shortage]:
        """Budgets in force below what idle nodes draw."""
        return self._aside.below_idle()

    def forget(self, job_id: str) -> None:
        """No event will ever name this job again: it need not be known to be over."""
        self.finished.pop(job_id, None)

    # What happened ------------------------------------------------------------------------------

    def _note(self, event: Event, batch: Batch) -> None:
        match event:
            case JobSubmitted():
                self._submitted_job(event, batch)
            case Woke():
                self._woke(event, batch)
            case JobEdited() | ArrayLimited():
                self._note_edit(event, batch)
            case JobHeld():
                self._hold(event, batch)
            case JobReleased():
                self._release_hold(event, batch)
            case JobCancelled():
                self._cancel(event, batch)
            case NodeLost() | NodeReturned() | NodeAsleep() | NodeAwake():
                self._note_node(event, batch)
            case DeviceDrained() | DeviceReturned():
                self._note_device(event, batch)
            case QueueStopped() | QueueStarted() | QueuesChanged() | TenantLimited():
                self._note_shares(event)
                batch.replan = True
            case BudgetChanged() | BudgetAnnounced():
                self._note_budget(event, batch)
            case Computed():
                batch.due = self.questions.note(event)
            case _:
                raise Bug(f"the core knows no event {type(event).__name__}")

    def _note_budget(self, event: BudgetChanged | BudgetAnnounced, batch: Batch) -> None:
        domain, budget_w, source = event.domain, event.budget_w, event.source
        if isinstance(event, BudgetChanged):
            self.budgets.change(domain, budget_w, self.now_s, source)
            self.watts.state(self.budgets.stated_w[domain], domain)
        else:
            self.budgets.announce(domain, event.begins_s, budget_w, source)
        self._hold_to(domain, batch)

    def _submitted_job(self, event: JobSubmitted, batch: Batch) -> None:
        spec = event.job
        if spec.id in self.jobs or spec.id in self.finished:
            return  # a repeated message; the first one counts
        reason = self._never(spec)
        if reason is not None:
            self.finished[spec.id] = State.FAILED
            batch.commands.append(RejectJob(job_id=spec.id, reason=reason, detail=reason.text()))
            self._tell_children(spec.id, State.FAILED, batch)
            self._task_over(spec, State.FAILED, batch)
            return
        job = JobRecord(spec=spec, number=self._submitted, state_since_s=self.now_s)
        job.held_since_s = self.now_s
        job.story.append(Entry(self.now_s, "submitted", event.cause))
        self._submitted += 1
        self.jobs[spec.id] = job
        if spec.energy_budget_j is not None:
            self._open_account(job, batch)
        job.reason = job.aside = self._aside.why(spec, self.now_s)
        self._changed(job)
        self.waits.enter(job, self.finished, self.now_s)
        self._await_begin(job, batch)
        if job.blocked:
            self._block(job, batch)
        batch.replan = True

    def _never(self, spec: JobSpec) -> Reason | None:
        """Why the job can never run, or None."""
        refusal = self._never_alone(spec)
        return refusal or circle(spec, self.jobs, self.waits, self.now_s)

    def _never_alone(self, spec: JobSpec) -> Reason | None:
        """The same, whatever other jobs there are."""
        cluster, quota = self.config.cluster, self.config.quota
        refusal = self._joules.refuses(spec, self.now_s)
        if quota is not None:
            total = sum(node.gpu_count for node in cluster.nodes)
            refusal = refusal or quota.never(spec, spec.least_gpus, total, self.now_s)
        return refusal or self._feasibility.never_fits(spec, self.now_s)

    def _block(self, job: JobRecord, batch: Batch) -> None:
        """Wait for other jobs, a time or a turn; in vain if one of the jobs ended otherwise."""
        cause = f"after {', '.join(sorted(job.waits_for))}" if job.waits_for else ""
        self._move(job, Trigger.BLOCK, cause or self.waits.reason(job).unblocks)
        if job.waits_for or job.not_before_s is not None:
            self._step_aside(job, "waits for something else", batch)
        for parent in sorted(one for one in job.waits_for if one in self.finished):
            never = unmet(job.spec, parent, self.finished[parent])
            if never is not None:
                self._end(job, never.trigger, never.cause, batch)
                return

    def _await_begin(self, job: JobRecord, batch: Batch) -> None:
        """Ask to be woken when a job may begin, if that is still to come."""
        if job.not_before_s is not None:
            key = f"{BEGIN}:{job.id}"
            batch.commands.append(wake_at(at_s=job.not_before_s, key=key))

    def refusal(self, spec: JobSpec) -> Reason | None:
        """Why a job that asks for this could never run here, or None."""
        return self._never_alone(spec)

    def _note_edit(self, event: JobEdited | ArrayLimited, batch: Batch) -> None:
        match event:
            case JobEdited():
                self._edit(event, batch)
            case ArrayLimited():
                self._limit_array(event, batch)

    def _edit(self, event: JobEdited, batch: Batch) -> None:
        """A job asks for something else; what is too late, or could never run, is not done."""
        job = self.jobs.get(event.job_id)
        if job is None:
            return
        try:
            order = amendment(job.spec, event, active=job.active)
            spec = amended(job.spec, order)
        except UserError as error:
            job.story.append(Entry(self.now_s, "edit refused", error.line()))
            return
        refused = None if job.active else self._never_alone(spec)
        if refused is not None:
            job.story.append(Entry(self.now_s, "edit refused", refused.text()))
            return
        changed = ", ".join(differences(job.spec, spec))
        if not changed:
            return
        job.story.append(Entry(self.now_s, f"edited: {changed}", event.cause))
        if not job.active:
            self._leave_roster(job)
        job.spec = spec
        batch.commands.append(order)
        if job.state is State.RUNNING:
            self._limit_time(job, batch)
        if not job.active:
            self._enter_again(job, event, batch)

    def _enter_again(self, job: JobRecord, event: JobEdited, batch: Batch) -> None:
        """Planners hear of an edited job as of one that has just come."""
        job.reason = job.aside = self._aside.why(job.spec, self.now_s)
        if event.begin_at_s is not None:
            self.waits.begin_at(job, self.now_s)
            self._await_begin(job, batch)
        if job.state is State.QUEUED and job.blocked:
            self._block(job, batch)
        elif job.state is State.BLOCKED and job.not_before_s is not None:
            self._step_aside(job, "was put off", batch)
        elif job.state is State.BLOCKED:
            self._unblock(job, "edited", batch)
        if job.id in self.jobs:
            self._changed(job)
        batch.replan = True

    def _limit_array(self, event: ArrayLimited, batch: Batch) -> None:
        """Those that run go on; where fewer may than do, no other one has a turn meanwhile."""
        tasks = [self.jobs[one] for one in self.waits.tasks(event.array)]
        for job in tasks:
            if job.spec.array_most != event.most:
                told = "any number" if event.most is None else str(event.most)
                job.story.append(Entry(self.now_s, f"edited: {told} at a time", event.cause))
                job.spec = replace(job.spec, array_most=event.most)
        for one in self.waits.limit(event.array, event.most, self.jobs):
            self._unblock(self.jobs[one], f"more tasks of {event.array} may run", batch)
        for job in reversed(tasks):
            if job.state is State.QUEUED:
                self._check_turn(job, batch)
        batch.replan = True

    def _hold(self, event: JobHeld, batch: Batch) -> None:
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
            self._step_aside(job, "is held", batch)
        self._forget_plan(job)
        batch.replan = True

    def _release_hold(self, event: JobReleased, batch: Batch) -> None:
        job = self.jobs.get(event.job_id)
        if job is None:
            return
        if job.state is State.STOPPING and job.after_stop is Trigger.HOLD:
            job.after_stop = Trigger.REQUEUE
            self._changed(job)
        elif job.state is State.HELD:
            self._move(job, Trigger.RELEASE, event.cause)
            self.waits.take_turn(job, last=True)
            if job.blocked:
                self._block(job, batch)
        batch.replan = True

    def _cancel(self, event: JobCancelled, batch: Batch) -> None:
        job = self.jobs.get(event.job_id)
        if job is None:
            return
        self._forget_plan(job)
        self._call_off(job, StopReason.USER_REQUEST, event.cause, batch)
        batch.replan = True

    def _note_run(self, event: RunEvent, batch: Batch) -> None:
        job = self.jobs.get(event.job_id)
        if job is None or event.attempt != job.attempt or not job.active:
            return  # late news of a run that is over
        match event:
            case JobStarted():
                if job.state is State.STARTING:
                    job.apply(Trigger.STARTED, self.now_s, event.cause)
                    self._limit_time(job, batch)
            case JobProgressed():
                self._note_training(job, event, batch)
            case JobStopped():
                if event.progress is not None:
                    job.progress = event.progress
                expected = job.state is State.STOPPING
                trigger = job.after_stop if expected else Trigger.REQUEUE
                self._give_back(job)
                self._end(job, trigger, event.cause, batch)
                planned = expected and trigger is Trigger.REQUEUE
                batch.replan = not planned or self.config.round_s != 0
            case JobExited():
                self._exited(job, event, batch)
            case JobEntered():
                what = f"ran in it: {event.command}" if event.command else "was given input"
                job.story.append(Entry(self.now_s, what, event.cause))
            case CapApplied():
                self._caps.applied(job, event.cap_w, self.jobs)
            case JobMeasured() | BatchApplied() | JobDrew() | DemandMeasured() | RankLagged():
                self._note_training(job, event, batch)
            case _:
                raise Bug(f"the core knows no run event {type(event).__name__}")

    def _note_training(
        self,
        job: JobRecord,
        event: JobProgressed | JobMeasured | BatchApplied | JobDrew | DemandMeasured | RankLagged,
        batch: Batch,
    ) -> None:
        match event:
            case JobProgressed():
                job.progress = event.progress
                job.rate_per_s = event.rate_per_s
                job.loss = event.loss
            case JobMeasured():
                job.report = event.report
            case BatchApplied():
                job.micro_batch = event.micro_batch
            case JobDrew():
                idle_w = self.watts.idle_w(job)
                batch.commands += self.batches.heard(job, event, idle_w, self.jobs)
            case DemandMeasured():
                self._demands(job, event, batch)
            case RankLagged():
                self._lags(job, event, batch)

    def _demands(self, job: JobRecord, event: DemandMeasured, batch: Batch) -> None:
        """Others get what a job has no use for, once its lower cap was read back."""
        self.watts.demands.set(job.id, event.most_w)
        if self.watts.limited and job.wanted:
            self.watts.plan(job)
            self._keep_budget(batch)

    def _exited(self, job: JobRecord, event: JobExited, batch: Batch) -> None:
        then = job.after_stop if job.state is State.STOPPING else Trigger.REQUEUE
        never = job.state is State.STARTING and event.exit_code != 0 and event.cause
        why = f"could not be started: {event.cause}" if never else f"exit code {event.exit_code}"
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
        self._end(job, trigger, why, batch)
        batch.replan = True

    def _note_node(
        self, event: NodeLost | NodeReturned | NodeAsleep | NodeAwake, batch: Batch
    ) -> None:
        match event:
            case NodeLost():
                self._lose(event, batch)
            case NodeReturned():
                self.lost.discard(self._nodes.get(event.node, -1))
                batch.replan = True
            case NodeAsleep() | NodeAwake():
                self.rest.note(event, self._nodes.get(event.node, -1))

    def _lose(self, event: NodeLost, batch: Batch) -> None:
        node = self._nodes.get(event.node)
        if node is None or node in self.lost:
            return
        self.lost.add(node)
        self.rest.forget(node)
        for job in list(self.jobs.values()):
            if any(allocation.node == node for allocation in job.wanted):
                self._forget_plan(job)
            if any(allocation.node == node for allocation in job.allocations):
                self._lose_part(job, node, batch)
        batch.replan = True

    def _lose_part(self, job: JobRecord, node: int, batch: Batch) -> None:
        """A gang without one of its nodes is over; ranks elsewhere hold devices until stopped."""
        rest = tuple(allocation for allocation in job.allocations if allocation.node != node)
        self._give_back(job, rest)
        if not rest:
            trigger = job.after_stop if job.state is State.STOPPING else Trigger.REQUEUE
            self._end(job, trigger, f"node {self.config.cluster.nodes[node].name} lost", batch)
        elif job.state is not State.STOPPING:
            self._stop(job, StopReason.NODE_LOST, Trigger.REQUEUE, batch)

    def _note_shares(
        self, event: QueueStopped | QueueStarted | QueuesChanged | TenantLimited
    ) -> None:
        match event:
            case QueueStopped():
                self.stopped.setdefault(event.queue, self.now_s)
            case QueueStarted():
                self.stopped.pop(event.queue, None)
            case QueuesChanged():
                self.take_on(event.queues)
            case TenantLimited() if event.most_gpus is None:
                self.limits.pop(event.tenant, None)
            case TenantLimited(most_gpus=int(most)):
                self.limits[event.tenant] = most

    def _woke(self, event: Woke, batch: Batch) -> None:
        if event.key == ROUND:
            self._round_set = False
            self._plan(batch)
        elif event.key == WAKE:
            batch.due = batch.woke = True
            self._instant_s = -1.0
        elif event.key in LOOKOUTS:
            self._asked_s.pop(event.key, None)
            if event.key == BUDGET:
                for domain in self.budgets.coming:
                    self._hold_to(domain, batch)
            elif event.key == FALL:
                self._stop_late(batch)
        else:
            self._woke_for_job(event.key, batch)

    def _begins(self, job_id: str, batch: Batch) -> None:
        """The begin time of a job may have come, unless it was changed meanwhile."""
        job = self.jobs.get(job_id)
        if job is None or job.not_before_s is None or job.not_before_s > self.now_s:
            return
        job.not_before_s = None
        self._unblock(job, "its time has come", batch)

    def _woke_for_job(self, key: str, batch: Batch) -> None:
        kind, _, job_id = key.partition(":")
        if kind == BEGIN:
            self._begins(job_id, batch)
            return
        job = self.jobs.get(job_id.rpartition("#")[0])
        if job is not None and key == self._key(kind, job):
            if kind == "backoff" and job.state is State.BACKING_OFF:
                self._move(job, Trigger.BACKOFF_OVER)
                if job.blocked:  # it was put off meanwhile
                    self._block(job, batch)
                else:
                    self._check_turn(job, batch)
                batch.replan = True
            elif kind == "limit" and job.state in (State.STARTING, State.RUNNING):
                self._forget_plan(job)
                self._stop(job, StopReason.TIME_LIMIT, Trigger.TIME_OUT, batch)
                batch.replan = True

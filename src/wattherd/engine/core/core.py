"""The decision core: events in, commands out.

Theory of operation
===================

`Core.handle` takes one event and answers with commands. Events are facts: they are never refused,
and those that come late, twice or for an attempt that is over change nothing. Commands are orders
to a shell (the simulator, one machine, Kubernetes), and what becomes of an order is the next event.
The core reads no clock and draws no chance, so that the same events in the same order give the same
commands: a journal of events is enough to recover from, and what is simulated is what runs.

One event passes through four steps, in this order:

1. *Note.* What happened is written into the parts concerned. Only what cannot wait is decided here:
   a run whose node is lost is stopped, a budget that falls takes hold at once (`_keep_budget`).
2. *Plan*, if the event could change the plan and its time has come (`plan.PlanTimer`). First
   `plan.shed` makes the plan fit the budgets. Then the planner, which sees a `CoreView`,
   proposes to a `GuardedDraft`. Every proposal is checked there and then: devices, gangs, quotas,
   watts. The planner chooses among what is possible; it cannot make anything else happen.
3. *Carry out.* The difference between what jobs hold and what the plan gives them becomes orders:
   runs that are to end or to move are stopped, caps that go down are ordered.
4. *Hand over.* What was given back since goes to those who wait for it: planned jobs start on
   devices that are really free, caps rise by watts that are really there.

Plans and the world differ for a while, so there are two books of the same devices. `planned` is
what every job will hold once all orders are carried out: step 2 works on it. `held` is what jobs
hold at this moment, be they stopping: step 4 works on it. A plan may thus hand devices from one job
to another while the first is still writing its checkpoint, and no device is ever used twice.

Watts follow the same two books. The plan must fit the budget with every job at its least
(`Watts.needs_mw`); what may be drawn now must fit it with every job at the cap *in force*. A lower
cap counts only once it has been read back, because a device may draw what its old cap allows until
then. A higher cap counts from its order on, because the device may draw more before anybody reads
that back. So watts move from job A to job B in three events: A's cap is ordered down, A's cap is
read back, B's cap is ordered up or B starts.

A job lives by the table in `engine.jobs.lifecycle`. Its `attempt` number is part of every order for
a run and of all news from it; that is how news from an earlier run is told from the present one's.

Parts
=====

A core is made of parts, each of which can be built and tested alone:

* jobs: `JobTable` (who lives, who waits for whom), `Roster` (who may be planned, what changed);
* capacity: two `Book`s, `planned` and `held`; nodes `lost` and devices `drained`;
* plan: `Plan` (what the plan gives, what is still to be carried out), `PlanTimer`;
* power: `PowerControl` (the account of watts, budgets, caps, ramp); energy: its `Joules`;
* nodes: `NodeSleep` (which nodes sleep); answers to slow questions: `Questions`; sizes of
  micro-batches: `Batches`; speeds: `JobSpeeds`; what could never run: `ShapeFeasibility`.

The parts share one `Reaction`, to which they add what the event at hand leads to. This file says
in which order they are asked, and nothing else does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from wattherd.engine.core.capacity import Book, Drained, DrainedDevices, NodeSleep, Place
from wattherd.engine.core.config import CoreConfig
from wattherd.engine.core.draft import GuardedDraft
from wattherd.engine.core.feasibility import PowerShortage, ShapeFeasibility, circle
from wattherd.engine.core.job_table import BEGIN, JobTable, key_of
from wattherd.engine.core.plan import Plan, PlanTimer, Reaction, shed
from wattherd.engine.core.power_control import FALL, LOOKOUTS, PowerControl
from wattherd.engine.core.view import CoreView, JobSpeeds, Questions
from wattherd.engine.jobs.batches import Batches
from wattherd.engine.jobs.edits import differences, edited
from wattherd.engine.jobs.lifecycle import State, Trigger
from wattherd.engine.jobs.record import JobRecord, StoryLine
from wattherd.engine.power.budgets import too_steep
from wattherd.engine.power.energy_budget import SAME_S, EnergyAccount, moved
from wattherd.errors import Bug, UserError
from wattherd.model.allocation import Allocation, device_of_rank, uses_device
from wattherd.model.command import ROUND, WAKE, Command, RejectJob, start_job, wake_at
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

__all__ = ["EXIT_REQUEUE", "Core", "CoreConfig"]

# 128 + SIGTERM, what a shell reports of a process that ended by that signal, and AdaptDL's code for
# the same wish: checkpointed, run me again.
EXIT_REQUEUE = 143
"""Exit code of a job that checkpointed on request and wants to be queued again."""
JOULES = "joules"
"""Kind of wake-ups at which a run has spent its joules."""
_PROGRESS = frozenset({JobStarted, JobProgressed, JobMeasured, JobDrew, BatchApplied, JobEntered})
"""Events that free neither devices nor watts."""
_GENTLE = ("sets_aside", "spares", "plans_first", "rules", "job_rates", "learns")


# Invariants of the whole are in `engine.core.invariants`, in the words of its parts. Three that no
# single part can hold:
#
# * An event is noted by every part before anything is planned. A plan on half of the news would
# hand out a device that the other half takes away.
#
# * Orders of one event leave in this order: what the event itself demands, stops and lower caps of
# the plan, raises, starts. Watts and devices are given away only after they were taken.
#
# * Nothing iterates over a set of names on the way to a command. The same events must give the same
# commands in another process, where sets have another order.
class Core:
    """One pool of nodes and the jobs on it."""

    def __init__(self, config: CoreConfig) -> None:
        """Start empty, with all nodes usable."""
        self.config = config
        self.now_s = 0.0
        self._reaction = Reaction()
        self._timer = PlanTimer(config.round_s, self._reaction)
        # Power.
        self.power = PowerControl(config)
        self.watts, self.budgets = self.power.watts, self.power.budgets
        # Capacity.
        self.planned = Book(config.cluster)
        """What every job will hold once all orders are carried out."""
        self.held = Book(config.cluster)
        """What jobs hold at this moment."""
        self.lost: set[int] = set()
        self.drained = DrainedDevices()
        self._nodes = {node.name: index for index, node in enumerate(config.cluster.nodes)}
        self.rest = NodeSleep(config.cluster, config.sleep)
        # Jobs, and what is planned for them.
        self.plan = Plan(self.planned, self.watts)
        self.table = JobTable(self.plan, self._reaction)
        self.jobs, self.finished = self.table.live, self.table.finished
        self.roster, self.waits = self.plan.roster, self.table.waits
        self._feasibility = ShapeFeasibility(config.cluster, config.eligible)
        # What planners are told, and how they are held to account.
        self.questions = Questions()
        self._memory: dict[str, Any] = {}
        self.stopped: dict[str, float] = {}
        """Stopped queues, and since when (s)."""
        self.queues: Any = None
        """Queues that were changed at work, as plain data; None: those of the configuration."""
        self.limits: dict[str, int] = {}
        """The most GPUs that jobs of a tenant may hold together."""
        self.strikes: Counter[str] = Counter()
        """Proposals that the guard refused, by reason code."""
        self.batches = Batches(self.strikes)
        self.speeds = JobSpeeds(self.jobs)

    # The door -----------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Command]:
        """Take one event and say what to do.

        Raises:
            Bug: an invariant of the core is broken; carries the job's story.
        """
        # Time does not run backwards: an event that is told late happens now. Shells deliver by
        # their own clocks and queues, and a late event must not make attained service negative.
        if event.at_s > self.now_s:
            if self.power.settles:
                self.power.settle(self.now_s, event.at_s, self.jobs)
            self.now_s = event.at_s
        reaction = self._reaction
        reaction.begin(self.now_s)
        if isinstance(event, RunEvent):  # first, as most events are
            self._note_run(event)
        else:
            self._note(event)
        if self.power.settles and self.power.energy.any:
            self._watch_energy()
        if self._timer.after(event, any_jobs=bool(self.jobs)):
            self._make_plan()
        if reaction.commands or type(event) not in _PROGRESS or self._hands_over():
            self._hand_over()
        if self.power.looks_ahead:
            reaction.commands.extend(self.power.wakeups(self.jobs, self.now_s))
        return reaction.taken()

    def _hands_over(self) -> bool:
        """Whether watts may have become free, or nodes; news of progress free no devices."""
        return self.watts.limited or self.config.sleep is not None

    # Questions about it -------------------------------------------------------------------------

    def story(self, job_id: str) -> list[StoryLine]:
        """What happened to a live job, oldest first."""
        return list(self.jobs[job_id].story)

    def set_aside(self) -> list[tuple[JobRecord, Reason]]:
        """Waiting jobs that no budget in sight lets run now, and why."""
        aside = self.power.aside
        waiting = [job for job in self.jobs.values() if not job.wanted and not job.active]
        if aside.due:  # budgets have changed, and no plan was made since
            judged = [(job, aside.why(job.spec, self.now_s)) for job in waiting]
        else:
            judged = [(job, job.aside) for job in waiting]
        return [(job, why) for job, why in judged if why is not None]

    def below_idle(self) -> list[PowerShortage]:
        """Budgets in force below what idle nodes draw."""
        return self.power.aside.below_idle()

    def refusal(self, spec: JobSpec) -> Reason | None:
        """Why a job that asks for this could never run here, whatever other jobs there are."""
        cluster, quota = self.config.cluster, self.config.quota
        refusal = None
        if spec.energy_budget_j is not None:
            refusal = self.power.energy.refuses(spec, self.now_s)
        if quota is not None:
            total = sum(node.gpu_count for node in cluster.nodes)
            refusal = refusal or quota.never(spec, spec.least_gpus, total, self.now_s)
        return refusal or self._feasibility.never_fits(spec, self.now_s)

    def credit(self, job_id: str, attained_s: float, attained_gpu_s: float) -> None:
        """What a job received before this core knew of it.

        For shells that recover from the world and have no journal; to be told with the submission.
        """
        job = self.jobs.get(job_id)
        if job is not None:
            job.attained_s += attained_s
            job.attained_gpu_s += attained_gpu_s

    def forget(self, job_id: str) -> None:
        """No event will ever name this job again: it need not be known to be over."""
        self.finished.pop(job_id, None)

    # What happened: jobs ------------------------------------------------------------------------

    def _note(self, event: Event) -> None:
        match event:
            case JobSubmitted():
                self._submit(event)
            case Woke():
                self._woke(event)
            case JobEdited() | ArrayLimited():
                self._note_edit(event)
            case JobHeld() | JobReleased() | JobCancelled():
                self._obey_user(event)
            case NodeLost() | NodeReturned() | NodeAsleep() | NodeAwake():
                self._note_node(event)
            case DeviceDrained() | DeviceReturned():
                self._note_device(event)
            case QueueStopped() | QueueStarted() | QueuesChanged() | TenantLimited():
                self._note_shares(event)
                self._reaction.replan = True
            case BudgetChanged() | BudgetAnnounced():
                self.power.note(event, self.now_s)
                self._hold_to(event.domain)
            case Computed():
                self._reaction.due = self.questions.note(event)
            case _:
                raise Bug(f"the core knows no event {type(event).__name__}")

    def _submit(self, event: JobSubmitted) -> None:
        spec = event.job
        if self.table.known(spec.id):
            return  # a repeated message; the first one counts
        never = self.refusal(spec) or circle(spec, self.jobs, self.waits, self.now_s)
        if never is not None and not self.config.is_there(spec.id):  # which is a fact
            reject = RejectJob(job_id=spec.id, reason=never, detail=never.text())
            self._reaction.commands.append(reject)
            self.table.refuse(spec)
            return
        job = self.table.submit(spec, event.cause)
        if spec.energy_budget_j is not None and self.power.open_account(job):
            self._hold_to("")
        job.reason = job.aside = self.power.aside.why(spec, self.now_s)
        self.table.admit(job)
        self._reaction.replan = True

    def _note_edit(self, event: JobEdited | ArrayLimited) -> None:
        match event:
            case JobEdited():
                self._edit(event)
            case ArrayLimited():
                self.table.limit_array(event.array, event.most, event.cause)
                self._reaction.replan = True

    def _edit(self, event: JobEdited) -> None:
        """A job asks for something else; what is too late, or could never run, is not done."""
        job = self.jobs.get(event.job_id)
        if job is None:
            return
        try:
            order, spec = edited(job.spec, event, active=job.active)
        except UserError as error:
            job.story.append(StoryLine(self.now_s, "edit refused", error.line()))
            return
        refused = None if job.active else self.refusal(spec)
        if refused is not None:
            job.story.append(StoryLine(self.now_s, "edit refused", refused.text()))
            return
        changed = ", ".join(differences(job.spec, spec))
        if not changed:
            return
        job.story.append(StoryLine(self.now_s, f"edited: {changed}", event.cause))
        if not job.active:
            # Planners keep what they worked out of a job: for them this one goes and another comes.
            self.plan.hide(job)
        job.spec = spec
        self._reaction.commands.append(order)
        if job.state is State.RUNNING:
            self.table.limit_time(job)
        if not job.active:
            self._enter_again(job, event)

    def _enter_again(self, job: JobRecord, event: JobEdited) -> None:
        """Planners hear of an edited job as of one that has just come."""
        job.reason = job.aside = self.power.aside.why(job.spec, self.now_s)
        if event.begin_at_s is not None:
            self.waits.begin_at(job, self.now_s)
            self.table.await_begin(job)
        if job.state is State.QUEUED and job.blocked:
            self.table.block(job)
        elif job.state is State.BLOCKED and job.not_before_s is not None:
            self.table.step_aside(job, "was put off")
        elif job.state is State.BLOCKED:
            self.table.unblock(job, "edited")
        if job.id in self.jobs:
            self.plan.changed(job)
        self._reaction.replan = True

    def _obey_user(self, event: JobHeld | JobReleased | JobCancelled) -> None:
        job = self.jobs.get(event.job_id)
        if job is None or (isinstance(event, JobHeld) and job.state is State.HELD):
            return
        match event:
            case JobHeld():
                self.table.hold(job, event.cause)
            case JobReleased():
                self.table.release(job, event.cause)
            case JobCancelled():
                self.plan.forget(job)
                self.table.call_off(job, StopReason.USER_REQUEST, event.cause)
        self._reaction.replan = True

    def _woke(self, event: Woke) -> None:
        if event.key == ROUND:
            self._timer.round_came()
            self._make_plan()
        elif event.key == WAKE:
            self._reaction.due = self._reaction.woke = True
            self._timer.instant_came()
        elif event.key in LOOKOUTS:
            for domain in self.power.woke(event.key):
                self._hold_to(domain)
            if event.key == FALL:
                for job, why in self.plan.carry_out_late(self._draft(), self.jobs):
                    self._stop_for_plan(job, why)
        else:
            self._woke_for_job(event.key)

    def _woke_for_job(self, key: str) -> None:
        kind, _, job_id = key.partition(":")
        if kind == BEGIN:
            self.table.begins(job_id)
            return
        job = self.jobs.get(job_id.rpartition("#")[0])
        if job is None or key != key_of(kind, job):
            return  # of an attempt that is over
        if kind == "backoff" and job.state is State.BACKING_OFF:
            self.table.backoff_over(job)
            self._reaction.replan = True
        elif kind == "limit" and job.state in (State.STARTING, State.RUNNING):
            self.plan.forget(job)
            self.table.stop(job, StopReason.TIME_LIMIT, Trigger.TIME_OUT)
            self._reaction.replan = True

    # What happened: runs ------------------------------------------------------------------------

    def _note_run(self, event: RunEvent) -> None:
        job = self.jobs.get(event.job_id)
        if job is None or event.attempt != job.attempt or not job.active:
            return  # late news of a run that is over
        match event:
            case JobStarted():
                if job.state is State.STARTING:
                    # Not by way of the table: as planned, so that neither orders nor planners
                    # need to hear of it.
                    job.apply(Trigger.STARTED, self.now_s, event.cause)
                    self.table.limit_time(job)
            case JobStopped():
                self._stopped_run(job, event)
            case JobExited():
                self._exited(job, event)
            case JobEntered():
                what = f"ran in it: {event.command}" if event.command else "was given input"
                job.story.append(StoryLine(self.now_s, what, event.cause))
            case CapApplied(cap_w=cap):
                self._reaction.commands += self.power.caps.applied(job, cap, self.jobs, self.now_s)
            case (
                JobProgressed()
                | JobMeasured()
                | BatchApplied()
                | JobDrew()
                | DemandMeasured()
                | RankLagged()
            ):
                self._note_training(job, event)
            case _:
                raise Bug(f"the core knows no run event {type(event).__name__}")

    def _note_training(
        self, job: JobRecord,
        event: JobProgressed | JobMeasured | BatchApplied | JobDrew | DemandMeasured | RankLagged,
    ) -> None:  # fmt: skip
        match event:
            case JobProgressed():
                job.progress = event.progress
                job.rate_per_s = event.rate_per_s
                job.loss = event.loss
                self.speeds.heard(job, self.config, self.now_s, self.watts.speed, event)
            case JobMeasured():
                job.report = event.report
            case BatchApplied():
                job.micro_batch = event.micro_batch
            case JobDrew():
                idle_w = self.watts.idle_w(job)
                self._reaction.commands += self.batches.heard(job, event, idle_w, self.jobs)
            case DemandMeasured():
                # Others get what a job has no use for, once its lower cap was read back.
                self.watts.demands.set(job.id, event.most_w)
                if self.watts.limited and job.wanted:
                    self.watts.plan(job)
                    self._keep_budget()
            case RankLagged():
                self._lags(job, event)

    def _stopped_run(self, job: JobRecord, event: JobStopped) -> None:
        if event.progress is not None:
            job.progress = event.progress
        expected = job.state is State.STOPPING
        trigger = job.after_stop if expected else Trigger.REQUEUE
        self._give_back(job)
        self.table.end(job, trigger, event.cause)
        # The plan that wanted a stop reckons with it: its end is no news that calls for another.
        planned = expected and trigger is Trigger.REQUEUE
        self._reaction.replan = not planned or self.config.round_s != 0

    def _exited(self, job: JobRecord, event: JobExited) -> None:
        then = job.after_stop if job.state is State.STOPPING else Trigger.REQUEUE
        never = job.state is State.STARTING and event.exit_code != 0 and event.cause
        why = f"could not be started: {event.cause}" if never else f"exit code {event.exit_code}"
        self._give_back(job)
        if event.exit_code == 0:
            trigger = Trigger.SUCCEED
            self.speeds.succeeded(job, self.config)
        elif event.exit_code == EXIT_REQUEUE or then is not Trigger.REQUEUE:
            # A cancelled or held job that is killed because it will not stop has not failed.
            trigger = then
        elif job.failures < job.spec.restarts:
            trigger = Trigger.RETRY
        else:
            trigger = Trigger.FAIL
        if trigger in (Trigger.SUCCEED, Trigger.FAIL, Trigger.RETRY):
            self.plan.forget(job)
        self.table.end(job, trigger, why)
        self._reaction.replan = True

    def _give_back(self, job: JobRecord, rest: tuple[Allocation, ...] = ()) -> None:
        """The run is over, but for its ranks on `rest`: what else it held is free."""
        for allocation in job.allocations:
            if not rest or allocation not in rest:
                self.held.release(allocation)
                self.plan.starting.freed(allocation.node)
        job.settle(self.now_s, rest)
        self.watts.note(job)
        self.watts.demands.forget(job.id)
        self.speeds.restarts.ended(job.id)

    # What happened: nodes and devices -----------------------------------------------------------

    def _note_node(self, event: NodeLost | NodeReturned | NodeAsleep | NodeAwake) -> None:
        match event:
            case NodeLost():
                self._lose(event)
            case NodeReturned():
                self.lost.discard(self._nodes.get(event.node, -1))
                self._reaction.replan = True
            case NodeAsleep() | NodeAwake():
                self.rest.note(event, self._nodes.get(event.node, -1))

    def _lose(self, event: NodeLost) -> None:
        node = self._nodes.get(event.node)
        if node is None or node in self.lost:
            return
        self.lost.add(node)
        self.rest.forget(node)
        for job in list(self.jobs.values()):
            if any(allocation.node == node for allocation in job.wanted):
                self.plan.forget(job)
            if any(allocation.node == node for allocation in job.allocations):
                self._lose_part(job, node)
        self._reaction.replan = True

    def _lose_part(self, job: JobRecord, node: int) -> None:
        """A gang without one of its nodes is over; ranks elsewhere hold devices until stopped."""
        # A lost node's devices are free for the books at once, as nothing will ever say that they
        # are. Those of the same gang elsewhere are not: its ranks there run until they have been
        # stopped.
        rest = tuple(allocation for allocation in job.allocations if allocation.node != node)
        self._give_back(job, rest)
        if not rest:
            trigger = job.after_stop if job.state is State.STOPPING else Trigger.REQUEUE
            self.table.end(job, trigger, f"node {self.config.cluster.nodes[node].name} lost")
        elif job.state is not State.STOPPING:
            self.table.stop(job, StopReason.NODE_LOST, Trigger.REQUEUE)

    def _note_device(self, event: DeviceDrained | DeviceReturned) -> None:
        node = self._nodes.get(event.node)
        if node is None or not 0 <= event.gpu < self.config.cluster.nodes[node].gpu_count:
            return
        if isinstance(event, DeviceDrained):
            self._drain((node, event.gpu), event.cause)
        elif self.drained.returned((node, event.gpu)):
            self.planned.put_back(node, event.gpu)
            self._reaction.replan = True

    def _drain(self, place: Place, cause: str) -> None:
        """Nobody is given a device any more; who has it is asked to checkpoint and leave it.

        It leaves the planned book alone: whoever holds it keeps it until it has stopped.
        """
        if place in self.drained.out:
            return
        self.drained.out[place] = Drained(self.now_s, cause)
        for job in list(self.jobs.values()):
            if uses_device(job.wanted, place):
                self.plan.forget(job)
            if uses_device(job.allocations, place) and job.state in (State.STARTING, State.RUNNING):
                self.table.stop(job, StopReason.DEVICE_DRAINED, Trigger.REQUEUE)
        self.planned.take_out(*place)
        self._reaction.replan = True

    def _lags(self, job: JobRecord, event: RankLagged) -> None:
        """One rank holds all others up: told in the job's story, and held against its device."""
        place = device_of_rank(job.allocations, event.rank, event.ranks)
        on = "" if place is None else f" on GPU {place[1]}"
        why = f"rank {event.rank}{on} needs {event.slowdown:.1f} times what the others need"
        job.story.append(StoryLine(self.now_s, "lags", why))
        if place is not None and self.drained.lagged(place, job.id, event.attempt):
            self._drain(place, f"ranks lagged there in two runs, last {job.id}")

    # What happened: shares and budgets ----------------------------------------------------------

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

    def _hold_to(self, domain: str) -> None:
        """Hold a domain to its budget; a lower one is kept at once."""
        self.power.hold_to(domain, self.jobs, self.now_s)
        self._keep_budget()
        self._reaction.replan = True

    def _watch_energy(self) -> None:
        """End what cannot be done within its joules; ask to be woken before they are spent."""
        energy = self.power.energy
        for job, account in energy.jobs(self.jobs):
            if job.state in (State.STARTING, State.RUNNING):
                self._watch_run(job, account)
            elif job.state is State.QUEUED and not job.wanted:
                reason = energy.short(job, account, self.now_s)
                if reason is not None:
                    job.reason = reason
                    self.table.end(job, Trigger.FAIL, reason.text())
                    self._reaction.replan = True

    def _watch_run(self, job: JobRecord, account: EnergyAccount) -> None:
        end_s = self.power.energy.end_s(job, account, self.now_s)
        if end_s is None:
            return
        if end_s <= self.now_s + SAME_S:
            self.plan.forget(job)
            self.table.stop(job, StopReason.ENERGY_BUDGET, Trigger.FAIL)
            self._reaction.replan = True
        elif moved(account, end_s):
            self._reaction.commands.append(wake_at(at_s=end_s, key=key_of(JOULES, job)))

    # Planning -----------------------------------------------------------------------------------

    def _make_plan(self) -> None:
        draft = self._draft()
        self._shed(draft)
        if self.power.aside.due:
            # Between shedding and planning: a budget that changed may have let jobs in, or out, and
            # the planner must see the right ones.
            for job in self.power.aside.again(self.jobs.values(), self.now_s):
                self.plan.changed(job)
        self.config.planner.plan(self._view(), draft)
        self._reaction.commands.extend(draft.orders)
        self.questions.plans += 1
        self.roster.planned()
        self._carry_all_out(draft)

    def _keep_budget(self) -> None:
        """A new budget holds at once, whenever the next plan is due."""
        draft = self._draft()
        self._shed(draft)
        self._carry_all_out(draft)

    def _shed(self, draft: GuardedDraft) -> None:
        """Make the plan fit the budgets before anything is added to it."""
        for job in shed(draft, self.jobs.values(), self.watts, self.now_s, self.config):
            self.roster.unplanned(job)

    def _draft(self) -> GuardedDraft:
        return GuardedDraft(
            self.planned, self.jobs, self.lost, self.watts, self.questions, self.now_s,
            self.config.quota, self.stopped, self.strikes, self.limits, self.config.eligible,
            self.config.is_there, self.plan.use,
        )  # fmt: skip

    def _view(self) -> CoreView:
        return CoreView(
            now_s=self.now_s,
            memory=self._memory,
            roster=self.roster,
            replanned_jobs=self.plan.use.take_changed(),
            planned=self.planned,
            lost=self.lost,
            devices=self.drained,
            stopped=self.stopped,
            questions=self.questions,
            config=self.config,
            speeds=self.speeds,
            jobs=self.jobs,
            woke=self._reaction.woke,
        )

    def take_on(self, queues: Any) -> None:
        """Plan for other queues; what jobs hold stays theirs. Nothing, where none are kept."""
        if self.config.requeue is not None:
            planner, quota = self.config.requeue(queues)
            self.config = replace(self.config, planner=planner, quota=quota)
            self.queues = queues

    def go_on_by(self, config: CoreConfig, *, anew: bool) -> None:
        """Decide as `config` says from now on; what runs goes on.

        Cluster, devices, watts and queues must be as they are. With `anew` its planner takes over,
        else the present one stays. A planner that takes over must know from the view alone what
        runs where.
        """
        names = (*_GENTLE, "planner", "quota", "requeue") if anew else _GENTLE
        if config.rules != self.config.rules:
            self.power.go_by(config.rules)
        self.config = replace(self.config, **{name: getattr(config, name) for name in names})
        self.power.aside.active = self.power.aside.due = config.sets_aside
        if anew:
            self._memory = {}
            self.roster.introduce()

    # Carrying out -------------------------------------------------------------------------------

    def _carry_all_out(self, draft: GuardedDraft) -> None:
        for job_id, why in draft.ended.items():
            if job_id in self.jobs:  # else it waited for one that was ended just now
                self.table.call_off(self.jobs[job_id], why, str(why))
        if draft.ended and self._reaction.freed:  # this plan did not see them
            self._timer.ask_for_instant()
        for job, why in self.plan.carry_out(draft, self.jobs):
            self._stop_for_plan(job, why)
        self._reaction.commands += self.power.caps.share_out(self.jobs, self.now_s)

    def _stop_for_plan(self, job: JobRecord, why: StopReason) -> None:
        """Stop what a plan asked for, as far as the ramps let it go now."""
        if self.power.must_stay(job, self.jobs, self.now_s):
            self.plan.put_off(job, why)
        else:
            self.table.stop(job, why, Trigger.REQUEUE)

    # Handing over -------------------------------------------------------------------------------

    def _hand_over(self) -> None:
        """Start every planned job whose devices are really free now, and raise caps before that.

        Jobs that run come first: they hold devices that yield nothing without watts, and a job
        that starts may wait for another one's devices in any case.
        """
        now_s, caps, starting = self.now_s, self.power.caps, self.plan.starting
        commands, is_there = self._reaction.commands, self.config.is_there
        commands += caps.raise_due(self.jobs, replanned=self._reaction.replan, now_s=now_s)
        # Oldest plan first. A job whose devices are free may pass one that still waits for its own;
        # it takes nothing from it, since devices are planned for one of them only. Watts it may
        # take: they go to who can use them now. But before all, what was found at work is booked.
        for job_id in sorted(starting.due(), key=lambda one: not is_there(one)):
            job = self.jobs[job_id]
            if job.state is State.QUEUED and self._take(job):
                starting.drop(job_id)
                self._start(job)
                if is_there(job_id):  # and may be too much: then the next plan stops somebody
                    self._timer.ask_for_instant()
        if starting and self.config.rules.steady:
            commands.extend(caps.press(self.jobs, now_s))
        if self.config.sleep is not None:
            waiting = [self.jobs[job_id] for job_id in starting]
            books = (self.planned, self.held)
            commands.extend(self.rest.orders(waiting, books, self.lost, now_s))

    def _take(self, job: JobRecord) -> bool:
        """Take what a job is planned to have, if all of it is there: nodes, watts, devices."""
        if self.config.is_there(job.id):
            return self.held.place_all(job.wanted)
        # Devices first: most that wait here wait for those of others. What one lacks alone is
        # enough to know; `place_all` sees them together.
        if self.plan.starting.lacks(job, self.held):
            return False
        possible = self.rest.ready(job)
        if possible and self.watts.limited:
            possible = self.watts.fits(job, job.wanted)
        if possible and self.power.rises.limits:
            # Places first: what cannot start for want of them takes no part of a ramp.
            if not self.held.place_all(job.wanted):
                return False
            refusal = self.watts.climbs(job, job.wanted, self.power.rises, self.now_s)
            if refusal is None:
                job.reason = None
                return True
            for allocation in job.wanted:
                self.held.release(allocation)
            since_s = self.now_s if job.reason is None else job.reason.since_s
            job.reason = too_steep(refusal, since_s)
            return False
        return possible and self.held.place_all(job.wanted)

    def _start(self, job: JobRecord) -> None:
        now_s = self.now_s
        job.attempt += 1
        job.allocations = job.wanted
        job.cap_w = job.wanted_cap_w
        job.held_since_s = now_s
        self.watts.note(job)
        if self.config.is_there(job.id):
            self.speeds.restarts.found(job.id, job.attempt)
        if job.first_start_s is None:
            job.first_start_s = now_s
        # As planned: no orders are to be seen to, and planners know.
        job.apply(Trigger.START, now_s, f"attempt {job.attempt}")
        self._reaction.commands.append(
            start_job(
                job_id=job.id,
                attempt=job.attempt,
                allocations=job.allocations,
                cap_w=job.cap_w,
            )
        )

"""What follows from events: plans made, orders given, devices and watts handed over.

`Conduct` owns the core's state and everything done to it; `engine.core.Core` adds the door through
which events come in. Two states of the cluster are kept. `planned` is what every job will hold once
all orders are carried out: planners work on it. `held` is what jobs hold at this moment: a job is
started only when what it was given is really free, so that a plan may hand devices from one job to
another while the first is still writing its checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from typing import Any

from wattherd.engine.batches import Batches
from wattherd.engine.book import Book
from wattherd.engine.budgets import Budgets
from wattherd.engine.caps import Caps
from wattherd.engine.core_config import CoreConfig
from wattherd.engine.draft import WAKE, GuardedDraft
from wattherd.engine.drained import DrainedDevices
from wattherd.engine.feasibility import Feasibility
from wattherd.engine.joules import Joules
from wattherd.engine.ledger import JobRecord, may_run
from wattherd.engine.lifecycle import FINAL, State, Trigger
from wattherd.engine.look import Look
from wattherd.engine.narrowing import narrower
from wattherd.engine.power_reasons import too_steep
from wattherd.engine.questions import Questions
from wattherd.engine.ramp import Ramps
from wattherd.engine.rest import Rest
from wattherd.engine.roster import Roster
from wattherd.engine.set_aside import SetAside
from wattherd.engine.tree_watts import TreeWatts
from wattherd.engine.waits import Waits, unmet
from wattherd.engine.watts import Watts
from wattherd.model.allocation import Allocation
from wattherd.model.command import (
    Command,
    finish_job,
    start_job,
    stop_job,
    wake_at,
)
from wattherd.model.event import (
    Event,
    Woke,
)
from wattherd.model.job import JobSpec
from wattherd.model.reason import Reason, StopReason

ROUND = "round"


class Batch:
    """Commands of one call of `handle`; whether to plan again, soon or at once, and why."""

    __slots__ = ("commands", "due", "freed", "replan", "woke")

    def __init__(self) -> None:
        """Nothing is to be done."""
        self.commands: list[Command] = []
        self.replan = self.due = self.woke = False
        self.freed = False
        """Whether a job may be planned now for which no plan was due by itself."""


class Conduct:
    """One pool of nodes, the jobs on it, and what is to be done about them."""

    def __init__(self, config: CoreConfig) -> None:
        """Start empty, with all nodes usable."""
        self.config = config
        self.jobs: dict[str, JobRecord] = {}
        """Live jobs only; final ones leave with their `FinishJob`."""
        self.finished: dict[str, State] = {}
        self.now_s = 0.0
        self.tree: TreeWatts | None = None
        if config.tree is not None:
            self.tree = TreeWatts(
                config.cluster, config.power, config.curve_of, config.tree, config.gpus
            )
        self.watts: Watts = self.tree or Watts(
            config.cluster, config.power, config.curve_of, config.gpus
        )
        self.lost: set[int] = set()
        self.strikes: Counter[str] = Counter()
        """Proposals that the guard refused, by reason code."""
        self.stopped: dict[str, float] = {}
        """Stopped queues, and since when (s)."""
        self.queues: Any = None
        """Queues that were changed at work, as plain data; None: those of the configuration."""
        self.limits: dict[str, int] = {}
        """The most GPUs that jobs of a tenant may hold together."""
        self.drained = DrainedDevices()
        self.batches = Batches(self.strikes)
        self.planned = Book(config.cluster)
        self.held = Book(config.cluster)
        self.roster = Roster()
        self._feasibility = Feasibility(config.cluster)
        self._touched: dict[str, None] = {}
        """Jobs that changed since the last plan was carried out."""
        rules = config.rules
        self._late_stops: dict[str, StopReason] = {}
        """Jobs that a plan stops, and that wait for a ramp: why."""
        self._joules = Joules(self.watts)
        self._set_ramps(config)
        self._caps = Caps(self.watts, rules, self._rises)
        root = () if config.tree is None else (config.tree.root.name,)
        self.budgets = Budgets(rules, ("", *root))
        for domain in config.tree.domains if config.tree else ():
            self.budgets.begin(domain.name, domain.budget_w)
        self._aside = SetAside(config, self.watts, self.budgets)
        self._asked_s: dict[str, float] = {}
        """For when wake-ups have been asked for, by key."""
        self.questions = Questions()
        self.rest = Rest(config.cluster, config.sleep)
        self._memory: dict[str, Any] = {}
        self._nodes = {node.name: index for index, node in enumerate(config.cluster.nodes)}
        self._starting: dict[str, None] = {}
        """Jobs with a plan that wait for their devices to be given back, oldest plan first."""
        self.waits = Waits()
        self._submitted = 0
        self._round_set = False
        self._instant_s = -1.0
        """For when a plan at the end of an instant has been asked for."""

    def _set_ramps(self, config: CoreConfig) -> None:
        """How fast the site and the domains of its tree may rise and fall."""
        rules, domains = config.rules, config.tree.domains if config.tree else ()
        up: dict[str, float | None] = {"": rules.ramp_up_w_s}
        down: dict[str, float | None] = {"": rules.ramp_down_w_s}
        up |= {one.name: one.ramp_up_w_s for one in domains}
        down |= {one.name: one.ramp_down_w_s for one in domains}
        drawn, window_s = self.watts.drawn_by, rules.ramp_window_s
        self._rises = Ramps(up, window_s, drawn)
        self._falls = Ramps(down, window_s, {name: -mw for name, mw in drawn.items()})
        limits = self._rises.limits or self._falls.limits
        self._careful = rules.looks_ahead or rules.steady or limits or self._joules.any

    # What follows -------------------------------------------------------------------------------

    def _key(self, kind: str, job: JobRecord) -> str:
        return f"{kind}:{job.id}#{job.attempt}"

    def _limit_time(self, job: JobRecord, batch: Batch) -> None:
        if job.spec.time_limit_s is not None:
            left = job.spec.time_limit_s - job.service_s(self.now_s)
            key = self._key("limit", job)
            batch.commands.append(wake_at(at_s=self.now_s + max(left, 0.0), key=key))

    def _stop(self, job: JobRecord, why: StopReason, then: Trigger, batch: Batch) -> None:
        """Ask a starting or running job to stop; `then` is what becomes of it."""
        job.after_stop = then
        self._move(job, Trigger.STOP, str(why))
        job.preemptions += then is Trigger.REQUEUE
        batch.commands.append(
            stop_job(job_id=job.id, attempt=job.attempt, reason=why, grace_s=job.spec.grace_s)
        )

    def _move(self, job: JobRecord, trigger: Trigger, cause: str = "") -> None:
        """Take a step of the lifecycle."""
        job.apply(trigger, self.now_s, cause)
        self._changed(job)

    def _changed(self, job: JobRecord) -> None:
        """Remember that a job's orders, and whether planners may use it, are to be seen to."""
        self._touched[job.id] = None
        eligible = may_run(job)
        if eligible is not job.listed:
            self.roster.put(job, eligible=eligible)

    def _leave_roster(self, job: JobRecord) -> None:
        """Take a waiting job from the plan and from planners, until it is put there again."""
        self._forget_plan(job)
        self.roster.put(job, eligible=False)

    def _give_back(self, job: JobRecord, rest: tuple[Allocation, ...] = ()) -> None:
        """The run is over, but for its ranks on `rest`: what else it held is free."""
        for allocation in job.allocations:
            if not rest or allocation not in rest:
                self.held.release(allocation)
        job.settle(self.now_s, rest)
        self.watts.note(job)
        self.watts.demands.forget(job.id)

    def _forget_plan(self, job: JobRecord) -> None:
        """Take a job out of the plan."""
        if not job.wanted:
            return
        for allocation in job.wanted:
            self.planned.release(allocation)
        job.wanted = ()
        self.watts.plan(job)
        self._starting.pop(job.id, None)
        self._touched[job.id] = None
        self.roster.unplanned(job)

    def _call_off(self, job: JobRecord, why: StopReason, cause: str, batch: Batch) -> None:
        """Make a job with no plan end as cancelled, once it has stopped."""
        if job.state is State.STOPPING:
            job.after_stop = Trigger.CANCEL
            self._changed(job)
        elif job.active:
            self._stop(job, why, Trigger.CANCEL, batch)
        else:
            self._end(job, Trigger.CANCEL, cause, batch)

    def _end(self, job: JobRecord, trigger: Trigger, cause: str, batch: Batch) -> None:
        """Apply the trigger that ends a run (or a wait) and do what its new state asks for."""
        if trigger is Trigger.RETRY:
            job.failures += 1
        self._move(job, trigger, cause)
        if job.state in FINAL:
            self._forget_plan(job)
            self._finish(job, batch)
        elif job.state is State.BACKING_OFF:
            wait_s = job.spec.backoff_s * 2 ** (job.failures - 1)
            batch.commands.append(wake_at(at_s=self.now_s + wait_s, key=self._key("backoff", job)))
        elif job.state is State.HELD:
            self._step_aside(job, "is held", batch)
        elif job.state is State.QUEUED:
            self._check_turn(job, batch)

    def _finish(self, job: JobRecord, batch: Batch) -> None:
        del self.jobs[job.id]
        self.finished[job.id] = job.state
        batch.commands.append(finish_job(job_id=job.id, state=str(job.state)))
        passed = self.waits.passes(job, self.jobs)
        self._tell_children(job.id, job.state, batch)
        self._task_over(job.spec, job.state, batch)
        for one in passed:
            if one in self.jobs:  # else it waited for this job in vain
                self._unblock(self.jobs[one], f"{job.id} is over", batch)

    def _task_over(self, spec: JobSpec, state: State, batch: Batch) -> None:
        """With the last task of an array the array is over, too: jobs may wait for that."""
        over = self.waits.task_over(spec, state)
        if over is not None:
            self.finished[spec.array] = over
            self._tell_children(spec.array, over, batch)

    def _step_aside(self, job: JobRecord, why: str, batch: Batch) -> None:
        """Another task of its array may run while this one is held or put off."""
        for one in self.waits.give_up_turn(job, self.jobs):
            self._unblock(self.jobs[one], f"{job.id} {why}", batch)

    def _check_turn(self, job: JobRecord, batch: Batch) -> None:
        """Fewer tasks of its array may run than when it began: it waits for a turn again."""
        if not self.waits.one_too_many(job):
            return
        self._step_aside(job, "waits again", batch)
        self.waits.take_turn(job)
        self._forget_plan(job)
        self._move(job, Trigger.BLOCK, self.waits.reason(job).unblocks)

    def _tell_children(self, parent: str, state: State, batch: Batch) -> None:
        """Jobs that wait for the end of one go on, or end if they needed another end of it.

        So do those that wait for them. A held one is told when its hold is over.
        """
        succeeded = state is State.SUCCEEDED
        told = [one for one in self.waits.told(parent) if one in self.jobs]
        for child in sorted(told, key=lambda one: self.jobs[one].number):
            waiting = self.jobs.get(child)
            if waiting is None:
                continue
            never = unmet(waiting.spec, parent, state)
            if never is None:
                waiting.waits_for.discard(parent)
                how = "succeeded" if succeeded else "did not succeed"
                self._unblock(waiting, f"{parent} {how}", batch)
            elif waiting.state is State.BLOCKED:
                self._end(waiting, never.trigger, never.cause, batch)

    def _unblock(self, job: JobRecord, cause: str, batch: Batch) -> None:
        """Let a job be planned, if nothing keeps it any more."""
        if job.state is State.BLOCKED:
            self.waits.take_turn(job)
        if job.state is State.BLOCKED and not job.blocked:
            self._move(job, Trigger.UNBLOCK, cause)
            batch.replan = batch.freed = True

    # Planning -----------------------------------------------------------------------------------

    def _ask_for_round(self, event: Event, batch: Batch) -> None:
        """Rounds fall on whole multiples of `round_s` and are asked for while there are jobs."""
        round_s = self.config.round_s
        if round_s is None or self._round_set or not self.jobs:
            return
        count = int(self.now_s // round_s)
        on_time = count * round_s == self.now_s and not isinstance(event, Woke) and count > 0
        at_s = self.now_s if on_time else (count + 1) * round_s
        batch.commands.append(wake_at(at_s=at_s, key=ROUND))
        self._round_set = True

    def _ask_for_instant(self, batch: Batch) -> None:
        """Plan once all that happens at this time has happened."""
        if self._instant_s != self.now_s:
            batch.commands.append(wake_at(at_s=self.now_s, key=WAKE))
            self._instant_s = self.now_s

    def _plan(self, batch: Batch) -> None:
        draft = self._draft()
        self._shed(draft)
        if self._aside.due:
            for job in self._aside.again(self.jobs.values(), self.now_s):
                self._changed(job)
        self.config.planner.plan(Look(self, self.now_s, self._memory, batch.woke), draft)
        batch.commands.extend(draft.orders)
        self.questions.plans += 1
        self.roster.planned()
        self._carry_all_out(draft, batch)

    def _keep_budget(self, batch: Batch) -> None:
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
            self.strikes,
            self.limits,
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
        self.config = replace(self.config, sets_aside=config.sets_aside)
        if config.rules != self.config.rules:
            self.config = replace(self.config, rules=config.rules)
            self._set_ramps(self.config)
            self._caps.go_by(config.rules, self._rises)
            self.budgets.go_by(config.rules)
        self._aside.active = self._aside.due = config.sets_aside
        if anew:
            self.config = replace(
                self.config, planner=config.planner, quota=config.quota, requeue=config.requeue
            )
            self._memory = {}
            self.roster.introduce()

    def _shed(self, draft: GuardedDraft) -> None:
        """While the least needs exceed the budget: narrow, then stop the least important jobs."""
        running = [job for job in self.jobs.values() if job.wanted] if draft.over_budget() else []
        running.sort(key=lambda job: (job.spec.priority, -job.number))
        for _, alike in groupby(running, key=lambda job: job.spec.priority):
            jobs = list(alike)
            for job in jobs if self.config.narrow else ():
                self._narrow(job, draft)
            for job in jobs:
                self._shed_one(job, draft)

    def _narrow(self, job: JobRecord, draft: GuardedDraft) -> None:
        """Take as many tasks from an elastic job as it takes for the plan to fit, if that does."""
        for shares in narrower(job):
            if not draft.over_budget() or draft.start(job, shares) is None:
                return

    def _shed_one(self, job: JobRecord, draft: GuardedDraft) -> None:
        """Stop a job, the newest first, if the plan still needs too much."""
        if not draft.over_budget():
            return
        if self.tree is not None and not self.watts.overloaded(job):
            return
        wanted = job.wanted
        draft.stop(job, StopReason.BUDGET_CUT)
        self.roster.unplanned(job)
        draft.wait(job, self._cut(job, wanted))

    def _cut(self, job: JobRecord, wanted: tuple[Allocation, ...]) -> Reason:
        """Why a job lost its watts."""
        refused = self.watts.refused(job, wanted, self.now_s)
        need_mw = self.watts.needs_mw(job, job.allocations)
        return refused or self.watts.refusal(need_mw, 0, self.now_s)

    def _undrawn_mw(self) -> dict[str, int]:
        """What is not drawn, as negative draw by domain; jobs that were told to stop are gone."""
        drawn = self.watts.drawn_by
        for job in self.jobs.values():
            if job.state is State.STOPPING:
                for domain, mw in self.watts.load_mw(job).items():
                    drawn[domain] -= mw
        return {domain: -mw for domain, mw in drawn.items()}

    def _too_steep(self, job: JobRecord) -> bool:
        """Whether a ramp does not let a job leave now."""
        if not self._falls.limits:
            return False
        undrawn, load = self._undrawn_mw(), self.watts.load_mw(job)
        left = {domain: undrawn[domain] + mw for domain, mw in load.items()}
        return self._falls.refusal(job.id, left, self.now_s) is not None

    def _stop_late(self, batch: Batch) -> None:
        """Stop what a plan asked for and a ramp held up, as far as it may go now."""
        draft = self._draft()
        late, self._late_stops = self._late_stops, {}
        for job_id, why in late.items():
            job = self.jobs.get(job_id)
            if job is not None and job.state in (State.STARTING, State.RUNNING):
                self._late_stops[job_id] = why
                self._carry_out(job, draft, batch)

    def _carry_all_out(self, draft: GuardedDraft, batch: Batch) -> None:
        for job_id, why in draft.ended.items():
            if job_id in self.jobs:  # else it waited for one that was ended just now
                self._call_off(self.jobs[job_id], why, str(why), batch)
        if draft.ended and batch.freed:  # this plan did not see them
            self._ask_for_instant(batch)
        touched = self._touched | draft.touched
        self._touched = {}
        for job in sorted(self._beyond_waiting(touched, draft), key=_number):
            self._carry_out(job, draft, batch)
        batch.commands += self._caps.share_out(self.jobs, self.now_s)

    def _beyond_waiting(self, touched: Iterable[str], draft: GuardedDraft) -> list[JobRecord]:
        """Live jobs for which there may be orders; the others, often all, only wait on."""
        beyond, jobs = [], self.jobs
        for job_id in touched:
            job = jobs.get(job_id)
            if job is None:
                continue
            if job.wanted or job.active:
                beyond.append(job)
                continue
            job.reason = job.aside or draft.reasons.get(job_id, job.reason)
            self._starting.pop(job_id, None)
        return beyond

    def _carry_out(self, job: JobRecord, draft: GuardedDraft, batch: Batch) -> None:
        """Turn the difference between a job's plan and what it holds into orders."""
        wanted, state = job.wanted, job.state
        job.reason = None if wanted else job.aside or draft.reasons.get(job.id, job.reason)
        runs = state is State.RUNNING or state is State.STARTING
        stays = runs and wanted == job.allocations
        if wanted and not stays:
            self._starting.setdefault(job.id, None)
        else:
            self._starting.pop(job.id, None)
        if runs and not stays:
            late = self._late_stops.pop(job.id, StopReason.PREEMPTED_FOR_PRIORITY)
            why = draft.stops.get(job.id, late)
            # A limit goes before a ramp: what it demands is stopped at once.
            if not self.watts.exceeded() and self._too_steep(job):
                self._late_stops[job.id] = why
                self._touched[job.id] = None  # to be seen to again
            else:
                self._stop(job, why, Trigger.REQUEUE, batch)
        else:
            self._late_stops.pop(job.id, None)

    def _hand_over(self, batch: Batch) -> None:
        """Start every planned job whose devices are really free now."""
        now_s = self.now_s
        batch.commands += self._caps.raise_due(self.jobs, replanned=batch.replan, now_s=now_s)
        if self._starting:
            jobs = self.jobs
            for job_id in list(self._starting):
                job = jobs[job_id]
                if job.state is State.QUEUED and self._take(job):
                    del self._starting[job_id]
                    self._start(job, batch)
        if self._starting and self.config.rules.steady:
            batch.commands.extend(self._caps.press(self.jobs, now_s))
        if self.config.sleep is not None:
            starting = [self.jobs[job_id] for job_id in self._starting]
            books = (self.planned, self.held)
            batch.commands.extend(self.rest.orders(starting, books, self.lost, self.now_s))

    def _take(self, job: JobRecord) -> bool:
        possible = self.rest.ready(job)
        if possible and self.watts.limited:
            possible = self.watts.fits(job, job.wanted)
        if possible and self._rises.limits:
            # Places first: what cannot start for want of them takes no part of a ramp.
            if not self.held.place_all(job.wanted):
                return False
            refusal = self.watts.climbs(job, job.wanted, self._rises, self.now_s)
            if refusal is None:
                job.reason = None
                return True
            for allocation in job.wanted:
                self.held.release(allocation)
            since_s = self.now_s if job.reason is None else job.reason.since_s
            job.reason = too_steep(refusal, since_s)
            return False
        return possible and self.held.place_all(job.wanted)

    def _start(self, job: JobRecord, batch: Batch) -> None:
        now_s = self.now_s
        job.attempt += 1
        job.allocations = job.wanted
        job.cap_w = job.wanted_cap_w
        job.held_since_s = now_s
        self.watts.note(job)
        if job.first_start_s is None:
            job.first_start_s = now_s
        # As planned: no orders are to be seen to, and planners know.
        job.apply(Trigger.START, now_s, f"attempt {job.attempt}")
        batch.commands.append(
            start_job(
                job_id=job.id,
                attempt=job.attempt,
                allocations=job.allocations,
                cap_w=job.cap_w,
            )
        )


def _number(job: JobRecord) -> int:
    return job.number

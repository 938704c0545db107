"""The jobs of a core: those that live, how the others ended, and who goes on when one ends.

The table takes every step of the lifecycle (`engine.jobs.lifecycle`) and does what the new state
asks for. A job that ends may release others that wait for it (`engine.jobs.waits`), or end them in
turn when they needed another end of it; the same holds for arrays, which end with their last task.
It knows nothing of devices in use and of watts: whoever ends a run has given those back before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from wattherd.engine.core.plan import Plan, Reaction
from wattherd.engine.jobs.lifecycle import FINAL, State, Trigger
from wattherd.engine.jobs.record import JobRecord, StoryLine
from wattherd.engine.jobs.waits import Waits, unmet
from wattherd.model.command import finish_job, stop_job, wake_at
from wattherd.model.job import JobSpec
from wattherd.model.reason import StopReason

BEGIN = "begin"
"""Kind of wake-ups for jobs that may not start before a time."""
MOST_DOUBLINGS = 64
"""Of a backoff: a job that has failed a thousand times must not bring a number that is no float."""


# Order of things at a job's end. First its record changes state (`move`), then the plan forgets it,
# then the world is told (`finish_job`), and only then are those told that waited for it: they may
# start within the same event, and must find its devices free and its end in `finished`.
class JobTable:
    """All jobs by id."""

    def __init__(self, plan: Plan, reaction: Reaction) -> None:
        """There are none."""
        self._plan, self._reaction = plan, reaction
        self.live: dict[str, JobRecord] = {}
        """Final ones leave with their `FinishJob`."""
        # All ids that ever were: an event that repeats a submission, or names a job that is over,
        # must be known for what it is. A service forgets some by `Core.forget`, once no event can
        # name them.
        self.finished: dict[str, State] = {}
        self.waits = Waits()
        # Submission numbers are the last word among equals everywhere: they never repeat, not even
        # for a job that was refused an instant later.
        self._submitted = 0

    # How a job comes ----------------------------------------------------------------------------

    def known(self, job_id: str) -> bool:
        """Whether there is, or was, such a job."""
        return job_id in self.live or job_id in self.finished

    def submit(self, spec: JobSpec, cause: str) -> JobRecord:
        """A new job; `admit` decides whether it waits for others."""
        now_s = self._reaction.now_s
        job = JobRecord(spec=spec, number=self._submitted, state_since_s=now_s)
        job.held_since_s = now_s
        job.story.append(StoryLine(now_s, "submitted", cause))
        self._submitted += 1
        self.live[spec.id] = job
        return job

    def admit(self, job: JobRecord) -> None:
        """Let planners see a new job, unless others, a time or a turn keep it."""
        self._plan.changed(job)
        self.waits.enter(job, self.finished, self._reaction.now_s)
        self.await_begin(job)
        if job.blocked:
            self.block(job)

    # Not a silent drop: others may depend on the job by name, and a dependency on a job that failed
    # before it began is met, or can never be met, by the same rules as any other.
    def refuse(self, spec: JobSpec) -> None:
        """A job that could never run ends before it begins; who waits for it is told."""
        self.finished[spec.id] = State.FAILED
        self._see_through(self._tell_children(spec.id, State.FAILED))
        self._see_through(self._task_over(spec, State.FAILED))

    def block(self, job: JobRecord) -> None:
        """Wait for other jobs, a time or a turn; in vain if one of the jobs ended otherwise."""
        cause = f"after {', '.join(sorted(job.waits_for))}" if job.waits_for else ""
        self.move(job, Trigger.BLOCK, cause or self.waits.reason(job).unblocks)
        # Who waits for something else gives its turn back: a turn that waits for a job could wait
        # for one that itself waits for a turn.
        if job.waits_for or job.not_before_s is not None:
            self.step_aside(job, "waits for something else")
        # A set of strings has another order in each process; what follows here are commands.
        for parent in sorted(one for one in job.waits_for if one in self.finished):
            never = unmet(job.spec, parent, self.finished[parent])
            if never is not None:
                self.end(job, never.trigger, never.cause)
                return

    def unblock(self, job: JobRecord, cause: str) -> None:
        """Let a job be planned, if nothing keeps it any more."""
        if job.state is State.BLOCKED:
            self.waits.take_turn(job)
        if job.state is State.BLOCKED and not job.blocked:
            self.move(job, Trigger.UNBLOCK, cause)
            # `freed`: the plan at hand may be made already, and did not see this job.
            self._reaction.replan = self._reaction.freed = True

    def await_begin(self, job: JobRecord) -> None:
        """Ask to be woken when a job may begin, if that is still to come."""
        if job.not_before_s is not None:
            self._wake(job.not_before_s, f"{BEGIN}:{job.id}")

    def begins(self, job_id: str) -> None:
        """The begin time of a job may have come, unless it was changed meanwhile."""
        job = self.live.get(job_id)
        if job is None or job.not_before_s is None or job.not_before_s > self._reaction.now_s:
            return
        job.not_before_s = None
        self.unblock(job, "its time has come")

    # What becomes of it -------------------------------------------------------------------------

    def move(self, job: JobRecord, trigger: Trigger, cause: str = "") -> None:
        """Take a step of the lifecycle."""
        job.apply(trigger, self._reaction.now_s, cause)
        self._plan.changed(job)

    def stop(self, job: JobRecord, why: StopReason, then: Trigger) -> None:
        """Ask a starting or running job to stop; `then` is what becomes of it."""
        job.after_stop = then
        self.move(job, Trigger.STOP, str(why))
        # Only who is to run again was preempted: a hold is its owner's will, an end is an end.
        job.preemptions += then is Trigger.REQUEUE
        self._reaction.commands.append(
            stop_job(job_id=job.id, attempt=job.attempt, reason=why, grace_s=job.spec.grace_s)
        )

    def call_off(self, job: JobRecord, why: StopReason, cause: str) -> None:
        """Make a job with no plan end as cancelled, once it has stopped."""
        if job.state is State.STOPPING:
            # The stop itself cannot be called back (`lifecycle.TABLE`); what it leads to can be
            # changed.
            job.after_stop = Trigger.CANCEL
            self._plan.changed(job)
        elif job.active:
            self.stop(job, why, Trigger.CANCEL)
        else:
            self.end(job, Trigger.CANCEL, cause)

    def hold(self, job: JobRecord, cause: str) -> None:
        """Keep a job from running, once it has stopped, until it is released."""
        if job.state is State.STOPPING:
            # Stronger reasons to stop (cancelled, out of time) go before a hold.
            if job.after_stop is Trigger.REQUEUE:
                job.after_stop = Trigger.HOLD
                self._plan.changed(job)
        elif job.active:
            self.stop(job, StopReason.USER_REQUEST, Trigger.HOLD)
        else:
            self.move(job, Trigger.HOLD, cause)
            self.step_aside(job, "is held")
        self._plan.forget(job)

    def release(self, job: JobRecord, cause: str) -> None:
        """Take a hold back, also one for which the job is still stopping."""
        if job.state is State.STOPPING and job.after_stop is Trigger.HOLD:
            job.after_stop = Trigger.REQUEUE
            self._plan.changed(job)
        elif job.state is State.HELD:
            self.move(job, Trigger.RELEASE, cause)
            self.waits.take_turn(job, last=True)
            if job.blocked:
                self.block(job)

    def end(self, job: JobRecord, trigger: Trigger, cause: str) -> None:
        """Apply the trigger that ends a run (or a wait) and do what its new state asks for."""
        if trigger is Trigger.RETRY:
            job.failures += 1
        self.move(job, trigger, cause)
        if job.state in FINAL:
            self._plan.forget(job)
            self._see_through(self._finishing(job))
        elif job.state is State.BACKING_OFF:
            # Doubled with every failure, so that a job that fails at once leaves room to others.
            # Kubernetes' Jobs wait so too (10 s, 20 s, 40 s ...).
            wait_s = job.spec.backoff_s * 2.0 ** min(job.failures - 1, MOST_DOUBLINGS)
            self._wake(self._reaction.now_s + wait_s, key_of("backoff", job))
        elif job.state is State.HELD:
            self.step_aside(job, "is held")
        elif job.state is State.QUEUED:
            self._check_turn(job)

    def backoff_over(self, job: JobRecord) -> None:
        """A failed job may be tried again, unless it was put off meanwhile."""
        self.move(job, Trigger.BACKOFF_OVER)
        if job.blocked:
            self.block(job)
        else:
            self._check_turn(job)

    def limit_time(self, job: JobRecord) -> None:
        """Ask to be woken when a run's time is up; earlier runs count."""
        if job.spec.time_limit_s is not None:
            now_s = self._reaction.now_s
            # The limit is for the job, not for a run: a job that is preempted every hour would
            # otherwise have no limit at all.
            left_s = job.spec.time_limit_s - job.service_s(now_s)
            self._wake(now_s + max(left_s, 0.0), key_of("limit", job))

    def _wake(self, at_s: float, key: str) -> None:
        self._reaction.commands.append(wake_at(at_s=at_s, key=key))

    # What follows for others --------------------------------------------------------------------

    def _see_through(self, ends: Iterator[JobRecord]) -> None:
        """Finish all jobs that have ended, and those that end in turn, one after another.

        No function calls itself here: people chain thousands of jobs, and the depth of calls has an
        end that would be the core's.
        """
        under_way = [ends]
        while under_way:
            following = next(under_way[-1], None)
            if following is None:
                under_way.pop()
            else:
                under_way.append(self._finishing(following))

    def _finishing(self, job: JobRecord) -> Iterator[JobRecord]:
        """What a job's end brings about; pauses at each job that has ended in turn."""
        del self.live[job.id]
        self.finished[job.id] = job.state
        self._reaction.commands.append(finish_job(job_id=job.id, state=str(job.state)))
        # Taken before the children are told: these may end in turn, and who passes by this job's
        # end must not depend on that.
        passed = self.waits.passes(job, self.live)
        yield from self._tell_children(job.id, job.state)
        yield from self._task_over(job.spec, job.state)
        for one in passed:
            if one in self.live:  # else it waited for this job in vain
                self.unblock(self.live[one], f"{job.id} is over")

    def _task_over(self, spec: JobSpec, state: State) -> Iterator[JobRecord]:
        """With the last task of an array the array is over, too: jobs may wait for that."""
        over = self.waits.task_over(spec, state)
        if over is not None:
            # Under the array's name, as the ends of jobs are under theirs: whoever comes later and
            # waits for it finds it by the same look-up.
            self.finished[spec.array] = over
            yield from self._tell_children(spec.array, over)

    def step_aside(self, job: JobRecord, why: str) -> None:
        """Another task of its array may run while this one is held or put off."""
        for one in self.waits.give_up_turn(job, self.live):
            self.unblock(self.live[one], f"{job.id} {why}")

    def _check_turn(self, job: JobRecord) -> None:
        """Fewer tasks of its array may run than when it began: it waits for a turn again."""
        if not self.waits.one_too_many(job):
            return
        self.step_aside(job, "waits again")
        self.waits.take_turn(job)
        self._plan.forget(job)
        self.move(job, Trigger.BLOCK, self.waits.reason(job).unblocks)

    def limit_array(self, array: str, most: int | None, cause: str) -> None:
        """Those that run go on; where fewer may than do, no other one has a turn meanwhile."""
        tasks = [self.live[one] for one in self.waits.tasks(array)]
        for job in tasks:
            if job.spec.array_most != most:
                told = "any number" if most is None else str(most)
                now_s = self._reaction.now_s
                job.story.append(StoryLine(now_s, f"edited: {told} at a time", cause))
                job.spec = replace(job.spec, array_most=most)
        for one in self.waits.limit(array, most, self.live):
            self.unblock(self.live[one], f"more tasks of {array} may run")
        # From the last one on: turns that are too many are taken from those that were submitted
        # last.
        for job in reversed(tasks):
            if job.state is State.QUEUED:
                self._check_turn(job)

    def _tell_children(self, parent: str, state: State) -> Iterator[JobRecord]:
        """Jobs that wait for the end of one go on, or end if they needed another end of it.

        Those that end are to be finished by whoever asks. A held one is told when its hold is over.
        """
        succeeded = state is State.SUCCEEDED
        # In order of submission, so that two jobs that were freed by the same end start in the
        # order in which they came.
        told = [one for one in self.waits.told(parent) if one in self.live]
        for child in sorted(told, key=lambda one: self.live[one].number):
            waiting = self.live.get(child)
            if waiting is None:
                continue
            never = unmet(waiting.spec, parent, state)
            if never is None:
                waiting.waits_for.discard(parent)
                how = "succeeded" if succeeded else "did not succeed"
                self.unblock(waiting, f"{parent} {how}")
            elif waiting.state is State.BLOCKED:
                self.move(waiting, never.trigger, never.cause)
                self._plan.forget(waiting)
                yield waiting


def key_of(kind: str, job: JobRecord) -> str:
    """Key of a wake-up for one attempt of a job: one for an earlier attempt means nothing."""
    # A timer cannot be taken back from a shell. So its key names the attempt for which it was set,
    # and a bell that rings for an earlier attempt is not heard.
    return f"{kind}:{job.id}#{job.attempt}"

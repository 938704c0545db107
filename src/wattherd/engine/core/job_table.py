"""The jobs of a core: those that live, how the others ended, and who goes on when one ends.

What a job waits for before planners see it (`Waits`): other jobs, its begin time, its turn in a
line. Each dependency asks for another job's end: `after` for its success, `after_any` for any end,
`after_notok` for an end without success. One that can never be met any more ends the job that
waits. They may name an array: it is over when all its tasks are, and succeeded if all of them did.
A *line* lets one of its members pass at a time, in order of submission: jobs of one name in which
a singleton stands. Of an array so many tasks have a *turn* at a time. Turns go to tasks that wait
for nothing else, in order of submission: a task that waits for another job or its time takes
nobody's turn, so that no turn ever waits for a job. `Waits` moves no job; the table does, by what
it is told there.

The table takes every step of the lifecycle (`engine.jobs.lifecycle`) and does what the new state
asks for. A job that ends may release others that wait for it, or end them in turn when they needed
another end of it; the same holds for arrays, which end with their last task.
It knows nothing of devices in use and of watts: whoever ends a run has given those back before.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from wattherd.engine.core.plan import Plan, Reaction
from wattherd.engine.jobs.lifecycle import FINAL, State, Trigger
from wattherd.engine.jobs.record import JobRecord, StoryLine
from wattherd.model.command import finish_job, stop_job, wake_at
from wattherd.model.job import JobSpec
from wattherd.model.reason import Reason, ReasonCode, StopReason

# --- What a job waits for -------------------------------------------------------------------------
NEVER = "DependencyNeverSatisfied"
"""How Slurm calls it when what is waited for can never come."""


class UnmetDependency(NamedTuple):
    """A dependency that can never be met: how the job that has it ends, and why."""

    trigger: Trigger
    cause: str


def parents(spec: JobSpec) -> tuple[str, ...]:
    """The jobs that `spec` names in its dependencies, one perhaps several times."""
    return (*spec.after, *spec.after_any, *spec.after_notok)


# Three kinds of dependencies, and their words, are Slurm's (afterok, afterany, afternotok): scripts
# that name them mean the same here.
def unmet(spec: JobSpec, parent: str, state: State) -> UnmetDependency | None:
    """Why `parent`, which is over, keeps a job from ever starting; None if it does not."""
    if state is State.SUCCEEDED:
        # CANCEL: it was to run after a failure only, and that it does not run is as intended. FAIL:
        # what it needed will never come about.
        if parent in spec.after_notok:
            return UnmetDependency(Trigger.CANCEL, f"{parent} succeeded")
    elif parent in spec.after:
        return UnmetDependency(Trigger.FAIL, f"{parent} did not succeed")
    return None


def never_text(spec: JobSpec, parent: str, state: str) -> str:
    """The same for people, with what helps; empty if that parent does not keep it."""
    found = unmet(spec, parent, State(state))
    if found is None:
        return ""
    if found.trigger is Trigger.CANCEL:
        helps = "nothing needs to be done: it was to run only if that job did not succeed"
    else:
        helps = f"see to {parent}, run it again, and then this job"
    return f"{NEVER}: {parent} has ended as {state} ({helps})"


def array_never_text(array: str, state: State) -> str:
    """Why a job never starts that waited for the end of a whole array, and has ended as `state`."""
    if state is State.FAILED:
        helps = f"`wattherd rerun {array} --failed`, and then this job"
        return f"{NEVER}: not all tasks of {array} have succeeded ({helps})"
    helps = "nothing needs to be done: it was to run only if one of them did not"
    return f"{NEVER}: all tasks of {array} have succeeded ({helps})"


_Place = tuple[int, int, str]
"""Where a task stands among those that wait for a turn: how often put back, its number, its id."""


# Invariant: a live task is in `turns` (it may run), or in `ready` and `places` (it waits for a turn
# and for nothing else), or in neither (it waits for something else, or is held). Never in two of
# them.
@dataclass(slots=True)
class _Array:
    """Tasks of an array: those that live, how many are yet to end, whether all went well so far.

    Of those `turns` may run, or do, `most` at a time (None: all); those in `ready` would if one of
    them ended.
    """

    left: int
    most: int | None
    well: bool = True
    live: dict[str, None] = field(default_factory=dict)
    turns: dict[str, None] = field(default_factory=dict)
    ready: list[_Place] = field(default_factory=list)
    places: dict[str, _Place] = field(default_factory=dict)
    put_back: int = 0

    @property
    def free(self) -> bool:
        """Whether one more may have a turn."""
        return self.most is None or len(self.turns) < self.most

    def stand(self, job_id: str, number: int, *, last: bool) -> None:
        """Among those that are ready; in order of submission, or behind all others."""
        # Who is put back stands behind all who were put back before, and they behind all who never
        # were.
        self.put_back += last
        self.places[job_id] = (self.put_back if last else 0, number, job_id)
        insort(self.ready, self.places[job_id])

    def leave(self, job_id: str) -> None:
        """Neither have a turn nor wait for one."""
        self.turns.pop(job_id, None)
        # The place is remembered with the task, so that it is found in the sorted list by a search
        # and not by a walk: an array may have thousands of tasks.
        place = self.places.pop(job_id, None)
        if place is not None:
            del self.ready[bisect_left(self.ready, place)]

    def next_turns(self) -> Iterator[str]:
        """Give turns as long as there are any."""
        while self.ready and self.free:
            _, _, job_id = self.ready.pop(0)
            del self.places[job_id]
            self.turns[job_id] = None
            yield job_id


# Four indices, each for one question that must not cost by all jobs: who waits for this end
# (`_children`), who is next in this name (`_lines`), who of this array may run (`_arrays`), and, on
# the record itself, what keeps this job.
class Waits:
    """Who waits for whom."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._children: dict[str, set[str]] = {}
        """Jobs that wait for the end of one, by its id."""
        self._lines: dict[str, dict[str, None]] = {}
        """By the name of their jobs: live ones in order of submission; the first passes."""
        self._arrays: dict[str, _Array] = {}
        """Arrays with tasks that are not over, or not submitted yet."""

    def enter(
        self,
        job: JobRecord,
        finished: Mapping[str, State],
        now_s: float,
    ) -> None:
        """Find out what a new job has to wait for, and note that."""
        spec = job.spec
        for parent in parents(spec):
            state = finished.get(parent)
            # A parent that ended as it should is no wait. One that ended otherwise is entered all
            # the same: the job must go through `JobTable.block`, which ends it for a reason.
            if state is None or unmet(spec, parent, state) is not None:
                job.waits_for.add(parent)
                self._children.setdefault(parent, set()).add(job.id)
        self.begin_at(job, now_s)
        # Every job stands in the line of its name: a singleton may come at any time.
        key = _namesakes(spec)
        if key:
            line = self._lines.setdefault(key, {})
            line[job.id] = None
            if spec.singleton and len(line) > 1:
                job.lines = (key,)
        if spec.array:
            self._array(spec).live[job.id] = None
            self.take_turn(job)

    def begin_at(self, job: JobRecord, now_s: float) -> None:
        """Note whether its begin time is still to come."""
        begin_s = job.spec.not_before_s
        job.not_before_s = begin_s if begin_s is not None and begin_s > now_s else None

    def waited_for(self, job_id: str) -> bool:
        """Whether any job names it in its dependencies."""
        return job_id in self._children

    def told(self, parent: str) -> list[str]:
        """Jobs that waited for the end of one that is over now; they are told once."""
        # Told once and sorted: a set has another order in every process.
        return sorted(self._children.pop(parent, ()))

    def task_over(self, spec: JobSpec, state: State) -> State | None:
        """A job is over: how its array has ended by that, if it was the last of its tasks."""
        if not spec.array:
            return None
        array = self._array(spec)
        array.live.pop(spec.id, None)
        array.left -= 1
        array.well = array.well and state is State.SUCCEEDED
        if array.left:
            return None
        del self._arrays[spec.array]
        return State.SUCCEEDED if array.well else State.FAILED

    # After a restart only live tasks are submitted again. Without the count of those that are over,
    # an array would never end; without how they ended, it might end well that did not.
    def inherit(self, before: Waits) -> None:
        """Of arrays whose live tasks are submitted again, others are over already."""
        for name, array in before._arrays.items():
            # Without its tasks: they are submitted again, and each takes its turn then.
            self._arrays[name] = _Array(array.left, array.most, array.well)

    def tasks(self, array: str) -> Iterable[str]:
        """The live tasks of an array; nothing, if it is none."""
        found = self._arrays.get(array)
        return () if found is None else found.live

    def passes(self, job: JobRecord, jobs: Mapping[str, JobRecord]) -> list[str]:
        """A job is over: those whose turn has come by that."""
        return [*self._leave_line(job, jobs), *self.give_up_turn(job, jobs)]

    def take_turn(self, job: JobRecord, *, last: bool = False) -> None:
        """See to a task that may wait for nothing else but a turn: it has one, or stands for it.

        With `last` it stands behind the others that are ready.
        """
        # A turn is taken only by who could start at once. If a task that waits for another job took
        # one, and that job waited for a turn of the same array, nobody would ever run.
        array = self._arrays.get(job.spec.array)
        if array is None or job.id in array.turns or job.id in array.places:
            return
        key = _turns(job.spec)
        if job.waits_for or job.not_before_s is not None or job.lines:
            return
        # A task that comes, or comes back, does not pass those that stand already.
        if array.free and not array.ready:
            array.turns[job.id] = None
        else:
            array.stand(job.id, job.number, last=last)
            job.lines = (key,)

    # Turns go round by events and never by time: one that is given up is given on within the same
    # event, so that no array stands still between plans.
    def give_up_turn(self, job: JobRecord, jobs: Mapping[str, JobRecord]) -> list[str]:
        """A task is held, put off or over; those of its array whose turn has come by that."""
        array = self._arrays.get(job.spec.array)
        if array is None:
            return []
        array.leave(job.id)
        job.lines = tuple(one for one in job.lines if one != _turns(job.spec))
        return self._next_turns(array, jobs)

    def one_too_many(self, job: JobRecord) -> bool:
        """Whether a task that does not run has a turn that others, which run, leave no room for."""
        array = self._arrays.get(job.spec.array)
        if array is None or array.most is None or job.id not in array.turns:
            return False
        return len(array.turns) > array.most

    def limit(self, name: str, most: int | None, jobs: Mapping[str, JobRecord]) -> list[str]:
        """So many tasks of an array may run at a time from now on; those whose turn has come."""
        array = self._arrays.get(name)
        if array is None:
            return []
        array.most = most
        return self._next_turns(array, jobs)

    def has_turn(self, array: str) -> Collection[str]:
        """The tasks of an array that may run; nothing, if it is none."""
        found = self._arrays.get(array)
        return () if found is None else found.turns

    def next_task(self, array: str) -> str | None:
        """The task of an array that has the next turn; None if none waits for one."""
        found = self._arrays.get(array)
        return found.ready[0][2] if found is not None and found.ready else None

    def most(self, array: str) -> int | None:
        """How many tasks of a live array may run at a time; None: all of them."""
        found = self._arrays.get(array)
        return None if found is None else found.most

    def _next_turns(self, array: _Array, jobs: Mapping[str, JobRecord]) -> list[str]:
        passed = list(array.next_turns())
        for one in passed:
            jobs[one].lines = ()  # tasks stand in no other line
        return passed

    def _leave_line(self, job: JobRecord, jobs: Mapping[str, JobRecord]) -> list[str]:
        """Take a job out of the line of its name; who may pass by that."""
        key = _namesakes(job.spec)
        line = self._lines.get(key)
        if line is None or job.id not in line:
            return []
        del line[job.id]
        if not line:
            del self._lines[key]
        first = next(iter(line), None)
        # A job that is no singleton stands in the line for others to wait for, and waits for nobody
        # itself.
        if first is None or key not in jobs[first].lines:
            return []
        jobs[first].lines = tuple(one for one in jobs[first].lines if one != key)
        return [first]

    # For `feasibility.circle`: a line is a dependency, too, on everybody who stands before.
    def ahead(self, job: JobRecord) -> Iterator[str]:
        """Jobs of its name that come before it, if it stands in their line.

        Tasks with a turn are not among them: they wait for nobody.
        """
        key = _namesakes(job.spec)
        for one in self._lines[key] if key in job.lines else ():
            if one == job.id:
                break
            yield one

    def would_follow(self, spec: JobSpec) -> list[str]:
        """Jobs that would come before a new one in the line that it has to stand in."""
        return list(self._lines.get(_namesakes(spec), ())) if spec.singleton else []

    def reason(self, job: JobRecord) -> Reason:
        """Why a blocked job waits."""
        parts = []
        for kind, end in (("after", "succeed"), ("after_any", "end"), ("after_notok", "fail")):
            named = [one for one in getattr(job.spec, kind) if one in job.waits_for]
            parts += [f"{one} to {end}" for one in dict.fromkeys(named)]
        names, turns = _namesakes(job.spec), _turns(job.spec)
        if names in job.lines:
            parts.append(f"{next(iter(self._lines[names]))} to end, which has its name")
        if turns in job.lines:
            array = job.spec.array
            parts.append(f"a task of {array} to end: {self.most(array)} may run at a time")
        waits = f"waits for {', '.join(parts)}" if parts else ""
        due_s = job.not_before_s
        if due_s is not None:
            waits = f"{waits}; begins" if waits else "begins"
        return Reason(code=self.code(job), since_s=job.state_since_s, unblocks=waits, due_s=due_s)

    def code(self, job: JobRecord) -> ReasonCode:
        """The same in a word."""
        if job.not_before_s is not None:
            return ReasonCode.NOT_BEFORE
        turn = not job.waits_for and job.lines == (_turns(job.spec),)
        return ReasonCode.ARRAY_LIMIT if turn else ReasonCode.DEPENDENCY

    def _array(self, spec: JobSpec) -> _Array:
        return self._arrays.setdefault(spec.array, _Array(spec.array_count, spec.array_most))


# By tenant and user: a name is its owner's, and nobody's job waits for a stranger's of the same
# name.
def _namesakes(spec: JobSpec) -> str:
    """The line of all jobs of a name that are of one user; empty for those without a name."""
    name = spec.name if spec.labels else ""
    return f"{spec.tenant}/{spec.user}/{name}" if name else ""


def _turns(spec: JobSpec) -> str:
    """The turns of an array, as a line; empty for other jobs."""
    return f"%{spec.array}" if spec.array else ""


# --- All jobs by id -------------------------------------------------------------------------------
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

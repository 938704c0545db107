"""What a job waits for before planners see it: other jobs, its begin time, its turn in a line.

Each dependency asks for another job's end: `after` for its success, `after_any` for any end,
`after_notok` for an end without success. One that can never be met any more ends the job that
waits. They may name an array: it is over when all its tasks are, and succeeded if all of them did.
A *line* lets one of its members pass at a time, in order of submission: jobs of one name in which
a singleton stands. Of an array so many tasks have a *turn* at a time. Turns go to tasks that wait
for nothing else, in order of submission: a task that waits for another job or its time takes
nobody's turn, so that no turn ever waits for a job. Nothing here moves a job; the core does, by
what it is told here.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from wattherd.engine.jobs.lifecycle import State, Trigger
from wattherd.engine.jobs.record import JobRecord
from wattherd.model.job import JobSpec
from wattherd.model.reason import Reason, ReasonCode

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
        self._line_up(job)
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

    def _line_up(self, job: JobRecord) -> None:
        """Every job stands in the line of its name: a singleton may come at any time."""
        key = _namesakes(job.spec)
        if key:
            line = self._lines.setdefault(key, {})
            line[job.id] = None
            if job.spec.singleton and len(line) > 1:
                job.lines = (key,)

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

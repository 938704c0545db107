"""What a job waits for before planners see it: other jobs, its begin time, its turn in a line.

Each dependency asks for another job's end: `after` for its success, `after_any` for any end,
`after_notok` for an end without success. One that can never be met any more ends the job that
waits. They may name an array: it is over when all its tasks are, and succeeded if all of them did.
A *line* lets so many of its members pass at a time, in order of submission: jobs of one name in
which a singleton stands, and the tasks of an array. Nothing here moves a job; the core does, by
what it is told here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from wattherd.engine.ledger import JobRecord
from wattherd.engine.lifecycle import State, Trigger
from wattherd.model.job import JobSpec
from wattherd.model.reason import Reason, ReasonCode

NEVER = "DependencyNeverSatisfied"
"""How Slurm calls it when what is waited for can never come."""


class Unmet(NamedTuple):
    """A dependency that can never be met: how the job that has it ends, and why."""

    trigger: Trigger
    cause: str


def parents(spec: JobSpec) -> tuple[str, ...]:
    """The jobs that `spec` names in its dependencies, one perhaps several times."""
    return (*spec.after, *spec.after_any, *spec.after_notok)


def unmet(spec: JobSpec, parent: str, state: State) -> Unmet | None:
    """Why `parent`, which is over, keeps a job from ever starting; None if it does not."""
    if state is State.SUCCEEDED:
        if parent in spec.after_notok:
            return Unmet(Trigger.CANCEL, f"{parent} succeeded")
    elif parent in spec.after:
        return Unmet(Trigger.FAIL, f"{parent} did not succeed")
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


@dataclass(slots=True)
class _Line:
    """Live jobs in order of submission, of which the first `most` may pass."""

    most: int = 1
    members: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class _Array:
    """Tasks of an array: those that live, how many are yet to end, whether all went well so far."""

    left: int
    well: bool = True
    live: dict[str, None] = field(default_factory=dict)


class Waits:
    """Who waits for whom."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._children: dict[str, set[str]] = {}
        """Jobs that wait for the end of one, by its id."""
        self._lines: dict[str, _Line] = {}
        """By the name of their jobs, or their array."""
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
            if state is None or unmet(spec, parent, state) is not None:
                job.waits_for.add(parent)
                self._children.setdefault(parent, set()).add(job.id)
        self.begin_at(job, now_s)
        self._line_up(job)
        if spec.array:
            self._array(spec).live[job.id] = None

    def begin_at(self, job: JobRecord, now_s: float) -> None:
        """Note whether its begin time is still to come."""
        begin_s = job.spec.not_before_s
        job.not_before_s = begin_s if begin_s is not None and begin_s > now_s else None

    def waited_for(self, job_id: str) -> bool:
        """Whether any job names it in its dependencies."""
        return job_id in self._children

    def told(self, parent: str) -> list[str]:
        """Jobs that waited for the end of one that is over now; they are told once."""
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

    def inherit(self, before: Waits) -> None:
        """Of arrays whose live tasks are submitted again, others are over already."""
        for name, array in before._arrays.items():
            self._arrays[name] = _Array(array.left, array.well)

    def tasks(self, array: str) -> Iterable[str]:
        """The live tasks of an array; nothing, if it is none."""
        found = self._arrays.get(array)
        return () if found is None else found.live

    def passes(self, job: JobRecord, jobs: Mapping[str, JobRecord]) -> list[str]:
        """A job is over: those whose turn in its lines has come by that."""
        passed: dict[str, None] = {}
        for key in (_namesakes(job.spec), _turns(job.spec)):
            passed.update(dict.fromkeys(self._leave(key, job, jobs)))
        return list(passed)

    def step_aside(self, job: JobRecord, jobs: Mapping[str, JobRecord]) -> list[str]:
        """A task is held: others of its array take its turn, those who have it now are told."""
        key = _turns(job.spec)
        passed = self._leave(key, job, jobs)
        job.lines = tuple(one for one in job.lines if one != key)
        return passed

    def step_back(self, job: JobRecord) -> None:
        """A hold is over: the task waits for a turn behind the others of its array."""
        key = _turns(job.spec)
        if key and job.id not in self._members(key):
            self._stand_in(key, job)

    def _leave(self, key: str, job: JobRecord, jobs: Mapping[str, JobRecord]) -> list[str]:
        """Take a job out of a line, where it stands in it; those whose turn comes by that."""
        if not key or job.id not in self._members(key):
            return []
        line = self._lines[key]
        del line.members[job.id]
        if not line.members:
            del self._lines[key]
        passed = []
        for one in islice(line.members, line.most):
            record = jobs[one]
            if key in record.lines:
                record.lines = tuple(other for other in record.lines if other != key)
                passed.append(one)
        return passed

    def ahead(self, job: JobRecord) -> Iterator[str]:
        """Jobs in the lines in which it stands that come before it."""
        for key in job.lines:
            for one in self._lines[key].members:
                if one == job.id:
                    break
                yield one

    def would_follow(self, spec: JobSpec) -> list[str]:
        """Jobs that would come before a new one in the lines that it has to stand in."""
        names = list(self._members(_namesakes(spec))) if spec.singleton else []
        return [*names, *self._members(_turns(spec))]

    def reason(self, job: JobRecord) -> Reason:
        """Why a blocked job waits."""
        parts = []
        for kind, end in (("after", "succeed"), ("after_any", "end"), ("after_notok", "fail")):
            named = [one for one in getattr(job.spec, kind) if one in job.waits_for]
            parts += [f"{one} to {end}" for one in dict.fromkeys(named)]
        names, turns = _namesakes(job.spec), _turns(job.spec)
        if names in job.lines:
            parts.append(f"{next(iter(self._members(names)))} to end, which has its name")
        if turns in job.lines:
            most, array = job.spec.array_most, job.spec.array
            parts.append(f"a task of {array} to end: {most} may run at a time")
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
        spec = job.spec
        key = _namesakes(spec)
        if key:
            line = self._lines.setdefault(key, _Line())
            line.members[job.id] = None
            if spec.singleton and len(line.members) > 1:
                job.lines = (*job.lines, key)
        if _turns(spec):
            self._stand_in(_turns(spec), job)

    def _stand_in(self, key: str, job: JobRecord) -> None:
        """At the end of the line of its array's tasks."""
        line = self._lines.setdefault(key, _Line(job.spec.array_most or 1))
        line.members[job.id] = None
        if len(line.members) > line.most:
            job.lines = (*job.lines, key)

    def _members(self, key: str) -> Collection[str]:
        line = self._lines.get(key)
        return () if line is None else line.members

    def _array(self, spec: JobSpec) -> _Array:
        return self._arrays.setdefault(spec.array, _Array(spec.array_count))


def _namesakes(spec: JobSpec) -> str:
    """The line of all jobs of a name that are of one user; empty for those without a name."""
    name = spec.name if spec.labels else ""
    return f"{spec.tenant}/{spec.user}/{name}" if name else ""


def _turns(spec: JobSpec) -> str:
    """The line of an array of which not all tasks may run at a time; empty for other jobs."""
    return f"%{spec.array}" if spec.array_most is not None else ""

"""What a job waits for before planners see it: other jobs, its begin time, its turn in a line.

Each dependency asks for another job's end: `after` for its success, `after_any` for any end,
`after_notok` for an end without success. One that can never be met any more ends the job that
waits. A *line* lets so many of its members pass at a time, in order of submission: jobs of one name
in which a singleton stands. Nothing here moves a job; the core does, by what it is told here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


@dataclass(slots=True)
class _Line:
    """Live jobs in order of submission, of which the first `most` may pass."""

    most: int
    members: dict[str, None] = field(default_factory=dict)


class Waits:
    """Who waits for whom."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._children: dict[str, set[str]] = {}
        """Jobs that wait for the end of one, by its id."""
        self._lines: dict[str, _Line] = {}

    def enter(
        self,
        job: JobRecord,
        jobs: Mapping[str, JobRecord],
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
        self._line_up(job, jobs)

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

    def passes(self, job: JobRecord, jobs: Mapping[str, JobRecord]) -> list[str]:
        """A job is over: those whose turn in its lines has come by that."""
        passed: dict[str, None] = {}
        for key in _lines_of(job.spec) if self._lines else ():
            line = self._lines.get(key)
            if line is None or job.id not in line.members:
                continue
            del line.members[job.id]
            if not line.members:
                del self._lines[key]
            for one in islice(line.members, line.most):
                record = jobs[one]
                if key in record.lines:
                    record.lines = tuple(other for other in record.lines if other != key)
                    passed[one] = None
        return list(passed)

    def ahead(self, job: JobRecord) -> Iterator[str]:
        """Jobs in the lines in which it stands that come before it."""
        for key in job.lines:
            for one in self._lines[key].members:
                if one == job.id:
                    break
                yield one

    def would_follow(self, spec: JobSpec, jobs: Mapping[str, JobRecord]) -> list[str]:
        """Jobs that would come before a new one in the lines that it has to stand in."""
        key = _namesakes(spec) if spec.singleton else ""
        return [one.id for one in jobs.values() if _namesakes(one.spec) == key] if key else []

    def reason(self, job: JobRecord) -> Reason:
        """Why a blocked job waits."""
        parts = []
        for kind, end in (("after", "succeed"), ("after_any", "end"), ("after_notok", "fail")):
            named = [one for one in getattr(job.spec, kind) if one in job.waits_for]
            parts += [f"{one} to {end}" for one in dict.fromkeys(named)]
        parts += [f"{next(self.ahead(job))} to end, which has its name" for _ in job.lines[:1]]
        waits = f"waits for {', '.join(parts)}" if parts else ""
        if job.not_before_s is None:
            code, due_s = ReasonCode.DEPENDENCY, None
        else:
            code, due_s = ReasonCode.NOT_BEFORE, job.not_before_s
            waits = f"{waits}; begins" if waits else "begins"
        return Reason(code=code, since_s=job.state_since_s, unblocks=waits, due_s=due_s)

    def _line_up(self, job: JobRecord, jobs: Mapping[str, JobRecord]) -> None:
        spec = job.spec
        key = _namesakes(spec)
        if not key or not (spec.singleton or key in self._lines):
            return
        line = self._lines.get(key)
        if line is None:
            alike = (one.id for one in jobs.values() if _namesakes(one.spec) == key)
            line = self._lines[key] = _Line(1, dict.fromkeys(alike))
        line.members[job.id] = None
        if spec.singleton and next(iter(line.members)) != job.id:
            job.lines = (*job.lines, key)


def _namesakes(spec: JobSpec) -> str:
    """The line of all jobs of a name that are of one user; empty for those without a name."""
    name = spec.name
    return f"{spec.tenant}/{spec.user}/{name}" if name else ""


def _lines_of(spec: JobSpec) -> tuple[str, ...]:
    key = _namesakes(spec)
    return (key,) if key else ()

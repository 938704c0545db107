"""Arrays of a live service: which jobs are their tasks, and what is told of an array as a whole.

The tasks of an array were handed in together, so that the ids of its jobs are consecutive: `a-7` of
three tasks is `j-7`, `j-8` and `j-9`. The paper of the first says which index each of them has.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattherd.engine.jobs.lifecycle import State
from wattherd.engine.jobs.record import JobRecord
from wattherd.errors import UserError
from wattherd.model.job import JobSpec
from wattherd.model.reason import ReasonCode
from wattherd.server.documents.documents import SiteView, shown_state, time_of
from wattherd.server.documents.explanation import explanation
from wattherd.server.journal.job_history import PastJob
from wattherd.server.journal.timeline import SiteTimeline
from wattherd.workload.job_array import PAPER, Tasks, first_job, indices, shown

ARRAY = "wattherd.array/1"
ARRAY_EXPLANATION = "wattherd.array-explanation/1"
MOST_LIVE = 50_000
"""Jobs of one user that may wait and run, where an array is handed in."""


@dataclass(frozen=True, slots=True)
class Array:
    """One that was handed in: its id, its first task, and the index of every task."""

    id: str
    first: PastJob
    indices: Sequence[int]

    @property
    def numbers(self) -> range:
        """By which its jobs are ordered: 7 of j-7."""
        begin = int(self.first.spec.id.rpartition("-")[2])
        return range(begin, begin + len(self.indices))

    def job(self, index: int) -> str | None:
        """The id of the job that is this task; None if there is no such task."""
        place = bisect_left(self.indices, index)
        if place == len(self.indices) or self.indices[place] != index:
            return None
        return f"j-{self.numbers[place]}"

    def jobs(self, chosen: Sequence[int] | None = None) -> list[str]:
        """Ids of all its jobs, or of some tasks.

        Raises:
            UserError: there is no such task.
        """
        if chosen is None:
            return [f"j-{number}" for number in self.numbers]
        found = [(index, self.job(index)) for index in chosen]
        lacking = [index for index, job_id in found if job_id is None]
        if lacking:
            hint = f"it has {shown(self.indices)}"
            raise UserError(f"no task {shown(lacking)}", where=self.id, field="tasks", hint=hint)
        return [job_id for _, job_id in found if job_id is not None]


def array_of(history: Mapping[str, PastJob], name: str) -> Array | None:
    """The array of that id; None if there is none."""
    first = history.get(first_job(name)) if first_job(name) != name else None
    if first is None or first.spec.array != name:
        return None
    return Array(name, first, indices(first.paper[PAPER]["indices"]))


def check_room(look: SiteView, user: str, tenant: str, tasks: int) -> None:
    """Whether a user may hand in so many jobs more: one request is enough for 10,000 of an array.

    Raises:
        UserError: too many of the user's jobs are not over.
    """
    specs = (record.spec for record in look.core.jobs.values())
    live = sum(spec.user == user and spec.tenant == tenant for spec in specs)
    if live + tasks > MOST_LIVE:
        problem = f"{live:,} jobs of yours are not over, {MOST_LIVE:,} at most with {tasks:,} more"
        hint = "hand it in when some of them are over"
        raise UserError(problem, field="" if tasks == 1 else "array", hint=hint)


def states(look: SiteView, array: Array) -> list[str]:
    """The state of every task; of one that the core has not heard of yet, that it is queued."""
    live, over = look.core.jobs, look.core.finished
    return [
        shown_state(live[job_id]) if job_id in live else str(over.get(job_id, State.QUEUED))
        for job_id in array.jobs()
    ]


def array_document(look: SiteView, array: Array) -> dict[str, Any]:
    """An array as a whole, and where its tasks stand."""
    return _document(look.epoch, array, states(look, array), most_of(look, array))


def new_array_document(epoch: float, spec: JobSpec, paper: Mapping[str, Any]) -> dict[str, Any]:
    """One whose tasks were written down and that the core has not heard of yet."""
    past = PastJob(spec=spec, paper=paper, by="")
    array = Array(spec.array, past, indices(paper[PAPER]["indices"]))
    return _document(epoch, array, [str(State.QUEUED)] * len(array.indices), spec.array_most)


def most_of(look: SiteView, array: Array) -> int | None:
    """How many tasks may run at a time: as it is now, or was when the last of them ended."""
    live = next(iter(look.core.waits.tasks(array.id)), None)
    if live is not None:
        return look.core.jobs[live].spec.array_most
    last = look.history.get(f"j-{array.numbers[-1]}", array.first)
    return last.spec.array_most


def array_explanation(
    look: SiteView, array: Array, chronicle: SiteTimeline, seen: Container[str]
) -> dict[str, Any]:
    """Which tasks run, which one comes next, and what that one waits for."""
    document = array_document(look, array)
    document.pop("tasks")
    live = [look.core.jobs[one] for one in array.jobs() if one in look.core.jobs]
    coming = _next(look, live)
    told = None if coming is None else explanation(look, coming.id, chronicle, seen)
    return {
        **document,
        "schema": ARRAY_EXPLANATION,
        "running": [_called(one.spec) for one in live if one.active],
        "next": None if coming is None else _called(coming.spec),
        "explanation": told,
        "would_help": [] if coming is None else list(_would_help(look, array, coming)),
    }


def _called(spec: JobSpec) -> str:
    return f"{spec.array}[{spec.array_index}]"


def _next(look: SiteView, live: Sequence[JobRecord]) -> JobRecord | None:
    """The task that is to begin next: one with a turn, else the one that has the next turn."""
    for state in (State.QUEUED, State.BACKING_OFF):
        for one in live:
            if one.state is state:
                return one
    ready = look.core.waits.next_task(live[0].spec.array) if live else None
    if ready is not None:
        return look.core.jobs[ready]
    return next((one for one in live if not one.active), None)


def _would_help(look: SiteView, array: Array, coming: JobRecord) -> Iterator[str]:
    if look.core.waits.code(coming) is ReasonCode.ARRAY_LIMIT and coming.state is State.BLOCKED:
        more = len(look.core.waits.has_turn(array.id)) + 1
        yield f"`wattherd edit {array.id} --at-a-time {more}` gives it a turn"
    if coming.state is State.HELD:
        yield f"`wattherd resume {array.id}` lets paused tasks go on"


def _document(
    epoch: float, array: Array, states: Sequence[str], most: int | None
) -> dict[str, Any]:
    spec, paper = array.first.spec, array.first.paper
    tasks = zip(array.indices, array.numbers, states, strict=True)
    return {
        "schema": ARRAY,
        "id": array.id,
        "name": str(paper.get("name") or "").rpartition("[")[0],
        "user": spec.user,
        "tenant": spec.tenant,
        "queue": spec.queue,
        "gpus": spec.gpus,
        "submitted": time_of(epoch, spec.submit_s),
        "count": len(array.indices),
        "indices": shown(array.indices),
        "most": most,
        "grid": dict(paper[PAPER].get("grid", {})),
        "states": dict(sorted(Counter(states).items())),
        "tasks": [
            {"task": f"{array.id}[{index}]", "id": f"j-{number}", "index": index, "state": state}
            for index, number, state in tasks
        ],
    }


def chosen_of(array: Array, tasks: str) -> list[str]:
    """Ids of the jobs that `tasks` chooses, of all if it is empty.

    Raises:
        UserError: it is no range, or there is no such task.
    """
    return array.jobs(indices(tasks, "tasks") if tasks else None)


def one_task(array: Array, called: Tasks) -> str | None:
    """The id of the job that is meant by `a-7[3]`; None if all of the array is meant.

    Raises:
        UserError: it has no such task, or more than one is meant.
    """
    if called.chosen is None:
        return None
    if len(called.chosen) != 1:
        hint = f"such as {called.array}[{called.chosen[0]}]"
        raise UserError("one task is asked for", where=called.array, hint=hint)
    return array.jobs(called.chosen)[0]

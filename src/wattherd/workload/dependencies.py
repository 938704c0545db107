"""Jobs that wait for jobs: whether those exist, and whether the waiting ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

from wattherd.errors import UserError
from wattherd.model.job import JobSpec
from wattherd.spelling import hint_for
from wattherd.workload.cells import CellPlace
from wattherd.workload.source import shown

FIELDS = ("after", "after_any", "after_notok")
"""Where a job says whom it waits for."""


def check_dependencies(jobs: Iterable[JobSpec], places: Mapping[str, CellPlace]) -> None:
    """See that dependencies name known jobs or arrays; no job waits for itself by way of others.

    Raises:
        UserError: at the place of a job that waits in vain, naming the unknown job or the cycle.
    """
    waits: dict[str, tuple[str, ...]] = {}
    jobs = list(jobs)
    for task in (job for job in jobs if job.array):  # an array is over when its tasks are
        waits[task.array] = (*waits.get(task.array, ()), task.id)
    known = {**places, **dict.fromkeys(waits)}
    for job in jobs:
        for field in FIELDS:
            parents: tuple[str, ...] = getattr(job, field)
            for parent in parents:
                if parent not in known:
                    problem = f"unknown job {shown(parent)}"
                    raise places[job.id].error(field, problem, hint_for(parent, known))
            waits[job.id] = waits.get(job.id, ()) + parents
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        circle = [one for one in error.args[1][:-1] if one in places]
        raise _circle(circle, places) from None


def _circle(ids: list[str], places: Mapping[str, CellPlace]) -> UserError:
    """The cycle, from its last job in the file back to it; each waits for the next."""
    order = list(places)
    first = max(ids, key=order.index)
    at = ids.index(first)
    # graphlib names each job before the one that waits for it.
    circle = [first, *reversed(ids[:at]), *reversed(ids[at + 1 :]), first]
    problem = f"jobs wait for each other: {' after '.join(circle)}"
    return places[first].error("after", problem, "remove one of these dependencies")

"""Jobs that have waited too long: who they are, and how room is made for one.

Whoever puts short jobs first lets long and wide ones wait for as long as short ones come. So a job
is *overdue* once it has waited `PATIENCE` times as long as it still has to run, its restart
included. Overdue jobs are *owed* GPUs in order of submission: those that fit together into
`OWED_PART` of all GPUs, and the first in any case. Jobs that are owed begin before all others of
their priority, and are not stopped for others.

The bound that this gives, for jobs of one priority that the guard admits: once a job is overdue it
waits for jobs that were submitted before it, and for nobody else. So it waits at most `PATIENCE`
times its own time, and then for what those have left to do.

The part keeps it cheap where far more comes than can be done: there everybody becomes overdue, and
a planner that served them all in order would be first come, first served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from wattherd.estimate.speed import asked_shape
from wattherd.model.reason import Reason, StopReason
from wattherd.policy.contract import Draft, JobView, View
from wattherd.policy.eligibility import NodeMask, able_nodes
from wattherd.policy.schedule.gang_placement import GangRoom
from wattherd.policy.schedule.resize import has_shape
from wattherd.policy.schedule.shape_changes import OF_WATTS, place_shape, widest_start

PATIENCE = 4.0
OWED_PART = 0.25
IN_VAIN = 1.125
"""A job that was owed GPUs and got none is owed again after it has waited so many times as long."""


def owed_first(
    priority: NDArray[np.int64], number: NDArray[np.int64], gpus: NDArray[np.int64], room: float
) -> NDArray[np.int64]:
    """Which of some overdue jobs (J,) are owed GPUs, in order; `gpus` is what each needs at least.

    The first always is; others follow as long as all together need no more than `room`.
    """
    order = np.lexsort((number, -priority))
    count = int(np.searchsorted(gpus[order].cumsum(), room, side="right"))
    return order[: max(count, 1)]


def make_room(
    view: View,
    draft: Draft,
    job: JobView,
    others: Sequence[JobView],
    masks: Mapping[str, NodeMask],
) -> Sequence[JobView]:
    """Start `job` in the place of `others`, which run; those that were stopped for it.

    `others` come in the order in which they should be stopped, `masks` are as `model_masks` has
    them. GPUs or watts may suffice in sum and still not be had: free GPUs lie apart, and who runs
    keeps its watts. So nodes are cleared, those first on which least is stopped for most GPUs,
    twice as many each time until the job starts. Of what ran there, no more is stopped than has to
    be. If nothing helps, everything is as before.
    """
    said = _start(view, draft, job, masks)
    if said is True or (isinstance(said, Reason) and said.code not in OF_WATTS):
        return ()
    held: dict[int, int] = {}
    for one in others:
        for node, gpus in _held(one).items():
            held[node] = held.get(node, 0) + gpus
    free = draft.free_gpus().tolist()
    able = _able(view, job)
    nodes = [node for node in able.nonzero()[0].tolist() if held.get(node) or free[node]]
    nodes.sort(key=lambda node: (held.get(node, 0) / (held.get(node, 0) + free[node]), node))
    count = 1
    while nodes:
        cleared = set(nodes[:count])
        there = [one for one in others if not cleared.isdisjoint(_held(one))]
        mark = draft.mark()
        for one in there:
            draft.stop(one, StopReason.PREEMPTED_FOR_PRIORITY)
        starts = _start(view, draft, job, masks) is True
        taken = _held(job)
        draft.undo(mark)
        if starts:
            return _one_by_one(view, draft, job, there, taken, masks)
        if count >= len(nodes):
            break
        count *= 2
    return ()


def _one_by_one(
    view: View,
    draft: Draft,
    job: JobView,
    there: Sequence[JobView],
    taken: Mapping[int, int],
    masks: Mapping[str, NodeMask],
) -> Sequence[JobView]:
    """Stop jobs until the one that needs room starts, as it does when all of them are stopped.

    First those are stopped that hold what it took, then any, for their watts.
    """
    free = draft.free_gpus().tolist()
    short = {node for node, gpus in taken.items() if free[node] < gpus}
    first: list[JobView] = []
    for one in there:
        held = _held(one)
        if not short.isdisjoint(held):
            first.append(one)
            for node, gpus in held.items():
                free[node] += gpus
            short = {node for node, gpus in taken.items() if free[node] < gpus}
    chosen = {one.id for one in first}
    stopped: list[JobView] = []
    for one in [*first, *(one for one in there if one.id not in chosen)]:
        draft.stop(one, StopReason.PREEMPTED_FOR_PRIORITY)
        stopped.append(one)
        if len(stopped) >= len(first) and _start(view, draft, job, masks) is True:
            break
    return stopped


def _held(job: JobView) -> dict[int, int]:
    """GPUs that the plan so far gives a job, by node."""
    held: dict[int, int] = {}
    for one in job.wanted:
        held[one.node] = held.get(one.node, 0) + len(one.gpus)
    return held


def _able(view: View, job: JobView) -> NodeMask:
    """Nodes (N,) that any of its roles may use."""
    able = np.zeros(len(view.nodes()), dtype=np.bool_)
    for role in range(len(job.spec.roles)):
        mask = able_nodes(view, job.spec, role)
        able |= True if mask is None else mask
    return able


def _start(view: View, draft: Draft, job: JobView, masks: Mapping[str, NodeMask]) -> Reason | bool:
    """Start a job as wide as it can be: whether there was room, or what the guard said."""
    room = GangRoom.of(draft)
    if has_shape(job.spec):
        return widest_start(room, view, draft, job, masks)
    shares = place_shape(room, view, draft, job, asked_shape(job.spec), masks=masks)
    return shares is not None and (draft.start(job, shares) or True)

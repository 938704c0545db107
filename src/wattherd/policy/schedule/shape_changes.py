"""Carrying shapes out among real jobs: who is refused keeps what it has.

Shapes are chosen by counting devices. The guard knows more: watts, limits, queues that are closed.
So each change is proposed alone, those first that give devices back, and taken back where it is
refused. A job that waits starts narrower where its shape is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from wattherd.estimate.speed import JobShape, asked_shape, shape_of
from wattherd.model.reason import Reason, StopReason
from wattherd.policy.contract import Draft, JobView, Share, View
from wattherd.policy.eligibility import able_nodes, common_mask
from wattherd.policy.schedule.gang_placement import GangRoom
from wattherd.policy.schedule.node_choice import consolidated, shares_of
from wattherd.policy.schedule.resize import has_shape

Why = Callable[[JobView, JobShape, JobShape], str]
"""Why a job goes from one shape to another, for its story."""


def change_shapes(
    view: View,
    draft: Draft,
    order: Sequence[JobView],
    shapes: Mapping[str, JobShape],
    why: Why,
    waits: Callable[[JobView], Reason],
    *,
    models: Mapping[str, str] | None = None,
    refused: dict[str, Reason] | None = None,
) -> None:
    """Give jobs, in this order, the shapes that were chosen; those without one get nothing.

    `models` are GPU models that were chosen for some: who is on another one is moved. What the
    guard says to those that get nothing is put into `refused`.
    """
    on = models or {}
    stopped = [job for job in order if job.wanted and job.id not in shapes]
    for job in stopped:
        draft.stop(job, StopReason.PREEMPTED_FOR_PRIORITY)
    running = [job for job in order if job.wanted and has_shape(job.spec)]
    ran = {job.id: shape_of(job.spec, job.wanted) for job in running}
    changed = [
        job
        for job in running
        if ran[job.id] != shapes[job.id]
        or _model_of(view, job) != on.get(job.id, _model_of(view, job))
    ]
    for job in sorted(changed, key=lambda job: shapes[job.id].gpus > ran[job.id].gpus):
        mark = draft.mark()
        draft.stop(job, StopReason.RESIZED)
        if _start(view, draft, job, shapes[job.id], on.get(job.id)) is None and job.wanted:
            draft.tell(job, why(job, ran[job.id], shapes[job.id]))
        else:
            draft.undo(mark)
    for job in [*(one for one in order if one.id in shapes), *stopped]:
        if job.wanted:
            continue
        shape = shapes.get(job.id) or asked_shape(job.spec)
        why_not = _start(view, draft, job, shape, on.get(job.id))
        if not job.wanted and not start_narrower(GangRoom.of(draft), view, draft, job):
            draft.wait(job, why_not or waits(job))
            if refused is not None and why_not is not None:
                refused[job.id] = why_not


def _model_of(view: View, job: JobView) -> str | None:
    """The GPU model on which it runs, or one of several."""
    return next((view.nodes()[one.node].gpu_model for one in job.wanted if one.gpus), None)


def _start(
    view: View, draft: Draft, job: JobView, shape: JobShape, model: str | None
) -> Reason | None:
    """Start a job; why the guard refuses it, None also where there is no room."""
    shares = place_shape(GangRoom.of(draft), view, draft, job, shape, model)
    return None if shares is None else draft.start(job, shares)


def start_narrower(room: GangRoom, view: View, draft: Draft, job: JobView) -> bool:
    """Start a job at the largest width at which it may; whether there is one."""
    if not has_shape(job.spec):
        return False
    shape = asked_shape(job.spec)
    each = shape.gpus // shape.workers
    for workers in range(job.spec.most_width, job.spec.least_width - 1, -1):
        narrower = replace(shape, workers=workers, gpus=workers * each)
        shares = place_shape(room, view, draft, job, narrower)
        if shares is None:
            continue
        if draft.start(job, shares) is None:
            return True
        room.give_back(shares)
    return False


def place_shape(
    room: GangRoom, view: View, draft: Draft, job: JobView, shape: JobShape,
    model: str | None = None,
) -> list[Share] | None:  # fmt: skip
    """On one GPU model if any has room: `model`, then those on which the job is fastest.

    A job without a shape is placed as it was asked for, on as few nodes as can be.
    """
    spec, nodes, rates = job.spec, view.nodes(), view.rates
    if not has_shape(spec):
        whole, mask = view.gpus_per_node(), common_mask(view, spec)
        return shares_of(job, draft, consolidated, whole, None, mask)
    able = tuple(able_nodes(view, spec, role) for role in range(len(spec.roles)))
    masks = able if any(mask is not None for mask in able) else ()
    models = list(dict.fromkeys(node.gpu_model for node in nodes if node.gpu_count))
    if shape.gpus and len(models) > 1:
        order = sorted(models, key=lambda one: (one != model, -rates.rate(spec, one).per_s, one))
        for each in order:
            of_model = np.array([node.gpu_model == each for node in nodes])
            first = of_model if able[0] is None else able[0] & of_model
            found = room.place(shape, (first, *able[1:]))
            if found is not None:
                return found
    return room.place(shape, masks)

"""Carrying shapes out among real jobs: who is refused keeps what it has.

Shapes are chosen by counting devices. The guard knows more: watts, limits, queues that are closed.
So each change is proposed alone, those first that give devices back, and taken back where it is
refused. A job that waits starts narrower where its shape is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from wattherd.estimate.speed import JobShape, asked_shape, shape_of
from wattherd.model.reason import Reason, ReasonCode, StopReason
from wattherd.policy.contract import Draft, JobView, Share, View
from wattherd.policy.eligibility import NodeMask, able_nodes, common_mask
from wattherd.policy.schedule.gang_placement import GangRoom
from wattherd.policy.schedule.node_choice import consolidated, shares_of
from wattherd.policy.schedule.resize import has_shape

OF_WATTS = (ReasonCode.WAITING_FOR_POWER, ReasonCode.WAITING_FOR_BUDGET_RISE)
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
    alike: Callable[[JobView], Alike] | None = None,
    vain: InVain | None = None,
    masks: Mapping[str, NodeMask] | None = None,
) -> None:
    """Give jobs, in this order, the shapes that were chosen; those without one get nothing.

    `models` are GPU models that were chosen for some: who is on another one is moved. What the
    guard says to those that get nothing is put into `refused`. With `alike` nobody is tried after
    one like it got nothing, which is noted in `vain`: a job that is left out so is in `refused` and
    is not told to wait. `masks` are as `model_masks` has them, for who has them already.
    """
    on = models or {}
    masks = model_masks(view) if masks is None else masks
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
        if _start(view, draft, masks, job, shapes[job.id], on.get(job.id)) is None and job.wanted:
            draft.tell(job, why(job, ran[job.id], shapes[job.id]))
        else:
            draft.undo(mark)
    vain = InVain() if vain is None else vain
    for job in [*(one for one in order if one.id in shapes), *stopped]:
        if job.wanted:
            continue
        like = None if alike is None else alike(job)
        if like is not None and like in vain:
            if refused is not None:
                refused[job.id] = vain.reason(like) or waits(job)
            continue
        shape = shapes.get(job.id) or asked_shape(job.spec)
        why_not = _start(view, draft, masks, job, shape, on.get(job.id))
        if not job.wanted and (
            _no_other_way(job, masks)
            or widest_start(GangRoom.of(draft), view, draft, job, masks) is not True
        ):
            draft.wait(job, why_not or waits(job))
            if refused is not None and why_not is not None:
                refused[job.id] = why_not
            if like is not None:
                vain.note(like, why_not)


class Alike(NamedTuple):
    """Equal `needs`: the same room and the same watts are enough. `account`: one user's jobs."""

    needs: int
    account: int


@dataclass(slots=True)
class InVain:
    """Who was tried in vain while a plan only gives away.

    No room, or too few watts: the same holds for all of the same needs. Other refusals (limits,
    closed queues) hold for jobs of the same needs and the same account.
    """

    needs: dict[int, Reason | None] = field(default_factory=dict)
    accounts: dict[Alike, Reason | None] = field(default_factory=dict)

    def __contains__(self, like: Alike) -> bool:
        """Whether a job like it was tried already."""
        return like.needs in self.needs or like in self.accounts

    def reason(self, like: Alike) -> Reason | None:
        """What the guard said to it, None: there was no room."""
        return self.needs.get(like.needs) or self.accounts.get(like)

    def note(self, like: Alike, why: Reason | None) -> None:
        """A job got nothing: for want of room (None), or for a reason."""
        if why is None or why.code in OF_WATTS:
            self.needs[like.needs] = why
        else:
            self.accounts[like] = why


def _model_of(view: View, job: JobView) -> str | None:
    """The GPU model on which it runs, or one of several."""
    return next((view.nodes()[one.node].gpu_model for one in job.wanted if one.gpus), None)


def _no_other_way(job: JobView, masks: Mapping[str, NodeMask]) -> bool:
    """Whether it was tried in the only way in which it can run."""
    return len(masks) <= 1 and job.spec.least_width == job.spec.most_width


def model_masks(view: View) -> Mapping[str, NodeMask]:
    """Nodes (N,) of each GPU model."""
    models = [node.gpu_model if node.gpu_count else "" for node in view.nodes()]
    known = [model for model in dict.fromkeys(models) if model]
    named = np.array([node.gpu_model for node in view.nodes()])
    return {model: named == model for model in known}


def _start(
    view: View,
    draft: Draft,
    masks: Mapping[str, NodeMask],
    job: JobView,
    shape: JobShape,
    model: str | None,
) -> Reason | None:
    """Start a job; why the guard refuses it, None also where there is no room."""
    shares = place_shape(GangRoom.of(draft), view, draft, job, shape, model, masks)
    return None if shares is None else draft.start(job, shares)


def start_narrower(room: GangRoom, view: View, draft: Draft, job: JobView) -> bool:
    """Start a job at the largest width at which it may; whether there is one."""
    return widest_start(room, view, draft, job) is True


def widest_start(
    room: GangRoom,
    view: View,
    draft: Draft,
    job: JobView,
    masks: Mapping[str, NodeMask] | None = None,
) -> Reason | bool:
    """As `start_narrower`; what the guard says of the narrowest width, False: there is no room."""
    if not has_shape(job.spec):
        return False
    why: Reason | None = None
    shape = asked_shape(job.spec)
    each = shape.gpus // shape.workers
    for workers in range(job.spec.most_width, job.spec.least_width - 1, -1):
        narrower = replace(shape, workers=workers, gpus=workers * each)
        shares = place_shape(room, view, draft, job, narrower, masks=masks)
        if shares is None:
            continue
        why = draft.start(job, shares)
        if why is None:
            return True
        room.give_back(shares)
    return why or False


def place_shape(
    room: GangRoom, view: View, draft: Draft, job: JobView, shape: JobShape,
    model: str | None = None, masks: Mapping[str, NodeMask] | None = None,
) -> list[Share] | None:  # fmt: skip
    """On one GPU model if any has room: `model`, then those on which the job is fastest.

    A job without a shape is placed as it was asked for, on as few nodes as can be.
    """
    spec, rates = job.spec, view.rates
    if not has_shape(spec):
        whole, mask = view.gpus_per_node(), common_mask(view, spec)
        return shares_of(job, draft, consolidated, whole, None, mask)
    able = tuple(able_nodes(view, spec, role) for role in range(len(spec.roles)))
    roles = able if any(mask is not None for mask in able) else ()
    of_model = model_masks(view) if masks is None else masks
    if shape.gpus and len(of_model) > 1:
        order = sorted(of_model, key=lambda one: (one != model, -rates.rate(spec, one).per_s, one))
        for each in order:
            first = of_model[each] if able[0] is None else able[0] & of_model[each]
            found = room.place(shape, (first, *able[1:]))
            if found is not None:
                return found
    return room.place(shape, roles)

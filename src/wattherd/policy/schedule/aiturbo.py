"""AITurbo (Zhao et al., HPDC'21): one schedule for jobs that can be predicted and jobs that cannot.

Every job begins unpredictable and is ordered by attained service, least first. Once its loss tells
how much is left (`foresight`), it also has a remaining service and is ordered by both. The two
orders are united by a Borda count, the sum of a job's ranks:

    predictable:   rank by marginal benefit + rank by attained service
    unpredictable: twice the rank by attained service

with true ranks, ties averaged, smaller is better. A feedback queue over the count (three levels, up
to 30, up to 180, the rest) admits level by level what fits; within a level jobs that run come
before jobs that wait, so that nobody is stopped for the sake of a few ranks. Attained service is
compared by its power of two, as in the discretised queues of Tiresias, for the same reason.

Sizes (`aiturbo_swaps`) are adapted every 240 s and as soon as a job turns predictable; arrivals and
departures change order and admission only, and the size of jobs that do not run yet. A job is
resized if what it saves is worth the pause of a restart.

Published is that predictable jobs are resized. How fast a job would be in another shape is known of
every job that was profiled, though: with `sizes_all` an unpredictable job is taken to need as many
steps again as it has made (the mean of what is left of a heavy-tailed duration grows with what
has passed), at least those of half an hour. That guess sizes it and never orders it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wattherd.estimate.speed import JobShape, asked_shape, shape_of
from wattherd.model.reason import Reason, ReasonCode, StopReason
from wattherd.policy.contract import Draft, JobView, View
from wattherd.policy.eligibility import role_masks
from wattherd.policy.schedule.aiturbo_swaps import JobInSizing, ShapeTable, settle, spread, swap
from wattherd.policy.schedule.gang_placement import GangRoom
from wattherd.policy.schedule.resize import ShapeDevices, cost_of
from wattherd.policy.schedule.speed_forecast import SpeedForecast

THRESHOLDS = (30.0, 180.0)
ADAPT_S = 240.0
LOOK_S = 60.0
"""How often jobs are looked at for having turned predictable; their reports come no faster."""
KAPPA_OF_RATIO = 0.5
"""A GPU's price in cores, over the cluster's cores per GPU. Published: 10 where there are 57 cores
for 4 GPUs, 0.7. A lower price leaves fewer cores idle beside each GPU (docs/concepts/aiturbo.md has
what it costs)."""
FIRST_LEVEL = 9000.0
"""Attained service up to which jobs are alike: 5 minutes of 4 GPUs and 16 cores."""
YOUNG_S = 1800.0


@dataclass(slots=True)
class _Memory:
    """Per job: service attained, the shape last chosen, and its place in the order of `at_s`."""

    seen: dict[str, Any] = field(default_factory=dict)
    service: dict[str, float] = field(default_factory=dict)
    shapes: dict[str, JobShape] = field(default_factory=dict)
    atlases: dict[str, ShapeTable] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    at_s: float = 0.0
    adapted_s: float = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class AITurbo:
    """`pause_s` is what a change of shape is taken to cost a job; `sizes_all` as above."""

    foresight: SpeedForecast
    thresholds: tuple[float, ...] = THRESHOLDS
    adapt_s: float = ADAPT_S
    look_s: float = LOOK_S
    pause_s: float = 60.0
    sizes_all: bool = True

    def plan(self, view: View, draft: Draft) -> None:
        """Order, admit, and, when it is due, resize."""
        memory: _Memory = view.memory.setdefault("aiturbo", _Memory())
        jobs, whole = view.live(), _whole(view)
        kappa = KAPPA_OF_RATIO * whole.cores / max(whole.gpus, 1)
        turned = self._note(memory, jobs, view.now_s, kappa)
        due = turned or view.now_s >= memory.adapted_s + self.adapt_s
        if view.woke and not due:
            self._wake(view, draft, memory)
            return
        sized = {
            job.id: one for job in jobs if (one := self._sized(memory, job, kappa)) is not None
        }
        order = self._order(memory, jobs, sized)
        admitted, free = _admit(order, memory.shapes, sized, whole, due=due)
        if due:
            memory.adapted_s = view.now_s
            mine = [sized[job.id] for job in admitted if job.id in sized]
            free = swap(mine, free)
            if len(admitted) == len(jobs):
                spread(mine, free, whole)
        memory.shapes.update((job_id, one.shape) for job_id, one in sized.items())
        _carry_out(view, draft, order, admitted, memory)
        self._wake(view, draft, memory)

    def _wake(self, view: View, draft: Draft, memory: _Memory) -> None:
        """At the next moment at which reports come in, or sizes are due."""
        look_s = (math.floor(view.now_s / self.look_s) + 1) * self.look_s
        if view.live():
            draft.wake_at(max(min(look_s, memory.adapted_s + self.adapt_s), view.now_s))

    def _note(self, memory: _Memory, jobs: Sequence[JobView], now_s: float, kappa: float) -> bool:
        """Book attained service and take reports in; whether a job turned predictable."""
        live = {job.id: job for job in jobs}
        self.foresight.forget(live, memory.seen)
        for gone in [one for one in memory.service if one not in live]:
            del memory.service[gone], memory.shapes[gone]
            memory.atlases.pop(gone, None)
        passed, memory.at_s = now_s - memory.at_s, now_s
        if passed:
            memory.places.clear()
        turned = False
        for job in jobs:
            memory.service.setdefault(job.id, 0.0)
            memory.shapes.setdefault(job.id, asked_shape(job.spec))
            if job.wanted and passed:
                cost = cost_of(shape_of(job.spec, job.wanted))
                memory.service[job.id] += passed * (kappa * cost.gpus + cost.cores)
            turned |= self.foresight.note(job, memory.seen)
        return turned

    def _sized(self, memory: _Memory, job: JobView, kappa: float) -> JobInSizing | None:
        """A job that may be resized, in its present shape; None for others."""
        atlas = memory.atlases.get(job.id)
        if atlas is None:
            atlas = ShapeTable(job.spec, lambda shape: self.foresight.step_s(job, shape))
            memory.atlases[job.id] = atlas
        left = self.foresight.steps_left(job, memory.seen)
        told, asked_s = left is not None, atlas.at(asked_shape(job.spec)).step_s
        if left is None and self.sizes_all:
            left = max(job.progress, YOUNG_S / asked_s)
        if left is None or not math.isfinite(atlas.at(memory.shapes[job.id]).step_s):
            return None
        return JobInSizing(
            number=job.number,
            atlas=atlas,
            shape=memory.shapes[job.id],
            runs_in=shape_of(job.spec, job.wanted) if job.wanted else None,
            steps_left=left,
            pause_s=self.pause_s,
            kappa=kappa,
            told=told,
        )

    def _order(
        self, memory: _Memory, jobs: Sequence[JobView], sized: Mapping[str, JobInSizing]
    ) -> list[JobView]:
        """By level of the feedback queue, running first, then by Borda count.

        Once in a moment: stopping a job is an event too, and must not turn the order round.
        """
        if all(job.id in memory.places for job in jobs):
            return sorted(jobs, key=lambda job: memory.places[job.id])
        attained = ranks({job.id: float(_octave(memory.service[job.id])) for job in jobs})
        benefit = ranks({job_id: -one.benefit() for job_id, one in sized.items() if one.told})
        score = {job.id: attained[job.id] + benefit.get(job.id, attained[job.id]) for job in jobs}
        level = {
            job_id: sum(count >= threshold for threshold in self.thresholds)
            for job_id, count in score.items()
        }
        order = sorted(
            jobs, key=lambda job: (level[job.id], not job.wanted, score[job.id], job.number)
        )
        memory.places = {job.id: place for place, job in enumerate(order)}
        return order


def ranks(values: Mapping[str, float]) -> dict[str, float]:
    """Rank of each from 1, smallest first; equal values share the mean of their ranks."""
    ordered = sorted(values.items(), key=lambda pair: pair[1])
    found: dict[str, float] = {}
    at = 0
    while at < len(ordered):
        end = at
        while end < len(ordered) and ordered[end][1] == ordered[at][1]:
            end += 1
        for name, _ in ordered[at:end]:
            found[name] = (at + 1 + end) / 2
        at = end
    return found


def _octave(service: float) -> int:
    """How often a first level has doubled: what jobs are compared by."""
    return math.floor(math.log2(max(service / FIRST_LEVEL, 1.0)))


def _whole(view: View) -> ShapeDevices:
    """What all usable nodes have."""
    cores = np.array([node.cpu_milli for node in view.nodes()])[view.usable()].sum() / 1000
    return ShapeDevices(view.gpu_total(), float(cores))


def _admit(
    order: Iterable[JobView],
    shapes: Mapping[str, JobShape],
    sized: Mapping[str, JobInSizing],
    whole: ShapeDevices,
    *,
    due: bool,
) -> tuple[list[JobView], ShapeDevices]:
    """The jobs that fit in this order, and what they leave.

    Jobs that wait, and all when it is due, take the shape that suits them best in what is left.
    """
    admitted, free = [], whole
    for job in order:
        one = sized.get(job.id)
        if one is not None and (due or not job.wanted):
            settle(one, free)
        cost = cost_of(shapes[job.id]) if one is None else one.cost()
        if cost.within(free):
            admitted.append(job)
            free = free - cost
    return admitted, free


def _carry_out(
    view: View,
    draft: Draft,
    order: Sequence[JobView],
    admitted: Sequence[JobView],
    memory: _Memory,
) -> None:
    """Stop whom the plan moves, then place in order.

    A resized job that finds no room in its new shape stays in the old one; a job for which there
    are devices enough, but not on the right nodes, lets those behind it try.
    """
    chosen = {job.id for job in admitted}
    before: dict[str, JobShape] = {}
    for job in order:
        if job.wanted and job.id not in chosen:
            draft.stop(job, StopReason.PREEMPTED_FOR_PRIORITY)
        elif job.wanted and (ran := shape_of(job.spec, job.wanted)) != memory.shapes[job.id]:
            before[job.id] = ran
            draft.stop(job, StopReason.RESIZED)
    room = GangRoom.of(draft)
    for job in [*admitted, *(job for job in order if job.id not in chosen)]:
        if job.wanted:
            continue
        shares = room.place(memory.shapes[job.id], role_masks(view, job.spec))
        if shares is None and job.id in before:
            memory.shapes[job.id] = before[job.id]
            shares = room.place(before[job.id], role_masks(view, job.spec))
        if shares is None or draft.start(job, shares) is not None:
            draft.wait(job, _waits(memory.shapes[job.id], room, view.now_s))


def _waits(shape: JobShape, room: GangRoom, now_s: float) -> Reason:
    return Reason(
        code=ReasonCode.WAITING_FOR_GPUS,
        since_s=now_s,
        asked=shape.gpus,
        available=sum(room.gpus),
        unit="GPUs",
        unblocks="jobs with a smaller Borda count come first",
    )

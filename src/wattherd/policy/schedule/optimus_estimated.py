"""Optimus (Peng et al., EuroSys'18) as a cluster could run it: on fitted speed and loss curves.

`optimus` knows true step times and true remaining iterations; this one believes what it fits, of
every job. Each interval jobs get one worker and one parameter server, those with the least time to
go first where not all fit (the paper does not say; its goal is the sum of completion times); then
one task at a time goes to the job whose remaining time it shortens most per dominant share of the
cluster, until nobody gains. Where a loss curve shows no end, or one beyond the epochs that were
asked for, twenty more epochs are taken, as in the authors' public code. Gains of jobs with few
reports are damped, since their fit is poor (section 4.1). A job whose shape changes is restarted
(the public code restarts all). A cluster that has become idle does not wait for the interval's end.

Real jobs (`live_forecast`) are known by what they report; one that tells no end is taken to last as
long again as it has run. Intervals are as much shorter as restarts are than the published minute,
newcomers get what nobody holds at once, and what the guard refuses is left as it was.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from wattherd.estimate.speed import JobShape, asked_shape, shape_of
from wattherd.model.reason import Reason, ReasonCode, StopReason
from wattherd.policy.contract import Draft, JobView, View
from wattherd.policy.eligibility import role_masks
from wattherd.policy.schedule.gang_placement import GangRoom
from wattherd.policy.schedule.resize import (
    ResizeAxis,
    ShapeDevices,
    cost_of,
    has_shape,
    moved,
)
from wattherd.policy.schedule.shape_changes import change_shapes
from wattherd.policy.schedule.speed_forecast import SpeedForecast, resized_words, tempo_of

INTERVAL_S = 600.0
DAMPED = 0.95
DAMPED_S = 1800.0
"""Gains of jobs that have run for less are multiplied by DAMPED."""
PUBLISHED_YOUNG_S = 1800.0
"""A real job that tells no end is taken to last so long at least, where restarts take a minute."""


@dataclass(slots=True)
class _Memory:
    seen: dict[str, Any] = field(default_factory=dict)
    planned_s: float = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimusEstimated:
    """Sizes by servers and workers; cores and GPUs of a task stay as asked for."""

    foresight: SpeedForecast
    interval_s: float = INTERVAL_S

    def plan(self, view: View, draft: Draft) -> None:
        """Take reports in; size and place at every interval."""
        memory: _Memory = view.memory.setdefault("optimus-estimated", _Memory())
        jobs = view.live()
        self.foresight.forget({job.id: job for job in jobs}, memory.seen)
        for job in jobs:
            self.foresight.note(view, job, memory.seen)
        idle = not any(job.wanted for job in jobs)
        tempo = tempo_of(self.foresight, view, jobs)
        due_s = memory.planned_s + tempo * self.interval_s
        if idle or view.now_s >= due_s:
            memory.planned_s = view.now_s
            due_s = view.now_s + tempo * self.interval_s
            self._place(view, draft, self._sizes(view, memory, jobs, tempo), memory)
        elif self.foresight.learns:
            held = {job.id: shape_of(job.spec, job.wanted) for job in jobs if job.wanted}
            new = {job.id: _least(job) for job in jobs if not job.wanted}
            self._place(view, draft, {**held, **new}, memory)
        if jobs:
            draft.wake_at(max(min(view.now_s + 60.0 * tempo, due_s), view.now_s))

    def _sizes(
        self, view: View, memory: _Memory, jobs: Sequence[JobView], tempo: float
    ) -> dict[str, JobShape]:
        """The shape of every job that gets anything."""
        whole = _whole(view)
        shapes: dict[str, JobShape] = {}
        free = whole
        for job in sorted(jobs, key=lambda job: (self._left_s(view, memory, job), job.number)):
            least = _least(job)
            if cost_of(least).within(free):
                shapes[job.id] = least
                free = free - cost_of(least)
        by_id = {job.id: job for job in jobs}
        gain_of = partial(self._gain, view, memory, whole, DAMPED_S * tempo)
        gains = [gain_of(by_id[name], shapes[name]) for name in shapes]
        heap = [gain for gain in gains if gain is not None]
        heapq.heapify(heap)
        while heap:
            _, _, name, shape = heapq.heappop(heap)
            extra = cost_of(shape) - cost_of(shapes[name])
            if not extra.within(free):
                continue
            shapes[name], free = shape, free - extra
            another = gain_of(by_id[name], shape)
            if another is not None:
                heapq.heappush(heap, another)
        return shapes

    def _left_s(self, view: View, memory: _Memory, job: JobView) -> float:
        """Time to go with a single worker and server."""
        step_s = self.foresight.step_s(view, job, _least(job))
        left = self._steps_left(view, memory, job, step_s)
        return math.inf if left is None or step_s is None else left * step_s

    def _steps_left(
        self, view: View, memory: _Memory, job: JobView, step_s: float | None
    ) -> float | None:
        left = self.foresight.steps_left(view, job, memory.seen)
        if left is None and step_s is not None and self.foresight.learns:
            young_s = PUBLISHED_YOUNG_S * tempo_of(self.foresight, view, [job])
            return self.foresight.guessed_steps(view, job, step_s, young_s)
        return left

    def _gain(
        self,
        view: View,
        memory: _Memory,
        whole: ShapeDevices,
        young_s: float,
        job: JobView,
        shape: JobShape,
    ) -> tuple[float, int, str, JobShape] | None:
        """(minus the best gain per share, number, id, shape after), None if nothing is gained."""
        now_s = self.foresight.step_s(view, job, shape)
        left = self._steps_left(view, memory, job, now_s) if has_shape(job.spec) else None
        if left is None or now_s is None:
            return None
        damped = DAMPED if job.service_s(view.now_s) < young_s else 1.0
        found = []
        for axis in (ResizeAxis.WORKER, ResizeAxis.SERVER):
            after = moved(job.spec, shape, axis, 1)
            step_s = None if after is None else self.foresight.step_s(view, job, after)
            if after is None or step_s is None or step_s >= now_s:
                continue
            extra = cost_of(after) - cost_of(shape)
            share = max(extra.gpus / max(whole.gpus, 1), extra.cores / max(whole.cores, 1.0))
            found.append((-damped * left * (now_s - step_s) / share, job.number, job.id, after))
        return min(found, key=lambda one: one[:2]) if found else None

    def _why(
        self, view: View, memory: _Memory, job: JobView, before: JobShape, after: JobShape
    ) -> str:
        steps = [self.foresight.step_s(view, job, shape) or math.inf for shape in (before, after)]
        left = self._steps_left(view, memory, job, steps[0]) or math.inf
        pause_s = self.foresight.pause_s(view, job) or 0.0
        times_s = left * steps[0], left * steps[1] + pause_s
        sources = self.foresight.sources(view, job, after)
        return resized_words(before, after, times_s, pause_s, sources)

    def _place(
        self, view: View, draft: Draft, shapes: dict[str, JobShape], memory: _Memory
    ) -> None:
        if self.foresight.learns:
            reasons = partial(self._why, view, memory)
            order = sorted(view.live(), key=lambda job: (not job.wanted, job.number))
            change_shapes(view, draft, order, shapes, reasons, partial(_waits, now_s=view.now_s))
            return
        jobs = sorted(view.live(), key=lambda job: (_demand(shapes.get(job.id)), job.number))
        for job in jobs:
            if job.wanted and shape_of(job.spec, job.wanted) != shapes.get(job.id):
                why = StopReason.RESIZED
                if job.id not in shapes:
                    why = StopReason.PREEMPTED_FOR_PRIORITY
                draft.stop(job, why)
        room = GangRoom.of(draft)
        for job in jobs:
            if job.wanted:
                continue
            shares = (
                room.place(shapes[job.id], role_masks(view, job.spec)) if job.id in shapes else None
            )
            if shares is None:
                shares = room.place(_least(job), role_masks(view, job.spec))
            if shares is None or draft.start(job, shares) is not None:
                draft.wait(job, _waits(job, view.now_s))


def _demand(shape: JobShape | None) -> float:
    return math.inf if shape is None else shape.gpus + shape.workers + shape.servers


def _least(job: JobView) -> JobShape:
    """One worker and one parameter server of the size that was asked for."""
    asked, least = asked_shape(job.spec), job.spec.least_width
    return replace(
        asked,
        workers=least,
        servers=min(asked.servers, 1),
        gpus=least * asked.gpus // asked.workers,
    )


def _whole(view: View) -> ShapeDevices:
    cores = sum(node.cpu_milli for node in view.nodes()) / 1000
    return ShapeDevices(view.gpu_total(), cores)


def _waits(job: JobView, now_s: float) -> Reason:
    return Reason(
        code=ReasonCode.WAITING_FOR_GPUS,
        since_s=now_s,
        asked=_least(job).gpus,
        available=0,
        unit="GPUs",
        unblocks="every running job already has a single worker, or the next interval",
    )

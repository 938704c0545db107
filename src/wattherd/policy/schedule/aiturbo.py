"""AITurbo (Zhao et al., HPDC'21): one schedule for jobs that can be predicted and jobs that cannot.

Every job begins unpredictable. It is ordered by attained service (least first) and runs in the
shape its user asked for. Once its loss tells how much is left (`foresight`), it also has a
remaining service, may be resized (`aiturbo_swaps`), and is ordered by both. The two orders are
united by a Borda count, the sum of a job's ranks:

    predictable:   rank by marginal benefit + rank by attained service
    unpredictable: twice the rank by attained service

with true ranks, ties averaged, smaller is better. A feedback queue over the count (three levels, up
to 30, up to 180, the rest) admits level by level what fits; within a level jobs that run come
before jobs that wait, so that nobody is stopped for the sake of a few ranks. Sizes are adapted
every 240 s and as soon as a job turns predictable; arrivals and departures change order and
admission only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattherd.estimate.shapes import asked_shape, shape_of
from wattherd.estimate.speed import Shape
from wattherd.model.reason import Reason, ReasonCode, StopReason
from wattherd.policy.contract import Draft, JobView, View
from wattherd.policy.schedule.aiturbo_swaps import KAPPA, Sized, spread, swap
from wattherd.policy.schedule.foresight import Foresight
from wattherd.policy.schedule.placing import Room
from wattherd.policy.schedule.resize import Cost, cost_of

THRESHOLDS = (30.0, 180.0)
ADAPT_S = 240.0
LOOK_S = 60.0
"""How often jobs are looked at for having turned predictable; their reports come no faster."""


@dataclass(slots=True)
class _Memory:
    """Per job: service attained, the shape last chosen, and its place in the order of `at_s`."""

    seen: dict[str, Any] = field(default_factory=dict)
    service: dict[str, float] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    at_s: float = 0.0
    adapted_s: float = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class AITurbo:
    """`pause_s` is what a change of shape is taken to cost a job."""

    foresight: Foresight
    thresholds: tuple[float, ...] = THRESHOLDS
    adapt_s: float = ADAPT_S
    look_s: float = LOOK_S
    pause_s: float = 60.0
    kappa: float = KAPPA

    def plan(self, view: View, draft: Draft) -> None:
        """Order, admit, and, when it is due, resize."""
        memory: _Memory = view.memory.setdefault("aiturbo", _Memory())
        jobs = view.live()
        turned = self._note(memory, jobs, view.now_s)
        due = view.now_s >= memory.adapted_s + self.adapt_s
        if view.woke and not (turned or due):
            self._wake(view, draft, memory)
            return
        sized = {job.id: one for job in jobs if (one := self._sized(memory, job)) is not None}
        order = self._order(memory, jobs, sized)
        whole = _whole(view)
        admitted, free = _admit(order, memory, whole)
        if turned or due:
            memory.adapted_s = view.now_s
            mine = [sized[job.id] for job in admitted if job.id in sized]
            free = swap(mine, free)
            if len(admitted) == len(jobs):
                spread(mine, free, whole)
            for one in mine:
                memory.shapes[one.spec.id] = one.shape
        _carry_out(draft, order, admitted, memory, view.now_s)
        self._wake(view, draft, memory)

    def _wake(self, view: View, draft: Draft, memory: _Memory) -> None:
        """At the next moment at which reports come in, or sizes are due."""
        look_s = (math.floor(view.now_s / self.look_s) + 1) * self.look_s
        if view.live():
            draft.wake_at(max(min(look_s, memory.adapted_s + self.adapt_s), view.now_s))

    def _note(self, memory: _Memory, jobs: Sequence[JobView], now_s: float) -> bool:
        """Book attained service and take reports in; whether a job turned predictable."""
        live = {job.id: job for job in jobs}
        self.foresight.forget(live, memory.seen)
        for gone in [one for one in memory.service if one not in live]:
            del memory.service[gone], memory.shapes[gone]
        passed, memory.at_s = now_s - memory.at_s, now_s
        if passed:
            memory.places.clear()
        turned = False
        for job in jobs:
            memory.service.setdefault(job.id, 0.0)
            memory.shapes.setdefault(job.id, asked_shape(job.spec))
            if job.wanted:
                cost = cost_of(shape_of(job.spec, job.wanted))
                memory.service[job.id] += passed * (self.kappa * cost.gpus + cost.cores)
            turned |= self.foresight.note(job, memory.seen)
        return turned

    def _sized(self, memory: _Memory, job: JobView) -> Sized | None:
        """A predictable job with its present shape, None for others."""
        left = self.foresight.steps_left(job, memory.seen)
        shape = memory.shapes[job.id]
        if left is None or self.foresight.step_s(job, shape) is None:
            return None
        return Sized(
            number=job.number,
            spec=job.spec,
            shape=shape,
            runs_in=shape_of(job.spec, job.wanted) if job.wanted else None,
            steps_left=left,
            step_s=lambda shape: self.foresight.step_s(job, shape),
            pause_s=self.pause_s,
            kappa=self.kappa,
        )

    def _order(
        self, memory: _Memory, jobs: Sequence[JobView], sized: dict[str, Sized]
    ) -> list[JobView]:
        """By level of the feedback queue, running first, then by Borda count.

        Once in a moment: stopping a job is an event too, and must not turn the order round.
        """
        if all(job.id in memory.places for job in jobs):
            return sorted(jobs, key=lambda job: memory.places[job.id])
        attained = ranks({job.id: memory.service[job.id] for job in jobs})
        benefit = ranks({job_id: -one.benefit() for job_id, one in sized.items()})
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


def ranks(values: dict[str, float]) -> dict[str, float]:
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


def _whole(view: View) -> Cost:
    """What all usable nodes have."""
    gpus = view.gpus_per_node()
    cores = sum(node.cpu_milli for node in view.nodes()) / 1000
    return Cost(int(gpus.sum()), cores)


def _admit(order: Iterable[JobView], memory: _Memory, whole: Cost) -> tuple[list[JobView], Cost]:
    """The jobs that fit in this order, and what they leave."""
    admitted, free = [], whole
    for job in order:
        cost = cost_of(memory.shapes[job.id])
        if cost.within(free):
            admitted.append(job)
            free = free - cost
    return admitted, free


def _carry_out(
    draft: Draft,
    order: Sequence[JobView],
    admitted: Sequence[JobView],
    memory: _Memory,
    now_s: float,
) -> None:
    """Stop whom the plan moves, then place in order.

    A resized job that finds no room in its new shape stays in the old one; a job for which there
    are devices enough, but not on the right nodes, lets those behind it try.
    """
    chosen = {job.id for job in admitted}
    before: dict[str, Shape] = {}
    for job in order:
        if job.wanted and job.id not in chosen:
            draft.stop(job, StopReason.PREEMPTED_FOR_PRIORITY)
        elif job.wanted and (ran := shape_of(job.spec, job.wanted)) != memory.shapes[job.id]:
            before[job.id] = ran
            draft.stop(job, StopReason.RESIZED)
    room = Room.of(draft)
    for job in [*admitted, *(job for job in order if job.id not in chosen)]:
        if job.wanted:
            continue
        shares = room.place(memory.shapes[job.id])
        if shares is None and job.id in before:
            memory.shapes[job.id] = before[job.id]
            shares = room.place(before[job.id])
        if shares is None or draft.start(job, shares) is not None:
            draft.wait(job, _waits(memory.shapes[job.id], room, now_s))


def _waits(shape: Shape, room: Room, now_s: float) -> Reason:
    return Reason(
        code=ReasonCode.WAITING_FOR_GPUS,
        since_s=now_s,
        asked=shape.gpus,
        available=sum(room.gpus),
        unit="GPUs",
        unblocks="jobs with a smaller Borda count come first",
    )

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

Real jobs (`live_forecast`) are known by what they report. Published times are for restarts of a
minute; among real jobs all of them are as much shorter or longer as restarts are seen to be. What
the guard refuses (watts, a quota, a stopped queue) is left out and the rest is planned again, so
that nobody is stopped or made smaller for a job that may not start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from wattherd.estimate.speed import JobShape, asked_shape, shape_of
from wattherd.model.reason import Reason, ReasonCode, StopReason
from wattherd.policy.contract import Draft, JobView, View
from wattherd.policy.schedule.aiturbo_swaps import JobInSizing, ShapeTable, settle, spread, swap
from wattherd.policy.schedule.gang_placement import GangRoom
from wattherd.policy.schedule.resize import ShapeDevices, cost_of, has_shape
from wattherd.policy.schedule.shape_changes import place_shape, start_narrower
from wattherd.policy.schedule.speed_forecast import SpeedForecast, resized_words, tempo_of

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
FIRST_LEVEL_S = 300.0
"""The same in time, among real jobs: of whatever a job there asks for in the median."""
YOUNG_S = 1800.0
OF_WATTS = (ReasonCode.WAITING_FOR_POWER, ReasonCode.WAITING_FOR_BUDGET_RISE)
MOST_LOOK_S = 10.0
"""Between looks at real jobs, also before any restart was seen."""
MOST_TRIES = 5
"""So often a plan is made without what the guard refused, then no job is resized."""


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
    """`pause_s` is what a change of shape is taken to cost a job; `sizes_all` as above.

    One that `recalls` asks the core what a job has received that it does not know: on Kubernetes a
    job is held between two runs, until its pods are made, and cores change with the nodes.
    """

    foresight: SpeedForecast
    thresholds: tuple[float, ...] = THRESHOLDS
    adapt_s: float = ADAPT_S
    look_s: float = LOOK_S
    pause_s: float = 60.0
    sizes_all: bool = True
    recalls: bool = False

    def plan(self, view: View, draft: Draft) -> None:
        """Order, admit, and, when it is due, resize."""
        memory: _Memory = view.memory.setdefault("aiturbo", _Memory())
        jobs, whole = view.live(), _whole(view)
        kappa = KAPPA_OF_RATIO * whole.cores / max(whole.gpus, 1)
        tempo = tempo_of(self.foresight, view, jobs)
        turned = self._note(view, memory, jobs, kappa)
        due = turned or view.now_s >= memory.adapted_s + tempo * self.adapt_s
        # A service plans at the end of an instant, which is a wake-up, too: news come with it.
        if view.woke and not due and not self.foresight.learns:
            self._wake(view, draft, memory, tempo)
            return
        if due:
            memory.adapted_s = view.now_s
        setting = _Setting(view, draft, memory, jobs, whole, kappa, tempo, due)
        barred: frozenset[str] = frozenset()
        shapes = dict(memory.shapes)
        for _ in range(MOST_TRIES):
            mark = draft.mark() if self.foresight.learns else 0
            refused, short = self._propose(setting, barred)
            powered = sum(len(one.gpus) for job in jobs for one in job.wanted)
            counts = short and 0 < powered < setting.whole.gpus
            if not (self.foresight.learns and (refused - barred or counts)):
                break
            draft.undo(mark)
            memory.shapes = dict(shapes)
            if counts:  # no more GPUs than that can be had, whoever they go to
                setting = replace(setting, whole=ShapeDevices(powered, whole.cores))
            else:
                barred |= refused
        else:
            self._propose(setting, frozenset(job.id for job in jobs))
        self._wake(view, draft, memory, tempo)

    def _propose(self, setting: _Setting, barred: frozenset[str]) -> tuple[frozenset[str], bool]:
        """One plan; those of whom the guard refused what others had to give way for.

        And whether watts were short.

        Nobody is resized, or given what others hold, who is `barred`.
        """
        view, draft, memory, jobs = setting.view, setting.draft, setting.memory, setting.jobs
        sized = {
            job.id: one
            for job in jobs
            if (one := self._sized(setting, job)) is not None
            and not (job.wanted and job.id in barred)
        }
        order = self._order(setting, sized)
        turns = [job for job in order if job.wanted or job.id not in barred]
        admitted, free = _admit(turns, memory.shapes, sized, setting.whole, due=setting.due)
        if setting.due:
            mine = [sized[job.id] for job in admitted if job.id in sized]
            free = swap(mine, free)
            if len(admitted) == len(jobs):
                spread(mine, free, setting.whole)
        memory.shapes.update((job_id, one.shape) for job_id, one in sized.items())
        why = partial(self._why, view, sized) if self.foresight.learns else None
        return _carry_out(view, draft, order, admitted, memory, why)

    def _why(
        self, view: View, sized: Mapping[str, JobInSizing], job: JobView, ran: JobShape
    ) -> str:
        """Why a job is resized, for its story."""
        one = sized.get(job.id)
        if one is None:
            return f"resized from {ran.gpus} GPUs"
        sources = self.foresight.sources(view, job, one.shape)
        times_s = one.time_s(ran), one.time_s(one.shape)
        return resized_words(ran, one.shape, times_s, one.pause_s, sources)

    def _pause_s(self, view: View, job: JobView) -> float:
        pause_s = self.foresight.pause_s(view, job)
        return self.pause_s if pause_s is None else pause_s

    def _wake(self, view: View, draft: Draft, memory: _Memory, tempo: float) -> None:
        """At the next moment at which reports come in, or sizes are due."""
        every_s = tempo * self.look_s
        if self.foresight.learns:
            every_s = min(every_s, MOST_LOOK_S)
        look_s = (math.floor(view.now_s / every_s) + 1) * every_s
        if view.live():
            due_s = memory.adapted_s + tempo * self.adapt_s
            draft.wake_at(max(min(look_s, due_s), view.now_s))

    def _note(self, view: View, memory: _Memory, jobs: Sequence[JobView], kappa: float) -> bool:
        """Book attained service and take reports in; whether a job turned predictable."""
        now_s, live = view.now_s, {job.id: job for job in jobs}
        if self.foresight.learns:  # step times are others now
            memory.atlases.clear()
        self.foresight.forget(live, memory.seen)
        for gone in [one for one in memory.service if one not in live]:
            del memory.service[gone], memory.shapes[gone]
            memory.atlases.pop(gone, None)
        passed, memory.at_s = now_s - memory.at_s, now_s
        if passed:
            memory.places.clear()
        turned = False
        for job in jobs:
            recalled = self.recalls and job.id not in memory.service
            memory.service.setdefault(job.id, _received(job, kappa, now_s) if recalled else 0.0)
            if self.foresight.learns:
                memory.shapes[job.id] = _present(job, memory.shapes.get(job.id))
            memory.shapes.setdefault(job.id, asked_shape(job.spec))
            if job.wanted and passed and not recalled:
                cost = cost_of(shape_of(job.spec, job.wanted))
                memory.service[job.id] += passed * (kappa * cost.gpus + cost.cores)
            turned |= self.foresight.note(view, job, memory.seen)
        return turned

    def _sized(self, setting: _Setting, job: JobView) -> JobInSizing | None:
        """A job that may be resized, in its present shape; None for others."""
        view, memory = setting.view, setting.memory
        if not has_shape(job.spec):
            return None
        atlas = setting.atlases.get(job.id) or memory.atlases.get(job.id)
        if atlas is None:
            atlas = ShapeTable(job.spec, lambda shape: self.foresight.step_s(view, job, shape))
            # What is learned may be another at the next plan, and is no part of the state.
            keeps = setting.atlases if self.foresight.learns else memory.atlases
            keeps[job.id] = atlas
        left = self.foresight.steps_left(view, job, memory.seen)
        told, asked_s = left is not None, atlas.at(asked_shape(job.spec)).step_s
        if left is None and self.sizes_all:
            left = self.foresight.guessed_steps(view, job, asked_s, setting.tempo * YOUNG_S)
        if left is None or not math.isfinite(atlas.at(memory.shapes[job.id]).step_s):
            return None
        return JobInSizing(
            number=job.number,
            atlas=atlas,
            shape=memory.shapes[job.id],
            runs_in=shape_of(job.spec, job.wanted) if job.wanted else None,
            steps_left=left,
            pause_s=self._pause_s(view, job),
            kappa=setting.kappa,
            told=told,
        )

    def _order(self, setting: _Setting, sized: Mapping[str, JobInSizing]) -> list[JobView]:
        """By level of the feedback queue, running first, then by Borda count.

        Once in a moment: stopping a job is an event too, and must not turn the order round.
        """
        memory, jobs = setting.memory, setting.jobs
        if all(job.id in memory.places for job in jobs):
            return sorted(jobs, key=lambda job: memory.places[job.id])
        first = self._first_level(setting)
        attained = ranks({job.id: float(_octave(memory.service[job.id], first)) for job in jobs})
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

    def _first_level(self, setting: _Setting) -> float:
        """Attained service up to which jobs are alike."""
        if not self.foresight.learns:
            return FIRST_LEVEL
        costs = [cost_of(asked_shape(job.spec)) for job in setting.jobs]
        prices = sorted(setting.kappa * one.gpus + one.cores for one in costs)
        return FIRST_LEVEL_S * setting.tempo * max(prices[len(prices) // 2], 1e-3)


@dataclass(frozen=True, slots=True)
class _Setting:
    """What all tries of one plan have in common."""

    view: View
    draft: Draft
    memory: _Memory
    jobs: Sequence[JobView]
    whole: ShapeDevices
    kappa: float
    tempo: float
    due: bool
    atlases: dict[str, ShapeTable] = field(default_factory=dict)
    """Of real jobs, for this plan."""


def _received(job: JobView, kappa: float, now_s: float) -> float:
    """Service by the core's own books, at the width that the job asked for."""
    cost = cost_of(asked_shape(job.spec))
    return kappa * job.service_gpu_s(now_s) + cost.cores * job.service_s(now_s)


def _present(job: JobView, known: JobShape | None) -> JobShape:
    """The shape in which a job runs, for the core makes jobs narrower, too; else the one chosen."""
    if job.wanted:
        return shape_of(job.spec, job.wanted)
    asked = asked_shape(job.spec)
    if known is None or known.workers not in job.spec.counts(0):  # its user has changed it since
        return asked
    return known


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


def _octave(service: float, first: float) -> int:
    """How often a first level has doubled: what jobs are compared by."""
    return math.floor(math.log2(max(service / first, 1.0)))


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
    why: Callable[[JobView, JobShape], str] | None,
) -> tuple[frozenset[str], bool]:
    """Stop whom the plan moves, then place in order.

    Returns whom the guard refused after a stop, and whether watts were short for anybody.

    A resized job that finds no room in its new shape stays in the old one; a job for which there
    are devices enough, but not on the right nodes, lets those behind it try. A real job (of which
    it is said `why` it is resized) starts narrower where its shape is refused.
    """
    before, stops = _stop_moved(draft, order, admitted, memory.shapes)
    chosen = {job.id for job in admitted}
    short = False
    room = GangRoom.of(draft)
    refused: set[str] = set()
    for job in [*admitted, *(job for job in order if job.id not in chosen)]:
        if job.wanted:
            continue
        shares = place_shape(room, view, draft, job, memory.shapes[job.id])
        if shares is None and job.id in before:
            memory.shapes[job.id] = before[job.id]
            shares = place_shape(room, view, draft, job, before[job.id])
        refusal = None if shares is None else draft.start(job, shares)
        if shares is None or refusal is not None:
            if refusal is not None:
                room = GangRoom.of(draft)
                short |= refusal.code in OF_WATTS
            if why is not None and job.id not in before and start_narrower(room, view, draft, job):
                memory.shapes[job.id] = shape_of(job.spec, job.wanted)
                continue
        else:
            if not has_shape(job.spec):
                room = GangRoom.of(draft)
            if why is not None and job.id in before and memory.shapes[job.id] != before[job.id]:
                draft.tell(job, why(job, before[job.id]))
            continue
        if stops and (job.id in before or (job.id in chosen and refusal is not None)):
            refused.add(job.id)
        draft.wait(job, refusal or _waits(memory.shapes[job.id], room, view.now_s))
    return frozenset(refused), short


def _stop_moved(
    draft: Draft,
    order: Sequence[JobView],
    admitted: Sequence[JobView],
    shapes: Mapping[str, JobShape],
) -> tuple[dict[str, JobShape], bool]:
    """Stop who is not admitted or has another shape; those shapes before, and whether any did."""
    chosen = {job.id for job in admitted}
    before: dict[str, JobShape] = {}
    stops = False
    for job in order:
        if not job.wanted:
            continue
        ran = shape_of(job.spec, job.wanted)
        if job.id not in chosen:
            draft.stop(job, StopReason.PREEMPTED_FOR_PRIORITY)
        elif ran != shapes[job.id]:
            before[job.id] = ran
            draft.stop(job, StopReason.RESIZED)
        else:
            continue
        stops = True
    return before, stops


def _waits(shape: JobShape, room: GangRoom, now_s: float) -> Reason:
    return Reason(
        code=ReasonCode.WAITING_FOR_GPUS,
        since_s=now_s,
        asked=shape.gpus,
        available=sum(room.gpus),
        unit="GPUs",
        unblocks="jobs with a smaller Borda count come first",
    )

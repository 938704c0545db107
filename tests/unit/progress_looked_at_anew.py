"""Our planner as it was written first: every plan looks at every job, one after the other.

Slow and plain. `test_progress_per_watt_growth.py` holds the quick one against it, decision by
decision.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from wattherd.catalog.gpus import GPUS
from wattherd.estimate.speed import JobShape, asked_shape, shape_of
from wattherd.model.reason import Reason, ReasonCode
from wattherd.policy.contract import Draft, JobView, View
from wattherd.policy.eligibility import able_nodes, eligibility_key, inside
from wattherd.policy.schedule.gang_placement import GangRoom
from wattherd.policy.schedule.job_progress import JobProgress, WorkLeft, young_s
from wattherd.policy.schedule.overdue import IN_VAIN, OWED_PART, PATIENCE, make_room
from wattherd.policy.schedule.progress_per_watt import LOOK_S, MOST_TRIES, SCALING
from wattherd.policy.schedule.resize import has_shape
from wattherd.policy.schedule.shape_changes import change_shapes, model_masks, start_narrower

OF_WATTS = (ReasonCode.WAITING_FOR_POWER, ReasonCode.WAITING_FOR_BUDGET_RISE)


@dataclass(slots=True)
class _Memory:
    seen: dict[str, Any] = field(default_factory=dict)
    at_s: float = 0.0
    waiting: set[str] = field(default_factory=set)
    """Who got nothing of the last plan."""
    waited_s: dict[str, float] = field(default_factory=dict)
    in_vain_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Way:
    """A way of running: `per_s` progress a second, restart included, over one GPU of the fastest.

    `model` None: on no one model alone. `price` is watts, as a part of all there are.
    """

    model: str | None
    shape: JobShape
    per_s: float
    price: float


@dataclass(slots=True)
class _Bid:
    """A job in the loop."""

    job: JobView
    ways: Sequence[_Way]
    left: WorkLeft
    left_s: float
    own_s: float
    """What is left, at the width that it asks for on its fastest model."""
    pause_s: float = 0.0
    weight: float = 0.0
    owed: bool = False
    way: _Way | None = None

    def best(self, free: Mapping[str | None, int]) -> tuple[float, _Way] | None:
        """The way of most gain for its price among those that fit; None if nothing is gained."""
        now, paid = (0.0, 0.0) if self.way is None else (self.way.per_s, self.way.price)
        found: tuple[float, _Way] | None = None
        for one in self.ways:
            if one.per_s <= now or not self._fits(one, free):
                continue
            # What costs nothing more is gained for nothing.
            gain = self.weight * (one.per_s - now) / max(one.price - paid, 1e-9)
            if found is None or gain > found[0]:
                found = gain, one
        if found is not None and self.owed and self.way is None:
            return math.inf, found[1]
        return found

    def _fits(self, way: _Way, free: Mapping[str | None, int]) -> bool:
        have = 0 if self.way is None else self.way.shape.gpus
        beside = have if self.way is not None and self.way.model == way.model else 0
        return way.shape.gpus <= free[way.model] + beside and way.shape.gpus <= free[None] + have


@dataclass(frozen=True, slots=True)
class _Site:
    """What is the same for all jobs of a plan; `watts` are the most that all GPUs draw."""

    view: View
    watts: float
    known: dict[object, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, view: View) -> _Site:
        """As it is now."""
        return cls(view, sum(_watts(one.gpu_model) * one.gpu_count for one in view.nodes()) or 1.0)

    def rooms(self, job: JobView) -> Mapping[str, int]:
        """Tasks of its first role by GPU model, on empty nodes on which it may run."""
        spec = job.spec
        unit = max(spec.roles[0].gpu_count, 1)
        key = unit, spec.gpu_models, eligibility_key(self.view, spec)
        found = self.known.get(key)
        if found is None:
            each = inside(self.view.gpus_per_node() // unit, able_nodes(self.view, spec))
            found = self.known[key] = {}
            for node, count in zip(self.view.nodes(), each.tolist(), strict=True):
                if node.gpu_count and (not spec.gpu_models or node.gpu_model in spec.gpu_models):
                    found[node.gpu_model] = found.get(node.gpu_model, 0) + count
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedAtAnew:
    """As `ProgressPerWatt`, with all jobs looked at at every plan."""

    progress: JobProgress
    scaling: float = SCALING
    look_s: float | None = LOOK_S
    patience: float = PATIENCE
    owed_part: float = OWED_PART

    def plan(self, view: View, draft: Draft) -> None:
        """One loop over all jobs; what the guard refuses is planned around."""
        memory: _Memory = view.memory.setdefault("progress-per-watt", _Memory())
        jobs = view.live()
        self._note(view, memory, jobs)
        usual_s = self.progress.usual_pause_s
        pauses_s = {job.id: usual_s for job in jobs} | dict(self.progress.pauses_s(view, jobs))
        young = young_s(pauses_s)
        site = _Site.of(view)
        bids = {job.id: self._bid(site, memory, job, pauses_s[job.id], young) for job in jobs}
        weigh([one for one in bids.values() if one.ways], self.scaling)
        self._owe(memory, bids, view.gpu_total())
        before = {job.id: job.wanted for job in jobs}
        barred: frozenset[str] = frozenset()
        most = view.gpu_total()
        for last in range(1, MOST_TRIES + 1):
            mark = draft.mark()
            able = {name: one for name, one in bids.items() if name not in barred}
            if last == MOST_TRIES:  # then nobody is moved
                able = {name: one for name, one in able.items() if before[name]}
                _stay(able)
            else:
                self._choose(view, able, most)
            refused = self._carry_out(view, draft, able)
            stopped = any(before[job.id] and job.wanted != before[job.id] for job in jobs)
            if not refused or not stopped or last == MOST_TRIES:
                break
            powered = sum(len(one.gpus) for job in jobs for one in job.wanted)
            draft.undo(mark)
            if any(why.code in OF_WATTS for why in refused.values()) and 0 < powered < most:
                most = powered  # no more can be had, whoever they go to
            else:
                barred |= frozenset(refused)
        self._serve_owed(view, draft, memory, bids)
        self._serve_important(view, draft, bids)
        self._rest(view, draft, jobs, bids)
        memory.waiting = {job.id for job in jobs if not job.wanted}
        if self.look_s is not None and jobs:
            draft.wake_at(view.now_s + self.look_s)

    def _note(self, view: View, memory: _Memory, jobs: Sequence[JobView]) -> None:
        passed_s, memory.at_s = view.now_s - memory.at_s, view.now_s
        live = {job.id for job in jobs}
        for gone in [name for name in memory.seen if name not in live]:
            del memory.seen[gone]
            memory.waited_s.pop(gone, None)
            memory.in_vain_s.pop(gone, None)
        for name in memory.waiting & live:
            memory.waited_s[name] = memory.waited_s.get(name, 0.0) + passed_s
        for job in jobs:
            done, per_s = memory.seen.get(job.id, (0.0, 0.0))
            held = [one for one in job.wanted if one.gpus]
            model = view.nodes()[held[0].node].gpu_model if held else ""
            width = sum(len(one.gpus) for one in held)
            now = self.progress.units_per_s(view, job, model, width) if held else 0.0
            memory.seen[job.id] = done + passed_s * per_s, now

    # What may be had ----------------------------------------------------------------------------

    def _bid(
        self, site: _Site, memory: _Memory, job: JobView, pause_s: float, young: float
    ) -> _Bid:
        """All ways of a job, each with what it brings."""
        view, spec, rooms = site.view, job.spec, site.rooms(job)
        asked = asked_shape(spec)
        unit = spec.roles[0].gpu_count
        if not asked.gpus:
            free = _Way(None, asked, 1.0, 0.0)
            return _Bid(job, (free,), WorkLeft(1.0, told=False, source=""), 0.0, 0.0)
        models = [model for model, room in rooms.items() if room] or list(rooms)
        ones = {model: self.progress.units_per_s(view, job, model, 1) for model in models}
        one_per_s = max(ones.values(), default=1.0)
        held = [view.nodes()[one.node].gpu_model for one in job.wanted if one.gpus]
        asked_per_s = max(
            (self.progress.units_per_s(view, job, model, asked.gpus) for model in models),
            default=1.0,
        )
        left = self.progress.left(view, job, memory.seen[job.id][0], asked_per_s, young)
        runs_in = shape_of(spec, job.wanted) if job.wanted and has_shape(spec) else None

        def way(model: str | None, shape: JobShape) -> _Way:
            on = model or min(models, key=lambda one: ones[one])
            per_s = self.progress.units_per_s(view, job, on, shape.gpus)
            stays = job.wanted and (
                (runs_in == shape and held[:1] == [on]) or (runs_in is None and shape == asked)
            )
            time_s = left.units / per_s + (0.0 if stays else pause_s)
            return _Way(model, shape, left.units / time_s / one_per_s,
                        _watts(on) * shape.gpus / site.watts)  # fmt: skip

        shapes = [asked]
        if has_shape(spec):
            shapes = [replace(asked, workers=count, gpus=count * unit) for count in spec.counts(0)]
        ways = [
            way(model, shape)
            for model in models
            for shape in shapes
            if shape.gpus <= rooms[model] * unit or (len(spec.roles) > 1 and rooms[model])
        ]
        if not ways:  # on no model alone: at its narrowest across several
            ways = [way(None, min(shapes, key=lambda one: one.gpus))]
        own_s = left.units / asked_per_s
        return _Bid(job, tuple(ways), left, left.units / one_per_s, own_s, pause_s)

    def _owe(self, memory: _Memory, bids: Mapping[str, _Bid], most: int) -> None:
        """Note who waited too long and begins before others: the first, and who fits beside it."""
        late = []
        for name, one in bids.items():
            one.owed = False
            patience_s = self.patience * (one.own_s + one.pause_s)
            bound_s = max(patience_s, memory.in_vain_s.get(name, 0.0))
            if _least(one) and memory.waited_s.get(name, 0.0) > bound_s:
                late.append(one)
        late.sort(key=lambda one: (-one.job.spec.priority, one.job.number))
        gpus = 0
        for number, one in enumerate(late):
            gpus += _least(one)
            if number and gpus > self.owed_part * most:
                break
            one.owed = True

    def _serve_owed(
        self, view: View, draft: Draft, memory: _Memory, bids: Mapping[str, _Bid]
    ) -> None:
        """Stop others for those that are owed GPUs and did not find room."""
        again = True
        while again:
            again = False
            for bid in [one for one in _owed(bids) if not one.job.wanted]:
                job = bid.job
                others = [
                    one
                    for one in bids.values()
                    if any(share.gpus for share in one.job.wanted)
                    and not one.owed
                    and one.job.spec.priority <= job.spec.priority
                ]
                others.sort(key=lambda one: (one.job.spec.priority, one.weight, -one.job.number))
                make_room(view, draft, job, [one.job for one in others], model_masks(view))
                if not job.wanted:
                    memory.in_vain_s[job.id] = IN_VAIN * memory.waited_s[job.id]
                    again = True
            if again:
                self._owe(memory, bids, view.gpu_total())

    def _serve_important(self, view: View, draft: Draft, bids: Mapping[str, _Bid]) -> None:
        """Stop less important jobs for those that wait where free GPUs lie apart."""
        looked_at: set[str] = set()
        while True:
            turn = [one for one in bids.values() if not one.job.wanted]
            turn = [one for one in turn if one.job.id not in looked_at and _below(bids, one)]
            if not turn:
                return
            first = min(turn, key=lambda one: (-one.job.spec.priority, one.left_s, one.job.number))
            looked_at.add(first.job.id)
            below = [one.job for one in _below(bids, first)]
            make_room(view, draft, first.job, below, model_masks(view))

    def _choose(self, view: View, bids: Mapping[str, _Bid], most: int) -> None:
        """The loop; free GPUs by model, and under None of all together."""
        free: dict[str | None, int] = {None: most}
        for node, count in zip(view.nodes(), view.gpus_per_node().tolist(), strict=True):
            free[node.gpu_model] = free.get(node.gpu_model, 0) + count
        heap: list[tuple[int, float, int, str, _Way]] = []
        lowest = min((one.job.spec.priority for one in bids.values()), default=0)

        def put(one: _Bid) -> None:
            found = one.best({**free, None: free[None]})
            if found is not None:
                above = one.job.spec.priority - lowest if one.way is None else 0
                heapq.heappush(heap, (-above, -found[0], one.job.number, one.job.id, found[1]))

        for one in bids.values():
            one.way = None
        for one in bids.values():
            put(one)
        while heap:
            _, gain, _, name, way = heapq.heappop(heap)
            one = bids[name]
            now = one.best(free)
            if now is None:
                continue
            if now[1] is not way or -gain != now[0]:
                put(one)
                continue
            for model in {None, None if one.way is None else one.way.model}:
                free[model] += 0 if one.way is None else one.way.shape.gpus
            for model in {None, way.model}:
                free[model] -= way.shape.gpus
            one.way = way
            put(one)

    # Carrying it out ----------------------------------------------------------------------------

    def _carry_out(self, view: View, draft: Draft, bids: Mapping[str, _Bid]) -> dict[str, Reason]:
        """Propose it; those who were chosen and refused, and why."""
        chosen = {name: one for name, one in bids.items() if one.way is not None}
        shapes = {name: one.way.shape for name, one in chosen.items() if one.way is not None}
        models = {
            name: one.way.model
            for name, one in chosen.items()
            if one.way is not None and one.way.model is not None
        }
        refused: dict[str, Reason] = {}
        order = sorted((one.job for one in bids.values()), key=lambda job: _place(bids[job.id]))

        def waits(job: JobView) -> Reason:
            return _waits(job, draft, view.now_s)

        change_shapes(
            view, draft, order, shapes, partial(self._why, view, bids), waits,
            models=models, refused=refused,
        )  # fmt: skip
        return {
            name: refused.get(name) or waits(one.job)
            for name, one in chosen.items()
            if not one.job.wanted
        }

    def _why(
        self, view: View, bids: Mapping[str, _Bid], job: JobView, before: JobShape, after: JobShape
    ) -> str:
        """For its story: what is left, how sure, and what the change brings."""
        one = bids[job.id]
        model = "" if one.way is None or one.way.model is None else one.way.model
        per_s = [
            self.progress.units_per_s(view, job, model, shape.gpus) for shape in (before, after)
        ]
        pause_s = one.pause_s
        now_s, then_s = (one.left.units / max(rate, 1e-12) for rate in per_s)
        place = sum(other.left_s < one.left_s for other in bids.values()) + 1
        return (
            f"resized from {before.gpus} to {after.gpus} GPUs: {now_s:,.0f} s to go before, "
            f"{then_s + pause_s:,.0f} s after, of which {pause_s:,.1f} s for the restart; "
            f"{place} of {len(bids)} by what is left ({one.left.source}, speed at this width: "
            f"{self.progress.speed_source(view, job, model, after.gpus)})"
        )

    def _rest(
        self, view: View, draft: Draft, jobs: Sequence[JobView], bids: Mapping[str, _Bid]
    ) -> None:
        """What is left over goes to those that wait, by priority, then the shortest first.

        Nobody is stopped.
        """

        def turn(job: JobView) -> tuple[float, float, int]:
            return -job.spec.priority, bids[job.id].left_s, job.number

        for job in sorted((job for job in jobs if not job.wanted), key=turn):
            if draft.free_gpu_total() < job.spec.least_gpus or not start_narrower(
                GangRoom.of(draft), view, draft, job
            ):
                draft.wait(job, _waits(job, draft, view.now_s))


def _below(bids: Mapping[str, _Bid], first: _Bid) -> list[_Bid]:
    """Who runs on GPUs and is less important, the least important first."""
    found = [
        one
        for one in bids.values()
        if any(share.gpus for share in one.job.wanted)
        and one.job.spec.priority < first.job.spec.priority
    ]
    return sorted(
        found, key=lambda one: (one.job.spec.priority, one.owed, one.weight, -one.job.number)
    )


def weigh(bids: Sequence[_Bid], scaling: float) -> None:
    """Weights by rank, the job with most left first; equal times by order of submission."""
    order = sorted(bids, key=lambda one: (-one.left_s, -one.job.number))
    for rank, one in enumerate(order, start=1):
        one.weight = float((rank**scaling - (rank - 1) ** scaling) ** (1 / scaling))


def _stay(bids: Mapping[str, _Bid]) -> None:
    """Everybody as they are."""
    for one in bids.values():
        shape = shape_of(one.job.spec, one.job.wanted) if has_shape(one.job.spec) else None
        same = [way for way in one.ways if shape is None or way.shape == shape]
        one.way = same[0] if same else replace(one.ways[0], shape=shape or one.ways[0].shape)
        one.way = replace(one.way, model=None)


def _owed(bids: Mapping[str, _Bid]) -> list[_Bid]:
    owed = [one for one in bids.values() if one.owed]
    return sorted(owed, key=lambda one: (-one.job.spec.priority, one.job.number))


def _least(bid: _Bid) -> int:
    return min(way.shape.gpus for way in bid.ways)


def _place(bid: _Bid) -> tuple[bool, bool, float, int]:
    return not bid.job.wanted, not bid.owed, -bid.weight, bid.job.number


def _watts(gpu_model: str) -> float:
    """The most that one draws; where nobody knows, all are alike."""
    known = GPUS.get(gpu_model)
    return 1.0 if known is None else known.max_w


def _waits(job: JobView, draft: Draft, now_s: float) -> Reason:
    return Reason(
        code=ReasonCode.WAITING_FOR_GPUS,
        since_s=now_s,
        asked=job.spec.least_gpus,
        available=draft.free_gpu_total(),
        unit="GPUs",
        unblocks="others gain more for the same watts",
    )

"""What a job may have and what that brings it: the bids of `progress_per_watt`.

The options of a job are the ways in which it could run on this cluster, each with its speed and its
price. They follow from its specification and from what is known of speeds. A bid adds what is left
of the job and what a restart costs it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from wattherd.catalog.gpus import GPUS
from wattherd.estimate.job_kind import job_kind
from wattherd.estimate.speed import JobShape, asked_shape, shape_of
from wattherd.model.job import JobSpec
from wattherd.policy.contract import JobView, View
from wattherd.policy.eligibility import NodeMask, able_nodes, eligibility_key, inside
from wattherd.policy.schedule.job_progress import JobProgress, WorkLeft
from wattherd.policy.schedule.resize import has_shape
from wattherd.policy.schedule.shape_changes import model_masks

MOST_KEPT = 4096
"""Kinds of jobs of which options are kept; masks of nodes change, and with them the kinds."""


@dataclass(frozen=True, slots=True)
class Option:
    """A way of running: `per_s` units a second on GPUs of model `on`, before restarts count.

    `model` None: on no one model alone. `price` is watts, as a part of all there are.
    """

    model: str | None
    on: str
    shape: JobShape
    per_s: float
    price: float


@dataclass(frozen=True, slots=True)
class Options:
    """All ways of a job; `one_per_s` units a second on one GPU of its fastest model."""

    ways: tuple[Option, ...]
    shaped: bool
    one_per_s: float = 1.0
    asked_per_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Way:
    """A way of running: `per_s` progress a second, restart included, over one GPU of the fastest.

    `model` None: on no one model alone. `price` is watts, as a part of all there are.
    """

    model: str | None
    shape: JobShape
    per_s: float
    price: float


@dataclass(slots=True)
class Bid:
    """A job in the loop."""

    job: JobView
    ways: Sequence[Way]
    left: WorkLeft
    left_s: float
    pause_s: float = 0.0
    weight: float = 0.0
    owed: bool = False
    """It begins before all others of its priority."""
    way: Way | None = None

    def best(self, free: Mapping[str | None, int]) -> tuple[float, Way] | None:
        """The way of most gain for its price among those that fit; None if nothing is gained."""
        now, paid = (0.0, 0.0) if self.way is None else (self.way.per_s, self.way.price)
        found: tuple[float, Way] | None = None
        for one in self.ways:
            if one.per_s <= now or not self._fits(one, free):
                continue
            # What costs nothing more is gained for nothing.
            gain = self.weight * (one.per_s - now) / max(one.price - paid, LEAST_PRICE)
            if found is None or gain > found[0]:
                found = gain, one
        if found is not None and self.owed and self.way is None:
            return math.inf, found[1]
        return found

    def _fits(self, way: Way, free: Mapping[str | None, int]) -> bool:
        have = 0 if self.way is None else self.way.shape.gpus
        beside = have if self.way is not None and self.way.model == way.model else 0
        return way.shape.gpus <= free[way.model] + beside and way.shape.gpus <= free[None] + have

    def stay(self) -> None:
        """The job has what it has."""
        shape = shape_of(self.job.spec, self.job.wanted) if has_shape(self.job.spec) else None
        same = [way for way in self.ways if shape is None or way.shape == shape]
        way = same[0] if same else replace(self.ways[0], shape=shape or self.ways[0].shape)
        self.way = replace(way, model=None)


LEAST_PRICE = 1e-9


@dataclass(slots=True)
class BidSite:
    """What is the same for all jobs of a plan, as long as the usable GPUs are the same.

    `watts` are the most that all GPUs draw; `room` are usable GPUs by model.
    """

    watts: float
    gpus: NDArray[np.int64]
    room: Mapping[str | None, int]
    masks: Mapping[str, NodeMask]
    """Nodes of each model."""
    _rooms: dict[object, dict[str, int]] = field(default_factory=dict)
    _options: dict[object, Options] = field(default_factory=dict)

    @classmethod
    def of(cls, view: View) -> BidSite:
        """As it is now."""
        gpus, room = view.gpus_per_node(), dict[str | None, int]()
        for node, count in zip(view.nodes(), gpus.tolist(), strict=True):
            room[node.gpu_model] = room.get(node.gpu_model, 0) + count
        watts = sum(max_w(one.gpu_model) * one.gpu_count for one in view.nodes()) or 1.0
        return cls(watts, gpus, room, model_masks(view))

    def holds(self, view: View) -> bool:
        """Whether the usable GPUs are still those."""
        return np.array_equal(view.gpus_per_node(), self.gpus)

    def options(self, view: View, progress: JobProgress, job: JobView) -> Options:
        """All ways of a job; the same for jobs alike of which nothing was learned."""
        if progress.varies(view, job):
            return self._worked_out(view, progress, job)
        rates, spec = view.rates, job.spec
        key = (
            spec.roles, spec.min_width, spec.max_width, spec.gpu_models, spec.profile,
            spec.batch_size, job_kind(spec) if rates.learned_kinds.kinds else "",
            spec.id if spec.id in rates.learned_jobs else "", eligibility_key(view, spec),
        )  # fmt: skip
        found = self._options.get(key)
        if found is None:
            if len(self._options) >= MOST_KEPT:
                self._options.clear()
                self._rooms.clear()
            found = self._options[key] = self._worked_out(view, progress, job)
        return found

    def _worked_out(self, view: View, progress: JobProgress, job: JobView) -> Options:
        spec, shaped = job.spec, has_shape(job.spec)
        asked = asked_shape(spec)
        unit = spec.roles[0].gpu_count
        if not asked.gpus:
            return Options((Option(None, "", asked, 1.0, 0.0),), shaped)
        rooms = self._tasks(view, spec)
        models = [model for model, room in rooms.items() if room] or list(rooms)
        if not models:  # it fits nowhere
            return Options((Option(None, "", asked, 1.0, 0.0),), shaped)
        ones = {model: progress.units_per_s(view, job, model, 1) for model in models}
        shapes = [asked]
        if shaped:
            shapes = [replace(asked, workers=count, gpus=count * unit) for count in spec.counts(0)]

        def option(model: str | None, shape: JobShape) -> Option:
            on = model or min(models, key=lambda one: ones[one])
            per_s = progress.units_per_s(view, job, on, shape.gpus)
            return Option(model, on, shape, per_s, max_w(on) * shape.gpus / self.watts)

        ways = [
            option(model, shape)
            for model in models
            for shape in shapes
            if shape.gpus <= rooms[model] * unit or (len(spec.roles) > 1 and rooms[model])
        ]
        if not ways:  # on no model alone: at its narrowest across several
            ways = [option(None, min(shapes, key=lambda one: one.gpus))]
        asked_per_s = max(progress.units_per_s(view, job, model, asked.gpus) for model in models)
        return Options(tuple(ways), shaped, max(ones.values()), asked_per_s)

    def _tasks(self, view: View, spec: JobSpec) -> Mapping[str, int]:
        """Tasks of a job's first role by GPU model, on empty nodes on which it may run."""
        unit = max(spec.roles[0].gpu_count, 1)
        key = unit, spec.gpu_models, eligibility_key(view, spec)
        found = self._rooms.get(key)
        if found is None:
            each = inside(self.gpus // unit, able_nodes(view, spec))
            found = self._rooms[key] = {}
            for node, count in zip(view.nodes(), each.tolist(), strict=True):
                if node.gpu_count and (not spec.gpu_models or node.gpu_model in spec.gpu_models):
                    found[node.gpu_model] = found.get(node.gpu_model, 0) + count
        return found


def bid_of(view: View, job: JobView, options: Options, left: WorkLeft, pause_s: float) -> Bid:
    """What each way brings a job of which so much is left; `pause_s` is what a restart costs."""
    if not options.ways[0].shape.gpus:
        free = Way(None, options.ways[0].shape, 1.0, 0.0)
        return Bid(job, (free,), WorkLeft(1.0, told=False, source=""), 0.0)
    spec, wanted = job.spec, job.wanted
    model = next((view.nodes()[one.node].gpu_model for one in wanted if one.gpus), None)
    runs_in = shape_of(spec, wanted) if wanted and options.shaped else None
    asked = asked_shape(spec)

    def way(one: Option) -> Way:
        stays = wanted and (
            (runs_in == one.shape and model == one.on) or (runs_in is None and one.shape == asked)
        )
        time_s = left.units / one.per_s + (0.0 if stays else pause_s)
        return Way(one.model, one.shape, left.units / time_s / options.one_per_s, one.price)

    ways = tuple(way(one) for one in options.ways)
    return Bid(job, ways, left, left.units / options.one_per_s, pause_s)


def max_w(gpu_model: str) -> float:
    """The most that one draws; where nobody knows, all are alike."""
    known = GPUS.get(gpu_model)
    return 1.0 if known is None else known.max_w

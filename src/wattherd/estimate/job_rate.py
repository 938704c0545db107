"""How fast a job is on which devices: one function for planners, plants and reports.

A rate counts in the job's own work: 1 is the pace that the job states, `duration_s` seconds at its
full width on the GPU model for which that duration holds. Every rate says where it comes from:
measured (a table), learned from this job or from its kind, or the *prior*, a ratio of the
catalogue:

    prior(model) = sqrt(peak FP32 rate x memory bandwidth)

Training is bound by arithmetic in some layers and by memory in others; the geometric mean is the
middle of the two. Of 74 pairs of 1-GPU speeds that others measured (Sia, Gavel), half are within a
factor of 1.3 of it, nine in ten within 2.6; models with little work per sample are the worst
(`tests/golden/test_rate_prior.py`). It is a first guess, never a measurement.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache

from wattherd.catalog.gpus import near_rates, rates
from wattherd.errors import UserError
from wattherd.estimate.job_kind import job_kind
from wattherd.estimate.power_curve import CurveOf
from wattherd.model.job import JobSpec

HINT = "measure it (speed.table), or say that types are equal (speed.types: equal)"
SERIAL_SHARE = 0.3
"""Of a step on one GPU, what more GPUs do not shorten; a prior, where a job ran at one width only.
The median of 78 pairs of widths on one node, equal batch, that others measured (Pollux' and Sia's
profiles); nine in ten lie between 0.06 and 1.05 (`tests/golden/test_rate_prior.py`)."""


class RateSource(StrEnum):
    """Where a rate comes from, best first."""

    STATED = "stated"
    """It runs as it was stated: at its width, on the model for which its duration holds."""
    MEASURED = "measured"
    LEARNED_JOB = "learned from this job"
    LEARNED_KIND = "learned from its kind"
    FITTED = "fitted to the widths it ran at"
    PRIOR = "prior"
    EQUAL = "taken for equal"


@dataclass(frozen=True, slots=True)
class JobRate:
    """Seconds of a job's stated work that it does in a second, and where that comes from."""

    per_s: float
    source: RateSource


@cache
def prior_speed(gpu_model: str) -> float:
    """What the catalogue says of a model's speed, to be compared with that of another model.

    Raises:
        UserError: the catalogue has no peak rates of it.
    """
    found = rates(gpu_model)
    if found is None:
        near = ", ".join(near_rates(gpu_model))
        problem = f"nothing is known of the speed of {gpu_model!r}"
        raise UserError(problem, hint=f"{HINT}; known: {near}" if near else HINT)
    return math.sqrt(found.fp32 * found.memory_b_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint:
    """A kind of job does `per_s` of its own units (steps, samples) on so many devices.

    What is None was not told apart: it holds for any number of nodes, any batch, any accumulation.
    """

    kind: str
    gpu_model: str
    gpus: int
    per_s: float
    nodes: int | None = None
    batch: int | None = None
    accumulation: int | None = None

    def __post_init__(self) -> None:
        """Refuse what is no measurement."""
        if not (math.isfinite(self.per_s) and self.per_s > 0):
            raise UserError(f"{self.per_s} is no rate", field="rate", hint="above zero")
        if self.gpus < 1:
            raise UserError(f"{self.gpus} GPUs are none", field="gpus", hint="one or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWay:
    """How a job runs: devices, what they are, and how it splits its batch over them."""

    gpu_model: str
    gpus: int
    nodes: int | None = 1
    batch: int | None = None
    accumulation: int | None = None


class RateTable:
    """Points by kind, GPU model and width; between two widths of one model, on the line.

    The points that tell most apart go first: one measured for this batch before one for any.
    """

    def __init__(self, points: Iterable[RatePoint] = ()) -> None:
        """Points that differ in nothing but the rate: the last one counts."""
        self._points: dict[tuple[str, str], dict[int, list[RatePoint]]] = {}
        self._models: dict[str, list[str]] = {}
        for point in points:
            self._add(point)

    def put(self, kind: str, points: Iterable[RatePoint]) -> None:
        """These points, all of one kind, in place of all that are known of it."""
        for model in self._models.pop(kind, ()):
            del self._points[kind, model]
        for point in points:
            self._add(point)

    def _add(self, point: RatePoint) -> None:
        at = self._points.setdefault((point.kind, point.gpu_model), {})
        at.setdefault(point.gpus, []).append(point)
        models = self._models.setdefault(point.kind, [])
        if point.gpu_model not in models:
            insort(models, point.gpu_model)

    @property
    def kinds(self) -> Collection[str]:
        """Kinds of which something is known."""
        return self._models.keys()

    def models(self, kind: str) -> Sequence[str]:
        """GPU models on which a kind was measured, sorted."""
        return self._models.get(kind, ())

    def by_width(self, kind: str, gpu_model: str, batch: int | None) -> dict[int, float]:
        """Rates of a kind on one model by number of GPUs, wherever those were."""
        found: dict[int, float] = {}
        for gpus, points in self._points.get((kind, gpu_model), {}).items():
            fitting = [one for one in points if batch is None or one.batch in (None, batch)]
            if fitting:
                found[gpus] = min(fitting, key=lambda one: (one.nodes or 1, -one.per_s)).per_s
        return found

    def per_s(self, kind: str, way: RunWay) -> float | None:
        """The rate of a kind, None outside of what was measured."""
        widths = self._points.get((kind, way.gpu_model))
        if widths is None:
            return None
        if way.gpus in widths:
            return _best(widths[way.gpus], way)
        below = max((gpus for gpus in widths if gpus < way.gpus), default=None)
        above = min((gpus for gpus in widths if gpus > way.gpus), default=None)
        if below is None or above is None:
            return None
        low, high = _best(widths[below], way), _best(widths[above], way)
        if low is None or high is None:
            return None
        return low + (high - low) * (way.gpus - below) / (above - below)


def _best(points: Sequence[RatePoint], way: RunWay) -> float | None:
    fitting = [
        (sum(part is not None for part in parts), number, point.per_s)
        for number, point in enumerate(points)
        for parts in [(point.nodes, point.batch, point.accumulation)]
        if all(
            one is None or two is None or one == two
            for one, two in zip(parts, (way.nodes, way.batch, way.accumulation), strict=True)
        )
    ]
    return max(fitting)[2] if fitting else None


@dataclass(frozen=True, slots=True)
class _Relative:
    per_s: float
    exact: bool
    """Whether both ends of the ratio were measured; else the catalogue bridges what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRates:
    """The speed function of one cluster of GPU `models`.

    A job's duration holds on `durations_on`; where that is not said, on the slowest model of the
    cluster on which it may run, so that no job lasts longer than it states. With `equal` all models
    are as fast as each other, as they were before there was this function. `learned_jobs` has a
    table by job, the others are by kind, which is a job's `profile`. Where nothing was measured,
    fewer GPUs than a job asks for are slower in proportion, and more than that bring nothing.
    """

    models: tuple[str, ...] = ()
    durations_on: str | None = None
    equal: bool = False
    unknown_equal: bool = False
    measured: RateTable = field(default_factory=RateTable)
    learned_jobs: Mapping[str, RateTable] = field(default_factory=dict)
    learned_kinds: RateTable = field(default_factory=RateTable)
    curve_of: CurveOf | None = None
    _known: dict[object, JobRate] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse models of which nothing is known, before anything depends on them.

        Raises:
            UserError: one that the catalogue does not know, where there are several.
        """
        if self.differs and not self.unknown_equal:
            for model in dict.fromkeys((*self.models, self.durations_on)):
                if model is not None:
                    prior_speed(model)

    @property
    def differs(self) -> bool:
        """Whether a job's speed depends on the model of its GPUs at all."""
        models = {*self.models, *([] if self.durations_on is None else [self.durations_on])}
        return not self.equal and len(models) > 1

    @property
    def tabled(self) -> bool:
        """Whether anything was measured or learned."""
        kinds = (self.measured.kinds, self.learned_kinds.kinds, self.learned_jobs)
        return not self.equal and any(kinds)

    def rate(
        self,
        spec: JobSpec,
        gpu_model: str,
        *,
        gpus: int | None = None,
        nodes: int = 1,
        batch: int | None = None,
        accumulation: int | None = None,
        cap_w: float | None = None,
    ) -> JobRate:
        """How fast a job is on `gpus` GPUs (its own width if None) of a model on `nodes` nodes.

        `batch` (samples a step, the job's own if None) is split in `accumulation` further passes;
        both matter where tables tell them apart. `cap_w` (W per GPU, None: uncapped) slows it by
        its power curve, which has a source of its own.
        """
        wide = spec.gpus if gpus is None else gpus
        size = spec.batch_size if batch is None else batch
        way = RunWay(
            gpu_model=gpu_model, gpus=wide, nodes=nodes, batch=size, accumulation=accumulation
        )
        found = self._uncapped(spec, way)
        if cap_w is None or self.curve_of is None:
            return found
        curve = self.curve_of(spec, gpu_model)
        return JobRate(found.per_s * curve.rate(cap_w) / curve.rates[-1], found.source)

    def steps_per_s(self, spec: JobSpec, gpu_model: str, gpus: int) -> JobRate | None:
        """Steps a second on `gpus` GPUs of a model, without a cap; None if nothing was learned.

        What the job did at this width, else what its kind did, times by how much the job is faster
        where both ran. A width that neither ran at lies on
        T(w) = a + b / w through those that were run; through a single one with the share `a` of a
        prior (`SERIAL_SHARE`). From a model on which neither ran it is the catalogue's ratio away.
        """
        if gpus < 1:
            return None
        own, own_name = self.learned_jobs.get(spec.id), spec.id
        kind, kind_name = self.learned_kinds, self._kind(spec)
        batch = spec.batch_size
        of_job = {} if own is None else own.by_width(own_name, gpu_model, batch)
        of_kind = kind.by_width(kind_name, gpu_model, batch)
        if gpus in of_job:
            return JobRate(of_job[gpus], RateSource.LEARNED_JOB)
        # A job may be faster or slower than its kind: how a kind scales is told of it all the same.
        shared = sorted(of_job[width] / of_kind[width] for width in of_job if width in of_kind)
        level = shared[len(shared) // 2] if shared else 1.0
        of_kind = {width: level * per_s for width, per_s in of_kind.items()}
        if gpus in of_kind:
            return JobRate(of_kind[gpus], RateSource.LEARNED_KIND)
        known = {**of_kind, **of_job}
        if known:
            source = RateSource.FITTED if len(known) > 1 else RateSource.PRIOR
            return JobRate(1.0 / step_s_at(known, gpus), source)
        for table, name in ((own, own_name), (kind, kind_name)):
            for model in () if table is None else table.models(name):
                known = table.by_width(name, model, batch) if table is not None else {}
                if known:
                    per_s = known.get(gpus) or 1.0 / step_s_at(known, gpus)
                    return JobRate(per_s * _prior_ratio(gpu_model, model), RateSource.PRIOR)
        return None

    def holds_on(self, spec: JobSpec) -> str | None:
        """The model on which a job's duration holds; None where models make no difference."""
        if not self.differs:
            return None
        if self.durations_on is not None:
            return self.durations_on
        able = [model for model in self.models if not spec.gpu_models or model in spec.gpu_models]
        return min(able or self.models, key=lambda model: (_speed_or_none(model) or 0.0, model))

    def _uncapped(self, spec: JobSpec, way: RunWay) -> JobRate:
        own = self.learned_jobs.get(spec.id)
        if own is not None:
            return self._worked_out(spec, way)
        kind = self._kind(spec)
        key = (spec.profile, kind, spec.gpus, spec.batch_size, spec.gpu_models, way)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._worked_out(spec, way)
        return found

    def _kind(self, spec: JobSpec) -> str:
        """Found out only where something was learned of any."""
        return job_kind(spec) if self.learned_kinds.kinds else spec.profile

    def _worked_out(self, spec: JobSpec, way: RunWay) -> JobRate:
        wider = min(way.gpus / spec.gpus, 1.0) if spec.gpus else 1.0
        if self.equal:
            return JobRate(wider, RateSource.EQUAL if wider == 1 else RateSource.PRIOR)
        base = self.holds_on(spec) or way.gpu_model
        stated = RunWay(gpu_model=base, gpus=spec.gpus, batch=spec.batch_size)
        if way == stated:
            return JobRate(1.0, RateSource.STATED)
        tables = (
            (RateSource.MEASURED, self.measured, spec.profile),
            (RateSource.LEARNED_JOB, self.learned_jobs.get(spec.id), spec.id),
            (RateSource.LEARNED_KIND, self.learned_kinds, self._kind(spec)),
        )
        bridged: float | None = None
        for source, table, kind in tables:
            relative = None if table is None else _relative(table, kind, way, stated)
            if relative is not None and relative.exact:
                return JobRate(relative.per_s, source)
            if relative is not None and bridged is None:
                bridged = relative.per_s
        if bridged is None:
            unknown = None in (_speed_or_none(way.gpu_model), _speed_or_none(base))
            if unknown and base != way.gpu_model and wider == 1:
                return JobRate(1.0, RateSource.EQUAL)
            bridged = wider * _prior_ratio(way.gpu_model, base)
        # Where its devices are was not told apart by anything: that alone makes no guess of it.
        alike = replace(way, nodes=1, accumulation=None) == stated
        return JobRate(bridged, RateSource.STATED if alike else RateSource.PRIOR)


def step_s_at(known: Mapping[int, float], gpus: int) -> float:
    """Seconds a step at a width, by a + b / width through the rates that are `known` by width.

    Least squares of relative error with a, b >= 0; a single width leaves `a` to the prior.
    """
    if len(known) == 1:
        ((width, per_s),) = known.items()
        return (SERIAL_SHARE + (1 - SERIAL_SHARE) / gpus) / (
            per_s * (SERIAL_SHARE + (1 - SERIAL_SHARE) / width)
        )
    # (a + b / w) / T = 1, with 1 / T = per_s: two columns, solved by hand.
    rows = [(per_s, per_s / width) for width, per_s in sorted(known.items())]
    aa, ab, bb = (math.fsum(x[i] * x[j] for x in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    ay, by = (math.fsum(x[i] for x in rows) for i in (0, 1))
    determinant = aa * bb - ab * ab
    if determinant > 0:
        a, b = (ay * bb - by * ab) / determinant, (by * aa - ay * ab) / determinant
        if a >= 0 and b >= 0:
            return a + b / gpus
        return by / bb / gpus if a < 0 else ay / aa
    return ay / aa


def _speed_or_none(gpu_model: str) -> float | None:
    return None if rates(gpu_model) is None else prior_speed(gpu_model)


def _prior_ratio(one: str, other: str) -> float:
    """1 where nothing is known of one of them: whoever does not want that has refused it."""
    here, there = _speed_or_none(one), _speed_or_none(other)
    return 1.0 if here is None or there is None else here / there


def _relative(table: RateTable, kind: str, way: RunWay, stated: RunWay) -> _Relative | None:
    """The ratio of two rates of one table; what it lacks is taken from its nearest model."""
    if not table.models(kind):
        return None
    here = _anchored(table, kind, way)
    there = _anchored(table, kind, stated) or _anchored(table, kind, replace(stated, nodes=None))
    if here is None or there is None:
        return None
    return _Relative(here.per_s / there.per_s, here.exact and there.exact)


def _anchored(table: RateTable, kind: str, way: RunWay) -> _Relative | None:
    """A kind's rate as measured, else that of the nearest model times the prior's ratio."""
    found = table.per_s(kind, way)
    if found is not None:
        return _Relative(found, exact=True)
    near = sorted(
        (_speed_or_none(model) is None, abs(math.log(ratio)), model, ratio)
        for model in table.models(kind)
        if model != way.gpu_model
        for ratio in [_prior_ratio(way.gpu_model, model)]
    )
    for _, _, model, ratio in near:
        known = table.per_s(kind, replace(way, gpu_model=model))
        if known is not None:
            return _Relative(known * ratio, exact=False)
    return None


ALIKE = JobRates(equal=True)
"""All GPU models are as fast as each other."""

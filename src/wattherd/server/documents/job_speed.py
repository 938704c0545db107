"""How fast a job is, as measured and expected: by width, GPU model and cap, with its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from wattherd.engine.core.core import Core
from wattherd.estimate.job_kind import job_kind, kind_name
from wattherd.estimate.job_rate import JobRate, RateSource
from wattherd.estimate.learned_rates import JobSpeed, LearnedRates, WayRun
from wattherd.model.job import JobSpec
from wattherd.policy.schedule.ordered import Ordered
from wattherd.units import counted

OWN, KIND = "this job", "its kind"
"""Of whom a row was measured."""


def speed_document(core: Core, spec: JobSpec) -> dict[str, Any] | None:
    """What was measured of a job and of its kind, and where it is expected to be how fast.

    None for a job without GPUs, and for one that could run on no model of the site.
    """
    models = _models(core, spec)
    if not spec.gpus or not models:
        return None
    kind, learned = job_kind(spec), core.speeds.learned
    own = learned.of_job(spec.id) or learned.taught(kind, spec.id)
    return {
        "kind": kind_name(kind),
        "measured": [*_rows(own, OWN), *_rows(learned.of_kind(kind), KIND)],
        "expected": _expected(core, spec, models),
    }


def _models(core: Core, spec: JobSpec) -> list[str]:
    here = core.config.cluster.gpu_models
    return [model for model in here if not spec.gpu_models or model in spec.gpu_models]


def _rows(speeds: Mapping[WayRun, JobSpeed], of: str) -> list[dict[str, Any]]:
    return [
        {
            **way._asdict(),
            "step_s": 1.0 / speed.per_s,
            "uncapped_step_s": 1.0 / speed.full_per_s,
            "count": speed.windows,
            "of": of,
        }
        for way, speed in sorted(speeds.items(), key=lambda one: repr(one[0]))
    ]


def _expected(core: Core, spec: JobSpec, models: list[str]) -> list[dict[str, Any]]:
    """By GPU model at the job's own width, without a cap; the fastest first."""
    rates, learned = core.speeds.rates(core.config), core.speeds.learned
    found = {model: rates.rate(spec, model) for model in models}
    slowest = min(one.per_s for one in found.values())
    steps_s = _steps_s(learned, spec)
    return [
        {
            "gpu_model": model,
            "gpus": spec.gpus,
            "times": rate.per_s / slowest,
            "step_s": steps_s.get(model),
            "source": str(_source(rate, found)),
            "of_jobs": _jobs(learned, spec, model),
        }
        for model, rate in sorted(found.items(), key=lambda one: (-one[1].per_s, one[0]))
    ]


def _source(rate: JobRate, found: Mapping[str, JobRate]) -> RateSource:
    """The pace that a job states is the measure of others, and no better known than they are."""
    others = [one.source for one in found.values() if one.source is not RateSource.STATED]
    return others[0] if rate.source is RateSource.STATED and others else rate.source


def _steps_s(learned: LearnedRates, spec: JobSpec) -> dict[str, float]:
    """Seconds per step that were learned for a job's width, by model: its own before its kind's."""
    found: dict[str, float] = {}
    for speeds in (learned.of_kind(job_kind(spec)), learned.of_job(spec.id)):
        for way, speed in speeds.items():
            if way.gpus == spec.gpus and way.batch == spec.batch_size and way.nodes == 1:
                found[way.gpu_model] = 1.0 / speed.full_per_s
    return found


def _jobs(learned: LearnedRates, spec: JobSpec, model: str) -> int:
    counts = [
        speed.windows
        for way, speed in learned.of_kind(job_kind(spec)).items()
        if way.gpu_model == model
    ]
    return max(counts, default=0)


def speed_words(core: Core, spec: JobSpec) -> list[str]:
    """The same in sentences; nothing where models make no difference and nothing was measured."""
    told = speed_document(core, spec)
    return [] if told is None else list(_sentences(core, told))


def _sentences(core: Core, told: Mapping[str, Any]) -> Iterator[str]:
    planner, expected = core.config.planner, told["expected"]
    if len(expected) > 1:
        if isinstance(planner, Ordered) and planner.fastest:
            yield f"goes to the first of these with room: {'; '.join(map(_model, expected))}"
        else:
            yield f"speed by GPU model: {'; '.join(map(_model, expected))}"
    for row in told["measured"]:
        yield _measured(row, told["kind"])


def _model(one: Mapping[str, Any]) -> str:
    """`fast, 4.0 x, learned from its kind (2 jobs)`."""
    jobs = one["of_jobs"] if one["source"] == RateSource.LEARNED_KIND else 0
    count = f" ({counted(jobs, 'job')})" if jobs else ""
    return f"{one['gpu_model']}, {one['times']:.3g} x, {one['source']}{count}"


def _measured(row: Mapping[str, Any], kind: str) -> str:
    split = "" if row["batch"] is None else f", batch {row['batch']}"
    split += "" if row["accumulation"] is None else f" in {row['accumulation']} passes"
    nodes = "" if row["nodes"] == 1 else f" on {row['nodes']} nodes"
    cap = "" if row["cap_w"] is None else f", capped at {row['cap_w']:,.3g} W"
    of_kind = row["of"] == KIND
    jobs, windows = counted(row["count"], "job"), counted(row["count"], "window")
    whose = f"{jobs} of kind `{kind}`" if of_kind else windows
    return (
        f"measured: {row['step_s']:,.3g} s a step on {row['gpus']} {row['gpu_model']}"
        f"{nodes}{split}{cap} ({whose})"
    )

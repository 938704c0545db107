"""Watts, from Python: caps for measured curves, and the draw of a job that was never measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattherd.errors import UserError
from wattherd.estimate.measured_curve import CountedWatts
from wattherd.experiments.allocate.run import AllocationTerms, allocation, rule
from wattherd.experiments.power_models.predict import MeasuredDraw, WantedPrediction
from wattherd.experiments.power_models.predict import predict as predicted
from wattherd.library.inputs import Source, input_file
from wattherd.library.table import Table
from wattherd.units import watts
from wattherd.workload.curves import read_curves
from wattherd.workload.tree_file import read_tree


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenCaps:
    """A cap for each job.

    `objective` is the weighted mean of the jobs' rates relative to their best, `bound` what
    fractions of caps could reach; `total_w` counts as the caller chose.
    """

    policy: str
    total_w: float
    objective: float
    bound: float
    jobs: Table
    document: dict[str, Any]
    """All of it as `wattherd.allocate/1`."""

    def _repr_html_(self) -> str:
        return self.jobs._repr_html_()


def allocate(
    curves: Source,
    budget: str | float | None = None,
    policy: str = "water-filling",
    *,
    tree: str | Path | None = None,
    count: str = "draw",
    paused_w: float | None = None,
    format: str = "native",  # noqa: A002 - as the command line calls it
) -> ChosenCaps:
    """Choose a measured cap for every job, so that the budgets hold and most work gets done.

    Args:
        curves: measured points (`job, cap_w, power_w, rate`) as a file, a frame or rows.
        budget: watts for all jobs together, `12kW` or a number.
        policy: docs/concepts/power-allocation.md lists them.
        tree: a power tree with budgets (YAML).
        count: what counts against budgets, `draw` or `cap`.
        paused_w: what a paused job draws, where jobs may be paused.
        format: of the file: native, zeus or emerald.

    Raises:
        UserError: an input that cannot be used, or a budget that does not hold the least of all.
    """
    rule(policy)
    if count not in tuple(CountedWatts):
        raise UserError(f"{count!r} counts nothing", field="count", hint="draw or cap")
    with input_file(curves, "curves") as file:
        jobs = read_curves(file, format)
    budget_w = watts(budget, field="budget") if isinstance(budget, str) else budget
    terms = AllocationTerms(
        budget_w=None if budget_w is None else float(budget_w),
        tree=read_tree(Path(tree)) if tree else None,
        count=CountedWatts(count),
        paused_w=paused_w,
    )
    found = allocation(jobs, terms, policy)
    return ChosenCaps(
        policy=policy, total_w=found["total_w"], objective=found["objective"],
        bound=found["bound"], jobs=Table.of_rows(found["jobs"]), document=found,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedDraw:
    """Mean watts of one device: `low_w` to `high_w` cover the truth in `coverage` of cases.

    `source` says whether it was measured, carried from a measurement, or is the model's guess.
    """

    power_w: float
    low_w: float
    high_w: float | None
    coverage: float | None
    source: str
    document: dict[str, Any]
    """All of it as `wattherd.power-predict/1`."""


def predict(
    models: str | Path,
    *,
    gpu: str,
    model: str,
    tdp: str | float,
    cap: str | float | None = None,
    dataset: str = "",
    measured: tuple[float, float] | None = None,
    **features: float,
) -> PredictedDraw:
    """Predict the mean watts of one device.

    Args:
        models: a folder or file that `wattherd power fit` wrote.
        gpu: GPU type, as in the measurements.
        model: network, as in the measurements.
        tdp: highest power limit of the GPU.
        cap: power limit; the TDP if left out.
        dataset: its data set, which helps to recognise the job.
        measured: watts that this very job drew, and under which cap.
        features: `batch_size` and others (docs/concepts/power-prediction.md).

    Raises:
        UserError: no model there, or a number that makes no sense.
    """
    tdp_w = _watts(tdp, "tdp")
    cap_w = tdp_w if cap is None else _watts(cap, "cap")
    if not 0 < cap_w <= tdp_w:
        hint = f"at most {tdp_w:g} W"
        raise UserError("the cap must be above 0 and at most the TDP", field="cap", hint=hint)
    once = MeasuredDraw(*measured) if measured else None
    if once is not None and not (0 < once.cap_w <= tdp_w and once.power_w > 0):
        raise UserError("is no draw under a cap", field="measured", hint="(212.0, 250.0)")
    wanted = WantedPrediction(
        gpu=gpu, model=model, tdp_w=tdp_w, cap_w=cap_w, values=features, dataset=dataset, once=once
    )
    found = predicted(Path(models), wanted)
    named = ("power_w", "low_w", "high_w", "coverage", "source")
    return PredictedDraw(**{name: found[name] for name in named}, document=found)


def _watts(given: str | float, field: str) -> float:
    return watts(given, field=field) if isinstance(given, str) else float(given)

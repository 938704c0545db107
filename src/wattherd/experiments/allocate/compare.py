"""`power compare`: every way to choose caps on the same curves, at parts of the full draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from wattherd.errors import UserError
from wattherd.estimate.measured_curve import JobCurve
from wattherd.experiments.allocate.run import AllocationTerms, allocation

SCHEMA = "wattherd.allocations/1"


def comparison(
    curves: Sequence[JobCurve],
    terms: AllocationTerms,
    policies: Sequence[str],
    parts: Sequence[float],
) -> dict[str, Any]:
    """One row per policy and part of what all jobs take at their highest points.

    Raises:
        UserError: an unknown policy, or a part that is none.
    """
    for part in parts:
        if not 0 < part <= 1:
            raise UserError(f"{part:g} is no part", field="--parts", hint="write 0.5,0.7")
    full_w = sum(max(curve.watts(one, terms.count) for one in curve.points) for curve in curves)
    rows = [
        _row(curves, replace(terms, budget_w=part * full_w), policy, part)
        for part in parts
        for policy in policies
    ]
    return {"schema": SCHEMA, "count": str(terms.count), "full_w": full_w, "allocations": rows}


def _row(
    curves: Sequence[JobCurve], terms: AllocationTerms, policy: str, part: float
) -> dict[str, Any]:
    """Figures of one allocation; those of one that is not possible are empty, with the reason."""
    row: dict[str, Any] = {"policy": policy, "part": part, "budget_w": terms.budget_w}
    try:
        found = allocation(curves, terms, policy)
    except UserError as problem:
        if problem.field != "budget":
            raise
        return {**row, "problem": problem.problem}
    rates = [job["relative_rate"] for job in found["jobs"]]
    weights = [job["weight"] for job in found["jobs"]]
    return {
        **row,
        "total_w": found["total_w"],
        "objective": found["objective"],
        "bound": found["bound"],
        "least_rate": min(rates),
        "geometric_mean": _geometric_mean(rates, weights),
        "paused": sum(job["paused"] for job in found["jobs"]),
    }


def _geometric_mean(rates: Sequence[float], weights: Sequence[float]) -> float:
    """Weighted; 0 where a job is paused."""
    if min(rates) <= 0:
        return 0.0
    logs = (weight * math.log(rate) for rate, weight in zip(rates, weights, strict=True))
    return math.exp(math.fsum(logs) / math.fsum(weights))

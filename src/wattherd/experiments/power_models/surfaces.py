"""`power surface`: what it costs to take samples per second for progress (JSON document).

For every budget each job gets a batch size, an accumulation, a layout and a cap, once by samples
per second and once by progress. Both are judged by progress.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from wattherd.errors import UserError
from wattherd.estimate.measured_curve import CountedWatts, CurveChoice, JobCurve
from wattherd.estimate.surface import Surface, SurfaceGoal, SurfacePoint
from wattherd.policy.power.allocation import allocate, one_budget

SCHEMA = "wattherd.surface/1"
FIXED, FREE = "fixed", "free"


def curves_of(surfaces: Sequence[Surface], batch: str, value: SurfaceGoal) -> tuple[JobCurve, ...]:
    """Curves for `power allocate`: with the batch `free` one per job, else one per global batch.

    Raises:
        UserError: another word for the batch.
    """
    if batch not in (FIXED, FREE):
        raise UserError(f"unknown way {batch!r}", field="--batch", hint=f"{FREE} or {FIXED}")
    if batch == FREE:
        return tuple(surface.curve(value) for surface in surfaces)
    return tuple(
        _named(surface, size).curve(value)
        for surface in surfaces
        for size in surface.global_batches()
    )


def _named(surface: Surface, size: int) -> Surface:
    kept = surface.kept_at(size)
    return Surface(
        job=f"{surface.job}/{size}", points=kept.points, devices=kept.devices, weight=kept.weight
    )


def surface_report(surfaces: Sequence[Surface], shares: Sequence[float]) -> dict[str, Any]:
    """Frontiers, and per budget what both ways of valuing choose.

    Budgets are shares of the summed draw at each job's highest-draw point.

    Raises:
        UserError: a share out of range, or a budget below what all jobs need.
    """
    if not shares or any(not 0 < share <= 1 for share in shares):
        raise UserError(
            "a share must be above 0 and at most 1", field="--shares", hint="0.6,0.7,0.8"
        )
    most_w = sum(max(point.power_w for point in one.points) for one in surfaces)
    return {
        "schema": SCHEMA,
        "jobs": [_frontier(surface) for surface in surfaces],
        "budgets": [_budget(surfaces, share, share * most_w) for share in shares],
    }


def _frontier(surface: Surface) -> dict[str, Any]:
    best = max(point.progress_per_s for point in surface.points)
    return {
        "job": surface.job,
        "points": len(surface.points),
        "global_batches": list(surface.global_batches()),
        "fastest_by_samples": _shown(max(surface.points, key=lambda one: one.epochs_per_s), best),
        "fastest_by_progress": _shown(
            max(surface.points, key=lambda one: one.progress_per_s), best
        ),
        "frontier": [_shown(point, best) for point in surface.frontier()],
    }


def _shown(point: SurfacePoint, best: float) -> dict[str, Any]:
    return {
        "batch_size": point.setting.batch_size,
        "accumulation": point.setting.accumulation,
        "layout": point.setting.layout or None,
        "cap_w": point.cap_w,
        "power_w": point.power_w,
        "target_s": 1 / point.progress_per_s,
        "relative_progress": point.progress_per_s / best,
    }


def _budget(surfaces: Sequence[Surface], share: float, budget_w: float) -> dict[str, Any]:
    ways = {value: _chosen(surfaces, value, budget_w) for value in SurfaceGoal}
    return {
        "budget_share": share,
        "budget_w": budget_w,
        "by": {str(value): _judged(surfaces, chosen) for value, chosen in ways.items()},
    }


def _chosen(surfaces: Sequence[Surface], value: SurfaceGoal, budget_w: float) -> list[SurfacePoint]:
    curves = curves_of(surfaces, FREE, value)
    choices: list[Sequence[CurveChoice]] = [curve.choices(CountedWatts.DRAW) for curve in curves]
    taken = allocate(choices, one_budget(len(choices), budget_w))
    return [
        _source(surface, value, one[at])
        for surface, one, at in zip(surfaces, choices, taken, strict=True)
    ]


def _source(surface: Surface, value: SurfaceGoal, choice: CurveChoice) -> SurfacePoint:
    return next(one for one in surface.points if one.point(value) == choice.point)


def _judged(surfaces: Sequence[Surface], chosen: Sequence[SurfacePoint]) -> dict[str, Any]:
    """Weighted mean of relative progress, and the choice of every job."""
    best = [max(point.progress_per_s for point in one.points) for one in surfaces]
    worth = math.fsum(
        surface.weight * point.progress_per_s / most
        for surface, point, most in zip(surfaces, chosen, best, strict=True)
    )
    return {
        "progress": worth / math.fsum(surface.weight for surface in surfaces),
        "total_w": math.fsum(point.power_w for point in chosen),
        "jobs": [
            {"job": surface.job, **_shown(point, most)}
            for surface, point, most in zip(surfaces, chosen, best, strict=True)
        ],
    }

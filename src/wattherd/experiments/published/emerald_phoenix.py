"""Emerald's demand response in Phoenix (arXiv 2507.00909): 256 A100, 25 % less for three hours.

Published (their public repository, Apache-2.0): what the cluster drew minute by minute on 3 May
2025 (the Salt River Project's event), how fast each job went meanwhile, and how fast and at how
many watts each kind of job runs under six caps. Theirs is a run on GPUs, judged from these files.
Ours is SIMULATED: the same six jobs on their own measured curves, under the same signal, with watts
shared as everywhere here. Caps take `DELAY_S` to be in force, which is Dynamo's (ISCA'16) six
seconds; draw under a cap is what was measured under it, without noise. So the comparison says how
well watts are shared and how closely a limit can be followed, not how a real cluster would do.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError
from wattherd.estimate.power_curve import PowerCurve, concave_hull
from wattherd.experiments.published.checks import FigureCheck
from wattherd.policy.power.contract import PowerAsk
from wattherd.policy.power.water_filling import WaterFilling

Floats = NDArray[np.float64]
REDUCTION = 0.25
HOLD_MIN = 180
DELAY_S = 6
MARGIN = 0.003
"""What the safety loop leaves free of every limit."""
LEAST_RATE: Mapping[str, float] = {"Flex 1": 0.9, "Flex 2": 0.75, "Flex 3": 0.5}
"""What a job of each tier must keep of its speed; also its weight in their mean."""
RAMP_FROM, HOLD_FROM = (16, 15), (16, 30)
"""When our signal begins to fall and when it has fallen. The event's own times are not published:
they are read off the draw, which falls from 16:10 to 16:18 and rises from 19:33 on."""
BACK_AT = 0.96
"""Of the base: recovered."""
TRACE = "SRP 2025-05-03"
BASE_TOLERANCE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class EventJob:
    """A job of the event: its GPUs, tier, published speed, and rate by watts of one GPU."""

    name: str
    gpus: int
    tier: str
    published: float
    watts: Floats
    rates: Floats


def compare(directory: Path) -> Iterator[FigureCheck]:
    """Every figure, from the folder of their files.

    Raises:
        UserError: a file is not there or is not theirs.
    """
    jobs = _jobs(directory)
    at, draw_w = _draw(directory / "SRP_total_power.csv")
    base_w = float(np.median(draw_w[at < _minute(at, RAMP_FROM)]))
    ours_w, speeds = _simulated(jobs, at)
    full_w = sum(job.gpus * float(job.watts[-1]) for job in jobs)
    yield _row("base draw, kW", base_w / 1e3, full_w / 1e3, BASE_TOLERANCE * base_w / 1e3)
    yield from _holding(at, draw_w / base_w, ours_w / full_w)
    weights = [LEAST_RATE[job.tier] for job in jobs]
    theirs = float(np.average([job.published for job in jobs], weights=weights))
    ours = float(np.average(speeds, weights=weights))
    yield _row("speed in the event, weighted mean", theirs, ours, None)
    for job, speed in zip(jobs, speeds, strict=True):
        yield _row(f"speed of {job.name} ({job.tier})", job.published, speed, None)
        yield _row(f"{job.name} below what its tier allows", 0.0, _short(job, speed), 0.0)


def _holding(at: NDArray[np.object_], theirs: Floats, ours: Floats) -> Iterator[FigureCheck]:
    """How each kept to the signal, minute by minute; draws are shares of each one's own base."""
    target = 1.0 - REDUCTION
    held = _minute(at, HOLD_FROM)
    over = held + timedelta(minutes=HOLD_MIN)
    hold = (at >= held) & (at < over)
    for_both = (theirs, ours)
    above = [float((draw[hold] > target).sum()) for draw in for_both]
    yield _row("minutes above the target while it holds", above[0], above[1], 0.0)
    shed = [100 * (target - float(draw[hold].mean())) for draw in for_both]
    yield _row("shed beyond the target, points of the base", shed[0], shed[1], None)
    back = [_minutes_until(at, draw >= BACK_AT, over) for draw in for_both]
    yield _row(f"minutes from the end to {BACK_AT:.0%} of the base", back[0], back[1], None)


def _simulated(jobs: Sequence[EventJob], at: NDArray[np.object_]) -> tuple[Floats, list[float]]:
    """Mean draw (M,) of every minute, and every job's mean speed while the target holds.

    The signal is known beforehand: falls are ordered early by as long as caps take.
    """
    asks = [
        PowerAsk(job_id=job.name, devices=job.gpus, curve=_curve(job), weight=LEAST_RATE[job.tier])
        for job in jobs
    ]
    full_w = sum(job.gpus * float(job.watts[-1]) for job in jobs)
    begin, held = _minute(at, RAMP_FROM), _minute(at, HOLD_FROM)
    seconds = np.arange(60 * len(at))
    start_s = (begin - at[0]).total_seconds()
    full_s = (held - at[0]).total_seconds()
    end_s = full_s + 60 * HOLD_MIN
    share = np.interp(seconds, [start_s, full_s], [1.0, 1.0 - REDUCTION])
    limit_w = np.where(seconds < end_s, share, 1.0) * full_w
    # In force now is what was ordered DELAY_S ago for the lowest limit until now.
    later = np.lib.stride_tricks.sliding_window_view(
        np.pad(limit_w, (DELAY_S, 0), mode="edge"), DELAY_S + 1
    )
    in_force_w = np.where(limit_w < full_w, later.min(axis=1) * (1.0 - MARGIN), later.min(axis=1))
    levels = {watts: WaterFilling().share(asks, watts) for watts in np.unique(in_force_w).tolist()}
    draw_w = np.array(
        [
            sum(ask.devices * cap_w for ask, cap_w in zip(asks, levels[watts], strict=True))
            for watts in in_force_w.tolist()
        ]
    )
    held_w = float(in_force_w[int(full_s) + DELAY_S])
    speeds = [
        float(np.interp(cap_w, job.watts, job.rates))
        for job, cap_w in zip(jobs, levels[held_w], strict=True)
    ]
    return draw_w.reshape(len(at), 60).mean(axis=1), speeds


def _curve(job: EventJob) -> PowerCurve:
    """What may be chosen: nothing slower than the tier allows."""
    least = LEAST_RATE[job.tier]
    floor_w = float(np.interp(least, job.rates, job.watts))
    points = [(floor_w, least)]
    points += [
        (float(watts), float(rate))
        for watts, rate in zip(job.watts, job.rates, strict=True)
        if rate > least
    ]
    return concave_hull(points)


def _short(job: EventJob, speed: float) -> float:
    return max(LEAST_RATE[job.tier] - speed - 1e-9, 0.0)


def _row(quantity: str, published: float, ours: float, tolerance: float | None) -> FigureCheck:
    return FigureCheck(
        trace=TRACE, policy="water-filling (simulated)", quantity=quantity,
        published=published, ours=ours, tolerance=tolerance,
    )  # fmt: skip


def _minute(at: NDArray[np.object_], clock: tuple[int, int]) -> datetime:
    first: datetime = at[0]
    return first.replace(hour=clock[0], minute=clock[1])


def _minutes_until(at: NDArray[np.object_], true: NDArray[np.bool_], since: datetime) -> float:
    rows = np.flatnonzero(true & (at >= since))
    return float((at[rows[0]] - since).total_seconds() / 60) if len(rows) else float("inf")


def _draw(path: Path) -> tuple[NDArray[np.object_], Floats]:
    rows = _rows(path, ("timestamp", "total"))
    at = np.array([datetime.fromisoformat(row["timestamp"]) for row in rows])
    return at, np.array([float(row["total"]) for row in rows])


def _jobs(directory: Path) -> list[EventJob]:
    """The jobs of the event with the curves of their kinds."""
    curves: dict[str, list[tuple[float, float, float]]] = {}
    head = ("Workload", "total GPU power", "normalized throughput", "power per GPU")
    for row in _rows(directory / "dvfs_sweep.csv", head):
        values = (float(row[name]) for name in head[1:])
        total_w, rate, each_w = values
        curves.setdefault(row["Workload"], []).append((each_w, rate, total_w))
    jobs = []
    for row in _rows(
        directory / "SRP_exp_performance.csv", ("Model", "Performance", "Flexibility")
    ):
        name = row["Model"].strip()
        if name == "Weighted Performance":
            continue
        kind = re.sub(r"-[a-z0-9]+$", "", name)
        tier = row["Flexibility"].strip()
        if kind not in curves or tier not in LEAST_RATE:
            raise UserError(f"no curve or tier of {name!r}", where=str(directory))
        points = np.array(sorted(curves[kind]))
        jobs.append(
            EventJob(
                name=name,
                gpus=round(points[-1, 2] / points[-1, 0]),
                tier=tier,
                published=float(row["Performance"]),
                watts=points[:, 0],
                rates=points[:, 1],
            )
        )
    return jobs


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        hint = "set WATTHERD_DATA to a folder that has power/emerald_phoenix_2025"
        raise UserError(f"no {path.name}: {error.strerror}", where=str(path), hint=hint) from None
    missing = [name for name in columns if rows and name not in rows[0]]
    if not rows or missing:
        raise UserError(f"lacks {', '.join(missing) or 'rows'}", where=str(path))
    return rows

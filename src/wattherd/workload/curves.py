"""Measured power curves of jobs from CSV files: our own form, Zeus' and Emerald's.

Ours has a row per point, `job, cap_w, power_w, rate`, and optionally `weight`, `devices`, `domain`
(docs/reference/curves.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from wattherd.errors import UserError
from wattherd.estimate.measured_curve import JobCurve, Point
from wattherd.spelling import hint_for
from wattherd.workload.cells import Place
from wattherd.workload.numbers import finite
from wattherd.workload.table import Layout, rows

NATIVE = Layout(
    kind="list of curves",
    required=("job", "cap_w", "power_w", "rate"),
    optional=("weight", "devices", "domain"),
)
ZEUS = Layout(
    kind="Zeus summary",
    required=(
        "dataset", "network", "batch_size", "optimizer", "power_limit", "time_per_epoch",
        "average_power",
    ),
)  # fmt: skip
EMERALD = Layout(
    kind="Emerald sweep",
    required=(
        "Workload", "GPU power cap", "throughput", "total GPU power", "power per GPU",
    ),
)  # fmt: skip


@dataclass(slots=True)
class _Row:
    """One point of a job as read."""

    job: str
    point: Point
    place: Place
    weight: float = 1.0
    devices: int = 1
    domain: str = ""


@dataclass(slots=True)
class _Job:
    first: _Row
    points: dict[float, Point] = field(default_factory=dict)


def read_curves(path: Path, kind: str = "native") -> tuple[JobCurve, ...]:
    """The jobs of a file, in order of their first rows.

    Raises:
        UserError: unknown format or bad content, with file, line and field.
    """
    if kind not in FORMATS:
        raise UserError(f"unknown format {kind!r}", field="--format", hint=hint_for(kind, FORMATS))
    jobs: dict[str, _Job] = {}
    for row in FORMATS[kind](path):
        job = jobs.setdefault(row.job, _Job(row))
        if row.point.cap_w in job.points:
            problem = f"{row.point.cap_w:g} W of {row.job!r} appears twice"
            raise row.place.error("cap_w", problem, "one row per cap")
        if (row.weight, row.devices, row.domain) != (
            job.first.weight, job.first.devices, job.first.domain,
        ):  # fmt: skip
            problem = f"another weight, devices or domain than before for {row.job!r}"
            raise row.place.error("job", problem, "they belong to the job, not to the point")
        job.points[row.point.cap_w] = row.point
    if not jobs:
        raise UserError("holds no curve", where=str(path), hint="is this the right file?")
    return tuple(
        JobCurve(
            job=name,
            points=tuple(job.points.values()),
            weight=job.first.weight,
            devices=job.first.devices,
            domain=job.first.domain,
        )
        for name, job in jobs.items()
    )


def _native(path: Path) -> Iterator[_Row]:
    for line, cells in rows(path, NATIVE):
        place = Place(f"{path}:{line}")
        job, cap, power, rate, weight, devices, domain = (cell.strip() for cell in cells)
        yield _Row(
            place.name("job", job),
            _point(path, line, cap, power, rate),
            place,
            _positive(path, line, "weight", weight) if weight else 1.0,
            place.integer("devices", devices) if devices else 1,
            domain,
        )


def _zeus(path: Path) -> Iterator[_Row]:
    """A job is dataset/network/batch size/optimizer, its rate epochs per second."""
    for line, cells in rows(path, ZEUS):
        *names, cap, seconds, power = (cell.strip() for cell in cells)
        epoch_s = _positive(path, line, "time_per_epoch", seconds)
        point = Point(
            _positive(path, line, "power_limit", cap),
            _positive(path, line, "average_power", power),
            1 / epoch_s,
        )
        yield _Row("/".join(names), point, Place(f"{path}:{line}"))


def _emerald(path: Path) -> Iterator[_Row]:
    """Whole jobs on several GPUs; how many follows from the power of one."""
    for line, cells in rows(path, EMERALD):
        job, cap, rate, total, each = (cell.strip() for cell in cells)
        total_w = _positive(path, line, "total GPU power", total)
        devices = round(total_w / _positive(path, line, "power per GPU", each))
        point = Point(
            _positive(path, line, "GPU power cap", cap),
            total_w,
            _positive(path, line, "throughput", rate),
        )
        yield _Row(job, point, Place(f"{path}:{line}"), devices=max(devices, 1))


FORMATS: Mapping[str, Callable[[Path], Iterator[_Row]]] = {
    "native": _native,
    "zeus": _zeus,
    "emerald": _emerald,
}


def _point(path: Path, line: int, cap: str, power: str, rate: str) -> Point:
    return Point(
        _positive(path, line, "cap_w", cap),
        _positive(path, line, "power_w", power),
        _positive(path, line, "rate", rate),
    )


def _positive(path: Path, line: int, column: str, text: str) -> float:
    value = finite(text, path, line, column)
    if value <= 0:
        hint = "a measured number"
        problem = f"{text!r} is not above zero"
        raise UserError(problem, where=f"{path}:{line}", field=column, hint=hint)
    return value

"""Measured power curves of jobs from CSV files: our own form, Zeus' and Emerald's.

Ours has a row per point, `job, cap_w, power_w, rate`, and optionally what belongs to the job as a
whole (docs/reference/curves.md). Energy budgets may stand in a file of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from wattherd.errors import UserError
from wattherd.estimate.measured_curve import JobCurve, MeasuredPoint
from wattherd.spelling import hint_for
from wattherd.workload.cells import CellPlace
from wattherd.workload.table import Layout, finite, rows

NATIVE = Layout(
    kind="list of curves",
    required=("job", "cap_w", "power_w", "rate"),
    optional=(
        "weight", "devices", "domain", "priority", "floor_w", "work", "energy_budget_j",
    ),
)  # fmt: skip
JOULES = Layout(kind="list of energy budgets", required=("job", "work", "energy_budget_j"))
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


@dataclass(frozen=True, slots=True)
class _Whole:
    """What a row says of its job as a whole; `domain` and so on as in `JobCurve`."""

    weight: float = 1.0
    devices: int = 1
    domain: str = ""
    priority: int = 0
    floor_w: float = 0.0
    work: float | None = None
    energy_budget_j: float | None = None


@dataclass(slots=True)
class _Row:
    """One point of a job as read."""

    job: str
    point: MeasuredPoint
    place: CellPlace
    whole: _Whole = _Whole()


@dataclass(slots=True)
class _Job:
    first: _Row
    points: dict[float, MeasuredPoint] = field(default_factory=dict)


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
        if row.whole != job.first.whole:
            problem = f"another weight, domain or the like than before for {row.job!r}"
            raise row.place.error("job", problem, "they belong to the job, not to the point")
        job.points[row.point.cap_w] = row.point
    if not jobs:
        raise UserError("holds no curve", where=str(path), hint="is this the right file?")
    return tuple(_curve(name, job) for name, job in jobs.items())


def _curve(name: str, job: _Job) -> JobCurve:
    whole = {one.name: getattr(job.first.whole, one.name) for one in fields(_Whole)}
    return JobCurve(job=name, points=tuple(job.points.values()), **whole)


def with_joules(curves: Sequence[JobCurve], path: Path) -> tuple[JobCurve, ...]:
    """The curves with the energy budgets of a file, `job, work, energy_budget_j`.

    Raises:
        UserError: bad content, a job without a curve, or a budget that no cap keeps.
    """
    by_name = {curve.job: curve for curve in curves}
    seen: set[str] = set()
    for line, cells in rows(path, JOULES):
        job, work, most = (cell.strip() for cell in cells)
        if job in seen:
            raise CellPlace(f"{path}:{line}").error(
                "job", f"{job!r} appears twice", "one row per job"
            )
        seen.add(job)
        if job not in by_name:
            hint = hint_for(job, by_name)
            raise UserError(f"no curve of {job!r}", where=f"{path}:{line}", field="job", hint=hint)
        by_name[job] = replace(
            by_name[job],
            work=_positive(path, line, "work", work),
            energy_budget_j=_positive(path, line, "energy_budget_j", most),
        )
    return tuple(by_name.values())


def _native(path: Path) -> Iterator[_Row]:
    for line, cells in rows(path, NATIVE):
        place = CellPlace(f"{path}:{line}")
        job, cap, power, rate, weight, devices, domain, priority, floor, work, most = (
            cell.strip() for cell in cells
        )
        whole = _Whole(
            _positive(path, line, "weight", weight) if weight else 1.0,
            place.count("devices", devices) if devices else 1,
            domain,
            place.integer("priority", priority) if priority else 0,
            _positive(path, line, "floor_w", floor) if floor else 0.0,
            _positive(path, line, "work", work) if work else None,
            _positive(path, line, "energy_budget_j", most) if most else None,
        )
        point = _point(path, line, cap, power, rate)
        yield _Row(place.name("job", job), point, place, whole)


def _zeus(path: Path) -> Iterator[_Row]:
    """A job is dataset/network/batch size/optimizer, its rate epochs per second."""
    for line, cells in rows(path, ZEUS):
        *names, cap, seconds, power = (cell.strip() for cell in cells)
        epoch_s = _positive(path, line, "time_per_epoch", seconds)
        point = MeasuredPoint(
            _positive(path, line, "power_limit", cap),
            _positive(path, line, "average_power", power),
            1 / epoch_s,
        )
        yield _Row("/".join(names), point, CellPlace(f"{path}:{line}"))


def _emerald(path: Path) -> Iterator[_Row]:
    """Whole jobs on several GPUs; how many follows from the power of one."""
    for line, cells in rows(path, EMERALD):
        job, cap, rate, total, each = (cell.strip() for cell in cells)
        total_w = _positive(path, line, "total GPU power", total)
        devices = round(total_w / _positive(path, line, "power per GPU", each))
        point = MeasuredPoint(
            _positive(path, line, "GPU power cap", cap),
            total_w,
            _positive(path, line, "throughput", rate),
        )
        yield _Row(job, point, CellPlace(f"{path}:{line}"), _Whole(devices=max(devices, 1)))


FORMATS: Mapping[str, Callable[[Path], Iterator[_Row]]] = {
    "native": _native,
    "zeus": _zeus,
    "emerald": _emerald,
}


def _point(path: Path, line: int, cap: str, power: str, rate: str) -> MeasuredPoint:
    return MeasuredPoint(
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

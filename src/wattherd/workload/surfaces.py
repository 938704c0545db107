"""Surfaces of jobs from files: Zeus' power and training summaries, and our own form.

Ours has a row per point: `job, batch_size, cap_w, power_w, epoch_s, epochs_to_target` and, if so
wished, `accumulation, layout, devices, weight` (docs/reference/curves.md).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from wattherd.errors import UserError
from wattherd.estimate.measured_curve import JobSetting
from wattherd.estimate.surface import Surface, SurfacePoint, accumulated, expected_epochs
from wattherd.workload.cells import CellPlace
from wattherd.workload.curves import ZEUS
from wattherd.workload.table import Layout, finite, rows

NATIVE = Layout(
    kind="list of surfaces",
    required=("job", "batch_size", "cap_w", "power_w", "epoch_s", "epochs_to_target"),
    optional=("accumulation", "layout", "devices", "weight"),
)
TRAIN = Layout(
    kind="Zeus training summary",
    required=("dataset", "network", "batch_size", "optimizer", "target_metric", "target_epoch"),
)
REACHED = 0.7
"""Of the training runs of a network: the hardest target that so many reach is the target."""

Kind = tuple[str, str, str]
"""Dataset, network, optimizer."""
Runs = dict[Kind, dict[int, dict[float, list[float | None]]]]
"""Epochs of every run by kind, batch size and target."""


def read_surfaces(
    path: Path, train: Path | None, *, accumulate: bool = False
) -> tuple[Surface, ...]:
    """Jobs with all their batch sizes; with `train`, `path` is Zeus' power summary.

    A job is dataset/network/optimizer. Batch sizes that reach the target in less than half of
    their runs are left out, and so are jobs that were never trained.

    Raises:
        UserError: bad content, with file, line and field; or nothing left.
    """
    found = _native(path) if train is None else _zeus(path, train)
    if not found:
        hint = "are these files of the same jobs?"
        raise UserError("holds no job whose progress is known", where=str(path), hint=hint)
    return tuple(_with_accumulation(one) for one in found) if accumulate else tuple(found)


def _with_accumulation(surface: Surface) -> Surface:
    epochs = {one.setting.global_batch: one.epochs_to_target for one in surface.points}
    return replace(surface, points=accumulated(surface.points, epochs))


def _native(path: Path) -> list[Surface]:
    jobs: dict[str, list[SurfacePoint]] = defaultdict(list)
    terms: dict[str, tuple[int, float]] = {}
    for line, cells in rows(path, NATIVE):
        place = CellPlace(f"{path}:{line}")
        job, batch, cap, power, seconds, epochs, passes, layout, devices, weight = (
            cell.strip() for cell in cells
        )
        name = place.name("job", job)
        setting = JobSetting(
            batch_size=place.count("batch_size", batch),
            accumulation=place.count("accumulation", passes) if passes else 1,
            layout=layout,
        )
        if any((one.setting, one.cap_w) == (setting, float(cap)) for one in jobs[name] if cap):
            problem = f"{cap} W of {name!r} appears twice for this way to run"
            raise place.error("cap_w", problem, "one row per cap and way to run")
        jobs[name].append(
            SurfacePoint(
                setting=setting,
                cap_w=_positive(path, line, "cap_w", cap),
                power_w=_positive(path, line, "power_w", power),
                epochs_per_s=1 / _positive(path, line, "epoch_s", seconds),
                epochs_to_target=_positive(path, line, "epochs_to_target", epochs),
            )
        )
        here = (
            place.count("devices", devices) if devices else 1,
            _positive(path, line, "weight", weight) if weight else 1.0,
        )
        if terms.setdefault(name, here) != here:
            problem = f"another weight or devices than before for {name!r}"
            raise place.error("job", problem, "they belong to the job, not to the point")
    return [
        Surface(job=name, points=tuple(points), devices=terms[name][0], weight=terms[name][1])
        for name, points in jobs.items()
    ]


def _zeus(path: Path, train: Path) -> list[Surface]:
    epochs = {kind: _epochs(batches) for kind, batches in _runs(train).items()}
    jobs: dict[Kind, list[SurfacePoint]] = defaultdict(list)
    for line, cells in rows(path, ZEUS):
        dataset, network, batch, optimizer, cap, seconds, power = (cell.strip() for cell in cells)
        kind = (dataset, network, optimizer)
        size = CellPlace(f"{path}:{line}").integer("batch_size", batch)
        needed = epochs.get(kind, {}).get(size)
        if needed is None:
            continue
        jobs[kind].append(
            SurfacePoint(
                setting=JobSetting(batch_size=size),
                cap_w=_positive(path, line, "power_limit", cap),
                power_w=_positive(path, line, "average_power", power),
                epochs_per_s=1 / _positive(path, line, "time_per_epoch", seconds),
                epochs_to_target=needed,
            )
        )
    return [Surface(job="/".join(kind), points=tuple(points)) for kind, points in jobs.items()]


def _runs(train: Path) -> Runs:
    found: Runs = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for line, cells in rows(train, TRAIN):
        dataset, network, batch, optimizer, target, text = (cell.strip() for cell in cells)
        size = CellPlace(f"{train}:{line}").integer("batch_size", batch)
        reached = text.lower() not in ("", "nan")
        epoch = _positive(train, line, "target_epoch", text) if reached else None
        goal = finite(target, train, line, "target_metric")
        found[dataset, network, optimizer][size][goal].append(epoch)
    return found


def _epochs(batches: dict[int, dict[float, list[float | None]]]) -> dict[int, float]:
    """Expected epochs by batch size, to the hardest target that most runs reach."""
    goals = sorted({goal for runs in batches.values() for goal in runs})
    reached = [goal for goal in goals if _share(_all(batches, goal)) >= REACHED]
    if not reached:
        return {}
    target = max(reached, key=lambda goal: (_mean(_all(batches, goal)), goal))
    found = {size: expected_epochs(runs.get(target, [])) for size, runs in batches.items()}
    return {size: epochs for size, epochs in found.items() if epochs is not None}


def _all(batches: dict[int, dict[float, list[float | None]]], goal: float) -> list[float | None]:
    return [epoch for runs in batches.values() for epoch in runs.get(goal, [])]


def _share(runs: Iterable[float | None]) -> float:
    all_of = list(runs)
    return sum(epoch is not None for epoch in all_of) / len(all_of)


def _mean(runs: Iterable[float | None]) -> float:
    """Epochs of the runs that reached it; the hardest target takes most."""
    known = [epoch for epoch in runs if epoch is not None]
    return math.fsum(known) / len(known)


def _positive(path: Path, line: int, column: str, text: str) -> float:
    value = finite(text, path, line, column)
    if value <= 0:
        problem = f"{text!r} is not above zero"
        raise UserError(problem, where=f"{path}:{line}", field=column, hint="a measured number")
    return value

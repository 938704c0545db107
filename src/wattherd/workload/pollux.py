"""The Pollux artifact's files (OSDI'21; Sia's have the same form): jobs and application profiles.

`workload-N.csv`: name, time (submission, s), application, num_replicas, batch_size.
`profiles/<application>/`: `placements.csv`, `scalability.csv`, `validation-<batch>.csv`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError
from wattherd.estimate.application import Application, Placement, Validation
from wattherd.model.job import JobSpec, workers
from wattherd.spelling import hint_for
from wattherd.workload.table import Layout, column_values, rows

Floats = NDArray[np.float64]

JOBS = Layout(
    kind="Pollux workload",
    required=("name", "time", "application", "num_replicas", "batch_size"),
)
_PLACEMENTS = Layout(
    kind="placements", required=("placement", "local_bsz", "step_time", "sync_time")
)
_SCALABILITY = Layout(
    kind="scalability",
    required=("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"),
)
_VALIDATION = Layout(
    kind="validation", required=("progress", "iteration", "metric", "grad_sqr", "grad_var")
)

EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
"""Epochs to train, as the artifact fixes them per application."""
MOST_LOCAL = {"yolov3": 8}
"""Samples per replica where the artifact sets a limit below the measured range."""
SINGLE = frozenset({"ncf"})
"""Applications that the artifact never gives more than one replica."""
PINNED_BATCH = {"ncf": 32_768}
"""Batch sizes that the artifact's Pollux leaves as they are."""


def read_applications(directory: Path) -> dict[str, Application]:
    """Every application below `directory`, by name.

    Raises:
        UserError: no such directory, a missing file, or a bad cell (with file, line and column).
    """
    if not directory.is_dir():
        raise UserError("no such directory", where=str(directory), hint="--profiles DIR")
    found = {path.name: _application(path) for path in sorted(directory.iterdir()) if path.is_dir()}
    if not found:
        raise UserError("holds no application", where=str(directory))
    return found


def _application(directory: Path) -> Application:
    name = directory.name
    measured = column_values(directory / "placements.csv", _PLACEMENTS)
    scaled = column_values(directory / "scalability.csv", _SCALABILITY)
    placements = [_digits(value) for value in measured[:, 0]]
    found = map(_validation, _validation_files(directory))
    validations = tuple(sorted(found, key=lambda one: one.batch_size))
    return Application(
        name=name,
        validations=validations,
        placed=_by_placement(placements, measured),
        scaled=np.vstack([_means(placements, measured), scaled]),
        epochs=EPOCHS.get(name, min(len(one.progress) for one in validations)),
        least_local=int(measured[:, 1].min()),
        most_local=MOST_LOCAL.get(name, int(measured[:, 1].max())),
        pinned_batch=PINNED_BATCH.get(name),
    )


def _digits(value: float) -> Placement:
    """`44` means four GPUs on each of two nodes."""
    return tuple(int(digit) for digit in str(int(value)))


def _by_placement(
    placements: list[Placement], measured: Floats
) -> dict[Placement, tuple[Floats, Floats]]:
    chosen: dict[Placement, list[int]] = defaultdict(list)
    for row, placement in enumerate(placements):
        chosen[placement].append(row)
    return {
        placement: (measured[picked, 1], measured[picked, 2:])
        for placement, picked in chosen.items()
    }


def _means(placements: list[Placement], measured: Floats) -> Floats:
    """Rows (nodes, replicas, local batch, step, sync), averaged over placements, sorted."""
    grouped: dict[tuple[float, ...], list[Floats]] = defaultdict(list)
    for placement, row in zip(placements, measured, strict=True):
        grouped[float(len(placement)), float(sum(placement)), float(row[1])].append(row[2:])
    return np.array([[*key, *np.mean(values, axis=0)] for key, values in sorted(grouped.items())])


def _validation_files(directory: Path) -> list[Path]:
    found = sorted(directory.glob("validation-*.csv"))
    if not found:
        raise UserError("no validation-<batch>.csv", where=str(directory))
    return found


def _validation(path: Path) -> Validation:
    match = re.fullmatch(r"validation-(\d+)\.csv", path.name)
    if match is None:
        raise UserError(
            "file name carries no batch size", where=str(path), hint="validation-128.csv"
        )
    progress, iteration, _, grad_sqr, grad_var = column_values(path, _VALIDATION).T
    return Validation(
        batch_size=int(match[1]),
        progress=progress,
        iteration=iteration,
        grad_sqr=grad_sqr,
        grad_var=grad_var,
    )


def read_jobs(path: Path, applications: Mapping[str, Application]) -> tuple[JobSpec, ...]:
    """The jobs of a workload file, in its order.

    `count` is the number of replicas the user asked for; the elastic range is what the artifact's
    elastic policies may use: from one to as many as the batch size can be split over.

    Raises:
        UserError: with file, line and column.
    """
    return tuple(_job(cells, f"{path}:{line}", applications) for line, cells in rows(path, JOBS))


def _job(cells: tuple[str, ...], where: str, applications: Mapping[str, Application]) -> JobSpec:
    name, time, kind, replicas, batch = cells
    if kind not in applications:
        hint = hint_for(kind, applications)
        raise UserError(
            f"unknown application {kind!r}", where=where, field="application", hint=hint
        )
    count, size = _whole(replicas, where, "num_replicas"), _whole(batch, where, "batch_size")
    most = 1 if kind in SINGLE else size // applications[kind].least_local
    return JobSpec(
        id=name,
        submit_s=float(_whole(time, where, "time")),
        roles=workers(count),
        min_width=1,
        max_width=max(most, count),
        profile=kind,
        batch_size=size,
    )


def _whole(cell: str, where: str, field: str) -> int:
    if not re.fullmatch(r"\d+", cell):
        raise UserError(f"{cell!r} is no whole number of zero or more", where=where, field=field)
    return int(cell)

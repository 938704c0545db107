"""Measured speeds of kinds of jobs from a CSV file, a row per way of running.

`kind, gpu_model, gpus, rate`, and where they matter `nodes`, `batch`, `accumulation`. `kind` is
what jobs have as their `profile`; `rate` is in any unit that is the same for all rows of a kind:
steps or samples per second.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from wattherd.errors import UserError
from wattherd.estimate.job_rate import RatePoint, RateTable
from wattherd.spelling import hint_for
from wattherd.workload.cells import CellPlace
from wattherd.workload.table import Layout, finite, rows

LAYOUT = Layout(
    kind="speed table",
    required=("kind", "gpu_model", "gpus", "rate"),
    optional=("nodes", "batch", "accumulation"),
)
MOST = 1 << 40


def read_speeds(path: Path, *, known: Collection[str]) -> RateTable:
    """The points of a file; `known` are the GPU models there are.

    Raises:
        UserError: bad content, an unknown GPU model, a rate that is not above zero, or two rows of
            the same way of running, with file, line and field.
    """
    points: dict[tuple[object, ...], RatePoint] = {}
    for line, cells in rows(path, LAYOUT):
        place = CellPlace(f"{path}:{line}")
        kind, model, gpus, rate, *told = (cell.strip() for cell in cells)
        if not kind:
            raise place.error("kind", "is empty", "what jobs have as their profile")
        if model not in known:
            raise place.error("gpu_model", f"unknown GPU {model!r}", hint_for(model, known))
        per_s = finite(rate, path, line, "rate")
        if per_s <= 0:
            raise place.error("rate", f"{rate} is not above zero", "steps or samples per second")
        wide = place.integer("gpus", gpus, at_most=MOST)
        if wide < 1:
            raise place.error("gpus", f"{gpus} GPUs are none", "one or more")
        nodes, batch, accumulation = (
            place.integer(name, cell, at_most=MOST) if cell else None
            for name, cell in zip(LAYOUT.optional, told, strict=True)
        )
        way = (kind, model, wide, nodes, batch, accumulation)
        if way in points:
            raise place.error("rate", "appears twice for one way of running", "one row each")
        points[way] = RatePoint(
            kind=kind, gpu_model=model, gpus=wide, per_s=per_s, nodes=nodes, batch=batch,
            accumulation=accumulation,
        )  # fmt: skip
    if not points:
        raise UserError("holds no speed", where=str(path), hint="is this the right file?")
    return RateTable(points.values())

"""The public data set of AITurbo (HPDC'21): 8,692 ended parameter-server jobs with labels.

Columns and their meaning as its author documents them; accuracy and loss are those after the run.
Rows with empty cells (two) are left out and counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wattherd.errors import UserError
from wattherd.estimate.predictability import FEATURES, EndedJobs
from wattherd.workload.table import Layout, rows

LABEL = "Predictability"
"""0 is predictable, 1 unpredictable."""
_LAYOUT = Layout(kind="AITurbo data set", required=(*FEATURES, LABEL))


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledJobs:
    """The complete rows, and how many were not."""

    history: EndedJobs
    incomplete: int


def read_labelled(path: Path) -> LabelledJobs:
    """Every complete row of the data set.

    Raises:
        UserError: with file, line and column; no row of one of the two labels.
    """
    read = [(line, cells) for line, cells in rows(path, _LAYOUT)]
    whole = [(line, cells) for line, cells in read if all(cell.strip() for cell in cells)]
    values = np.array([_numbers(cells, f"{path}:{line}") for line, cells in whole])
    label = values[:, -1] if len(values) else np.empty(0)
    if not ((label == 0).any() and (label == 1).any()):
        raise UserError("needs jobs of both labels", where=str(path), field=LABEL)
    return LabelledJobs(
        history=EndedJobs(values[:, :-1], label == 1), incomplete=len(read) - len(whole)
    )


def _numbers(cells: tuple[str, ...], where: str) -> list[float]:
    named = zip((*FEATURES, LABEL), cells, strict=True)
    return [_number(cell, where, name) for name, cell in named]


def _number(cell: str, where: str, field: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        raise UserError(f"{cell!r} is no number", where=where, field=field) from None
    if not (math.isfinite(value) and value >= 0):
        raise UserError(f"{cell!r} is negative or no number", where=where, field=field)
    if field == LABEL and value not in (0.0, 1.0):
        raise UserError(f"{cell!r} is neither 0 nor 1", where=where, field=field)
    return value

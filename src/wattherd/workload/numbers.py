"""Numeric tables: every cell a finite number, as one array."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError
from wattherd.workload.table import Layout, rows


def column_values(path: Path, layout: Layout) -> NDArray[np.float64]:
    """The required columns of `layout` (rows, columns).

    Raises:
        UserError: unreadable, or a cell that is no finite number, with file, line and column.
    """
    table = [
        [finite(cell, path, line, name) for cell, name in zip(cells, layout.columns, strict=True)]
        for line, cells in rows(path, layout)
    ]
    return np.array(table, dtype=np.float64)


def finite(cell: str, path: Path, line: int, column: str) -> float:
    """A cell as a finite number.

    Raises:
        UserError: it is none, with file, line and column.
    """
    try:
        value = math.nan if "_" in cell else float(cell)  # Python would read 1_80 as 180
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        hint = "a plain decimal number"
        raise UserError(f"{cell!r} is no number", where=f"{path}:{line}", field=column, hint=hint)
    return value

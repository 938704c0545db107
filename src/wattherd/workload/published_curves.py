"""Result files of the placement papers: the FGD authors' binned curves, and the PWR curves.

`analysis_*_discrete.csv` holds one row per (trace, policy, seed) with a column per percent of
arrived load; `pwr_reference.csv` one row per (trace, policy, arrived fraction), means over seeds.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError
from wattherd.workload.table import Layout, rows

Floats = NDArray[np.float64]
BINS = tuple(str(percent) for percent in range(131))
TRACE_PREFIX = "openb_pod_list_"

_KEY = ("workload", "sc_policy", "seed")
_BINNED = Layout(kind="binned result file", required=(*_KEY, *BINS))
_REFERENCE = Layout(
    kind="PWR reference",
    required=(
        "trace",
        "policy",
        "n_seeds",
        "x_arrived_frac",
        "grar_mean",
        "power_savings_pct_vs_FGD",
    ),
)


def read_binned(path: Path) -> dict[tuple[str, str, int], Floats]:
    """(trace without prefix, policy as published, seed) to its 131 bins.

    Raises:
        UserError: the file cannot be read, lacks a column, or holds something else than numbers.
    """
    found: dict[tuple[str, str, int], Floats] = {}
    for line, (trace, policy, seed, *cells) in rows(path, _BINNED):
        where = f"{path}:{line}"
        values = [_number(cell, where, name) for cell, name in zip(cells, BINS, strict=True)]
        key = (trace.removeprefix(TRACE_PREFIX), policy, int(_number(seed, where, "seed")))
        found[key] = np.array(values)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceCurve:
    """Means over the first `seeds` seeds by arrived fraction `x` (0 to 1.3)."""

    seeds: int
    x: Floats
    grar: Floats
    savings_pct: Floats


def read_pwr_reference(path: Path) -> dict[tuple[str, str], ReferenceCurve]:
    """(trace, policy as published) to its curve.

    Raises:
        UserError: as `read_binned`.
    """
    columns: dict[tuple[str, str], list[tuple[float, ...]]] = defaultdict(list)
    for line, (trace, policy, *cells) in rows(path, _REFERENCE):
        names = _REFERENCE.required[2:]
        where = f"{path}:{line}"
        values = [_number(cell, where, name) for cell, name in zip(cells, names, strict=True)]
        columns[trace, policy].append(tuple(values))
    return {key: _curve(np.array(table)) for key, table in columns.items()}


def _curve(table: Floats) -> ReferenceCurve:
    seeds, x, grar, savings = table.T
    return ReferenceCurve(seeds=int(seeds[0]), x=x, grar=grar, savings_pct=savings)


def _number(cell: str, where: str, column: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise UserError(f"{cell!r} is not a number", where=where, field=column) from None

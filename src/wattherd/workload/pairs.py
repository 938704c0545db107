"""Lucid's measurements (ASPLOS'23) of jobs that share a GPU.

`single_data.csv` has one line for each of 66 training jobs alone on an RTX 3090, with GPU
utilisation (percent) and memory (MB); `colocate_info.csv` one for each pair that was packed, with
both speeds relative to alone, and the utilisation of the GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wattherd.errors import UserError
from wattherd.estimate.interference import Pair, PairSpeeds
from wattherd.workload.source import shown
from wattherd.workload.table import Layout, rows

_KEYS = ("model", "dataset", "batchsize", "amp")
SINGLE = Layout(kind="table of single jobs", required=(*_KEYS, "gpu_util", "gmem"))
PAIRS = Layout(
    kind="table of packed pairs",
    required=(*(f"{key}{n}" for n in (1, 2) for key in (*_KEYS, "speed")), "gpu_util"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SoloUse:
    """What a job does to a GPU of its own: mean utilisation, 0 to 1, and memory."""

    utilisation: float
    memory_mib: int


@dataclass(frozen=True, slots=True)
class PairMeasurements:
    """Speeds of pairs, and the mean utilisation (0 to 1) of the GPU that a pair is on."""

    speeds: PairSpeeds
    utilisation: Mapping[Pair, float]


def read_alone(path: Path) -> dict[str, SoloUse]:
    """Jobs by profile: model, data set, batch size and precision.

    Raises:
        UserError: with file, line and column.
    """
    found = {}
    for line, cells in rows(path, SINGLE):
        where = f"{path}:{line}"
        found[_profile(cells[:4])] = SoloUse(
            utilisation=_number(cells[4], where, "gpu_util", most=100.0) / 100,
            memory_mib=math.ceil(_number(cells[5], where, "gmem")),
        )
    return found


def read_packed(path: Path) -> PairMeasurements:
    """Pairs by the profiles of both.

    Raises:
        UserError: with file, line and column.
    """
    speeds: dict[Pair, tuple[float, float]] = {}
    utilisation: dict[Pair, float] = {}
    for line, cells in rows(path, PAIRS):
        where = f"{path}:{line}"
        pair = _profile(cells[:4]), _profile(cells[5:9])
        speeds[pair] = _number(cells[4], where, "speed1"), _number(cells[9], where, "speed2")
        utilisation[pair] = _number(cells[10], where, "gpu_util", most=100.0) / 100
    return PairMeasurements(PairSpeeds(speeds), utilisation)


def _profile(cells: tuple[str, ...]) -> str:
    model, data, batch, mixed = cells
    return f"{model} {data} {batch}{' mixed' if mixed == '1' else ''}"


def _number(cell: str, where: str, name: str, most: float = math.inf) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not 0 <= value <= most or not math.isfinite(value):
        hint = f"a number from 0 to {most:g}" if most < math.inf else "a number of zero or more"
        raise UserError(f"{shown(cell)} is no such number", where=where, field=name, hint=hint)
    return value

"""Measurements of jobs that share a GPU: Lucid's (ASPLOS'23) and Gavel's (OSDI'20).

Lucid: `single_data.csv` has one line for each of 66 training jobs alone on an RTX 3090, with GPU
utilisation (percent) and memory (MB); `colocate_info.csv` one for each pair that was packed, with
both speeds relative to alone, and the utilisation of the GPU. Gavel: throughputs of pairs stand in
the file that `workload.gavel.read_throughputs` reads those of single jobs from.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattherd.errors import UserError
from wattherd.estimate.interference import Pair, PairSpeeds
from wattherd.workload.source import opened, shown
from wattherd.workload.table import Layout, rows

_KEYS = ("model", "dataset", "batchsize", "amp")
SINGLE = Layout(kind="table of single jobs", required=(*_KEYS, "gpu_util", "gmem"))
PAIRS = Layout(
    kind="table of packed pairs",
    required=(*(f"{key}{n}" for n in (1, 2) for key in (*_KEYS, "speed")), "gpu_util"),
)
_MAX_BYTES = 1 << 28


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


def read_gavel_pairs(path: Path, worker_type: str) -> PairSpeeds:
    """Speeds of packed pairs of single-GPU jobs on a worker type, relative to each alone.

    Pairs that do not run together (out of memory: 0) have both speeds 0.

    Raises:
        UserError: no JSON, no such worker type, or a pair that is no two numbers.
    """
    with opened(path) as stream:
        text = stream.read(_MAX_BYTES)
    try:
        whole = json.loads(text)
    except ValueError as error:
        raise UserError(f"not JSON: {error}", where=str(path)) from None
    if not isinstance(whole, dict) or not isinstance(whole.get(worker_type), dict):
        raise UserError(f"no worker type {shown(worker_type)} in it", where=str(path))
    return PairSpeeds(dict(_relative(whole[worker_type], f"{path}: {worker_type}")))


def _relative(jobs: dict[str, Any], where: str) -> Iterator[tuple[Pair, tuple[float, float]]]:
    alone = {
        name: float(found["null"])
        for name, found in jobs.items()
        if isinstance(found, dict) and isinstance(found.get("null"), int | float)
    }
    kinds = {name: match[1] for name in alone if (match := re.fullmatch(r"\('(.+)', 1\)", name))}
    for name, kind in kinds.items():
        for other in sorted(kinds.keys() & jobs[name].keys()):
            rates = jobs[name][other]
            good = isinstance(rates, list) and len(rates) == 2
            if not good or not all(isinstance(one, int | float) and one >= 0 for one in rates):
                problem = f"{shown(repr(rates))} of {shown(name)} are no two rates"
                raise UserError(problem, where=where, field=other, hint="steps per second")
            if alone[name] and alone[other]:
                yield (kind, kinds[other]), (rates[0] / alone[name], rates[1] / alone[other])

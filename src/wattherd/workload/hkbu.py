"""Measurements and results of the HKBU DVFS work (Mei et al., TPDS'21), and its task sets.

Files: `<card>-dvfs-real-Performance-Power.csv[.gz]` (kernel, clocks in MHz, milliseconds, watts)
and `offline.csv`, `turnon.csv` (published energies). Task sets are drawn as the authors' generator
draws them, from our own random stream.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wattherd.errors import UserError
from wattherd.estimate.dvfs import DvfsModel, MeasuredKernel
from wattherd.policy.schedule.edl import DeadlineTask
from wattherd.workload.table import Layout, rows

GPUS = 2048
_KERNELS = Layout(
    kind="DVFS measurement", required=("appName", "coreF", "memF", "time/ms", "power/W")
)
_RESULTS = Layout(
    kind="DVFS scheduling result",
    required=(
        "gpus_per_node", "util", "algo", "dvfs_on", "theta",
        "aver_run_E", "aver_idle_E", "aver_turnon_E", "aver_total_E",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HkbuCard:
    """Base clocks in MHz: what relative clocks are relative to."""

    core_mhz: float
    memory_mhz: float


CARDS = {"gtx2070s": HkbuCard(1880, 6300), "gtx1080ti": HkbuCard(1800, 5000)}
"""As the authors' documentation gives them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """Mean energies of published runs, joules."""

    gpus_per_node: int
    utilisation: float
    heuristic: str
    dvfs: bool
    theta: float
    run_j: float
    idle_j: float
    turn_on_j: float
    total_j: float


def read_kernels(path: Path, card: HkbuCard) -> dict[str, MeasuredKernel]:
    """Every measured kernel, by name.

    Raises:
        UserError: with file, line and column.
    """
    found: dict[str, list[list[float]]] = defaultdict(list)
    for line, (name, *cells) in rows(path, _KERNELS):
        numbers = [
            _positive(cell, f"{path}:{line}", column)
            for cell, column in zip(cells, _KERNELS.required[1:], strict=True)
        ]
        found[name].append(numbers)
    return {name: _measured(np.array(points), card) for name, points in sorted(found.items())}


def _measured(
    points: np.ndarray[tuple[int, int], np.dtype[np.float64]], card: HkbuCard
) -> MeasuredKernel:
    return MeasuredKernel(
        core=points[:, 0] / card.core_mhz,
        memory=points[:, 1] / card.memory_mhz,
        time_s=points[:, 2] / 1000,
        power_w=points[:, 3],
    )


def read_results(path: Path) -> list[PublishedRun]:
    """Published results.

    Raises:
        UserError: with file, line and column.
    """
    return [_result(cells, f"{path}:{line}") for line, cells in rows(path, _RESULTS)]


def _result(cells: Sequence[str], where: str) -> PublishedRun:
    named = dict(zip(_RESULTS.required, cells, strict=True))
    heuristic = named.pop("algo")
    values = {column: _number(cell, where, column) for column, cell in named.items()}
    return PublishedRun(
        gpus_per_node=int(values["gpus_per_node"]),
        utilisation=values["util"],
        heuristic=heuristic,
        dvfs=values["dvfs_on"] == 1,
        theta=values["theta"],
        run_j=values["aver_run_E"],
        idle_j=values["aver_idle_E"],
        turn_on_j=values["aver_turnon_E"],
        total_j=values["aver_total_E"],
    )


def offline_tasks(utilisation: float, chance: np.random.Generator) -> list[DeadlineTask]:
    """A synthetic set, all there at time 0: 2,048 x `utilisation` tasks.

    Scale k is a whole number of 10 to 50, D / k uniform in 1.66 to 7.61, t0 / k in 0.1 to 0.95,
    delta in 0.07 to 0.91; power at base clocks 175 to 206 W, of which 20 to 41 % are constant and
    10 to 20 % memory's; the base time is 25 to 75 % of the deadline.

    Raises:
        UserError: utilisation is not positive.
    """
    if not utilisation > 0:
        raise UserError(f"utilisation {utilisation} is not positive", field="utilisation")
    return [_task(chance) for _ in range(int(GPUS * utilisation))]


def _task(chance: np.random.Generator) -> DeadlineTask:
    scale = int(chance.integers(10, 51))
    d_s = float(chance.uniform(1.66, 7.61)) * scale
    t0_s = float(chance.uniform(0.1, 0.95)) * scale
    delta = float(chance.uniform(0.07, 0.91))
    power_w = float(chance.integers(175, 207))
    p0_w = power_w * float(chance.uniform(0.20, 0.41))
    gamma_w = power_w * float(chance.uniform(0.1, 0.2))
    model = DvfsModel(
        t0_s=t0_s, d_s=d_s, delta=delta, p0_w=p0_w, gamma_w=gamma_w, c_w=power_w - p0_w - gamma_w
    )
    return DeadlineTask(model=model, deadline_s=(t0_s + d_s) / float(chance.uniform(0.25, 0.75)))


def _number(cell: str, where: str, column: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = -1.0
    if not (0 <= value < float("inf")):
        raise UserError(f"{cell!r} is no number of zero or more", where=where, field=column)
    return value


def _positive(cell: str, where: str, column: str) -> float:
    value = _number(cell, where, column)
    if value == 0:
        raise UserError("zero is not positive", where=where, field=column)
    return value

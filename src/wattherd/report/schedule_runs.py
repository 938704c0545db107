"""Run directories as `wattherd sim run --out DIR` writes them: read, checked, ready to be drawn.

`sim.json` (schema `wattherd.sim/1`) and, per policy, `jobs-`, `runs-` and `power-POLICY.csv`; the
last two may be missing. Only this module knows the files. Times in seconds, power in watts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from wattherd.errors import UserError
from wattherd.validation import misfit
from wattherd.workload.source import line_count
from wattherd.workload.table import Layout, rows

SCHEMA = "wattherd.sim/1"
SIM_FILE = "sim.json"
_HINT = "`wattherd sim run --out DIR` writes a run directory"

Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelFigures:
    """What all domains of one level of the power tree carried; uses are of their budgets."""

    level: str
    domains: Count
    budgets: Count
    over_budget_s: Finite
    exempt_s: Finite = 0.0
    worst_w: Finite
    worst_domain: str = ""
    mean_use_pct: Finite | None = None
    peak_use_pct: Finite | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFigures:
    """One policy's row of `sim.json`."""

    policy: str
    jobs: Count
    finished: Count
    avg_jct_s: Finite | None
    median_jct_s: Finite | None
    p99_jct_s: Finite | None
    makespan_s: Finite
    avg_queue_s: Finite | None
    gpu_utilisation_pct: Finite | None
    restarts: Count
    preemptions: Count
    energy_j: dict[str, Finite]
    over_budget_s: Finite
    exempt_s: Finite = 0.0
    rejected: Count = 0
    cpu_s: Finite | None = None
    levels: tuple[LevelFigures, ...] = ()
    cost: Finite | None = None
    currency: str = ""
    co2e_kg: Finite | None = None
    unpriced_j: Finite = 0.0
    unrated_j: Finite = 0.0

    @property
    def all_energy_j(self) -> float:
        """Joules of all kinds."""
        return math.fsum(self.energy_j.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCapacity:
    """What the cluster has."""

    nodes: Count = 0
    gpus: Count = 0
    cpus: Finite = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WattsSource:
    """Of how many jobs with GPUs no power curve was measured on some GPU model of the cluster."""

    jobs: Count = 0
    prior: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sim:
    """One `sim.json`."""

    version: str
    command: str
    policies: tuple[PolicyFigures, ...]
    jobs: str = ""
    format: str = ""
    cluster: str = ""
    preset: str = ""
    budget: str | None = None
    power: str = ""
    capacity: ClusterCapacity = ClusterCapacity()
    assumptions: tuple[str, ...] = ()
    watts: WattsSource = WattsSource()


@dataclass(frozen=True, slots=True)
class JobFigures:
    """A row of `jobs-POLICY.csv`; None for times that never came."""

    job_id: str
    submit_s: float
    finish_s: float | None
    jct_s: float | None


@dataclass(frozen=True, slots=True)
class Stretch:
    """A row of `runs-POLICY.csv`: a job held so many GPUs from then to then."""

    job_id: str
    start_s: float
    stop_s: float
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLevels:
    """Columns of `power-POLICY.csv` by step (S,); `budget_w` is infinite where there is none."""

    time_s: Floats
    gpus: Floats
    cpus: Floats
    run_w: Floats
    draw_w: Floats
    peak_w: Floats
    budget_w: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRun:
    """One policy's figures, jobs, and what was in use when."""

    figures: PolicyFigures
    jobs: tuple[JobFigures, ...]
    stretches: tuple[Stretch, ...]
    levels: PowerLevels | None

    @property
    def policy(self) -> str:
        """Its name."""
        return self.figures.policy


@dataclass(frozen=True, slots=True, kw_only=True)
class SimRun:
    """A whole run directory."""

    directory: Path
    sim: Sim
    runs: tuple[PolicyRun, ...]

    @property
    def policies(self) -> tuple[str, ...]:
        """In the order in which they were asked for."""
        return tuple(run.policy for run in self.runs)


def holds_sim(directory: Path) -> bool:
    """Whether this is a directory of `wattherd sim run`."""
    return (directory / SIM_FILE).is_file()


def load_sim(directory: Path) -> SimRun:
    """Read a run directory.

    Raises:
        UserError: a missing or broken file, another schema, or a bad cell, with its place.
    """
    sim = read_sim(directory / SIM_FILE)
    return SimRun(
        directory=directory,
        sim=sim,
        runs=tuple(_policy_run(directory, figures) for figures in sim.policies),
    )


def read_sim(file: Path) -> Sim:
    """Read and check one `sim.json`; raises UserError naming file and field."""
    try:
        payload = json.loads(file.read_bytes())
    except OSError as problem:
        why = f"cannot be read: {problem.strerror}"
        raise UserError(why, where=str(file), hint=_HINT) from None
    except (ValueError, RecursionError):
        hint = "the file may be cut off; run the simulation again"
        raise UserError("not a JSON text", where=str(file), hint=hint) from None
    schema = payload.get("schema") if isinstance(payload, Mapping) else None
    if schema != SCHEMA:
        why = f"is {schema!r}, not {SCHEMA!r}" if schema else f"is missing, {SCHEMA!r} expected"
        raise UserError(why, where=str(file), field="schema", hint="another version's?")
    try:
        sim: Sim = _SIM.validate_python(payload)
    except ValidationError as problem:
        raise misfit(problem, str(file)) from None
    names = [figures.policy for figures in sim.policies]
    if not names or len(set(names)) < len(names) or not all(map(_plain, names)):
        what = "must name each policy once, in plain words"
        raise UserError(what, where=str(file), field="policies")
    return sim


_SIM = TypeAdapter(Sim)


def _plain(name: str) -> bool:
    return bool(name) and name.isprintable() and "/" not in name


_JOBS = Layout(kind="table of jobs", required=("job", "submit_s", "finish_s", "jct_s"))
_STRETCHES = Layout(kind="table of runs", required=("job", "start_s", "stop_s", "gpus"))
_LEVELS = Layout(
    kind="table of levels",
    required=("time_s", "gpus", "cpus", "run_w", "draw_w", "peak_w", "budget_w"),
)


def _policy_run(directory: Path, figures: PolicyFigures) -> PolicyRun:
    jobs = _cells(directory / f"jobs-{figures.policy}.csv", _JOBS)
    stretches = _cells(directory / f"runs-{figures.policy}.csv", _STRETCHES)
    levels = _cells(directory / f"power-{figures.policy}.csv", _LEVELS)
    return PolicyRun(
        figures=figures,
        jobs=tuple(
            JobFigures(
                cells[0], _number(cells[1], where), *(_known(one, where) for one in cells[2:])
            )
            for where, cells in jobs
        ),
        stretches=tuple(_stretch(where, cells) for where, cells in stretches),
        levels=_levels(levels) if levels else None,
    )


def _stretch(where: str, cells: tuple[str, ...]) -> Stretch:
    start_s, stop_s, gpus = (_number(one, where) for one in cells[1:])
    return Stretch(cells[0], start_s, stop_s, int(gpus))


def _cells(file: Path, layout: Layout) -> list[tuple[str, tuple[str, ...]]]:
    """Place and cells of every row; none where the file is missing or has only its header."""
    if not file.is_file() or line_count(file, stop_after=2) < 2:
        return []
    return [(f"{file}:{line}", cells) for line, cells in rows(file, layout)]


def _levels(table: list[tuple[str, tuple[str, ...]]]) -> PowerLevels:
    values = np.array(
        [
            [*(_number(one, where) for one in cells[:-1]), _or_endless(cells[-1], where)]
            for where, cells in table
        ]
    )
    return PowerLevels(**dict(zip(_LEVELS.required, values.T, strict=True)))


def _or_endless(cell: str, where: str) -> float:
    known = _known(cell, where)
    return math.inf if known is None else known


def _known(cell: str, where: str) -> float | None:
    return _number(cell, where) if cell else None


def _number(cell: str, where: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{cell!r} is no number", where=where, hint="a plain decimal number")
    return value

"""Sweeps from Python: many schedulers, budgets, seeds, clusters and workloads, by processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from operator import index
from pathlib import Path
from typing import Any

from wattherd.catalog.gpus import GPUS
from wattherd.errors import UserError
from wattherd.experiments.schedule.run import POWER_POLICIES, power_policy
from wattherd.experiments.schedule.setup import parse_budget
from wattherd.experiments.schedule.simulators import preset as preset_of
from wattherd.experiments.schedule.workloads import TIMED
from wattherd.experiments.sweep.cell import ScheduleCell, grid
from wattherd.experiments.sweep.kinds import SweepCell
from wattherd.experiments.sweep.sweep import CellSweep, SweptCell, document
from wattherd.library.caching import Caching, results_kept
from wattherd.library.inputs import Source, by_row, input_file
from wattherd.library.progress import tracked
from wattherd.library.simulation import Watts, budget_text
from wattherd.library.table import Table
from wattherd.spelling import hint_for
from wattherd.store.run_dir import RunDir
from wattherd.workload.cluster_text import read_cluster
from wattherd.workload.scenario import Scenario, beside, validated

SWEEP_FILE = "sweep.json"
Drawn = Callable[[int], Source]
"""Jobs that a seed draws: rows or a frame."""
Workload = Source | Drawn


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SweptRuns:
    """A row for each cell of the grid, in its order, whatever became of the cell."""

    cells: tuple[SweptCell, ...]
    command: str = "wattherd.sweep"

    @property
    def runs(self) -> Table:
        """Place in the grid, `failure`, `unfinished_why`, and the figures of `sim run`."""
        return Table.of_rows(one.row() for one in self.cells)

    @property
    def failures(self) -> Table:
        """The cells that have no figures, and why."""
        failed = (one for one in self.cells if one.failure)
        return Table.of_rows({**one.cell.place(), "failure": one.failure} for one in failed)

    @property
    def computed(self) -> int:
        """How many were computed now; all others had been before."""
        return sum(not one.kept for one in self.cells)

    @property
    def document(self) -> dict[str, Any]:
        """All rows as `wattherd.sweep/1`, with the version."""
        return document(self.cells, self.command)

    def save(self, folder: Path | str, *, parquet: bool = False) -> Path:
        """Write `sweep.json` and `sweep.csv`; the folder's path.

        Args:
            folder: where; it is made.
            parquet: `sweep.parquet` as well (extra `tables`).

        Raises:
            UserError: it cannot be written, or the extra is missing.
        """
        out = Path(folder)
        RunDir(out).write_json(SWEEP_FILE, self.document)
        runs = self.runs
        runs.write_csv(out / "sweep.csv")
        if parquet:
            runs.write_parquet(out / "sweep.parquet")
        return out

    def __repr__(self) -> str:
        """The rows, as a table prints itself."""
        return repr(self.runs)

    def _repr_html_(self) -> str:
        return self.runs._repr_html_()


def sweep(
    jobs: Workload | Mapping[str, Workload],
    clusters: str | Sequence[str],
    policies: str | Sequence[str] = ("fifo-backfill",),
    *,
    budgets: Watts | Sequence[Watts | None] | None = None,
    power: str | Sequence[str] = "water-filling",
    seeds: Sequence[int] = (1,),
    format: str = "native",  # noqa: A002 - as the command line calls it
    profiles: str | Path | None = None,
    power_profiles: Source | None = None,
    preset: str | None = None,
    processes: int | None = None,
    limit_s: float | None = None,
    cache: Caching = True,
    progress: bool = True,
    **fields: Any,
) -> SweptRuns:
    """Run every policy with every budget, way of sharing, seed, cluster and workload.

    A cell that was computed before, by this version from equal inputs, is not computed again: a
    sweep that was interrupted goes on where it was. A cell that fails is a row that says why.

    Args:
        jobs: a file, a frame or rows; a function of a seed that gives these; a list of files; or
            any of them by name.
        clusters: `8x8:V100M16,4x8:A100`, or several of them.
        policies: schedulers of the preset.
        budgets: watts for all GPUs, constant or in steps; None for no limit.
        power: how watts are shared.
        seeds: of everything that is drawn, jobs of a function too.
        format: of the job files; `native` unless it is another's.
        profiles: files that the format needs beside the jobs.
        power_profiles: measured points instead of the built-in ones.
        preset: a published simulator's rules; for jobs that say how long they run it is `none`.
        processes: at a time; None is one for each processor.
        limit_s: a cell that takes longer is ended, and fails.
        cache: whether and where results are kept (`wattherd cache show`).
        progress: whether a terminal or notebook shows how far it is.
        fields: any other field of a scenario (docs/guides/scenarios.md).

    Raises:
        UserError: a name or text that no cell could use.
    """
    several = [_whole(seed) for seed in _several(seeds, "seeds")]
    common = {
        "policies": _several(policies, "policies"),
        "power": _several(power, "power"),
        "budgets": [budget_text(one) for one in _several(budgets, "budgets")],
        "preset": preset or ("none" if format in TIMED else None),
        **fields,
    }
    common = {name: value for name, value in common.items() if value is not None}
    of_jobs: dict[str, Any] = {"format": format}
    if profiles is not None:
        of_jobs["profiles"] = str(profiles)
    cells: list[ScheduleCell] = []
    drawn: dict[str, str] = {}
    with ExitStack() as stack:
        if power_profiles is not None:
            measured = stack.enter_context(input_file(power_profiles, "power_profiles"))
            of_jobs["power_profiles"] = str(measured)
        for name, workload in _named(jobs).items():
            files = list(_files(name, workload, several, stack, drawn))
            for cluster in _several(clusters, "clusters"):
                by_seed = []
                for seed, file in files:
                    stated = {**common, "cluster": cluster, "jobs": {"file": file, **of_jobs}}
                    scenario = beside(validated(stated, "sweep"), Path())
                    by_seed.append(checked(name, scenario, several if seed is None else [seed]))
                cells += chain.from_iterable(zip(*by_seed, strict=True))
        found = run_cells(
            cells, processes=processes, limit_s=limit_s, cache=cache, progress=progress
        )
    return SweptRuns(cells=tuple(_in_rows(one, drawn) for one in found.results()))


def run_cells(
    cells: Sequence[SweepCell],
    *,
    processes: int | None = None,
    limit_s: float | None = None,
    cache: Caching = True,
    progress: bool = True,
    what: str = "sweeping",
) -> CellSweep:
    """Compute what is not known of these cells; all of them, done.

    Raises:
        UserError: no number of processes, or no time.
    """
    if processes is not None and processes < 1:
        raise UserError(f"{processes} is no number of processes", field="processes", hint="1")
    if limit_s is not None and not limit_s > 0:
        raise UserError(f"{limit_s} s is no limit", field="limit_s", hint="seconds, or None")
    found = CellSweep(cells, results_kept(cache))
    computed = found.run(processes=processes, limit_s=limit_s)
    for _ in tracked(computed, found.to_compute, what) if progress else computed:
        pass
    return found


def checked(workload: str, scenario: Scenario, seeds: Sequence[int]) -> list[ScheduleCell]:
    """The cells of a scenario, whose names and texts have been looked at.

    Raises:
        UserError: something that would fail in every cell that has it.
    """
    known = preset_of(scenario.preset).schedulers
    for name in scenario.policies:
        if name not in known:
            hint = hint_for(name, known)
            raise UserError(f"unknown policy {name!r} here", field="policies", hint=hint)
    for name in scenario.power:
        if name not in POWER_POLICIES:
            power_policy(name)
    for budget in scenario.budgets:
        parse_budget(budget)
    read_cluster(scenario.cluster, known=GPUS)
    file = Path(scenario.jobs.file)
    if not file.exists():
        hint = "write the path from here, or an absolute one"
        raise UserError("no such file", where=str(file), field="jobs", hint=hint)
    if not (file.is_file() or file.is_dir()):  # a pipe, which can be read only once
        hint = "write it to a file first: every cell reads it"
        raise UserError("is no regular file", where=str(file), field="jobs", hint=hint)
    return grid(workload, scenario, seeds)


def _several(given: Any, name: str) -> list[Any]:
    found = [given] if given is None or isinstance(given, str | int | float) else list(given)
    if not found:
        raise UserError("there are none", field=name, hint="one at least")
    return list(dict.fromkeys(found))


def _whole(seed: Any) -> int:
    try:
        found = index(seed)
    except TypeError:
        found = -1
    if found < 0 or isinstance(seed, bool):
        raise UserError(f"{seed!r} is no seed", field="seeds", hint="whole numbers from 0 on")
    return found


def _named(jobs: Any) -> dict[str, Any]:
    """Workloads by what they are called in the table: by their key, their file, or `jobs`."""
    if isinstance(jobs, Mapping):
        if not jobs:
            raise UserError("there are none", field="jobs", hint="one workload at least")
        return {str(name): workload for name, workload in jobs.items()}
    if isinstance(jobs, str | Path):
        jobs = [jobs]
    if isinstance(jobs, Sequence) and jobs and all(isinstance(one, str | Path) for one in jobs):
        return dict(zip(names_of([str(one) for one in jobs]), jobs, strict=True))
    return {"jobs": jobs}


def names_of(files: Sequence[str]) -> list[str]:
    """What files are called: without folder and ending, where that tells them apart."""
    stems = [Path(file).name.partition(".")[0] for file in files]
    return [
        stem if stem and stems.count(stem) == 1 else file
        for stem, file in zip(stems, files, strict=True)
    ]


def _files(
    name: str, workload: Any, seeds: Sequence[int], stack: ExitStack, drawn: dict[str, str]
) -> Iterator[tuple[int | None, str]]:
    """Files of a workload, each with the seed that drew it; None where none did.

    Which names the files of frames stand for is noted in `drawn`.
    """
    for seed in seeds if callable(workload) else [None]:
        given = workload if seed is None else workload(seed)
        file = stack.enter_context(input_file(given, "jobs", lines=True))
        if not isinstance(given, str | Path):
            drawn[str(file)] = name if seed is None else f"{name} of seed {seed}"
        yield seed, str(file)


def _in_rows(one: SweptCell, drawn: Mapping[str, str]) -> SweptCell:
    """With the workload's name and row in a failure, where the file was one of ours."""
    for file, name in drawn.items():
        if file in one.failure:
            where = by_row(one.failure, Path(file), name, header=False)
            return replace(one, failure=where.replace(file, name))
    return one

"""Schedulers on a workload, from Python: what `wattherd sim run` and `sim compare` do."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from wattherd.engine.core.core import Core
from wattherd.errors import UserError
from wattherd.experiments.schedule.assumptions import assumptions
from wattherd.experiments.schedule.compare import mark_front
from wattherd.experiments.schedule.explain import JobStory, explain
from wattherd.experiments.schedule.plugin_policies import scheduler_from
from wattherd.experiments.schedule.run import ComparedRun, ComparisonSetup, core_config, simulate
from wattherd.experiments.schedule.run_files import keep_logs, keep_runs, run_document
from wattherd.experiments.schedule.scheduler_context import BuiltScheduler, SchedulerContext
from wattherd.experiments.schedule.setup import setting_of
from wattherd.experiments.schedule.summary import JOB_COLUMNS, job_rows
from wattherd.experiments.schedule.workloads import TIMED
from wattherd.experiments.sweep.cell import ScheduleCell
from wattherd.experiments.sweep.kept_run import KeptRun, row_or_kept, run_or_kept
from wattherd.library.caching import Caching, results_kept
from wattherd.library.inputs import Source, input_file
from wattherd.library.plot import Plot, first_html, plots
from wattherd.library.table import Cell, Table
from wattherd.policy.contract import Planner
from wattherd.report.page import plots_as_svg, write_report
from wattherd.report.plugin_reports import MakeReport
from wattherd.sim import usage_levels
from wattherd.spelling import hint_for
from wattherd.store.result_cache import ResultCache
from wattherd.store.run_dir import RunDir
from wattherd.workload.scenario import (
    Scenario,
    beside,
    read_scenario,
    told_by_field,
    validated,
)

JOBS_FILE = "jobs.jsonl"
MakePlanner = Callable[[SchedulerContext], Planner | BuiltScheduler]
"""What the entry point `wattherd.schedule` of a package names."""
Policy = str | MakePlanner
Section = str | MakeReport
"""A section of a report: a package's name for it, or a function of a run that makes it."""
Watts = str | float | int
"""`40kW`, steps `0:40kW,2h:30kW`, or a number of watts."""


def run_schedulers(
    jobs: Source,
    cluster: str,
    policies: Policy | Sequence[Policy] = ("fifo-backfill",),
    *,
    budget: Watts | None = None,
    power: str = "water-filling",
    format: str = "native",  # noqa: A002 - as the command line calls it
    profiles: str | Path | None = None,
    power_profiles: Source | None = None,
    preset: str | None = None,
    restart: str | float | None = None,
    seed: int = 1,
    cache: Caching = True,
    **fields: Any,
) -> Simulation:
    """Run each scheduler on the jobs and keep what became of them.

    What was computed before, by this version from equal inputs, is not computed again. Functions as
    policies are run every time.

    Args:
        jobs: a file, a frame with its columns, or rows (docs/reference/job-files.md): `id` and
            `submit_s` at least, in order of submission.
        cluster: `8x8:V100M16,4x8:A100` (nodes x GPUs : model) or `V100M16=8`.
        policies: schedulers of the preset (`wattherd policies` lists them), or functions that make
            one of your own (docs/guides/plugins.md), called as the function is.
        budget: watts for all GPUs, constant or in steps; None for no limit.
        power: how watts are shared.
        format: of the job file; `native` unless it is another's.
        profiles: files that the format needs beside the jobs.
        power_profiles: measured points instead of the built-in ones.
        preset: a published simulator's rules; for jobs that say how long they run it is `none`.
        restart: pause after every start, as `30s` or seconds.
        seed: of everything that is drawn.
        cache: whether and where figures are kept (docs/guides/sweeps.md says what they depend on).
        fields: any other field of a scenario (docs/guides/scenarios.md), such as `power_tree`,
            `queues`, `faults`, `caps`, `until`.

    Raises:
        UserError: an input that cannot be used; names file, row or field.
    """
    chosen = preset or ("none" if format in TIMED else None)
    budgets = [budget_text(budget)]
    given = (
        policies if isinstance(policies, Sequence) and not isinstance(policies, str) else [policies]
    )
    wanted = [_named(policy) for policy in given]
    with input_file(jobs, "jobs", lines=True) as file:
        document: dict[str, Any] = {
            "cluster": cluster,
            "jobs": {"file": str(file), "format": format},
            "policies": [name for name, _ in wanted],
            "budgets": budgets,
            "power": [power],
            "seed": seed,
            **fields,
        }
        optional = {"preset": chosen, "restart": restart}
        document |= {name: value for name, value in optional.items() if value is not None}
        if profiles is not None:
            document["jobs"]["profiles"] = str(profiles)
        with ExitStack() as stack:
            if power_profiles is not None:
                measured = stack.enter_context(input_file(power_profiles, "power_profiles"))
                document["jobs"]["power_profiles"] = str(measured)
            scenario = beside(validated(document, "simulate"), Path())
            own = {name: make for name, make in wanted if make is not None}
            found = _run(scenario, own, results_kept(cache))
        return found if isinstance(jobs, str | Path) else replace(found, frame=file.read_text())


def budget_text(budget: Watts | None) -> str | None:
    """A budget as a scenario has it.

    Raises:
        UserError: no number of watts.
    """
    if budget is None or isinstance(budget, str):
        return budget
    if not math.isfinite(budget):
        raise UserError(f"{budget} is no budget", field="budget", hint="watts, or None")
    return f"{budget:g}W" if abs(budget) < 1e5 else f"{round(budget)}W"


def _named(policy: Policy) -> tuple[str, MakePlanner | None]:
    """A policy's name, and what makes it where it is the caller's own."""
    if isinstance(policy, str):
        return policy, None
    name = getattr(policy, "__name__", "").replace("_", "-").strip("-<>")
    if not callable(policy) or name in ("", "lambda"):
        hint = "a name, or a function of the workload that makes a planner"
        raise UserError(f"{policy!r} is no policy", field="policies", hint=hint)
    return name, policy


def _same(make: MakePlanner) -> MakePlanner:
    return make


def _run(scenario: Scenario, own: Mapping[str, MakePlanner], kept: ResultCache) -> Simulation:
    budget, power = scenario.budgets[0], scenario.power[0]
    setting = setting_of(scenario, budget=budget, power=power, record=True)
    schedulers = dict(setting.preset.schedulers)
    for name, make in own.items():
        if name in schedulers:
            hint = "call the function otherwise"
            raise UserError(f"{name!r} is a scheduler of ours", field="policies", hint=hint)
        schedulers[name] = scheduler_from(name, partial(_same, make))
    preset = replace(setting.preset, schedulers=schedulers)
    setting = replace(setting, history=True, preset=preset)
    for name in scenario.policies:
        setting.preset.scheduler(name, setting.given)
    runs: list[ComparedRun | KeptRun] = []
    for name in scenario.policies:
        again = partial(simulate, setting, name)
        if name in own:  # what a function does depends on whatever it sees: no name says that
            runs.append(again())
            continue
        one = scenario.model_copy(update={"policies": [name]})
        runs.append(run_or_kept(ScheduleCell(workload="jobs", scenario=one), kept, again))
    return Simulation(scenario=scenario, runs=tuple(runs), setting=setting)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Simulation:
    """What became of the jobs under each scheduler; times in seconds, energy in joules."""

    scenario: Scenario
    runs: tuple[ComparedRun | KeptRun, ...]
    setting: ComparisonSetup
    frame: str = ""
    """The jobs as JSON lines, where they came from no file."""

    @property
    def document(self) -> dict[str, Any]:
        """All figures as `wattherd.sim/1`, with version, seed and every choice."""
        return self._document("a frame" if self.frame else self.scenario.jobs.file)

    def _document(self, jobs: str) -> dict[str, Any]:
        file = self.scenario.jobs.model_copy(update={"file": jobs})
        scenario = self.scenario.model_copy(update={"jobs": file})
        return run_document(scenario, self.setting, self.runs, "wattherd.simulate")

    @property
    def summary(self) -> Table:
        """A row for each scheduler."""
        return Table.of_rows(_flat(run.row) for run in self.runs)

    @property
    def assumptions(self) -> list[str]:
        """What the figures take for granted: delays, priors of watts and speed, floors."""
        return assumptions(self.setting)

    @property
    def jobs(self) -> Table:
        """A row for each job under each scheduler."""
        return Table.of_rows(
            {"policy": run.policy, **_cells(JOB_COLUMNS, row)}
            for run in self.runs
            for row in job_rows(run.outcomes)
        )

    @property
    def power(self) -> Table:
        """Devices in use and watts over time: means and the peak of each step."""
        return Table.of_rows(
            {"policy": run.policy, **_cells(usage_levels.COLUMNS, row)}
            for run in self.runs
            if run.levels is not None
            for row in run.levels.rows()
        )

    @property
    def unfinished(self) -> Table:
        """Jobs that were not over at the end, and why."""
        return Table.of_rows(
            {"policy": run.policy, "job": job_id, "why": why}
            for run in self.runs
            for job_id, why in run.unfinished
        )

    def explain(self, job: str, policy: str | None = None) -> JobStory:
        """What happened to a job, and why, under a scheduler (the first unless told).

        A run whose figures were kept is run again for this: events are not kept.

        Raises:
            UserError: no such job, or no such run.
        """
        names = [run.policy for run in self.runs]
        wanted = names[0] if policy is None else policy
        if wanted not in names:
            raise UserError(f"no run of {wanted!r}", field="policy", hint=hint_for(wanted, names))
        run = self.runs[names.index(wanted)]
        scheduler = self.setting.preset.scheduler(wanted, self.setting.given)
        return explain(Core(core_config(self.setting, scheduler)), run.recording.events, job)

    def save(self, folder: Path | str, *, log: bool = True, parquet: bool = False) -> Path:
        """Write the run directory that `wattherd sim run --out` writes; its path.

        Args:
            folder: where; it is made.
            log: with every event, for `sim explain` and `sim replay`; a run whose figures were kept
                is run again for this.
            parquet: with the tables as Parquet files as well (extra `tables`).

        Raises:
            UserError: it cannot be written, or the extra is missing.
        """
        out = Path(folder)
        jobs = self.scenario.jobs.file
        if self.frame:  # the run directory is whole: whoever replays it finds the jobs there
            jobs = str(RunDir(out).write_text(JOBS_FILE, self.frame))
        keep_runs(out, self._document(jobs), self.runs)
        if log:
            keep_logs(out, self.runs)
        if parquet:
            for name in ("summary", "jobs", "power"):
                getattr(self, name).write_parquet(out / f"{name}.parquet")
        return out

    def report(self, page: Path | str, *, sections: Sequence[Section] = ()) -> Path:
        """Write one self-contained page with tables and plots; its path.

        Args:
            page: the file.
            sections: what the page has besides: names that packages announce, or functions of a run
                that make a section (docs/guides/plugins.md).

        Raises:
            UserError: it cannot be written, or a section is unknown.
        """
        with tempfile.TemporaryDirectory(prefix="wattherd-") as folder:
            kept = self.save(folder, log=False)
            return write_report(kept, out=Path(page), sections=sections)[0]

    @property
    def plots(self) -> dict[str, Plot]:
        """The plots of the report by name, such as `completion` and `gpus`."""
        with tempfile.TemporaryDirectory(prefix="wattherd-") as folder:
            return plots(plots_as_svg(self.save(folder, log=False)))

    def __repr__(self) -> str:
        """The summary, as a table prints itself."""
        return repr(self.summary)

    def _repr_html_(self) -> str:
        """In a notebook: the figures, and the first plot of the report."""
        return self.summary._repr_html_() + first_html(self.plots)


def _flat(row: Mapping[str, object]) -> dict[str, Cell]:
    """Figures without parts: energy as a sum, levels of a tree in the document only."""
    found: dict[str, Cell] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            found[name] = math.fsum(value.values())
        elif value is None or isinstance(value, str | int | float | bool):
            found[name] = value
    return found


def _cells(columns: Iterable[str], row: Iterable[object]) -> dict[str, Cell]:
    """A row of a run directory's file, whose empty cells are no values."""
    return {name: None if cell == "" else cell for name, cell in zip(columns, row, strict=True)}  # type: ignore[misc]


# Comparisons --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison:
    """Every scheduler with every way of sharing every budget of a scenario."""

    scenario: Scenario
    runs: Table
    """A row for each; `on_front` marks the Pareto front of completion time and energy."""
    assumptions: tuple[str, ...] = ()
    """What the figures take for granted: delays, priors of watts and speed, floors."""

    def __repr__(self) -> str:
        """The runs, as a table prints itself."""
        return repr(self.runs)

    def _repr_html_(self) -> str:
        return self.runs._repr_html_()


def compare(scenario: str | Path | Mapping[str, Any], *, cache: Caching = True) -> Comparison:
    """Run every policy of a scenario with every budget and way of sharing power.

    What was computed before, by this version from equal inputs, is not computed again, whether a
    sweep or a comparison did.

    Args:
        scenario: a YAML file (docs/guides/scenarios.md), or its fields.
        cache: whether and where figures are kept.

    Raises:
        UserError: a field or a file that cannot be used.
    """
    if isinstance(scenario, Mapping):
        fields = beside(validated(dict(scenario), "compare"), Path())
        return _compared(fields, results_kept(cache))
    path = Path(scenario)
    with told_by_field(path):
        return _compared(read_scenario(path), results_kept(cache))


def _compared(given: Scenario, kept: ResultCache) -> Comparison:
    rows: list[dict[str, Any]] = []
    for policy, power, budget in product(given.policies, given.power, given.budgets):
        # Without a budget nothing is shared: one run stands for every way of sharing.
        shared = budget is not None or given.power_tree is not None
        if not shared and power != given.power[0]:
            continue
        one = {"policies": [policy], "budgets": [budget], "power": [power]}
        cell = ScheduleCell(workload="jobs", scenario=given.model_copy(update=one))
        row = row_or_kept(cell, kept)
        rows.append({"power": power if shared else None, "budget": budget, **row})
    first = setting_of(given, budget=given.budgets[0], power=given.power[0])
    return Comparison(
        scenario=given,
        runs=Table.of_rows(map(_flat, mark_front(rows))),
        assumptions=tuple(assumptions(first)),
    )

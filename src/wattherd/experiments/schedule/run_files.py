"""What runs of training-job schedulers leave behind: `wattherd.sim/1` and its tables.

The command line writes them for `--out`, the library for `Simulation.save` (docs/reference/
sim-json.md says what is in each file).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from wattherd import __version__
from wattherd.engine.core.config import RULES
from wattherd.experiments.schedule.assumptions import assumptions, watts_source
from wattherd.experiments.schedule.run import ComparisonSetup
from wattherd.experiments.schedule.summary import JOB_COLUMNS, job_rows
from wattherd.sim import stretches, usage_levels
from wattherd.sim.collector import JobOutcome
from wattherd.sim.world import RunRecording
from wattherd.store.event_log import write_log
from wattherd.store.run_dir import RunDir
from wattherd.workload.scenario import Scenario


class HasRows(Protocol):
    """What was in use over time, as a table."""

    def rows(self) -> list[tuple[object, ...]]:
        """Its rows."""
        ...


class FinishedRun(Protocol):
    """What is written of a run: one that was simulated now, or whose figures were kept."""

    @property
    def policy(self) -> str:
        """Its scheduler."""
        ...

    @property
    def row(self) -> Mapping[str, object]:
        """Its figures."""
        ...

    @property
    def outcomes(self) -> Sequence[JobOutcome]:
        """What became of each job."""
        ...

    @property
    def unfinished(self) -> Sequence[tuple[str, str]]:
        """Jobs that were not over at the end, and why."""
        ...

    @property
    def levels(self) -> HasRows | None:
        """How much of everything was in use."""
        ...

    @property
    def stretches(self) -> HasRows | None:
        """Which job held what."""
        ...

    @property
    def recording(self) -> RunRecording:
        """Its events and commands."""
        ...


SCHEMA = "wattherd.sim/1"
SIM_FILE = "sim.json"


def run_document(
    scenario: Scenario, setting: ComparisonSetup, results: Sequence[FinishedRun], command: str
) -> dict[str, object]:
    """The document of a scenario's runs under its first budget."""
    nodes = setting.given.cluster.nodes
    return {
        "schema": SCHEMA,
        "rules": RULES,
        "version": __version__,
        "command": command,
        "jobs": scenario.jobs.file,
        "format": scenario.jobs.format,
        "profiles": scenario.jobs.profiles,
        "cluster": scenario.cluster,
        "capacity": {
            "nodes": len(nodes),
            "gpus": sum(node.gpu_count for node in nodes),
            "cpus": sum(node.cpu_milli for node in nodes) / 1000,
        },
        "preset": scenario.preset,
        "budget": scenario.budgets[0],
        "power": scenario.power[0],
        "assumptions": assumptions(setting),
        "watts": watts_source(setting),
        "scenario": scenario.stated(),
        "policies": [result.row for result in results],
    }


def keep_runs(out: Path, document: dict[str, object], results: Sequence[FinishedRun]) -> Path:
    """Write the document and each policy's tables; the document's path.

    Raises:
        UserError: the directory cannot be written.
    """
    directory = RunDir(out)
    for result in results:
        directory.write_csv(f"jobs-{result.policy}.csv", JOB_COLUMNS, job_rows(result.outcomes))
        # Who held what, and how much of everything was in use, over time.
        if result.stretches is not None:
            rows = result.stretches.rows()
            directory.write_csv(f"runs-{result.policy}.csv", stretches.COLUMNS, rows)
        if result.levels is not None:
            rows = result.levels.rows()
            directory.write_csv(f"power-{result.policy}.csv", usage_levels.COLUMNS, rows)
    return directory.write_json(SIM_FILE, document)


def keep_logs(out: Path, results: Sequence[FinishedRun]) -> None:
    """Write every event of the runs, for `sim explain` and `sim replay`."""
    for result in results:
        write_log(out / f"log-{result.policy}.jsonl.gz", result.recording)

"""`wattherd sim run`: training-job schedulers on a workload, under a power budget if wanted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wattherd.cli.options import command_line, output_option, parse_policies
from wattherd.cli.progress import tracked
from wattherd.errors import UserError

if TYPE_CHECKING:
    from wattherd.service.schedule import Budget, Result, Setting

SCHEMA = "wattherd.sim/1"


@click.command("run")
@click.option("--jobs", required=True, type=click.Path(path_type=Path), help="Job file.")
@click.option("--format", "kind", default="pollux", show_default=True, help="Its format.")
@click.option("--profiles", type=click.Path(path_type=Path), help="Profiles the format needs.")
@click.option("--cluster", default="16x4:T4", show_default=True, metavar="16x4:T4|V100M16=8,…")
@click.option("--preset", default="pollux-osdi21", show_default=True, help="Job model and rounds.")
@click.option("--policy", default="tiresias", show_default=True, metavar="A,B,…")
@click.option(
    "--budget", metavar="40kW|0:40kW,2h:30kW", help="Watts for all GPUs, constant or in steps."
)
@click.option("--power", default="water-filling", show_default=True, help="How watts are shared.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Run directory.")
@click.option("--log", is_flag=True, help="Keep every event and command in DIR, for `sim replay`.")
@output_option
def run(
    *,
    jobs: Path,
    kind: str,
    profiles: Path | None,
    cluster: str,
    preset: str,
    policy: str,
    budget: str | None,
    power: str,
    out: Path | None,
    log: bool,
    output: str,
) -> None:
    """Run schedulers on a workload and measure what becomes of the jobs."""
    from wattherd.service.schedule import simulate

    if log and out is None:
        raise UserError("--log needs --out DIR", hint="add --out runs/mine")
    names = parse_policies(policy)
    setting = make_setting(jobs, kind, profiles, cluster, preset, budget, power, record=log)
    for name in names:
        setting.planner(name, setting.jobs)
    results = list(tracked((simulate(setting, name) for name in names), len(names), "simulating"))
    document = _document(
        results,
        jobs=str(jobs),
        format=kind,
        profiles=str(profiles) if profiles else None,
        cluster=cluster,
        preset=preset,
        budget=budget,
        power=power,
    )
    if out:
        _keep(out, document, results)
        if log:
            _keep_log(out, results)
    if output == "json":
        click.echo(json.dumps(document))
        return
    _show([result.row for result in results])


def make_setting(
    jobs: Path,
    kind: str,
    profiles: Path | None,
    cluster: str,
    preset: str,
    budget: str | None,
    power: str,
    *,
    record: bool,
) -> Setting:
    """Everything a simulation needs, from names and files."""
    from wattherd.catalog.gpus import GPUS
    from wattherd.service.presets import preset as find_preset
    from wattherd.service.schedule import Setting, power_policy
    from wattherd.service.workloads import read_workload
    from wattherd.workload.cluster_text import parse_cluster

    chosen = find_preset(preset)
    power_policy(power)
    return Setting(
        round_s=chosen.round_s,
        restart_s=chosen.restart_s,
        plant=chosen.plant,
        planner=chosen.planner,
        cluster=parse_cluster(cluster, known=GPUS),
        jobs=read_workload(kind, jobs, profiles),
        budget=parse_budget(budget),
        power=power,
        record=record,
        computers=chosen.computers(),
    )


def parse_budget(text: str | None) -> Budget:
    """`40kW`, or steps `0:40kW,2h:30kW` in ascending time.

    Raises:
        UserError: another form, or times that do not ascend.
    """
    from wattherd.units import seconds, watts

    if not text:
        return ()
    steps = []
    for part in text.split(","):
        at, colon, power = part.rpartition(":")
        steps.append(
            (seconds(at, field="--budget") if colon else 0.0, watts(power, field="--budget"))
        )
    if any(later[0] <= sooner[0] for sooner, later in pairwise(steps)):
        raise UserError(
            "times of the budget do not ascend", field="--budget", hint="0:40kW,2h:30kW"
        )
    return tuple(steps)


def _document(results: Sequence[Result], **given: object) -> dict[str, object]:
    from wattherd import __version__

    return {
        "schema": SCHEMA,
        "version": __version__,
        "command": command_line(),
        **given,
        "policies": [result.row for result in results],
    }


def _keep(out: Path, document: Mapping[str, object], results: Sequence[Result]) -> None:
    from wattherd.service.schedule_summary import JOB_COLUMNS, job_rows
    from wattherd.store.run_dir import RunDir

    directory = RunDir(out)
    for result in results:
        rows = job_rows(result.outcomes)
        directory.write_csv(f"jobs-{result.policy}.csv", JOB_COLUMNS, rows)
    click.echo(f"wrote {directory.write_json('sim.json', document)}", err=True)


_HEAD = ("POLICY", "JOBS", "FINISHED", "AVG JCT", "MEDIAN", "P99", "MAKESPAN", "GPU %",
         "ENERGY MJ", "OVER BUDGET s", "CPU s")  # fmt: skip
_TIMES = ("avg_jct_s", "median_jct_s", "p99_jct_s", "makespan_s")


def _keep_log(out: Path, results: Sequence[Result]) -> None:
    from wattherd.store.event_log import write_log

    for result in results:
        write_log(out / f"log-{result.policy}.jsonl.gz", result.recording)


def _show(rows: Sequence[Mapping[str, object]]) -> None:
    from wattherd.cli.tables import print_table

    print_table(_HEAD, [_cells(row) for row in rows], right_from=1)


def _cells(row: Mapping[str, object]) -> list[str]:
    from wattherd.units import show_seconds

    energy, used = row["energy_j"], row["gpu_utilisation_pct"]
    total_j = sum(energy.values()) if isinstance(energy, dict) else 0.0
    return [
        str(row["policy"]),
        str(row["jobs"]),
        str(row["finished"]),
        *("–" if row[key] is None else show_seconds(float(str(row[key]))) for key in _TIMES),
        "–" if used is None else f"{float(str(used)):.1f}",
        f"{total_j / 1e6:,.1f}",
        f"{float(str(row['over_budget_s'])):,.1f}",
        str(row["cpu_s"]),
    ]

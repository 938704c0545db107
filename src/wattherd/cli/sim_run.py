"""`wattherd sim run`: training-job schedulers on a workload, under a power budget if wanted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from wattherd.cli.options import command_line, parse_policies
from wattherd.cli.output import printed, prints
from wattherd.errors import UserError
from wattherd.library.progress import tracked

if TYPE_CHECKING:
    from wattherd.experiments.schedule.run import ComparedRun, ComparisonSetup
    from wattherd.workload.scenario import Scenario

_SHOWN = 3


@click.command("run")
@click.argument("scenario", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change a field.")
@click.option("--jobs", type=click.Path(path_type=Path), help="Job file.")
@click.option("--format", "kind", default="pollux", show_default=True, help="Its format.")
@click.option("--profiles", type=click.Path(path_type=Path), help="Profiles the format needs.")
@click.option("--power-profiles", type=click.Path(path_type=Path), help="Measured power (CSV).")
@click.option(
    "--cluster",
    default="16x4:T4",
    show_default=True,
    metavar="16x4:T4|V100M16=8,…",
    help="Nodes x GPUs : model, or GPUs by model.",
)
@click.option("--preset", default="pollux-osdi21", show_default=True, help="Job model and rounds.")
@click.option("--restart", metavar="30s", help="Pause after every start (presets none, locality).")
@click.option(
    "--policy",
    default="tiresias",
    show_default=True,
    metavar="A,B,…",
    help="Schedulers, see `wattherd policies`.",
)
@click.option(
    "--budget", metavar="40kW|0:40kW,2h:30kW", help="Watts for all GPUs, constant or in steps."
)
@click.option("--power", default="water-filling", show_default=True, help="How watts are shared.")
@click.option("--snapshot", type=click.Path(path_type=Path), help="Of `kube snapshot`: what now?")
@click.option("--afresh", is_flag=True, help="With --snapshot: place all pods anew.")
@click.option("--tree", type=click.Path(path_type=Path), help="Power tree with budgets (YAML).")
@click.option("--rates", metavar="FILE|URL", help="Prices and carbon intensities of energy.")
@click.option("--start", metavar="TIME", help="When the run begins, for --rates.")
@click.option(
    "--seed",
    default=1,
    show_default=True,
    type=click.IntRange(min=0),
    help="Of everything that is drawn by lot.",
)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Run directory.")
@click.option(
    "--log/--no-log",
    default=None,
    help="Keep every event in DIR, for `sim explain` and `sim replay`.  [default: with --out]",
)
@prints
@click.pass_context
def run(
    context: click.Context,
    /,
    *,
    scenario: Path | None,
    changes: tuple[str, ...],
    out: Path | None,
    log: bool | None,
    snapshot: Path | None,
    afresh: bool,
    output: str,
    **given: Any,
) -> int:
    """Run schedulers on a workload and measure what becomes of the jobs.

    The workload is that of SCENARIO (YAML) or of --jobs; options that are given go before the
    scenario's fields. Of several budgets and ways of sharing power the first counts: `sim compare`
    runs them all. Where jobs are left unfinished although nothing ends the run early (`until`), the
    exit code is 1.

    With --snapshot, what `kube scheduler` would do now with another --policy or --budget (0.9x).
    """
    if snapshot is not None:
        asked = context.get_parameter_source("policy") is not ParameterSource.DEFAULT
        policies = given["policy"] if asked else "wattherd"
        _run_snapshot(snapshot, policies, given["budget"], output, afresh=afresh)
        return 0
    from wattherd.experiments.schedule.run import simulate
    from wattherd.experiments.schedule.run_files import keep_logs, keep_runs, run_document
    from wattherd.experiments.schedule.setup import setting_of

    if log and out is None:
        raise UserError("--log needs --out DIR", hint="add --out runs/mine")
    log = out is not None if log is None else log
    chosen = _scenario(scenario, changes, context, given)
    budget, power = chosen.budgets[0], chosen.power[0]
    setting = setting_of(chosen, budget=budget, power=power, record=log)
    setting = replace(setting, history=out is not None)
    for name in chosen.policies:
        setting.preset.scheduler(name, setting.given)
    _tell_budgets(setting, chosen.policies)
    runs = (simulate(setting, name) for name in chosen.policies)
    results = list(tracked(runs, len(chosen.policies), "simulating"))
    document = run_document(chosen, setting, results, command_line())
    if out:
        click.echo(f"wrote {keep_runs(out, document, results)}", err=True)
        if log:
            keep_logs(out, results)
    for result in results:
        _tell_rejected(result)
        tell_unfinished(result)
    cut_short = setting.until_s < math.inf
    code = 1 if any(result.unfinished for result in results) and not cut_short else 0
    if printed(document, output):
        return code
    _show([result.row for result in results])
    return code


def _run_snapshot(
    snapshot: Path, policies: str, budget: str | None, output: str, *, afresh: bool
) -> None:
    from wattherd.cli.kube_what_if import run_snapshot

    budgets = tuple(budget.split(",")) if budget else ()
    run_snapshot(snapshot, parse_policies(policies), budgets, output, afresh=afresh)


def _tell_budgets(setting: ComparisonSetup, policies: Sequence[str]) -> None:
    """On stderr, before anything runs: what the budgets can never power."""
    from wattherd.experiments.schedule.run import budget_notes

    told = dict.fromkeys(note for name in policies for note in budget_notes(setting, name))
    for note in told:
        click.echo(f"note: {note}", err=True)


def tell_unfinished(result: ComparedRun, case: str = "") -> None:
    """On stderr: jobs that were not over at the end, by why, each with an example.

    Where a policy was run several times, `case` tells this run from the others.
    """
    if not result.unfinished:
        return
    total, name = len(result.outcomes), f"{result.policy}{case}"
    click.echo(f"{name}: {len(result.unfinished)} of {total} jobs unfinished", err=True)
    by_code: dict[str, list[tuple[str, str]]] = {}
    for job_id, why in result.unfinished:
        by_code.setdefault(why.partition(":")[0], []).append((job_id, why))
    for ones in by_code.values():
        job_id, why = ones[0]
        click.echo(f"{name}: {len(ones)} unfinished as {job_id}: {why}", err=True)


def _tell_rejected(result: ComparedRun) -> None:
    """On stderr: jobs that can never run, the first few of them with the reason."""
    rejected = [one for one in result.outcomes if one.state == "Rejected"]
    for one in rejected[:_SHOWN]:
        click.echo(f"{result.policy}: rejected {one.job_id}: {one.detail}", err=True)
    if len(rejected) > _SHOWN:
        more = len(rejected) - _SHOWN
        click.echo(f"{result.policy}: rejected {more} more, see jobs-*.csv in --out DIR", err=True)


def _scenario(
    path: Path | None, changes: Sequence[str], context: click.Context, given: Mapping[str, Any]
) -> Scenario:
    """The scenario of a file, or an empty one, with the options that were given on top."""
    from wattherd.workload.scenario import beside, change_field, load, validated
    from wattherd.workload.yaml_lines import lines_of

    document: dict[str, Any] = load(path) if path else {}
    for change in changes:
        change_field(document, change)
    folder = path.parent if path else Path()
    for name, value in given.items():
        asked = context.get_parameter_source(name) is not ParameterSource.DEFAULT
        if value is not None and (asked or path is None):
            _apply(document, name, value)
    if path is None and given["jobs"] is None:
        hint = "name a scenario file, or --jobs FILE"
        raise UserError("there are no jobs to run", field="--jobs", hint=hint)
    if path is None:
        return beside(validated(document, "options"), folder)
    with lines_of(path):
        return beside(validated(document, str(path)), folder)


def _apply(document: dict[str, Any], option: str, value: Any) -> None:
    """Set the field of a scenario that an option stands for."""
    jobs = document.setdefault("jobs", {}) if option in _OF_JOBS else {}
    match option:
        case "jobs" | "profiles" | "power_profiles":
            jobs[_OF_JOBS[option]] = str(Path(value).absolute())
        case "kind":
            jobs[_OF_JOBS[option]] = value
        case "policy":
            document["policies"] = parse_policies(value)
        case "budget":
            document["budgets"] = [value]
        case "tree":
            document["power_tree"] = str(Path(value).absolute())
        case "power":
            document["power"] = [value]
        case "rates":
            web = value.startswith(("http://", "https://"))
            document["rates"] = value if web else str(Path(value).absolute())
        case _:
            document[option] = value


_OF_JOBS = {
    "jobs": "file",
    "kind": "format",
    "profiles": "profiles",
    "power_profiles": "power_profiles",
}


_HEAD = ("POLICY", "JOBS", "FINISHED", "AVG JCT", "MEDIAN", "P99", "MAKESPAN", "GPU %",
         "ENERGY MJ", "kWh", "OVER BUDGET s", "CPU s")  # fmt: skip
_TIMES = ("avg_jct_s", "median_jct_s", "p99_jct_s", "makespan_s")


def _show(rows: Sequence[Mapping[str, object]]) -> None:
    from wattherd.cli.tables import print_table

    head, cells = list(_HEAD), [_cells(row) for row in rows]
    if any("cost" in row for row in rows):
        currency = next((str(row["currency"]) for row in rows if row.get("currency")), "")
        head += [f"COST {currency}".strip(), "kgCO2e"]
        cells = [[*line, *bill_cells(row)] for line, row in zip(cells, rows, strict=True)]
    print_table(head, cells, right_from=1)
    for row in rows:
        _tell_unknown(row)
        tell_exempt(row)


def tell_exempt(row: Mapping[str, object], where: str = "") -> None:
    """Say for how long draw above a budget was not counted, and why."""
    from wattherd.units import show_seconds

    exempt_s = float(str(row.get("exempt_s", 0.0)))
    if exempt_s > 0:
        text = f"{show_seconds(exempt_s)} above the budget are exempt (exempt_s): caps.delay after"
        click.echo(f"{row['policy']}{where}: {text} a change that nobody announced", err=True)


def _tell_unknown(row: Mapping[str, object]) -> None:
    """Say of energy whose price or intensity is known only in part how much that is."""
    energy = row["energy_j"]
    total_j = sum(energy.values()) if isinstance(energy, dict) else 0.0
    for name, what in (("unpriced_j", "price"), ("unrated_j", "carbon intensity")):
        unknown_j = float(str(row.get(name, 0.0)))
        if 1e-9 * total_j < unknown_j < (1 - 1e-9) * total_j:
            text = f"{unknown_j / 3.6e6:,.3f} kWh were drawn at a time of unknown {what}"
            click.echo(f"{row['policy']}: {text}", err=True)


def bill_cells(row: Mapping[str, object]) -> list[str]:
    """Cost and emissions; a dash where no price, or no intensity, is known at all."""
    energy = row["energy_j"]
    total_j = sum(energy.values()) if isinstance(energy, dict) else 0.0

    def cell(name: str, unknown: str) -> str:
        known = float(str(row[unknown])) < (1 - 1e-9) * total_j
        return f"{float(str(row[name])):,.3f}" if known else "–"

    return [cell("cost", "unpriced_j"), cell("co2e_kg", "unrated_j")]


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
        f"{total_j / 3.6e6:,.3f}",
        f"{float(str(row['over_budget_s'])):,.1f}",
        str(row["cpu_s"]),
    ]

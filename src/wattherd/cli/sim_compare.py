"""`wattherd sim compare`: which scheduler, under which budget, with watts shared how?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wattherd.cli.options import command_line, parse_policies
from wattherd.cli.output import printed, prints
from wattherd.library.progress import tracked

if TYPE_CHECKING:
    from wattherd.experiments.schedule.run import ComparedRun
    from wattherd.workload.scenario import Scenario

SCHEMA = "wattherd.compare/1"


@click.command("compare")
@click.argument("scenario", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--policy", metavar="A,B,…", help="Instead of the scenario's policies.")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change a field.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Run directory.")
@prints
def compare(
    *, scenario: Path, policy: str | None, changes: tuple[str, ...], out: Path | None, output: str
) -> None:
    """Run every policy of SCENARIO with every budget and way of sharing power.

    Marked rows are on the Pareto front of mean completion time and energy, among those that
    finished every job and never drew more than the budget. Jobs that a run left unfinished are
    named on stderr, with why.
    """
    from wattherd.cli.sim_run import tell_exempt, tell_unfinished
    from wattherd.experiments.schedule.assumptions import assumptions, watts_source
    from wattherd.experiments.schedule.compare import mark_front
    from wattherd.experiments.schedule.setup import setting_of
    from wattherd.workload.scenario import read_scenario, told_by_field

    instead = {change.partition("=")[0].partition(".")[0] for change in changes}
    with told_by_field(scenario, instead | ({"policies"} if policy else set())):
        given = read_scenario(scenario, changes)
        policies = parse_policies(policy) if policy else given.policies
        cases = list(product(policies, given.power, given.budgets))
        ran = list(tracked(_runs(given, cases), len(cases), "comparing"))
    for _, budget, power, result in ran:
        where = f" ({budget or 'no budget'}{f', {power}' if power else ''})"
        tell_unfinished(result, where)
        tell_exempt(result.row, where)
    first = setting_of(given, budget=given.budgets[0], power=given.power[0])
    rows = mark_front([row for row, *_ in ran])
    watts = watts_source(first)
    document = {
        "schema": SCHEMA,
        "command": command_line(),
        "assumptions": assumptions(first),
        "watts": watts,
        "scenario": given.stated(),
        "runs": rows,
    }
    if out:
        _keep(out, document, rows)
    if printed(document, output):
        return
    _show(rows, watts)


def _runs(
    given: Scenario, cases: list[tuple[str, str, str | None]]
) -> Iterator[tuple[dict[str, Any], str | None, str | None, ComparedRun]]:
    """Each run's row, its budget and way of sharing power, and what came of it."""
    from wattherd.experiments.schedule.run import simulate
    from wattherd.experiments.schedule.setup import setting_of

    for policy, power, budget in cases:
        # Without a budget nothing is shared: one run stands for every way of sharing.
        shared = budget is not None or given.power_tree is not None
        if not shared and power != given.power[0]:
            continue
        setting = setting_of(given, budget=budget, power=power)
        result, way = simulate(setting, policy), power if shared else None
        yield {"power": way, "budget": budget, **result.row}, budget, way, result


def _keep(out: Path, document: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    from wattherd.experiments.schedule.compare import front_svg
    from wattherd.store.run_dir import RunDir

    directory = RunDir(out)
    click.echo(f"wrote {directory.write_json('compare.json', document)}", err=True)
    click.echo(f"wrote {directory.write_text('pareto.svg', front_svg(rows))}", err=True)


def _show(rows: list[dict[str, Any]], watts: Mapping[str, int]) -> None:
    from wattherd.cli.sim_run import bill_cells
    from wattherd.cli.tables import print_table
    from wattherd.experiments.schedule.compare import sharing_sentences
    from wattherd.units import show_seconds

    head = ["", "POLICY", "BUDGET", "POWER", "FINISHED", "AVG JCT", "P99", "ENERGY MJ", "kWh",
            "OVER s"]  # fmt: skip
    table = [
        [
            "*" if row["on_front"] else "",
            row["policy"],
            row["budget"] or "none",
            row["power"] or "–",
            f"{row['finished']}/{row['jobs']}",
            "–" if row["avg_jct_s"] is None else show_seconds(row["avg_jct_s"]),
            "–" if row["p99_jct_s"] is None else show_seconds(row["p99_jct_s"]),
            f"{sum(row['energy_j'].values()) / 1e6:,.1f}",
            f"{sum(row['energy_j'].values()) / 3.6e6:,.3f}",
            f"{row['over_budget_s']:,.1f}",
        ]
        for row in rows
    ]
    if any("cost" in row for row in rows):
        currency = next((str(row["currency"]) for row in rows if row.get("currency")), "")
        head += [f"COST {currency}".strip(), "kgCO2e"]
        table = [[*line, *bill_cells(row)] for line, row in zip(table, rows, strict=True)]
    print_table(head, table, right_from=4)
    click.echo("* on the Pareto front of mean completion time and energy")
    for sentence in sharing_sentences(rows, watts):
        click.echo(sentence)

"""`wattherd power`: share watts among jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from wattherd.cli import power_bench, power_fit, power_live
from wattherd.cli.jobs import server_option
from wattherd.cli.live_tables import LIVE_OUTPUT
from wattherd.cli.options import output_option


@click.group(invoke_without_command=True)
@server_option
@LIVE_OUTPUT
@click.pass_context
def power(context: click.Context, *, server: str | None, output: str) -> None:
    """What the site draws of its budget; and tools for predicting, sharing and holding watts."""
    if context.invoked_subcommand is None:
        power_live.show_power(server, output)


@power.command("allocate")
@click.option("--curves", required=True, type=click.Path(path_type=Path), help="Measured points.")
@click.option(
    "--format", "kind", default="native", show_default=True, metavar="native|zeus|emerald"
)
@click.option("--budget", metavar="12kW", help="Watts for all jobs together.")
@click.option("--tree", type=click.Path(path_type=Path), help="Power tree with budgets (YAML).")
@click.option("--policy", default="water-filling", show_default=True, help="How to choose.")
@click.option(
    "--joules", type=click.Path(path_type=Path),
    help="Energy budgets: a CSV of job, work, energy_budget_j.",
)  # fmt: skip
@click.option(
    "--count", type=click.Choice(["draw", "cap"]), default="draw", show_default=True,
    help="What counts against budgets.",
)  # fmt: skip
@click.option("--pause", is_flag=True, help="Jobs may be paused.")
@click.option("--paused-w", default="0W", show_default=True, help="What a paused job draws.")
@output_option
def allocate(
    *,
    curves: Path,
    kind: str,
    budget: str | None,
    tree: Path | None,
    policy: str,
    joules: Path | None,
    count: str,
    pause: bool,
    paused_w: str,
    output: str,
) -> None:
    """Choose a measured cap for every job, so that the budgets hold and most work gets done.

    The objective is the weighted mean of the jobs' rates relative to their best; the bound is what
    fractions of caps could reach.
    """
    from wattherd.estimate.measured_curve import Count
    from wattherd.service.allocate import Terms, allocation, rule
    from wattherd.units import watts
    from wattherd.workload.curves import read_curves, with_joules
    from wattherd.workload.tree_file import read_tree

    rule(policy)
    terms = Terms(
        budget_w=watts(budget, field="--budget") if budget else None,
        tree=read_tree(tree) if tree else None,
        count=Count(count),
        paused_w=watts(paused_w, field="--paused-w") if pause else None,
    )
    jobs = read_curves(curves, kind)
    document = allocation(with_joules(jobs, joules) if joules else jobs, terms, policy)
    if output == "json":
        click.echo(json.dumps(document))
        return
    _show(document)


def _show(document: dict[str, Any]) -> None:
    from wattherd.cli.tables import print_table
    from wattherd.units import show_watts

    rows = [
        [
            job["job"],
            "paused" if job["paused"] else f"{job['cap_w']:g}",
            f"{job['power_w']:,.1f}",
            f"{100 * job['relative_rate']:.1f}",
        ]
        for job in document["jobs"]
    ]
    print_table(["JOB", "CAP W", "DRAWS W", "RATE %"], rows, right_from=1)
    objective, most = document["objective"], document["bound"]
    click.echo(
        f"{show_watts(document['total_w'])} in all; mean rate {100 * objective:.2f} %"
        f" of at most {100 * most:.2f} %"
    )


for _command in (power_live.set_budget, *power_fit.COMMANDS, power_bench.bench):
    power.add_command(_command)

"""`wattherd power allocate` and `compare`: caps for measured curves, by one policy or by all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wattherd.cli import power_surface
from wattherd.cli.options import parse_policies
from wattherd.cli.output import printed, prints

if TYPE_CHECKING:
    from wattherd.estimate.measured_curve import JobCurve
    from wattherd.experiments.allocate.run import AllocationTerms

EVERY = "water-filling,tiers,nash,max-min,proportional,uniform,priority,priority-greedy"
_OPTIONS = (
    click.option(
        "--curves", required=True, type=click.Path(path_type=Path), help="Measured points."
    ),
    click.option(
        "--format",
        "kind",
        default="native",
        show_default=True,
        metavar="native|zeus|emerald",
        help="Format of the curves.",
    ),
    click.option("--tree", type=click.Path(path_type=Path), help="Power tree with budgets (YAML)."),
    click.option(
        "--joules",
        type=click.Path(path_type=Path),
        help="Energy budgets: a CSV of job, work, energy_budget_j.",
    ),
    click.option(
        "--count",
        type=click.Choice(["draw", "cap"]),
        default="draw",
        show_default=True,
        help="What counts against budgets.",
    ),
    *power_surface.OPTIONS,
    click.option("--pause", is_flag=True, help="Jobs may be paused."),
    click.option("--paused-w", default="0W", show_default=True, help="What a paused job draws."),
)


def _curve_options(command: Callable[..., None]) -> Callable[..., None]:
    """Which jobs, below which tree, under which rules."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command("allocate")
@_curve_options
@click.option("--budget", metavar="12kW", help="Watts for all jobs together.")
@click.option("--policy", default="water-filling", show_default=True, help="How to choose.")
@prints
def allocate(*, budget: str | None, policy: str, output: str, **given: Any) -> None:
    """Choose a measured cap for every job, so that the budgets hold and most work gets done.

    The objective is the weighted mean of the jobs' rates relative to their best; the bound is what
    fractions of caps could reach. Policies: docs/concepts/power-allocation.md.
    """
    from wattherd.experiments.allocate.run import allocation, rule

    rule(policy)
    document = allocation(_jobs(**given), _terms(budget=budget, **given), policy)
    if printed(document, output):
        return
    _show(document)


@click.command("compare")
@_curve_options
@click.option("--policies", default=EVERY, show_default=True, help="Names, with commas between.")
@click.option(
    "--parts", default="0.5,0.6,0.7,0.8,0.9", show_default=True,
    help="Budgets, as parts of what all jobs take at their highest points.",
)  # fmt: skip
@prints
def compare(*, policies: str, parts: str, output: str, **given: Any) -> None:
    """Several policies on the same curves, under several budgets."""
    from wattherd.experiments.allocate.compare import comparison
    from wattherd.experiments.allocate.run import rule

    names = parse_policies(policies)
    for name in names:
        rule(name)
    document = comparison(_jobs(**given), _terms(budget=None, **given), names, _parts(parts))
    if printed(document, output):
        return
    _show_comparison(document)


def _jobs(*, curves: Path, kind: str, joules: Path | None, **given: Any) -> tuple[JobCurve, ...]:
    from wattherd.workload.curves import with_joules

    jobs = power_surface.curves(curves, kind, **given)
    return with_joules(jobs, joules) if joules else jobs


def _terms(
    *, budget: str | None, tree: Path | None, count: str, pause: bool, paused_w: str, **_: object
) -> AllocationTerms:
    from wattherd.estimate.measured_curve import CountedWatts
    from wattherd.experiments.allocate.run import AllocationTerms
    from wattherd.units import watts
    from wattherd.workload.tree_file import read_tree

    return AllocationTerms(
        budget_w=watts(budget, field="--budget") if budget else None,
        tree=read_tree(tree) if tree else None,
        count=CountedWatts(count),
        paused_w=watts(paused_w, field="--paused-w") if pause else None,
    )


def _parts(text: str) -> list[float]:
    from wattherd.errors import UserError

    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        problem = f"{text!r} is no list of numbers"
        raise UserError(problem, field="--parts", hint="write 0.5,0.7") from None


def _show(document: dict[str, Any]) -> None:
    from wattherd.cli.tables import print_table
    from wattherd.units import show_watts

    rows = [
        [
            power_surface.name(job),
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


def _show_comparison(document: dict[str, Any]) -> None:
    from wattherd.cli.tables import print_table
    from wattherd.units import show_watts

    head = ["BUDGET", "POLICY", "MEAN %", "BOUND %", "LEAST %", "GEOMETRIC %", "PAUSED"]
    print_table(head, [_line(row) for row in document["allocations"]], right_from=2)
    click.echo(f"100 % is {show_watts(document['full_w'])}")


def _line(row: dict[str, Any]) -> list[str]:
    head = [f"{100 * row['part']:g} %", row["policy"]]
    if "problem" in row:
        return [*head, "too little", "", "", "", ""]
    names = ("objective", "bound", "least_rate", "geometric_mean")
    return [*head, *(f"{100 * row[name]:.2f}" for name in names), str(row["paused"])]


COMMANDS = (allocate, compare)

"""`wattherd power learn`, `fit` and `predict`: curves learned online, watts predicted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from wattherd.cli.options import output_option, parse_seeds
from wattherd.errors import UserError


@click.command("learn")
@click.argument("curves", type=click.Path(path_type=Path))
@click.option(
    "--format", "kind", default="native", show_default=True, metavar="native|zeus|emerald"
)
@click.option("--shares", default="0.6,0.7,0.8", show_default=True, help="Budgets, of all draw.")
@click.option("--samples", default=20, show_default=True, help="Noisy samples of each job.")
@click.option("--noise", default=0.05, show_default=True, help="Their relative error.")
@click.option("--seed", default="1..4", show_default=True, help="42, 42..51 or 1,5,9.")
@click.option("--at-least", type=float, help="Exit with 1 if a run reaches less of the optimum.")
@output_option
def learn(
    *,
    curves: Path,
    kind: str,
    shares: str,
    samples: int,
    noise: float,
    seed: str,
    at_least: float | None,
    output: str,
) -> int:
    """Allocate by curves learned from noisy samples, judged by the measured ones.

    Budgets are shares of the summed draw at each job's highest-draw point.
    """
    from wattherd.service.power_fit_curves import Lesson, lesson
    from wattherd.workload.curves import read_curves

    terms = Lesson(
        shares=numbers(shares, "--shares"),
        samples=samples,
        noise_sd=noise,
        seeds=tuple(parse_seeds(seed)),
    )
    document = lesson(read_curves(curves, kind), terms)
    if output == "json":
        click.echo(json.dumps(document))
    else:
        _show_lesson(document)
    return int(at_least is not None and document["worst_of_optimum"] < at_least)


def numbers(text: str, field: str) -> tuple[float, ...]:
    """Numbers separated by commas.

    Raises:
        UserError: one of them is none.
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        hint = "numbers separated by commas"
        raise UserError(f"{text!r} is no list of numbers", field=field, hint=hint) from None


def _show_lesson(document: dict[str, Any]) -> None:
    from wattherd.cli.tables import print_table

    rows = [
        [
            f"{run['budget_share']:g}",
            str(run["seed"]),
            f"{run['optimum']:.4f}",
            f"{run['learned']:.4f}",
            f"{100 * run['of_optimum']:.2f}",
            f"{100 * run['drawn_of_budget']:.2f}",
            str(run["restarts"]),
        ]
        for run in document["runs"]
    ]
    head = ["BUDGET", "SEED", "OPTIMUM", "LEARNED", "OF OPTIMUM %", "DRAWN %", "RESTARTS"]
    print_table(head, rows, right_from=0)
    worst = 100 * document["worst_of_optimum"]
    click.echo(f"{document['jobs']} jobs, {document['samples']} samples each; worst {worst:.2f} %")


COMMANDS = (learn,)

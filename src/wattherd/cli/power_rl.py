"""`wattherd power train-rl` and `judge-rl`: a learned power policy, and how it compares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from wattherd.cli.options import check_parent
from wattherd.cli.output import printed, prints


@click.command("train-rl")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Of episodes and of the search.",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Policy file.")
@click.option(
    "--generations",
    type=click.IntRange(min=1),
    default=40,
    show_default=True,
    help="Rounds of the search.",
)
def train_rl(*, seed: int, out: Path, generations: int) -> None:
    """Train a policy that proposes watts for jobs, in simulated episodes (a minute or two).

    The same seed gives the same policy.
    """
    from wattherd.experiments.power_rl.train import TrainingBudget, save, train

    check_parent(out)

    def told(generation: int, slowdown: float) -> None:
        click.echo(f"generation {generation:3}  mean slowdown {slowdown:.3f}", err=True)

    save(train(seed, TrainingBudget(generations=generations), told), out)
    click.echo(f"wrote {out}: try it with wattherd power judge-rl {out}", err=True)


@click.command("judge-rl")
@click.argument("policy", type=click.Path(path_type=Path))
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=9001,
    show_default=True,
    help="Of the first episode.",
)
@click.option(
    "--episodes",
    type=click.IntRange(min=2),
    default=200,
    show_default=True,
    help="How many are judged.",
)
@prints
def judge_rl(*, policy: Path, seed: int, episodes: int, output: str) -> None:
    """A trained policy beside the known rules, on the same episodes that it never saw.

    Slowdown is the weighted mean of time in the system over time needed uncapped and alone.
    """
    from wattherd.experiments.power_rl.judge import judge
    from wattherd.experiments.power_rl.train import load

    rows = judge(load(policy), seed, episodes)
    document = {"schema": "wattherd.power-policies/1", "seed": seed, "episodes": episodes}
    if printed({**document, "policies": rows}, output):
        return
    _show(rows)


def _show(rows: list[dict[str, Any]]) -> None:
    from wattherd.cli.tables import print_table

    header = ["POLICY", "SLOWDOWN", "ABOVE RL", "RL AHEAD %", "FINISHED %", "WORK H"]
    table = [
        [
            row["policy"],
            f"{row['slowdown']:.3f}",
            f"{row['above_rl']:+.3f} ± {1.96 * row['above_rl_error']:.3f}",
            f"{100 * row['rl_ahead']:.0f}",
            f"{100 * row['finished']:.1f}",
            f"{row['work_h']:.2f}",
        ]
        for row in rows
    ]
    print_table(header, table, right_from=1)
    over_w = max(row["over_budget_w"] for row in rows)
    click.echo(f"most watts above a budget in any step: {over_w:.6f}; ± is a 95 % interval")


COMMANDS = (train_rl, judge_rl)

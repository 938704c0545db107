"""`wattherd sim mix`: partly predictable jobs under schedulers that predict, and that do not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wattherd.cli.options import command_line, parse_policies, parse_seeds
from wattherd.cli.output import printed, prints
from wattherd.errors import UserError
from wattherd.library.progress import tracked

if TYPE_CHECKING:
    from wattherd.experiments.schedule.ps_mix import MixMean, MixRun

SCHEMA = "wattherd.mix/1"


@click.command("mix")
@click.option(
    "--policy",
    default="fifo,tiresias,optimus,aiturbo",
    show_default=True,
    metavar="A,B,…",
    help="Schedulers to compare.",
)
@click.option(
    "--unpredictable",
    default="0,25,50,75,100",
    show_default=True,
    metavar="P,P,…",
    help="Percent of jobs whose loss never tells how long they will run.",
)
@click.option(
    "--seed", default="0..7", show_default=True, metavar="N|A..B|A,B,C", help="One run for each."
)
@click.option(
    "--jobs",
    default=160,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="How many jobs arrive.",
)
@click.option(
    "--gpus",
    default=64,
    show_default=True,
    type=click.IntRange(8, 4096),
    help="GPUs of the cluster.",
)
@click.option(
    "--load",
    default=8.0,
    show_default=True,
    type=click.FloatRange(0, 1000, min_open=True),
    help="GPU time asked for while jobs arrive, over the GPU time there is; above 1 is a burst.",
)
@click.option(
    "--processes", type=click.IntRange(1, 256), help="Runs at a time.  [default: one per core]"
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="F.svg",
    help="Also write a plot.",
)
@prints
def mix(
    *,
    policy: str,
    unpredictable: str,
    seed: str,
    jobs: int,
    gpus: int,
    load: float,
    processes: int | None,
    plot: Path | None,
    output: str,
) -> None:
    """Sweep the share of unpredictable jobs and average over seeds.

    The workload is generated (docs/concepts/aiturbo.md): parameter-server jobs whose work and
    arrivals are the same in every mix of a seed.
    """
    from wattherd.experiments.schedule.ps_mix import Sweep, means, sweep
    from wattherd.workload.ps_jobs import PsMix

    wish = Sweep(
        policies=tuple(parse_policies(policy)),
        shares=tuple(parse_shares(unpredictable)),
        seeds=tuple(parse_seeds(seed)),
        mix=PsMix(jobs=jobs, gpus=gpus, load=load),
    )
    if plot and len(wish.shares) < 2:
        raise UserError("a plot needs two shares or more", field="--plot")
    total = len(wish.policies) * len(wish.shares) * len(wish.seeds)
    stream = sweep(wish, processes=processes or os.cpu_count() or 1)
    runs = list(tracked(stream, total, "simulating"))
    rows = means(runs)
    if plot:
        _write(plot, runs, rows)
    if printed(_document(runs, rows), output):
        return
    _show(rows)


def parse_shares(text: str) -> list[float]:
    """Ascending percentages `0,25,100` as shares of one.

    Raises:
        UserError: not of that form.
    """
    try:
        shares = [float(part) / 100 for part in text.split(",")]
    except ValueError:
        shares = []
    if not shares or shares != sorted(set(shares)) or not 0 <= shares[0] <= shares[-1] <= 1:
        raise UserError(
            f"{text!r} are no ascending percentages", field="--unpredictable", hint="write 0,50,100"
        )
    return shares


def _document(runs: Sequence[MixRun], rows: Sequence[MixMean]) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "command": command_line(),
        "means": [asdict(row) for row in rows],
        "runs": [asdict(run) for run in runs],
    }


def _write(path: Path, runs: Sequence[MixRun], rows: Sequence[MixMean]) -> None:
    from wattherd.report.mix_plot import mix_svg

    shares = sorted({row.unpredictable for row in rows})
    lines = {}
    for policy in dict.fromkeys(row.policy for row in rows):
        found = [
            [run.avg_jct_h for run in runs if (run.policy, run.unpredictable) == (policy, share)]
            for share in shares
        ]
        lines[policy] = (
            [sum(one) / len(one) for one in found],
            [min(one) for one in found],
            [max(one) for one in found],
        )
    try:
        path.write_text(mix_svg(shares, lines), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", where=str(path)) from None
    click.echo(f"wrote {path}", err=True)


_HEAD = ("UNPREDICTABLE", "POLICY", "SEEDS", "AVG JCT h", "MEDIAN h", "P99 h", "MAKESPAN h",
         "STARTS", "GPU %", "CPU %", "HELD %", "GAP")  # fmt: skip


def _show(rows: Sequence[MixMean]) -> None:
    from wattherd.cli.tables import print_table

    print_table(_HEAD, [_cells(row) for row in rows], right_from=2)


def _cells(row: MixMean) -> list[str]:
    times = (row.avg_jct_h, row.median_jct_h, row.p99_jct_h, row.makespan_h, row.starts)
    shares = (row.gpu_pct, row.cpu_pct, row.held_pct, row.gap_points)
    return [
        f"{row.unpredictable:.0%}",
        row.policy,
        str(row.seeds),
        *(f"{value:.2f}" for value in times),
        *(f"{value:.1f}" for value in shares),
    ]

"""`wattherd reproduce`: rerun a published experiment and print published | ours | difference."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from wattherd.cli.options import parse_seeds
from wattherd.cli.output import printed, prints
from wattherd.errors import UserError

_T = TypeVar("_T")

if TYPE_CHECKING:
    from wattherd.experiments.published.checks import FigureCheck
    from wattherd.experiments.published.papers import ReproductionWish

PLACEMENT = ("fgd-atc23", "pwr-ccgrid25")
PAPERS = (
    *PLACEMENT,
    "pollux-osdi21",
    "pollux-osdi21-policy",
    "gavel-osdi20",
    "muri-sigcomm22",
    "tiresias-nsdi19",
    "hkbu-dvfs",
    "aiturbo-hpdc21",
    "emerald-phoenix",
)


@click.command()
@click.argument("paper", type=click.Choice(PAPERS))
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the paper's files.  [default: in $WATTHERD_DATA, or what was fetched]",
)
@click.option("--trace", "traces", multiple=True, help="Only this trace; may be given repeatedly.")
@click.option(
    "--seed", default="42..51", show_default=True, metavar="N|A..B|A,B,C", help="Seeds to run."
)
@click.option(
    "--processes", type=click.IntRange(1, 256), help="Runs at a time.  [default: one per core]"
)
@click.option(
    "--bins", type=click.Path(path_type=Path, dir_okay=False), help="CSV of differences bin by bin."
)
@prints
def reproduce(
    *,
    paper: str,
    data: Path | None,
    traces: tuple[str, ...],
    seed: str,
    processes: int | None,
    bins: Path | None,
    output: str,
) -> int:
    """Rerun PAPER's experiments; exit code 1 if a figure differs by more than promised."""
    from wattherd.experiments.published.papers import PAPERS as RUNNERS
    from wattherd.experiments.published.papers import ReproductionWish

    wish = ReproductionWish(
        data=data,
        traces=traces,
        seeds=parse_seeds(seed),
        processes=processes or os.cpu_count() or 1,
    )
    if paper in PLACEMENT:
        _say_how(wish)
    checks = list(_counted(RUNNERS[paper](wish), paper))
    failed = [check for check in checks if not check.holds]
    if bins:
        _write_bins(bins, checks)
    _show(paper, checks, output)
    click.echo(f"{len(checks) - len(failed)} of {len(checks)} figures hold", err=True)
    return 1 if failed or not checks else 0


def _say_how(wish: ReproductionWish) -> None:
    from wattherd.experiments.published.papers import orders_at_hand

    if orders_at_hand(wish):
        click.echo("comparing run by run: the authors' arrival and tie orders are there", err=True)
        return
    click.echo(
        "no order files (they are not public): comparing means over seeds of our own draws",
        err=True,
    )


def _write_bins(path: Path, checks: list[FigureCheck]) -> None:
    """One row per compared curve and percent of arrived load."""
    rows = ["trace,policy,quantity,arrived_pct,difference"]
    rows.extend(
        f'{check.trace},{check.policy},"{check.quantity}",{percent},{value!r}'
        for check in checks
        for percent, value in enumerate(check.by_bin)
    )
    try:
        path.write_text("\n".join(rows) + "\n")
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", where=str(path)) from None
    click.echo(f"wrote {path}", err=True)


def _show(paper: str, checks: list[FigureCheck], output: str) -> None:
    rows = [
        asdict(check) | {"difference": check.difference, "holds": check.holds} for check in checks
    ]
    if printed({"schema": "wattherd.reproduce/1", "paper": paper, "checks": rows}, output):
        return
    from wattherd.cli.tables import print_table

    print_table(
        ["TRACE", "POLICY", "QUANTITY", "PUBLISHED", "OURS", "DIFFERENCE", "ALLOWED", "HOLDS"],
        [
            [
                check.trace,
                check.policy,
                check.quantity,
                f"{check.published:.4f}",
                f"{check.ours:.4f}",
                f"{check.difference:+.5f}",
                "shown only" if check.tolerance is None else f"{check.tolerance:g}",
                "yes" if check.holds else "NO",
            ]
            for check in checks
        ],
        right_from=3,
    )


def _counted(items: Iterable[_T], what: str) -> Iterator[_T]:
    """Pass `items` on while a line on stderr counts them, where their number is not known."""
    if not sys.stderr.isatty() or os.environ.get("WATTHERD_NO_PROGRESS"):
        yield from items
        return
    from rich.console import Console

    with Console(stderr=True).status(what) as status:
        for number, item in enumerate(items, start=1):
            status.update(f"{what}: {number} figures")
            yield item

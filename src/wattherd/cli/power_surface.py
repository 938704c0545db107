"""`wattherd power surface`: batch sizes and caps, by progress and by samples per second."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wattherd.cli.output import printed, prints
from wattherd.cli.power_fit import numbers
from wattherd.errors import UserError

if TYPE_CHECKING:
    from wattherd.estimate.measured_curve import JobCurve

OPTIONS = (
    click.option("--progress", is_flag=True, help="Value targets per second, not epochs."),
    click.option("--train", type=click.Path(path_type=Path), help="Zeus' training summary."),
    click.option(
        "--batch", default="fixed", show_default=True, metavar="fixed|free",
        help="With --progress: whether the global batch may change.",
    ),
    click.option("--accumulate", is_flag=True, help="With --progress: smaller batches in passes."),
)  # fmt: skip
"""Of the commands that share watts among jobs."""


def curves(path: Path, kind: str, **given: Any) -> tuple[JobCurve, ...]:
    """Jobs of a file, valued by progress if asked for.

    Raises:
        UserError: options that do not go together, or bad content.
    """
    return _by_progress(path, kind, **given) if given["progress"] else _by_rate(path, kind, **given)


def _by_progress(
    path: Path, kind: str, *, train: Path | None, batch: str, accumulate: bool, **_: object
) -> tuple[JobCurve, ...]:
    """Jobs whose rate is progress; Zeus' needs to know how they trained."""
    from wattherd.estimate.surface import SurfaceGoal
    from wattherd.experiments.power_models.surfaces import curves_of
    from wattherd.workload.surfaces import read_surfaces

    if kind not in ("native", "zeus"):
        hint = "native or zeus"
        raise UserError(f"{kind!r} tells no progress", field="--format", hint=hint)
    if (kind == "zeus") != (train is not None):
        hint = "it goes with --format zeus, and only with it"
        raise UserError("training summary", field="--train", hint=hint)
    surfaces = read_surfaces(path, train, accumulate=accumulate)
    return curves_of(surfaces, batch, SurfaceGoal.PROGRESS)


def _by_rate(
    path: Path, kind: str, *, train: Path | None, batch: str, accumulate: bool, **_: object
) -> tuple[JobCurve, ...]:
    """Jobs as measured."""
    from wattherd.workload.curves import read_curves

    if train is not None or batch != "fixed" or accumulate:
        hint = "without it only caps are chosen"
        raise UserError("needs --progress", field="--train, --batch, --accumulate", hint=hint)
    return read_curves(path, kind)


def name(job: dict[str, Any]) -> str:
    """A job of an allocation, with its batch where that was chosen."""
    if "batch_size" not in job or job["paused"]:
        return str(job["job"])
    passes = "" if job["accumulation"] == 1 else f"{job['accumulation']} x "
    layout = f" {job['layout']}" if job["layout"] else ""
    return f"{job['job']} ({passes}{job['batch_size']}{layout})"


@click.command("surface")
@click.argument("points", type=click.Path(path_type=Path))
@click.option("--train", type=click.Path(path_type=Path), help="Zeus' training summary.")
@click.option("--shares", default="0.5,0.6,0.7,0.8,0.9", show_default=True, help="Of all draw.")
@click.option("--accumulate", is_flag=True, help="Smaller batches may be accumulated.")
@prints
def surface(
    *, points: Path, train: Path | None, shares: str, accumulate: bool, output: str
) -> None:
    """Choose batch size and cap of every job by progress, and by samples per second.

    Progress is targets reached per second: 1 / (epochs to target x seconds per epoch). Both choices
    are judged by it. With --train, POINTS is Zeus' power summary.
    """
    from wattherd.experiments.power_models.surfaces import surface_report
    from wattherd.workload.surfaces import read_surfaces

    jobs = read_surfaces(points, train, accumulate=accumulate)
    document = surface_report(jobs, numbers(shares, "--shares"))
    if printed(document, output):
        return
    _show(document)


def _show(document: dict[str, Any]) -> None:
    from wattherd.cli.tables import print_table

    rows = [
        [
            one["job"],
            _batch(one["fastest_by_samples"]),
            f"{100 * one['fastest_by_samples']['relative_progress']:.1f}",
            _batch(one["fastest_by_progress"]),
            str(len(one["frontier"])),
        ]
        for one in document["jobs"]
    ]
    head = ["JOB", "BATCH BY SAMPLES/S", "ITS PROGRESS %", "BATCH BY PROGRESS", "CORNERS"]
    print_table(head, rows, right_from=1)
    found = [
        [
            f"{one['budget_share']:g}",
            f"{one['budget_w']:,.0f}",
            f"{100 * one['by']['samples']['progress']:.1f}",
            f"{100 * one['by']['progress']['progress']:.1f}",
        ]
        for one in document["budgets"]
    ]
    head = ["BUDGET", "WATTS", "BY SAMPLES/S: PROGRESS %", "BY PROGRESS: PROGRESS %"]
    print_table(head, found, right_from=0)


def _batch(point: dict[str, Any]) -> str:
    """Global batch, spelled as passes where there are several."""
    passes = point["accumulation"]
    return str(point["batch_size"]) if passes == 1 else f"{passes} x {point['batch_size']}"

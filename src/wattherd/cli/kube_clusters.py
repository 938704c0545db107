"""`wattherd kube clusters`: every cluster of a kubeconfig in one table."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wattherd.cli.output import lists, printed
from wattherd.errors import UserError

if TYPE_CHECKING:
    from wattherd.server.kube.clusters import ClusterRow

SCHEMA = "wattherd.clusters/1"
_PATH = click.Path(path_type=Path)


@click.command()
@click.option("--kubeconfig", type=_PATH, help="As of kubectl.")
@click.option("--context", "contexts", multiple=True, help="Only these; else all there are.")
@click.option("--timeout", default="10s", show_default=True, help="So long is each waited for.")
@lists
def clusters(kubeconfig: Path | None, contexts: tuple[str, ...], timeout: str, output: str) -> int:
    """Show nodes, GPUs, waiting pods and watts of several clusters.

    One that does not answer is shown as it was, with the age of that; the exit code is then 1.
    """
    try:
        from wattherd.server.kube import clusters as service
    except ImportError as missing:
        hint = 'pip install "wattherd[kube]"'
        raise UserError(f"needs {missing.name}", hint=hint) from None
    from wattherd.units import seconds

    timeout_s = seconds(timeout, field="--timeout")
    rows = service.clusters(kubeconfig, contexts, timeout_s=timeout_s)
    if not printed({"schema": SCHEMA, "clusters": [asdict(row) for row in rows]}, output):
        _show(rows)
    for row in rows:
        if row.problem:
            click.echo(f"wattherd: {row.context}: {row.problem}", err=True)
    return int(any(row.problem for row in rows))


def _show(rows: list[ClusterRow]) -> None:
    from wattherd.cli.tables import print_table

    head = ["CONTEXT", "NODES READY", "OFF", "GPUS USED", "PODS WAITING", "DRAWS", "METERED",
            "MAY DRAW", "BUDGET", "STATE"]  # fmt: skip
    print_table(head, [_cells(row) for row in rows])


def _cells(row: ClusterRow) -> list[str]:
    from wattherd.units import show_seconds, show_watts

    state = "answers"
    if row.problem:
        state = "unreachable"
        state += "" if row.age_s is None else f", as {show_seconds(row.age_s)} ago"
    found = row.overview
    if found is None:
        return [row.context, *["-"] * 8, state]
    return [
        row.context,
        f"{found.nodes_ready}/{found.nodes}",
        str(found.nodes_off),
        f"{found.gpus_used}/{found.gpus}",
        str(found.pods_waiting),
        "-" if found.draw_w is None else show_watts(found.draw_w),
        f"{found.metered}/{found.nodes}",
        show_watts(found.may_draw_w),
        "-" if found.budget_w is None else show_watts(found.budget_w),
        state,
    ]

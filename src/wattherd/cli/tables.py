"""Tables on stdout: aligned, readable without colour, never cut when piped."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import click

PIPE_WIDTH = 200


def print_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right_from: int = 99
) -> None:
    """Print `rows`; columns from number `right_from` on are numbers and align right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(head):
        table.add_column(name, justify="right" if number >= right_from else "left", no_wrap=True)
    table.columns[right_from - 1 if right_from < len(head) else -1].no_wrap = False
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False).print(table)


def print_comparison(result: Mapping[str, object]) -> None:
    """The headline figures of a `wattherd.pack/1` document, one row per policy."""
    from pathlib import Path

    from wattherd.report.compare import trace_rows
    from wattherd.report.runs import Source, group, parse_pack
    from wattherd.report.table import cells, fields

    source = Source(directory=Path(), pack=parse_pack(result))
    for trace in group([source]).traces:
        rows = trace_rows(trace)
        columns = fields(rows)
        head = ["POLICY", "SEEDS", *(f"{c.group} {c.head} {c.unit}".strip() for c in columns)]
        printed = [
            [
                row.policy,
                str(row.seeds),
                *(f"{cell.mean}{'*' if cell.best else ''}" for cell in line),
            ]
            for row, line in zip(rows, cells(rows, columns), strict=True)
        ]
        print_table(head, printed, right_from=1)
        click.echo(f"* best of its column; power saved is against {rows[0].baseline} at equal load")

"""Tables on stdout: aligned, readable without colour; nothing in them is ever cut.

At a terminal, text that does not fit goes on in the next line of its column; identifiers (the first
column) stay whole. Whatever reads a pipe gets one line a row, however long.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar

import click

from wattherd.errors import harmless

GAP = "  "
LEAST_WIDTH = 10
"""Below which a column of text is not narrowed."""
WHOLE = ("ID", "JOB", "UUID", "GPU")
"""Heads of columns with identifiers, which people copy."""
headers = ContextVar("headers", default=True)
"""Whether tables begin with the names of their columns (`--no-headers`)."""
terminal: ContextVar[bool | None] = ContextVar("terminal", default=None)
"""Whether somebody looks at stdout, where that cannot be seen from stdout itself."""


def interactive() -> bool:
    """Whether stdout is a terminal."""
    known = terminal.get()
    return sys.stdout.isatty() if known is None else known


def print_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right_from: int = 99, fit: bool = True
) -> None:
    """Print `rows`; columns from number `right_from` on are numbers and align right.

    Without a `head` columns have no names; unless it is to `fit`, a table is as wide as it is.
    """
    headed = bool(head) and headers.get()
    given = [head, *rows] if headed else rows
    lines = [[_one_line(cell) for cell in row] for row in given]
    if not lines:
        return
    looked_at = interactive()
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    if looked_at and fit:
        widths = _fitted(head, lines, widths, shutil.get_terminal_size((100, 24)).columns)
    printed = [_line(cells, widths, right_from) for cells in lines]
    if headed and looked_at and not os.environ.get("NO_COLOR"):
        printed[0] = click.style(printed[0], bold=True)
    click.echo("\n".join(printed))


def _one_line(cell: str) -> str:
    """A cell as it may be printed: in tables are names and words of others."""
    return cell if cell.isprintable() else harmless(" ".join(cell.splitlines()))


def _width(text: str) -> int:
    """Cells of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _line(cells: Sequence[str], widths: Sequence[int], right_from: int) -> str:
    """A row as one line, or as several where a cell is wider than its column."""
    parts = [
        [cell] if _width(cell) <= width else _folded(cell, width)
        for cell, width in zip(cells, widths, strict=True)
    ]
    lines = []
    for at in range(max(map(len, parts))):
        words = [part[at] if at < len(part) else "" for part in parts]
        padded = (
            " " * (width - _width(word)) + word
            if number >= right_from
            else word + " " * (width - _width(word))
            for number, (word, width) in enumerate(zip(words, widths, strict=True))
        )
        lines.append(GAP.join(padded).rstrip())
    return "\n".join(lines)


def _folded(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells, broken between words where that is possible."""
    lines, line = [], ""
    for word in re.findall(r"\S+\s*", text):
        if line and _width((line + word).rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += word
        while _width(line.rstrip()) > width:
            lines.append(line[:width])
            line = line[width:]
    return [*lines, line.rstrip()]


def _fitted(
    head: Sequence[str], lines: Sequence[Sequence[str]], widths: list[int], room: int
) -> list[int]:
    """Columns of text made narrower until the table fits, first between words, then within."""
    room -= len(GAP) * (len(widths) - 1)
    words = [max(_longest(cell) for cell in column) for column in zip(*lines, strict=True)]
    named = dict(enumerate(head))
    free = [number for number in range(1, len(widths)) if named.get(number) not in WHOLE]
    least = {number: max(words[number], LEAST_WIDTH) for number in free}
    for floors in (least, dict.fromkeys(free, LEAST_WIDTH)):
        while sum(widths) > room:
            wider = [number for number in free if widths[number] > floors[number]]
            if not wider:
                break
            widest = max(wider, key=lambda number: widths[number])
            others = [widths[one] for one in wider if widths[one] < widths[widest]]
            target = max([floors[widest], *others, widths[widest] - (sum(widths) - room)])
            widths[widest] = min(target, widths[widest] - 1)
    return widths


def _longest(cell: str) -> int:
    return max(map(_width, cell.split()), default=0)


def print_comparison(result: Mapping[str, object]) -> None:
    """The headline figures of a `wattherd.pack/1` document, one row per policy."""
    from pathlib import Path

    from wattherd.report.compare import trace_rows
    from wattherd.report.runs import RunSource, group, parse_pack
    from wattherd.report.table import cells, fields

    source = RunSource(directory=Path(), pack=parse_pack(result))
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

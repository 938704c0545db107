"""Read a CSV file row by row, refusing early whatever is no table of the expected layout.

Lines are read and decoded one at a time, so that every complaint names its line and a wrong file
of any size costs little. What the cells mean is the callers' business, but for tables of numbers:
`column_values` reads those as one array.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError
from wattherd.spelling import nearest
from wattherd.workload.source import line_count, opened, shown

MAX_ROWS = 2_000_000
_MAX_LINE = 1 << 20
_HEADER_SHOWN = 12
_WRONG_FILE = "is this the right file?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The columns of a kind of table; any further columns are ignored."""

    kind: str
    required: tuple[str, ...]
    optional: tuple[str, ...] = field(default=())
    separator: str = ","

    @property
    def columns(self) -> tuple[str, ...]:
        """Required, then optional columns: the order in which `rows` yields the cells."""
        return self.required + self.optional


def rows(
    path: Path, layout: Layout, *, others: Sequence[Layout] = ()
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line number and the cells of `layout.columns`; absent optional columns are empty.

    Blank lines are skipped. `others` are the layouts this file could be mistaken for.

    Raises:
        UserError: the file cannot be read, is no UTF-8 CSV, misses a column, has a row of another
            length than the header, no row, or more than `MAX_ROWS` rows.
    """
    if line_count(path, stop_after=MAX_ROWS + 1) > MAX_ROWS + 1:
        raise _too_many(str(path))
    with opened(path) as stream:
        lines = _csv_rows(_lines(stream, path), path, layout.separator)
        _, header = next(lines, (0, []))
        pick = _picker(_named(header, layout, path), layout, others, path)
        count = 0
        for count, (line, row) in enumerate(lines, start=1):
            if len(row) != len(header):
                raise _ragged(len(row), len(header), f"{path}:{line}")
            if count > MAX_ROWS:
                raise _too_many(f"{path}:{line}")
            row.append("")
            yield line, pick(row)
        if not count:
            raise UserError("has a header but no rows", where=str(path), hint=_WRONG_FILE)


def _lines(stream: BinaryIO, path: Path) -> Iterator[str]:
    number = 0
    while raw := stream.readline(_MAX_LINE):
        number += 1
        if len(raw) == _MAX_LINE and not raw.endswith(b"\n"):
            raise UserError(
                f"line longer than {_MAX_LINE} bytes", where=f"{path}:{number}", hint=_WRONG_FILE
            )
        try:
            yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"not UTF-8 text at byte {error.start + 1} of the line",
                where=f"{path}:{number}",
                hint="save it as UTF-8 CSV",
            ) from None


def _csv_rows(lines: Iterator[str], path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(lines, strict=True, delimiter=separator)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        where = f"{path}:{reader.line_num}"
        raise UserError(f"not CSV: {error}", where=where, hint=_WRONG_FILE) from None


def _named(header: list[str], layout: Layout, path: Path) -> list[str]:
    """Column names without surrounding blanks; those of the layout stand there once at most."""
    if not header:
        raise UserError("the file is empty", where=str(path), hint="expected a CSV with a header")
    names = [name.strip() for name in header]
    for name in layout.columns:
        if names.count(name) > 1:
            raise UserError(f"column {shown(name)} appears twice", where=f"{path}:1")
    return names


def _picker(
    names: list[str], layout: Layout, others: Sequence[Layout], path: Path
) -> Callable[[list[str]], tuple[str, ...]]:
    """What takes the layout's cells out of a row with one empty cell appended."""
    missing = [name for name in layout.required if name not in names]
    if missing:
        raise UserError(
            f"no column {', '.join(missing)} (found: {_listed(names)})",
            where=f"{path}:1",
            hint=_header_hint(missing[0], names, layout, others),
        )
    absent = len(names)
    at = (names.index(name) if name in names else absent for name in layout.columns)
    return itemgetter(*at)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _HEADER_SHOWN} more" if len(names) > _HEADER_SHOWN else ""
    return ", ".join(shown(name)[1:-1] for name in names[:_HEADER_SHOWN]) + more


def _header_hint(missing: str, names: list[str], layout: Layout, others: Sequence[Layout]) -> str:
    for other in others:
        if set(other.required) <= set(names):
            return f"this is a {other.kind}, expected a {layout.kind}: are two files swapped?"
    near = nearest(missing, (name for name in names if name not in layout.columns))
    if near is not None:
        return f"rename column {shown(near)} to {missing!r}?"
    return f"a {layout.kind} has the columns {', '.join(layout.required)}"


def _ragged(found: int, expected: int, where: str) -> UserError:
    hint = "a cell with a comma needs quotes" if found > expected else "is the line cut short?"
    return UserError(f"{found} cells, the header has {expected}", where=where, hint=hint)


def _too_many(where: str) -> UserError:
    return UserError(f"more than {MAX_ROWS:,} rows", where=where, hint=_WRONG_FILE)


def column_values(path: Path, layout: Layout) -> NDArray[np.float64]:
    """The required columns of `layout` (rows, columns).

    Raises:
        UserError: unreadable, or a cell that is no finite number, with file, line and column.
    """
    table = [
        [finite(cell, path, line, name) for cell, name in zip(cells, layout.columns, strict=True)]
        for line, cells in rows(path, layout)
    ]
    return np.array(table, dtype=np.float64)


def finite(cell: str, path: Path, line: int, column: str) -> float:
    """A cell as a finite number.

    Raises:
        UserError: it is none, with file, line and column.
    """
    try:
        value = math.nan if "_" in cell else float(cell)  # Python would read 1_80 as 180
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        hint = "a plain decimal number"
        raise UserError(f"{cell!r} is no number", where=f"{path}:{line}", field=column, hint=hint)
    return value

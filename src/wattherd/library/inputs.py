"""Inputs of library calls: a path stays one, a frame becomes a file that the readers take."""

from __future__ import annotations

import csv
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wattherd.errors import UserError
from wattherd.library.table import rows_of

Source = str | Path | object
"""A path, a frame (pandas, polars, Arrow), or a list of rows."""


@contextmanager
def input_file(given: Source, field: str, *, lines: bool = False) -> Iterator[Path]:
    """The path of an input for as long as it is read.

    One set of readers checks files and frames alike; of a frame an error names the row.

    Args:
        given: a path, a frame or rows.
        field: what the caller calls it.
        lines: JSON lines instead of CSV, for tables whose cells may be lists.

    Raises:
        UserError: it is no table; or what the readers say, with rows instead of lines.
    """
    if isinstance(given, str | Path):
        yield Path(given)
        return
    rows = rows_of(given, field)
    with tempfile.TemporaryDirectory(prefix="wattherd-") as folder:
        path = Path(folder) / (f"{field}.jsonl" if lines else f"{field}.csv")
        path.write_text(_json_lines(rows) if lines else "", encoding="utf-8")
        if not lines:
            _write_csv(path, rows)
        try:
            yield path
        except UserError as error:
            error.where = by_row(error.where, path, field, header=not lines)
            error.args = (error.line(),)
            raise


def _json_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def by_row(where: str, path: Path, field: str, *, header: bool) -> str:
    """`/tmp/wattherd-x/jobs.csv:3` as `jobs, row 2`."""
    found = re.match(re.escape(str(path)) + r"(?::(\d+))?(.*)", where, re.DOTALL)
    if found is None:
        return where
    row = "" if found[1] is None else f", row {max(int(found[1]) - header, 1)}"
    return f"{field}{row}{found[2]}"

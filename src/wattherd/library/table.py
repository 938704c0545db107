"""A table of results: named columns that leave as Arrow, CSV or Parquet, and come in as frames do.

pandas, polars and DuckDB take a `Table` as it is, by Arrow's PyCapsule interface
(https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html), and none of them is
needed here. Arrow itself is the extra `tables`.
"""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from wattherd.errors import UserError
from wattherd.spelling import hint_for

Cell = str | int | float | bool | None
_SHOWN = 20


class Table:
    """Columns of equal length; a cell without a value is None.

    Args:
        columns: values by name; all of a column are of one kind, whole numbers beside fractions
            become fractions.

    Raises:
        UserError: columns of unequal length.
    """

    __slots__ = ("_columns",)

    def __init__(self, columns: Mapping[str, Sequence[Cell]]) -> None:
        """Take the columns as they are."""
        lengths = {len(values) for values in columns.values()}
        if len(lengths) > 1:
            raise UserError("columns are of unequal length", field=", ".join(columns))
        self._columns = {name: _of_one_kind(values) for name, values in columns.items()}

    @classmethod
    def of_rows(cls, rows: Iterable[Mapping[str, Cell]]) -> Table:
        """A table of rows; a row that lacks a name has no value there."""
        taken = list(rows)
        names = dict.fromkeys(name for row in taken for name in row)
        return cls({name: [row.get(name) for row in taken] for name in names})

    @property
    def columns(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(self._columns)

    def __len__(self) -> int:
        """How many rows there are."""
        return len(next(iter(self._columns.values()), []))

    def __iter__(self) -> Iterator[dict[str, Cell]]:
        """Row by row."""
        for cells in zip(*self._columns.values(), strict=True):
            yield dict(zip(self._columns, cells, strict=True))

    def __getitem__(self, name: str) -> list[Cell]:
        """One column.

        Raises:
            KeyError: there is none of that name.
        """
        return list(self._columns[name])

    def select(self, *names: str) -> Table:
        """Only these columns, in this order.

        Raises:
            UserError: there is none of a name.
        """
        for name in names:
            if name not in self._columns:
                raise UserError(
                    f"no column {name!r}", field="select", hint=hint_for(name, self._columns)
                )
        return Table({name: self._columns[name] for name in names})

    def where(self, **equal: Cell) -> Table:
        """The rows whose cells are so."""
        kept = [row for row in self if all(row[name] == value for name, value in equal.items())]
        return Table({name: [row[name] for row in kept] for name in self._columns})

    def arrow(self) -> Any:
        """As a `pyarrow.Table`.

        Raises:
            UserError: the extra `tables` is not installed.
        """
        return _pyarrow().table({name: list(values) for name, values in self._columns.items()})

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """For whoever takes Arrow: `pandas.DataFrame.from_arrow`, `polars.DataFrame`, DuckDB."""
        return self.arrow().__arrow_c_stream__(requested_schema)

    def write_csv(self, path: Path | str) -> Path:
        """Write a CSV file with a header; the path."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self._columns)
        writer.writerows(zip(*self._columns.values(), strict=True))
        return _written(Path(path), text.getvalue().encode())

    def write_parquet(self, path: Path | str) -> Path:
        """Write a Parquet file; the path.

        Raises:
            UserError: the extra `tables` is not installed, or the file cannot be written.
        """
        taken = io.BytesIO()
        table = self.arrow()
        from pyarrow import parquet

        parquet.write_table(table, taken)
        return _written(Path(path), taken.getvalue())

    def __repr__(self) -> str:
        """The first rows, aligned."""
        lines = [list(self._columns), *(_texts(row.values()) for row in self._first())]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = [
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
            for line in lines
        ]
        return "\n".join([*shown, *self._rest()])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self._columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in _texts(row.values()))
            + "</tr>"
            for row in self._first()
        )  # fmt: skip
        more = "".join(f"<p>{line}</p>" for line in self._rest())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"

    def _first(self) -> list[dict[str, Cell]]:
        return [row for row, _ in zip(self, range(_SHOWN), strict=False)]

    def _rest(self) -> list[str]:
        return [f"… {len(self) - _SHOWN:,} rows more"] if len(self) > _SHOWN else []


def _of_one_kind(values: Sequence[Cell]) -> list[Cell]:
    known = [one for one in values if one is not None]
    mixed = {type(one) for one in known} == {int, float}
    return [float(one) if mixed and isinstance(one, int) else one for one in values]


def _texts(cells: Iterable[Cell]) -> list[str]:
    return [
        "" if one is None else f"{one:,.3f}" if isinstance(one, float) else str(one)
        for one in cells
    ]


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
    except ImportError:
        hint = 'pip install "wattherd[tables]"'
        raise UserError("needs pyarrow", hint=hint) from None
    return pa


def _written(path: Path, content: bytes) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror}", where=str(path)) from None
    return path


# Frames of others ---------------------------------------------------------------------------------


def rows_of(given: object, field: str) -> list[dict[str, Any]]:
    """The rows of a frame, or of an iterable of mappings; cells without a value are left out.

    Args:
        given: what offers Arrow's C stream, `to_dicts` (polars) or `to_dict` (pandas), or rows.
        field: what the caller calls it, for errors.

    Raises:
        UserError: it is none of these, or needs Arrow, which is not installed.
    """
    if isinstance(given, Table):
        found: Iterable[Any] = given
    elif hasattr(given, "to_dicts"):
        found = given.to_dicts()
    elif hasattr(given, "to_dict") and hasattr(given, "columns"):
        found = given.to_dict("records")
    elif hasattr(given, "__arrow_c_stream__"):
        found = _pyarrow().table(given).to_pylist()
    elif isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping):
        found = given
    else:
        hint = "give a path, a frame or a list of rows"
        raise UserError(f"{type(given).__name__} is no table", field=field, hint=hint)
    rows = []
    for number, row in enumerate(found, start=1):
        if not isinstance(row, Mapping):
            hint = 'one mapping for each row: {"id": "a", "submit_s": 0}'
            raise UserError("is no row", where=f"{field}, row {number}", field=field, hint=hint)
        rows.append({str(name): _plain(one) for name, one in row.items() if not _missing(one)})
    return rows


def _missing(value: object) -> bool:
    """Pandas says with NaN and NaT that there is nothing."""
    if value is None:
        return True
    if isinstance(value, Real):
        return math.isnan(value)
    return type(value).__name__ in ("NaTType", "NAType")


def _plain(value: Any) -> Any:
    """NumPy's scalars as Python's."""
    if isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return int(number) if number.is_integer() else number
    return value.item() if hasattr(value, "item") else value

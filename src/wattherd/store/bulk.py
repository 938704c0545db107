"""Many rows by few statements.

Drivers let go of the interpreter at every statement, and may wait for it as long again: a hundred
rows written one by one would hold up other writers for as long as a hundred turns of all threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import sqlalchemy as sa

SIZES = (256, 64, 16, 4, 1)
"""Rows of one statement: few sizes, so that each is prepared once, and less than 10,000 values."""
One = TypeVar("One")


def insert(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows that have all columns of the table."""
    names = tuple(column.name for column in table.columns)
    mark = "?" if connection.dialect.paramstyle == "qmark" else "%s"
    for part in _parts(rows):
        values = tuple(row[name] for row in part for name in names)
        connection.exec_driver_sql(_insert(table.name, names, len(part), mark), values)


def delete(connection: sa.Connection, key: sa.Column[Any], values: Sequence[Any]) -> None:
    """Drop the rows that have one of these values."""
    for part in _parts(values):
        connection.execute(_delete(key), {"gone": list(part)})


def raise_to(
    connection: sa.Connection, key: sa.Column[Any], column: sa.Column[Any], by: Mapping[str, float]
) -> None:
    """Set `column` of the rows with these keys, where that makes it more."""
    rows = [{"name": name, "value": value} for name, value in by.items()]
    for part in _parts(rows):
        statement = _raise(key.table.name, key.name, column.name, len(part))
        connection.execute(statement, _values(("name", "value"), part))


def _parts(rows: Sequence[One]) -> Iterator[Sequence[One]]:
    at = 0
    for size in SIZES:
        while len(rows) - at >= size:
            yield rows[at : at + size]
            at += size


def _values(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{name}_{at}": row[name] for at, row in enumerate(rows) for name in names}


def _places(names: Sequence[str], count: int) -> str:
    """`(:a_0, :b_0), (:a_1, :b_1)` and so on."""
    rows = (", ".join(f":{name}_{at}" for name in names) for at in range(count))
    return ", ".join(f"({row})" for row in rows)


@cache
def _insert(table: str, names: tuple[str, ...], count: int, mark: str) -> str:
    """As the driver takes it: SQLAlchemy's part in running it took as long as the driver's own."""
    row = f"({', '.join([mark] * len(names))})"
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES {', '.join([row] * count)}"  # noqa: S608 - our own words


@cache
def _delete(key: sa.Column[Any]) -> sa.Delete:
    return key.table.delete().where(key.in_(sa.bindparam("gone", expanding=True)))


@cache
def _raise(table: str, key: str, column: str, count: int) -> sa.TextClause:
    text = (
        f"WITH more(name, value) AS (VALUES {_places(('name', 'value'), count)})"  # noqa: S608 - our own words
        f" UPDATE {table} SET {column} = more.value FROM more"
        f" WHERE {table}.{key} = more.name AND {table}.{column} < more.value"
    )
    return sa.text(text)

"""Many rows by few statements: the same rows as one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("sqlalchemy", reason="needs the extra `server`")

import sqlalchemy as sa

from wattherd.store import bulk

META = sa.MetaData()
ROWS = sa.Table(
    "rows",
    META,
    sa.Column("id", sa.String(20), primary_key=True),
    sa.Column("joules", sa.Float, nullable=False),
    sa.Column("note", sa.Text),
)


@pytest.fixture
def engine() -> Iterator[sa.Engine]:
    """A database of its own, which is let go of."""
    found = sa.create_engine("sqlite://")
    yield found
    found.dispose()


@pytest.mark.parametrize("count", [0, 1, 3, 4, 63, 64, 700])
def test_rows_are_added_raised_and_dropped(engine: sa.Engine, count: int) -> None:
    statements: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda *said: statements.append(said[2]))
    rows: list[dict[str, Any]] = [
        {"id": f"r-{n}", "joules": n / 3, "note": None if n % 2 else f":n ' {n}"}
        for n in range(count)
    ]
    with engine.begin() as connection:
        META.create_all(connection)
        statements.clear()
        bulk.insert(connection, ROWS, rows)
        assert len(statements) <= count // 256 + 9
        by = {f"r-{n}": 10.0 for n in range(count + 5)}
        bulk.raise_to(connection, ROWS.c.id, ROWS.c.joules, by)
        bulk.delete(connection, ROWS.c.id, [f"r-{n}" for n in range(0, count, 2)])
        left = connection.execute(sa.select(ROWS)).mappings().all()
    expected = {row["id"]: {**row, "joules": max(10.0, row["joules"])} for row in rows[1::2]}
    assert {row["id"]: dict(row) for row in left} == expected

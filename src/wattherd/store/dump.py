"""A store as one file: JSON lines, gzip. The same store gives the same bytes.

The first line counts the rows of every table, the others hold a row each: `["entries", {...}]`.
Snapshots are left out, as they can be made again; only the one that a compacted journal begins with
is kept.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import sqlalchemy as sa

from wattherd.errors import UserError
from wattherd.store.database import Database
from wattherd.store.journal import COMPACTED, JournalBase, digest_of, put_fact
from wattherd.store.tables import (
    ANSWERS,
    AUDIT,
    ENTRIES,
    FACTS,
    JOBS,
    SAMPLES,
    SETTINGS,
    SNAPSHOTS,
)

DUMP = "wattherd.store/1"
TABLES = (FACTS, SETTINGS, ENTRIES, ANSWERS, JOBS, SAMPLES, AUDIT, SNAPSHOTS)
_BY_NAME = {table.name: table for table in TABLES}
CHUNK = 1_000
_ORDER = "archives of compactions come first, in order"
_BEGINS = sa.select(FACTS.c.value).where(FACTS.c.name == COMPACTED)


@dataclass(frozen=True, slots=True)
class Dumped:
    """What a file holds: rows by table, and the digest of the last entry."""

    rows: Mapping[str, int]
    digest: str


# Writing -----------------------------------------------------------------------------------------


def export(database: Database, path: Path) -> Dumped:
    """Write one moment of a store to a file that does not exist yet.

    Raises:
        UserError: the file exists or cannot be written.
        StoreFailure: the store cannot be read.
    """
    fresh = path.with_name(f".{path.name}.part")
    try:
        if path.exists():
            hint = "name another file"
            raise UserError("exists", where=str(path), hint=hint)
        fresh.unlink(missing_ok=True)
        # Commands and variables of all jobs are in it: nobody else's to read.
        made = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(made, "wb") as stream:
            dumped = _write(database, stream)
            stream.flush()
            os.fsync(stream.fileno())
        fresh.rename(path)
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror}", where=str(path)) from None
    finally:
        fresh.unlink(missing_ok=True)
    return dumped


def _write(database: Database, stream: BinaryIO) -> Dumped:
    digest = ""
    with (
        database.reading() as connection,
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=stream, mtime=0) as packed,
    ):
        queries = {table.name: _query(table, connection) for table in TABLES}
        rows = {name: _count(connection, query) for name, query in queries.items()}
        packed.write(_line({"schema": DUMP, "rows": rows}))
        for name, query in queries.items():
            streamed = connection.execution_options(yield_per=CHUNK).execute(query)
            for row in streamed.mappings():
                packed.write(_line([name, _plain(row)]))
                digest = row["digest"] if name == ENTRIES.name else digest
    return Dumped(rows, digest)


def _query(table: sa.Table, connection: sa.Connection) -> sa.Select[Any]:
    query = sa.select(table).order_by(*table.primary_key.columns)
    if table is SNAPSHOTS:
        found = connection.scalar(_BEGINS)
        return query.where(SNAPSHOTS.c.seq == (json.loads(found)["seq"] if found else -1))
    return query


def _count(connection: sa.Connection, query: sa.Select[Any]) -> int:
    inner = query.order_by(None).subquery()
    return int(connection.scalar(sa.select(sa.func.count()).select_from(inner)) or 0)


def _line(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _plain(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        str(name): base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in row.items()
    }


# Reading -----------------------------------------------------------------------------------------


def bring_in(database: Database, paths: Sequence[Path]) -> Dumped:
    """Fill an empty store from files: one export, or archives of compactions and then an export.

    Raises:
        UserError: the store is not empty; a file is none of ours, cut off or changed; or they do
            not follow each other. One whose entries are all there already does no harm.
        StoreFailure: the store cannot be written; it is as empty as before.
    """
    begins: str | None = None
    with database.writing() as connection:
        if connection.scalar(sa.select(sa.func.count()).select_from(ENTRIES)):
            hint = "import into a store of its own"
            raise UserError("is not empty", where=database.url, hint=hint)
        for table in TABLES:
            connection.execute(table.delete())
        end = JournalBase()
        for number, path in enumerate(paths):
            least = json.loads(begins)["seq"] if begins else 1
            end = _bring_in(connection, path, end, first=number == 0, least=least)
            if number == 0:
                begins = connection.scalar(_BEGINS)
        connection.execute(FACTS.delete().where(FACTS.c.name == COMPACTED))
        if begins is not None:
            put_fact(connection, COMPACTED, begins)
        rows = {
            table.name: int(connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0)
            for table in TABLES
        }
    return Dumped(rows, end.before)


def _bring_in(
    connection: sa.Connection, path: Path, end: JournalBase, *, first: bool, least: int
) -> JournalBase:
    """Add a file to what earlier ones brought: entries from `least` on, before `end.seq`."""
    lines = _lines(path)
    expected = _head(next(lines, None), path)
    found = dict.fromkeys(expected, 0)
    chain = _Chain(path, end, first=first)
    waiting: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        name, row = _row(line, path)
        found[name] = found.get(name, 0) + 1
        if chain.wants(name, row):
            waiting.setdefault(name, []).append(row)
            if len(waiting[name]) >= CHUNK:
                _insert(connection, name, waiting.pop(name))
    if found != expected:
        raise UserError("is cut off", where=str(path), hint="export it again")
    if not first and chain.end == end and chain.lowest < least:
        raise UserError("does not follow: it adds no entry", where=str(path), hint=_ORDER)
    for name, rows in waiting.items():
        _insert(connection, name, rows)
    return chain.end


class _Chain:
    """Checks that entries follow each other, and leaves out those that are there already."""

    def __init__(self, path: Path, end: JournalBase, *, first: bool) -> None:
        self.end = end
        self.lowest = end.seq
        """The first entry of the file, or where it would go on."""
        self._path, self._first = path, first

    def wants(self, name: str, row: dict[str, Any]) -> bool:
        """Whether a row is new; other tables are replaced by what a later file says."""
        if name == FACTS.name and row["name"] == COMPACTED and self._first:
            self.end = JournalBase(**json.loads(row["value"]))
        if name != ENTRIES.name:
            return True
        self.lowest = min(self.lowest, row["seq"])
        if row["seq"] < self.end.seq:
            return False
        digest = digest_of(self.end.before, row)
        if row["seq"] != self.end.seq or digest != row["digest"]:
            problem = f"entry {row['seq']} does not follow entry {self.end.seq - 1}"
            raise UserError(problem, where=str(self._path), hint=_ORDER)
        self.end = JournalBase(row["seq"] + 1, digest)
        return True


def _insert(connection: sa.Connection, name: str, rows: list[dict[str, Any]]) -> None:
    table = _BY_NAME[name]
    (key,) = table.primary_key.columns
    connection.execute(
        table.delete().where(key == sa.bindparam("gone")), [{"gone": row[key.name]} for row in rows]
    )
    if table is JOBS:  # ids are unique, too
        gone = table.delete().where(JOBS.c.id == sa.bindparam("gone"))
        connection.execute(gone, [{"gone": row["id"]} for row in rows])
    connection.execute(table.insert(), rows)


def _lines(path: Path) -> Iterator[Any]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as text:
            for line in text:
                yield json.loads(line)
    except (OSError, EOFError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"cannot be read: {why}", where=str(path)) from None


def _head(head: Any, path: Path) -> dict[str, int]:
    if not isinstance(head, dict) or head.get("schema") != DUMP:
        hint = "`wattherd store export` writes such files"
        raise UserError(f"is no {DUMP} file", where=str(path), hint=hint)
    rows: dict[str, int] = head["rows"]
    return rows


def _row(line: Any, path: Path) -> tuple[str, dict[str, Any]]:
    if not isinstance(line, list) or len(line) != 2 or line[0] not in _BY_NAME:
        raise UserError(f"has a line that is no row: {line!r:.60}", where=str(path))
    name, row = line
    if name == SNAPSHOTS.name:
        row["body"] = base64.b64decode(row["body"])
    return name, row

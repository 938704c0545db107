"""The journal in a database: SQLite in a file by default, PostgreSQL by URL.

Append-only. Every entry carries a digest over itself and the one before, so that a change or a gap
shows; what the core answered is noted beside it, for audit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from wattherd.errors import UserError
from wattherd.model.command import Command
from wattherd.store.entry import Entry, StoreFailure
from wattherd.store.event_log import event_of, plain

LOCK_WAIT_S = 5.0
PAGE = 5_000
_meta = sa.MetaData()
ENTRIES = sa.Table(
    "entries",
    _meta,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at_s", sa.Float, nullable=False),
    sa.Column("type", sa.String(40), nullable=False),
    sa.Column("by_whom", sa.String(120), nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("paper", sa.Text),
    sa.Column("digest", sa.String(64), nullable=False),
)
ANSWERS = sa.Table(
    "answers",
    _meta,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("commands", sa.Text, nullable=False),
)
FACTS = sa.Table(
    "facts",
    _meta,
    sa.Column("name", sa.String(40), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)


class Journal:
    """One cluster's journal; open it once per process."""

    def __init__(self, url: str) -> None:
        """Connect, and make the tables where there are none.

        Raises:
            UserError: the database cannot be opened.
        """
        self.url = url
        self._engine = sa.create_engine(url)
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _as_wanted)
        try:
            _meta.create_all(self._engine)
            self._last = self._last_digest()
        except SQLAlchemyError as error:
            hint = "is the folder writable, and no other service at work on it?"
            raise UserError(f"cannot be opened: {_why(error)}", where=url, hint=hint) from None

    def fact(self, name: str, value: str) -> str:
        """What is known by this name; `value` from now on, if nothing was.

        Raises:
            StoreFailure: it can be neither read nor kept.
        """
        try:
            with self._engine.begin() as connection:
                known = connection.scalar(sa.select(FACTS.c.value).where(FACTS.c.name == name))
                if known is None:
                    connection.execute(FACTS.insert().values(name=name, value=value))
        except SQLAlchemyError as error:
            raise StoreFailure(_why(error)) from None
        return value if known is None else str(known)

    def entries(self) -> Iterator[Entry]:
        """All entries, oldest first, page by page.

        Raises:
            StoreFailure: they cannot be read.
        """
        seq = 0
        while page := self._page(seq):
            for row in page:
                yield _entry(row)
            seq = page[-1].seq

    def _page(self, after: int) -> Sequence[Any]:
        query = sa.select(ENTRIES).where(ENTRIES.c.seq > after).order_by(ENTRIES.c.seq).limit(PAGE)
        try:
            with self._engine.connect() as connection:
                return connection.execute(query).all()
        except SQLAlchemyError as error:
            raise StoreFailure(_why(error)) from None

    def append(self, entries: Sequence[Entry]) -> None:
        """Keep all of them, in one transaction on disk when this returns.

        Raises:
            StoreFailure: none is kept.
        """
        rows, digest = [], self._last
        for entry in entries:
            row = _row(entry)
            digest = row["digest"] = _digest(digest, row)
            rows.append(row)
        try:
            with self._engine.begin() as connection:
                connection.execute(ENTRIES.insert(), rows)
        except SQLAlchemyError as error:
            raise StoreFailure(_why(error)) from None
        self._last = digest

    def note(self, commands: Mapping[int, Sequence[Command]]) -> None:
        """Keep answers that hold commands; lost without a word if that is not possible now."""
        rows = [
            {"seq": seq, "commands": json.dumps([plain(one) for one in given])}
            for seq, given in commands.items()
            if given
        ]
        if not rows:
            return
        try:
            with self._engine.begin() as connection:
                connection.execute(ANSWERS.insert(), rows)
        except SQLAlchemyError:
            return

    def last_s(self) -> float:
        """Time of the last entry, 0 if there is none.

        Raises:
            StoreFailure: it cannot be read.
        """
        try:
            with self._engine.connect() as connection:
                return float(connection.scalar(sa.select(sa.func.max(ENTRIES.c.at_s))) or 0.0)
        except SQLAlchemyError as error:
            raise StoreFailure(_why(error)) from None

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()

    def _last_digest(self) -> str:
        query = sa.select(ENTRIES.c.digest).order_by(ENTRIES.c.seq.desc()).limit(1)
        with self._engine.connect() as connection:
            return connection.scalar(query) or ""


def in_folder(folder: Path) -> str:
    """The URL of the journal in a folder of its own."""
    return f"sqlite:///{folder / 'journal.sqlite'}"


def _as_wanted(connection: Any, record: object) -> None:
    """Readers do not block writers; a commit is on disk when it returns."""
    del record
    cursor = connection.cursor()
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        f"busy_timeout={LOCK_WAIT_S * 1000:.0f}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _row(entry: Entry) -> dict[str, Any]:
    event = plain(entry.event)
    return {
        "seq": entry.seq,
        "at_s": entry.event.at_s,
        "type": event["type"],
        "by_whom": entry.by,
        "event": json.dumps(event, sort_keys=True),
        "paper": None if entry.paper is None else json.dumps(dict(entry.paper), sort_keys=True),
    }


def _digest(before: str, row: Mapping[str, Any]) -> str:
    content = json.dumps([before, row["seq"], row["by_whom"], row["event"], row["paper"]])
    return hashlib.sha256(content.encode()).hexdigest()


def _entry(row: Any) -> Entry:
    return Entry(
        seq=row.seq,
        event=event_of(json.loads(row.event), f"entry {row.seq}"),
        by=row.by_whom,
        paper=None if row.paper is None else json.loads(row.paper),
    )


def _why(error: SQLAlchemyError) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0]

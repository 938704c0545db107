"""The journal in a database: what happened, in order, and nothing of it is ever changed.

Every entry carries a digest over itself and the one before, so that a change or a gap shows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import sqlalchemy as sa

from wattherd.errors import UserError
from wattherd.store import bulk
from wattherd.store.database import Database, in_folder
from wattherd.store.entry import Entry, StoreDoubt, StoreFailure
from wattherd.store.event_log import event_of, plain
from wattherd.store.tables import ENTRIES, FACTS

__all__ = ["COMPACTED", "Base", "Journal", "in_folder"]

PAGE = 5_000
Row: TypeAlias = Mapping[str, Any]
COMPACTED = "compacted"
"""The fact that tells where a journal begins that has lost its beginning."""


@dataclass(frozen=True, slots=True)
class Base:
    """The journal begins with entry `seq`, and the digest before it was `before`."""

    seq: int = 1
    before: str = ""


class Journal:
    """One cluster's journal; open it once per process."""

    def __init__(self, store: str | Database) -> None:
        """Open a store by its URL, or use one that is open.

        Raises:
            UserError: the database cannot be opened, or another service is at work on it.
        """
        self.database = Database(store) if isinstance(store, str) else store
        self.url = self.database.url
        self._last: tuple[int, str] | None = None
        """Number and digest of the last entry; None if that has to be read again."""
        self._told = self._known()
        """The same of the last entry that whoever appends knows of."""

    # Facts --------------------------------------------------------------------------------------

    def fact(self, name: str, value: str) -> str:
        """What is known by this name; `value` from now on, if nothing was.

        Raises:
            StoreFailure: it can be neither read nor kept.
        """
        known = self.known_fact(name)
        if known is None:
            self.set_fact(name, value)
        return value if known is None else known

    def known_fact(self, name: str) -> str | None:
        """What is known by this name, if anything is.

        Raises:
            StoreFailure: it cannot be read.
        """
        with self.database.reading() as connection:
            found = connection.scalar(sa.select(FACTS.c.value).where(FACTS.c.name == name))
        return None if found is None else str(found)

    def set_fact(self, name: str, value: str) -> None:
        """Know this by that name from now on.

        Raises:
            StoreFailure: it is not kept.
        """
        with self.database.writing() as connection:
            put_fact(connection, name, value)

    # Entries ------------------------------------------------------------------------------------

    def base(self) -> Base:
        """Where the journal begins.

        Raises:
            StoreFailure: it cannot be read.
        """
        found = self.known_fact(COMPACTED)
        return Base() if found is None else Base(**json.loads(found))

    def entries(self, after: int = 0) -> Iterator[Entry]:
        """All entries with numbers above `after`, oldest first, checked as they are read.

        Raises:
            StoreFailure: they cannot be read.
            UserError: one is missing or was changed.
        """
        for row in self.rows(after):
            yield entry_of(row)

    def rows(self, after: int = 0) -> Iterator[Row]:
        """The same as rows of the table."""
        base = self.base()
        seq = max(after, base.seq - 1)
        digest = base.before if seq == base.seq - 1 else self.digest(seq)
        while page := self._page(seq):
            for row in page:
                digest = self._checked(row, seq + 1, digest)
                seq = row["seq"]
                yield row

    def _checked(self, row: Row, seq: int, before: str) -> str:
        hint = "`wattherd store verify` tells more; restore an export"
        if row["seq"] != seq:
            raise UserError(f"entry {seq} is missing", where=self.url, hint=hint)
        if row["digest"] != digest_of(before, row):
            raise UserError(f"entry {seq} is not as it was written", where=self.url, hint=hint)
        return str(row["digest"])

    def _page(self, after: int) -> Sequence[Row]:
        query = sa.select(ENTRIES).where(ENTRIES.c.seq > after).order_by(ENTRIES.c.seq).limit(PAGE)
        with self.database.reading() as connection:
            return cast("Sequence[Row]", connection.execute(query).mappings().all())

    def digest(self, seq: int) -> str:
        """The digest of entry `seq`; empty if there is none.

        Raises:
            StoreFailure: it cannot be read.
        """
        with self.database.reading() as connection:
            found = connection.scalar(sa.select(ENTRIES.c.digest).where(ENTRIES.c.seq == seq))
        return str(found or "")

    def append(self, entries: Sequence[Entry]) -> None:
        """Keep all of them, in one transaction on disk when this returns.

        Raises:
            StoreDoubt: whether they are kept can only be told later, by `settle`.
            StoreFailure: none is kept.
        """
        before = self._known()
        rows, digest = [], before[1]
        for entry in entries:
            row = row_of(entry)
            digest = row["digest"] = digest_of(digest, row)
            rows.append(row)
        after = (rows[-1]["seq"], digest)
        try:
            with self.database.writing() as connection:
                bulk.insert(connection, ENTRIES, rows)
        except StoreFailure as failure:
            self._look_again(before, after, failure)
        self._last = self._told = after

    def _look_again(
        self, before: tuple[int, str], after: tuple[int, str], failure: StoreFailure
    ) -> None:
        """A commit may have come through although its answer did not."""
        self._last = None
        try:
            now = self._known()
        except StoreFailure:
            raise StoreDoubt(str(failure)) from None
        if now == before:
            raise failure
        if now != after:
            self._last = None
            raise StoreFailure(f"somebody else wrote entry {now[0]} of {self.url}")

    def settle(self) -> list[Entry]:
        """Entries that were kept after all, although `append` was in doubt.

        Raises:
            StoreFailure: that can still not be told.
        """
        last = self._known()
        if last == self._told:
            return []
        found = list(self.entries(self._told[0]))
        self._told = last
        return found

    def _known(self) -> tuple[int, str]:
        """Number and digest of the last entry.

        A server may still be about to commit for a connection that is lost. With the right to write
        in our hands again, that is over.
        """
        if self._last is None:
            query = sa.select(ENTRIES.c.seq, ENTRIES.c.digest).order_by(ENTRIES.c.seq.desc())
            where = self.database.writing if self.database.sole else self.database.reading
            with where() as connection:
                row = connection.execute(query.limit(1)).first()
            self._last = (0, "") if row is None else (int(row[0]), str(row[1]))
        return self._last

    @property
    def last_seq(self) -> int:
        """Number of the last entry, 0 if there is none."""
        return self._told[0]

    def last_s(self) -> float:
        """Time of the last entry, 0 if there is none.

        Raises:
            StoreFailure: it cannot be read.
        """
        query = sa.select(ENTRIES.c.at_s).order_by(ENTRIES.c.seq.desc()).limit(1)
        with self.database.reading() as connection:
            return float(connection.scalar(query) or 0.0)

    def close(self) -> None:
        """Let go of the database."""
        self.database.close()


def put_fact(connection: sa.Connection, name: str, value: str) -> None:
    """Know this by that name from now on, within a transaction."""
    connection.execute(FACTS.delete().where(FACTS.c.name == name))
    connection.execute(FACTS.insert().values(name=name, value=value))


def row_of(entry: Entry) -> dict[str, Any]:
    """An entry as a row, but for its digest."""
    event = plain(entry.event)
    return {
        "seq": entry.seq,
        "at_s": entry.event.at_s,
        "type": event["type"],
        "by_whom": entry.by,
        "event": json.dumps(event, sort_keys=True),
        "paper": None if entry.paper is None else json.dumps(dict(entry.paper), sort_keys=True),
    }


def digest_of(before: str, row: Row) -> str:
    """SHA-256 over the digest before and what a row says."""
    content = json.dumps([before, row["seq"], row["by_whom"], row["event"], row["paper"]])
    return hashlib.sha256(content.encode()).hexdigest()


def entry_of(row: Row) -> Entry:
    """The entry that `row_of` made a row of."""
    return Entry(
        seq=row["seq"],
        event=event_of(json.loads(row["event"]), f"entry {row['seq']}"),
        by=row["by_whom"],
        paper=None if row["paper"] is None else json.loads(row["paper"]),
    )

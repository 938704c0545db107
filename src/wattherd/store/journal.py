"""The journal in a database: what happened, in order, and nothing of it is ever changed.

Every entry carries a digest over itself and the one before, so that a change or a gap shows; the
last one is noted elsewhere, too (`head`), so that a cut-off end shows.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import sqlalchemy as sa

from wattherd.errors import UserError
from wattherd.store import bulk
from wattherd.store.database import Database, in_folder
from wattherd.store.entry import JournalEntry, StoreDoubt, StoreFailure
from wattherd.store.event_log import event_of, plain
from wattherd.store.head import HEAD_FACT, IDENTITY_FACT, Head, HeadFile
from wattherd.store.tables import ENTRIES, FACTS

__all__ = ["COMPACTED", "Journal", "JournalBase", "in_folder"]

PAGE = 5_000
RECENT = 20_000
"""Digests of so many of the last entries are in memory."""
Row: TypeAlias = Mapping[str, Any]
COMPACTED = "compacted"
"""The fact that tells where a journal begins that has lost its beginning."""


@dataclass(frozen=True, slots=True)
class JournalBase:
    """The journal begins with entry `seq`, and the digest before it was `before`."""

    seq: int = 1
    before: str = ""


class Journal:
    """One cluster's journal; open it once per process."""

    def __init__(self, store: str | Database, head: HeadFile | None = None) -> None:
        """Open a store by its URL, or use one that is open; its end is noted in `head`, too.

        Raises:
            UserError: the database cannot be opened, or another service is at work on it.
        """
        self.database = Database(store) if isinstance(store, str) else store
        self.url = self.database.url
        self.head = head
        self._identity = ""
        self._recent: dict[int, str] = {}
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

    # Identity and end ---------------------------------------------------------------------------

    def identity(self) -> str:
        """What names this store, made once and kept in it; copies and restored backups share it.

        Raises:
            StoreFailure: it can be neither read nor kept.
        """
        if not self._identity:
            self._identity = self.fact(IDENTITY_FACT, uuid.uuid4().hex)
        return self._identity

    def end_problem(self) -> str:
        """What is missing at the end, by what was noted elsewhere; empty if nothing is.

        Raises:
            StoreFailure: the store cannot be read.
            UserError: the file with the note cannot be read.
        """
        known = self.known_fact(IDENTITY_FACT) or ""
        noted = self.known_fact(HEAD_FACT)  # before the entries, of which more may come meanwhile
        in_file = None if self.head is None else self.head.read()
        if noted is not None:
            seq, _, digest = noted.partition(" ")
            problem = self._missing(Head(known, int(seq), digest), "the store itself")
            if problem:
                return problem
        if in_file is None or self.head is None:
            return ""
        if known and in_file.store != known:
            return (
                f"{self.head.path} is of another store ({in_file.store[:8]}, this one is"
                f" {known[:8]}), which ended with {in_file}"
            )
        return self._missing(in_file, str(self.head.path))

    def _missing(self, head: Head, who: str) -> str:
        last, base = self._end(), self.base()
        if head.seq > last:
            ends = f"the journal ends with entry {last}" if last else "the journal is empty"
            return f"{ends}, but {who} knows of {head}: what came after it is missing"
        kept = base.before if head.seq == base.seq - 1 else self.digest(head.seq)
        if head.seq >= base.seq - 1 and head.seq and kept != head.digest:
            return f"entry {head.seq} is another than {who} knows ({head.digest[:8]})"
        return ""

    def _end(self) -> int:
        with self.database.reading() as connection:
            return int(connection.scalar(sa.select(sa.func.max(ENTRIES.c.seq))) or 0)

    def holds(self, digest: str) -> int:
        """Number of the entry whose digest begins like this, 0 if there is none.

        Of entries that a compaction dropped only the last is known.

        Raises:
            StoreFailure: the store cannot be read.
        """
        query = sa.select(ENTRIES.c.seq).where(ENTRIES.c.digest.startswith(digest, autoescape=True))
        with self.database.reading() as connection:
            found = connection.scalar(query.limit(1))
        base = self.base()
        if found is None and base.before.startswith(digest):
            return base.seq - 1
        return int(found or 0)

    def note_end(self) -> None:
        """Note the end in the file as it is now, whatever was noted before.

        Raises:
            StoreFailure: the store can be neither read nor written.
        """
        seq, digest = self._known()
        with self.database.writing() as connection:
            put_fact(connection, HEAD_FACT, f"{seq} {digest}")
        if self.head is not None:
            self.head.renew(Head(self.identity(), seq, digest))

    def check_writable(self) -> None:
        """Write something of no consequence.

        Raises:
            StoreFailure: the store takes nothing.
        """
        self.set_fact("written", str(self.last_seq))

    # Entries ------------------------------------------------------------------------------------

    def base(self) -> JournalBase:
        """Where the journal begins.

        Raises:
            StoreFailure: it cannot be read.
        """
        found = self.known_fact(COMPACTED)
        return JournalBase() if found is None else JournalBase(**json.loads(found))

    def entries(self, after: int = 0) -> Iterator[JournalEntry]:
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
        if seq in self._recent:
            return self._recent[seq]
        return self.digests([seq]).get(seq, "")

    def digests(self, seqs: Sequence[int]) -> dict[int, str]:
        """The digests of those entries that there are.

        Raises:
            StoreFailure: they cannot be read.
        """
        found: dict[int, str] = {}
        with self.database.reading() as connection:
            for at in range(0, len(seqs), 500):
                query = sa.select(ENTRIES.c.seq, ENTRIES.c.digest).where(
                    ENTRIES.c.seq.in_(seqs[at : at + 500])
                )
                found.update((int(row[0]), str(row[1])) for row in connection.execute(query))
        return found

    def append(self, entries: Sequence[JournalEntry]) -> None:
        """Keep all of them, in one transaction on disk when this returns.

        Raises:
            StoreDoubt: whether they are kept can only be told later, by `settle`.
            StoreFailure: none is kept.
        """
        before = self._known()
        if self.head is not None:
            self.identity()  # what could fail is done before the commit
        rows, digest = [], before[1]
        for entry in entries:
            row = row_of(entry)
            digest = row["digest"] = digest_of(digest, row)
            rows.append(row)
        after = (rows[-1]["seq"], digest)
        try:
            with self.database.writing() as connection:
                bulk.insert(connection, ENTRIES, rows)
                _put_head(connection, after)
        except StoreFailure as failure:
            if failure.certain:
                raise
            self._look_again(before, after, failure)
        self._last = self._told = after
        self._remember(rows)

    def _remember(self, rows: Sequence[Row]) -> None:
        """Entries that are kept for good: their end is noted in the file."""
        self._recent.update((row["seq"], row["digest"]) for row in rows)
        while len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]
        if self.head is not None and rows:
            self.head.write(Head(self.identity(), rows[-1]["seq"], rows[-1]["digest"]))

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

    def settle(self) -> list[JournalEntry]:
        """Entries that were kept after all, although `append` was in doubt.

        Raises:
            StoreFailure: that can still not be told.
        """
        last = self._known()
        if last == self._told:
            return []
        rows = list(self.rows(self._told[0]))
        self._told = last
        self._remember(rows)
        return [entry_of(row) for row in rows]

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
    def told(self) -> tuple[int, str]:
        """Number and digest of the last entry that was acknowledged; 0 and nothing without one."""
        return self._told

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
        if self.head is not None:
            self.head.close()
        self.database.close()


# As text: with every entry, building the statement anew cost as much as running it.
_MOVE_HEAD = sa.text(f"UPDATE {FACTS.name} SET value = :value WHERE name = :name")  # noqa: S608 - our own words


def _put_head(connection: sa.Connection, head: tuple[int, str]) -> None:
    value = f"{head[0]} {head[1]}"
    changed = connection.execute(_MOVE_HEAD, {"name": HEAD_FACT, "value": value})
    if not changed.rowcount:
        connection.execute(FACTS.insert().values(name=HEAD_FACT, value=value))


def put_fact(connection: sa.Connection, name: str, value: str) -> None:
    """Know this by that name from now on, within a transaction."""
    connection.execute(FACTS.delete().where(FACTS.c.name == name))
    connection.execute(FACTS.insert().values(name=name, value=value))


def row_of(entry: JournalEntry) -> dict[str, Any]:
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


def entry_of(row: Row) -> JournalEntry:
    """The entry that `row_of` made a row of."""
    return JournalEntry(
        seq=row["seq"],
        event=event_of(json.loads(row["event"]), f"entry {row['seq']}"),
        by=row["by_whom"],
        paper=None if row["paper"] is None else json.loads(row["paper"]),
    )

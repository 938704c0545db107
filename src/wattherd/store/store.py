"""One store: the journal, what is projected from it, and its snapshots, in one database."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wattherd.errors import UserError
from wattherd.store.database import Database
from wattherd.store.entry import StoreFailure
from wattherd.store.head import HEAD_FILE, HeadFile
from wattherd.store.journal import Journal
from wattherd.store.projection import Projection
from wattherd.store.snapshots import Snapshots


@dataclass(frozen=True, slots=True)
class ClusterStore:
    """Everything of one cluster that outlives a process."""

    database: Database
    journal: Journal
    projection: Projection
    snapshots: Snapshots

    @classmethod
    def open(cls, url: str, *, sole: bool = True, state: Path | None = None) -> ClusterStore:
        """Open the store of a URL; `sole` to add entries to it.

        In the folder `state`, by default that of an SQLite file, the journal's end is noted.

        Raises:
            UserError: it cannot be opened, is in use, or was written by a later version.
        """
        database = Database(url, sole=sole)
        try:
            path = database.path
            folder = state or (None if path is None else path.parent)
            journal = Journal(database, None if folder is None else HeadFile(folder / HEAD_FILE))
        except StoreFailure as failure:
            database.close()
            raise UserError(f"cannot be read: {failure}", where=database.url) from None
        return cls(database, journal, Projection(database), Snapshots(database))

    def close(self) -> None:
        """Let go of the database."""
        self.journal.close()

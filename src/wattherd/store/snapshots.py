"""States at entries of the journal, and how decisions were made from when on."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from wattherd.store.database import Database
from wattherd.store.tables import SETTINGS, SNAPSHOTS

KEPT = 2
"""The last one may turn out to be unusable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSnapshot:
    """A state after entry `seq`, whose digest was `digest`, by this `version` of the program.

    `setting` is the digest of how decisions were made.
    """

    seq: int
    digest: str
    version: str
    setting: str
    body: bytes
    made_at: float = 0.0
    sound: bool = True
    """Whether the bytes are those that were written."""


class Snapshots:
    """The tables of snapshots and settings."""

    def __init__(self, database: Database) -> None:
        """Use the tables of a store that is open."""
        self._database = database

    def put(self, snapshot: StateSnapshot, *, base: int = 0) -> None:
        """Keep a snapshot; all are dropped but the last few, and that of entry `base`.

        Raises:
            StoreFailure: it was not kept.
        """
        row = {
            "seq": snapshot.seq,
            "digest": snapshot.digest,
            "version": snapshot.version,
            "setting": snapshot.setting,
            "made_at": time.time(),
            "sha256": hashlib.sha256(snapshot.body).hexdigest(),
            "body": snapshot.body,
        }
        with self._database.writing() as connection:
            connection.execute(SNAPSHOTS.delete().where(SNAPSHOTS.c.seq == snapshot.seq))
            connection.execute(SNAPSHOTS.insert().values(**row))
            newest = sa.select(SNAPSHOTS.c.seq).order_by(SNAPSHOTS.c.seq.desc()).limit(KEPT)
            kept = connection.scalars(newest).all()
            # A compaction makes one that is older than the last few.
            old = sa.and_(SNAPSHOTS.c.seq < min(kept), SNAPSHOTS.c.seq != base)
            connection.execute(SNAPSHOTS.delete().where(old, SNAPSHOTS.c.seq != snapshot.seq))

    def newest(self) -> list[StateSnapshot]:
        """All that are kept, the newest first.

        Raises:
            StoreFailure: they cannot be read.
        """
        query = sa.select(SNAPSHOTS).order_by(SNAPSHOTS.c.seq.desc())
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return [
            StateSnapshot(
                seq=row.seq,
                digest=row.digest,
                version=row.version,
                setting=row.setting,
                body=bytes(row.body),
                made_at=row.made_at,
                sound=hashlib.sha256(row.body).hexdigest() == row.sha256,
            )
            for row in rows
        ]

    def settings(self) -> Sequence[tuple[int, str]]:
        """How decisions were made: the entry after which each began, and the document.

        Several may follow the same entry, in the order in which they were taken on.

        Raises:
            StoreFailure: they cannot be read.
        """
        query = sa.select(SETTINGS.c.seq, SETTINGS.c.document).order_by(SETTINGS.c.seq)
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return [(row.seq, document) for row in rows for document in _documents(row.document)]

    def begin_with(self, document: str) -> None:
        """Nothing was decided yet: from the first entry on, decisions are made like this.

        Raises:
            StoreFailure: it was not kept.
        """
        with self._database.writing() as connection:
            connection.execute(SETTINGS.delete())
            connection.execute(SETTINGS.insert().values(seq=0, document=document))

    def add_setting(self, after: int, document: str) -> None:
        """From the entry after `after` on, decisions are made like this.

        What else was to follow `after` stays before it: a snapshot of that entry may need it.

        Raises:
            StoreFailure: it was not kept.
        """
        same = SETTINGS.c.seq == after
        with self._database.writing() as connection:
            known = connection.scalar(sa.select(SETTINGS.c.document).where(same))
            documents = [*([] if known is None else _documents(known)), document]
            text = document if len(documents) == 1 else json.dumps(documents)
            connection.execute(SETTINGS.delete().where(SETTINGS.c.seq >= after))
            connection.execute(SETTINGS.insert().values(seq=after, document=text))


def _documents(text: str) -> list[str]:
    """One document is kept as it is, several as a JSON list of texts."""
    found: list[str] = json.loads(text) if text.startswith("[") else [text]
    return found

"""Drops the beginning of a journal, once it has been written to an archive."""

from __future__ import annotations

import json
from pathlib import Path

import sqlalchemy as sa

from wattherd.server.recovery.snapshot_process import make_snapshot
from wattherd.store.dump import export
from wattherd.store.journal import COMPACTED, put_fact
from wattherd.store.store import ClusterStore
from wattherd.store.tables import ANSWERS, ENTRIES


def compact(store: ClusterStore, archive: Path, keep_s: float) -> int:
    """Export everything, then drop entries and answers older than `keep_s`; how many entries.

    Where nothing is that old, nothing is done, and no archive written: that is no failure.

    What is left begins with a snapshot. Jobs that are over stay in the list of jobs, the audit and
    the samples stay as they are.

    Raises:
        UserError: the archive cannot be written.
        StoreFailure: the store cannot be written; nothing was dropped.
    """
    goal = min(_last_before(store, store.journal.last_s() - keep_s), store.projection.projected())
    base = store.journal.base().seq
    if goal <= base:
        return 0
    export(store.database, archive)
    seq = make_snapshot(store.database, goal)
    before = store.journal.digest(seq - 1)
    with store.database.writing() as connection:
        gone = connection.execute(ENTRIES.delete().where(ENTRIES.c.seq < seq)).rowcount
        connection.execute(ANSWERS.delete().where(ANSWERS.c.seq < seq))
        put_fact(connection, COMPACTED, json.dumps({"seq": seq, "before": before}))
    store.database.shrink()
    return gone


def _last_before(store: ClusterStore, at_s: float) -> int:
    query = sa.select(sa.func.max(ENTRIES.c.seq)).where(ENTRIES.c.at_s <= at_s)
    with store.database.reading() as connection:
        return int(connection.scalar(query) or 0)

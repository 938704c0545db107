"""What was decided: entries of the journal with the orders that followed, page by page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from wattherd.store.database import Database
from wattherd.store.tables import ANSWERS, ENTRIES


def decisions(
    database: Database, *, after: int = 0, job: str | None = None, limit: int = 100
) -> list[dict[str, Any]]:
    """Entries after number `after`, oldest first; with `job` those that name it, and its orders.

    Raises:
        StoreFailure: they cannot be read.
    """
    joined = ENTRIES.outerjoin(ANSWERS, ANSWERS.c.seq == ENTRIES.c.seq)
    columns = (
        ENTRIES.c.seq,
        ENTRIES.c.at_s,
        ENTRIES.c.by_whom,
        ENTRIES.c.event,
        ANSWERS.c.commands,
    )
    query = sa.select(*columns).select_from(joined).where(ENTRIES.c.seq > after)
    if job is not None:
        named = json.dumps(job)  # with its quotes: j-1 is not j-10
        texts = (ENTRIES.c.event, ANSWERS.c.commands)
        query = query.where(sa.or_(*(text.contains(named, autoescape=True) for text in texts)))
    with database.reading() as connection:
        rows = connection.execute(query.order_by(ENTRIES.c.seq).limit(limit)).mappings().all()
    return [_decision(row, job) for row in rows]


def _decision(row: Mapping[Any, Any], job: str | None) -> dict[str, Any]:
    """Of an entry that is about others, one job is told its own orders only."""
    event, commands = json.loads(row["event"]), json.loads(row["commands"] or "[]")
    if job is not None:
        commands = [one for one in commands if one.get("job_id") == job]
        if job not in (event.get("job_id"), event.get("job", {}).get("id")):
            event = {"type": event["type"], "at_s": event["at_s"]}
    return {
        "number": row["seq"],
        "at_s": row["at_s"],
        "by": row["by_whom"],
        "event": event,
        "commands": commands,
    }

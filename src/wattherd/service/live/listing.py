"""Lists of jobs, page by page: live ones from the core, those that are over from the store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from wattherd.engine.lifecycle import FINAL
from wattherd.service.live.documents import JOBS, Look, job_row, job_rows, time_of
from wattherd.service.live.history import Past, past_of
from wattherd.service.live.site import Site
from wattherd.store.projection import JobFilter

AUDIT = "wattherd.audit/1"
_FINAL = {str(state).casefold(): str(state) for state in FINAL}


def job_list(site: Site, asked: JobFilter, *, over: bool) -> dict[str, Any]:
    """Jobs that pass a filter, in order of submission; with `over` those that ended, too.

    Of many the newest are given; `before` of the document asks for the page before them. The
    filter's states are as users see them, in any case.

    Raises:
        StoreFailure: the store cannot be read.
    """
    shown = {state.casefold() for state in asked.states}
    if not over or (shown and not shown & set(_FINAL)):
        rows = site.look(lambda look: _live(look, asked, shown))
        return {"schema": JOBS, "jobs": rows, "before": None}
    site.scribe.caught_up()
    states = tuple(_FINAL[state] for state in sorted(shown & set(_FINAL)))
    found = site.store.projection.jobs(replace(asked, states=states))
    pasts = {row["id"]: past_of(row) for row in reversed(found)}
    rows = site.look(lambda look: _rows(look, pasts))
    more = len(found) == asked.limit
    return {"schema": JOBS, "jobs": rows, "before": found[-1]["number"] if more else None}


def _live(look: Look, asked: JobFilter, shown: set[str]) -> list[dict[str, Any]]:
    text = asked.text.casefold()
    wanted = {"user": asked.owner, "tenant": asked.tenant, "queue": asked.queue}
    rows = [
        row
        for row in job_rows(look)
        if (not shown or row["state"].casefold() in shown)
        and all(value is None or row[name] == value for name, value in wanted.items())
        and (text in row["id"].casefold() or text in str(row["name"]).casefold())
    ]
    return rows[: asked.limit]


def _rows(look: Look, pasts: Mapping[str, Past]) -> list[dict[str, Any]]:
    """What memory knows is newer than what the store knows."""
    live = {job_id: look.history[job_id] for job_id in look.history if job_id in pasts}
    known = replace(look, history={**pasts, **live})
    waiting = (job.id for job in look.core.jobs.values() if not job.active)
    positions = {job_id: number for number, job_id in enumerate(waiting, start=1)}
    return [job_row(known, job_id, positions.get(job_id)) for job_id in pasts]


def audit_document(
    site: Site, *, by: str | None, about: str | None, before: int | None, limit: int
) -> dict[str, Any]:
    """Who did what, the latest first.

    Raises:
        StoreFailure: the store cannot be read.
    """
    site.scribe.caught_up()
    rows = site.store.projection.audit(by=by, about=about, before=before, limit=limit)
    acts = [
        {
            "number": row["seq"],
            "at": time_of(site.clock.epoch, row["at_s"]),
            "by": row["by_whom"],
            "what": row["what"],
            "about": row["about"],
            "detail": json.loads(row["detail"]),
        }
        for row in rows
    ]
    more = len(rows) == limit
    return {"schema": AUDIT, "acts": acts, "before": rows[-1]["seq"] if more else None}

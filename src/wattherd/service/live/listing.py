"""Lists of jobs, page by page: live ones from the core, those that are over from the store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from wattherd.engine.ledger import JobRecord
from wattherd.engine.lifecycle import FINAL
from wattherd.service.live.documents import JOBS, Look, job_row, positions, shown_state, time_of
from wattherd.service.live.history import Past, past_of
from wattherd.service.live.site import Site
from wattherd.store.projection import JobFilter

AUDIT = "wattherd.audit/1"
SLICE = 200
"""Rows made between two turns of the keeper; 200 take about 10 ms."""
_FINAL = {str(state).casefold(): str(state) for state in FINAL}


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Live jobs that are to be shown, with their places in the queue."""

    jobs: list[tuple[str, int | None]]
    total: int | None
    """How many pass, shown or not, where that was asked for."""
    more: bool


def job_list(
    site: Site, asked: JobFilter, *, over: bool, after: int = 0, count: bool = False
) -> dict[str, Any]:
    """Jobs that pass a filter, in order of submission; with `over` those that ended, too.

    Of many live jobs the first are given, and `after` of the document asks for the page behind
    them; with `over` the newest are given, and `before` asks for the page ahead of them. The
    filter's states are as users see them, in any case. With `count` the document says how many
    pass altogether, before and behind this page, too.

    Raises:
        StoreFailure: the store cannot be read.
    """
    shown = {state.casefold() for state in asked.states}
    if not over or (shown and not shown & set(_FINAL)):
        chosen = site.look(partial(_chosen, asked=asked, shown=shown, after=after, count=count))
        rows = list(_live(site, chosen.jobs, shown))
        last = number_of(chosen.jobs[-1][0]) if chosen.more else None
        return {"schema": JOBS, "jobs": rows, "before": None, "after": last, "total": chosen.total}
    site.catch_up()
    states = tuple(_FINAL[state] for state in sorted(shown & set(_FINAL)))
    found = site.store.projection.jobs(replace(asked, states=states))
    total = site.store.projection.count(replace(asked, states=states)) if count else None
    pasts = {row["id"]: past_of(row) for row in reversed(found)}
    ids = list(pasts)
    rows = [
        row
        for at in range(0, len(ids), SLICE)
        for row in site.look(
            partial(_rows, pasts={one: pasts[one] for one in ids[at : at + SLICE]})
        )
    ]
    more = len(found) == asked.limit
    before = found[-1]["number"] if more else None
    return {"schema": JOBS, "jobs": rows, "before": before, "after": None, "total": total}


def number_of(job_id: str) -> int:
    """By which jobs are ordered: 12 of j-12."""
    return int(job_id.rpartition("-")[2])


def _live(
    site: Site, chosen: Sequence[tuple[str, int | None]], shown: set[str]
) -> Iterator[dict[str, Any]]:
    """Rows of jobs, a few at a time: submissions do not wait for a long list."""
    for at in range(0, len(chosen), SLICE):
        rows = site.look(partial(_slice, chosen=chosen[at : at + SLICE]))
        yield from (row for row in rows if not shown or row["state"].casefold() in shown)


def _chosen(look: Look, asked: JobFilter, shown: set[str], after: int, *, count: bool) -> _Chosen:
    """Live jobs that pass, behind number `after`: as many as asked for, and whether there are more.

    Places in the queue are counted from its head, whatever is shown of it.
    """
    text, waiting, total = asked.text.casefold(), 0, 0
    found: list[tuple[str, int | None]] = []
    for record in look.core.jobs.values():
        waiting += not record.active
        if not _passes(look, record, asked, text):
            continue
        if shown and shown_state(record).casefold() not in shown:
            continue
        total += 1
        if len(found) <= asked.limit and (not after or number_of(record.id) > after):
            found.append((record.id, None if record.active else waiting))
        if len(found) > asked.limit and not count:
            break
    more = len(found) > asked.limit
    return _Chosen(found[: asked.limit], total if count else None, more)


def _passes(look: Look, record: JobRecord, asked: JobFilter, text: str) -> bool:
    spec = record.spec
    pairs = ((asked.owner, spec.user), (asked.tenant, spec.tenant), (asked.queue, spec.queue))
    if any(wanted is not None and wanted != value for wanted, value in pairs):
        return False
    if asked.name and asked.name.casefold() not in _name(look, spec.id):
        return False
    if not all(_has(spec.labels, *label) for label in asked.labels):
        return False
    return not text or text in spec.id or text in _name(look, spec.id)


def _has(labels: Sequence[tuple[str, str]], name: str, value: str | None) -> bool:
    return any(name == known and value in (None, has) for known, has in labels)


def _name(look: Look, job_id: str) -> str:
    return str(look.history[job_id].paper.get("name", "")).casefold()


def _slice(look: Look, chosen: Sequence[tuple[str, int | None]]) -> list[dict[str, Any]]:
    """Rows of those that are still there; by now they may be over."""
    return [job_row(look, job_id, number) for job_id, number in chosen if job_id in look.history]


def _rows(look: Look, pasts: Mapping[str, Past]) -> list[dict[str, Any]]:
    """What memory knows is newer than what the store knows."""
    live = {job_id: look.history[job_id] for job_id in look.history if job_id in pasts}
    known = replace(look, history={**pasts, **live})
    places = positions(look) if live else {}
    return [job_row(known, job_id, places.get(job_id)) for job_id in pasts]


def audit_document(
    site: Site, *, limit: int, since: datetime | None = None, **wanted: Any
) -> dict[str, Any]:
    """Who did what, the latest first; `wanted` as `Projection.audit` takes it.

    Raises:
        StoreFailure: the store cannot be read.
    """
    site.catch_up()
    since_s = None if since is None else since.timestamp() - site.clock.epoch
    rows = site.store.projection.audit(since_s=since_s, limit=limit, **wanted)
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

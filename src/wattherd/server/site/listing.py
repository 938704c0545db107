"""Lists of jobs, page by page: live ones from the core, those that are over from the store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

from wattherd.engine.jobs.lifecycle import FINAL
from wattherd.engine.jobs.record import JobRecord
from wattherd.server.documents.documents import (
    JOBS,
    SiteView,
    job_row,
    positions,
    shown_state,
    time_of,
)
from wattherd.server.journal.job_history import PastJob, past_of
from wattherd.server.site.site import LiveSite
from wattherd.store.projection import JobFilter
from wattherd.workload.job_array import shown as numbers_shown

AUDIT = "wattherd.audit/1"
SLICE = 200
"""Rows made between two turns of the keeper; 200 take about 10 ms."""
_FINAL = {str(state).casefold(): str(state) for state in FINAL}


@dataclass(frozen=True, slots=True)
class ListPage:
    """Which part of a list: live jobs behind number `after`, `count` says how many there are.

    `grouped`: tasks of an array that wait are one row.
    """

    after: int = 0
    count: bool = False
    grouped: bool = False


@dataclass(slots=True)
class _Row:
    """A live job with its place in the queue, or the tasks of an array that wait."""

    job_id: str
    position: int | None
    indices: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Rows that are to be shown."""

    jobs: list[_Row]
    total: int | None
    """How many pass, shown or not, where that was asked for."""
    more: bool


def job_list(
    site: LiveSite, asked: JobFilter, *, over: bool, page: ListPage = ListPage()
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
        chosen = site.look(partial(_chosen, asked=asked, shown=shown, page=page))
        rows = list(_live(site, chosen.jobs, shown))
        last = number_of(chosen.jobs[-1].job_id) if chosen.more else None
        return {"schema": JOBS, "jobs": rows, "before": None, "after": last, "total": chosen.total}
    site.catch_up()
    states = tuple(_FINAL[state] for state in sorted(shown & set(_FINAL)))
    found = site.store.projection.jobs(replace(asked, states=states))
    total = site.store.projection.count(replace(asked, states=states)) if page.count else None
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


def _live(site: LiveSite, chosen: Sequence[_Row], shown: set[str]) -> Iterator[dict[str, Any]]:
    """Rows of jobs, a few at a time: submissions do not wait for a long list."""
    for at in range(0, len(chosen), SLICE):
        rows = site.look(partial(_slice, chosen=chosen[at : at + SLICE]))
        yield from (row for row in rows if not shown or row["state"].casefold() in shown)


def _chosen(look: SiteView, asked: JobFilter, shown: set[str], page: ListPage) -> _Chosen:
    """Live jobs that pass, behind number `after`: as many as asked for, and whether there are more.

    Places in the queue are counted from its head, whatever is shown of it. Tasks of an array that
    wait alike are one row, where the first of them stands.
    """
    text, waiting, total = asked.text.casefold(), 0, 0
    found: list[_Row] = []
    groups: dict[tuple[str, str], _Row] = {}
    for record in look.core.jobs.values():
        waiting += not record.active
        if not _passes(look, record, asked, text):
            continue
        if shown and shown_state(record).casefold() not in shown:
            continue
        row = _Row(record.id, None if record.active else waiting)
        if page.grouped and record.spec.array and not record.active:
            group = groups.setdefault((record.spec.array, shown_state(record)), row)
            group.indices.append(record.spec.array_index)
            if group is not row:
                continue
        total += 1
        if len(found) <= asked.limit and (not page.after or number_of(record.id) > page.after):
            found.append(row)
        if len(found) > asked.limit and not page.count and not groups:
            break
    more = len(found) > asked.limit
    return _Chosen(found[: asked.limit], total if page.count else None, more)


def _passes(look: SiteView, record: JobRecord, asked: JobFilter, text: str) -> bool:
    spec = record.spec
    pairs = ((asked.owner, spec.user), (asked.tenant, spec.tenant), (asked.queue, spec.queue))
    if any(wanted is not None and wanted != value for wanted, value in pairs):
        return False
    if asked.name and asked.name.casefold() not in _name(look, spec.id):
        return False
    if not all(_has(spec.labels, *label) for label in asked.labels):
        return False
    if asked.numbers and not asked.numbers[0] <= number_of(spec.id) <= asked.numbers[1]:
        return False
    return not text or text in spec.id or text in _name(look, spec.id)


def _has(labels: Sequence[tuple[str, str]], name: str, value: str | None) -> bool:
    return any(name == known and value in (None, has) for known, has in labels)


def _name(look: SiteView, job_id: str) -> str:
    return str(look.history[job_id].paper.get("name", "")).casefold()


def _slice(look: SiteView, chosen: Sequence[_Row]) -> list[dict[str, Any]]:
    """Rows of those that are still there; by now they may be over."""
    return [_shown(look, one) for one in chosen if one.job_id in look.history]


def _shown(look: SiteView, one: _Row) -> dict[str, Any]:
    """A row of its page."""
    return row_of(job_row(look, one.job_id, one.position), one.indices)


def row_of(row: dict[str, Any], indices: Sequence[int]) -> dict[str, Any]:
    """The row of a job; of several tasks it is called by all of them, as commands take it."""
    if len(indices) < 2:
        return row
    name, tasks = str(row["name"]).rpartition("[")[0], numbers_shown(indices)
    called = f"{row['array']['id']}[{tasks}]"
    return {
        **row,
        "id": called,
        "name": f"{name}[{tasks}]" if name else "",
        "tasks": len(indices),
    }


def _rows(look: SiteView, pasts: Mapping[str, PastJob]) -> list[dict[str, Any]]:
    """What memory knows is newer than what the store knows."""
    live = {job_id: look.history[job_id] for job_id in look.history if job_id in pasts}
    known = replace(look, history={**pasts, **live})
    places = positions(look) if live else {}
    return [job_row(known, job_id, places.get(job_id)) for job_id in pasts]


def audit_document(
    site: LiveSite, *, limit: int, since: datetime | None = None, **wanted: Any
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
    entry, digest = site.store.journal.told
    return {
        "schema": AUDIT,
        "acts": acts,
        "before": rows[-1]["seq"] if more else None,
        "head": {"store": site.store.journal.identity(), "entry": entry, "digest": digest},
    }

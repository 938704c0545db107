"""The page Queue: who waits, runs or has ended, why, and for how long; shares and what is used."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wattherd.engine.jobs.record import JobRecord
from wattherd.report.charts import Chart
from wattherd.report.draw_picture import hue_of
from wattherd.report.timeline import Lines, PlotLine, draw_timelines
from wattherd.server.auth.caller import Caller
from wattherd.server.documents.arrays import array_of
from wattherd.server.documents.documents import SiteView, job_row, shown_state
from wattherd.server.journal.job_history import past_of
from wattherd.server.journal.timeline import Wait
from wattherd.server.settings.energy_rates import bill_of, bill_row
from wattherd.server.site.listing import row_of
from wattherd.server.web.filters import STATES, QueueFilter
from wattherd.server.web.page_source import PageSource
from wattherd.server.web.paging import Paged, paged
from wattherd.server.web.picture import HALF, TwoThemePicture, picture

LISTED = 50
FORESEEN = 200
"""Waiting jobs for which a start is worked out."""
SHOWN = tuple(STATES)
SIZES = ((1, "1 GPU"), (4, "2 to 4 GPUs"), (16, "5 to 16 GPUs"), (10**9, "more GPUs"))


def queue_view(
    scene: PageSource, caller: Caller, shown: str, text: str, wanted: QueueFilter, page: int
) -> dict[str, Any]:
    """All that the page shows."""
    now_s = scene.now_s()
    asked = _Asked(caller, shown, text, wanted, page)
    taken = scene.look(lambda look: _taken(look, asked, now_s))
    if shown == "ended":
        taken |= _ended(scene, asked)
    waits = list(scene.look(lambda _: list(scene.chronicle.waits)))
    return {
        **taken,
        "shown": shown,
        "text": text,
        "wanted": wanted,
        "states": STATES[shown],
        "waits": list(_classes(waits)),
        "picture": _picture(waits),
    }


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the address asks for."""

    caller: Caller
    shown: str
    text: str
    wanted: QueueFilter
    page: int


def _taken(look: SiteView, asked: _Asked, now_s: float) -> dict[str, Any]:
    shown = asked.shown
    records = list(look.core.jobs.values())
    waiting = [one for one in records if not one.active]
    running = [one for one in records if one.active]
    places = {one.id: place for place, one in enumerate(waiting, start=1)}
    listed = {"waiting": waiting, "running": running}.get(shown, [])
    mine = [
        one
        for one in listed
        if asked.caller.sees(one.spec)
        and (not asked.wanted or _fits(look, one, asked.wanted))
        and _has(look, one, asked.text)
    ]
    groups = _grouped(mine) if shown == "waiting" and not asked.text else {}
    cut = paged([one for one in mine if one.id in groups] if groups else mine, asked.page, LISTED)
    starts = _foreseen(look, waiting, running) if shown == "waiting" else {}
    rows = [
        {
            **row_of(job_row(look, one.id, places.get(one.id)), groups.get(one.id, ())),
            "hue": hue_of(one.id),
            "waited_s": now_s - one.spec.submit_s,
            "starts_s": starts.get(one.id),
        }
        for one in cut.items
    ]
    counts = {"waiting": len(waiting), "running": len(running)}
    return {"rows": rows, "cut": cut, "counts": counts, "shares": list(_shares(look))}


def _grouped(records: Sequence[JobRecord]) -> dict[str, list[int]]:
    """Indices of tasks of an array that wait alike, by the first of their jobs; of others none."""
    firsts: dict[tuple[str, str], str] = {}
    found: dict[str, list[int]] = {}
    for one in records:
        spec = one.spec
        if not spec.array:
            found[one.id] = []
            continue
        first = firsts.setdefault((spec.array, shown_state(one)), one.id)
        found.setdefault(first, []).append(spec.array_index)
    return found


def _fits(look: SiteView, record: JobRecord, wanted: QueueFilter) -> bool:
    called = str(look.history[record.id].paper.get("name") or "")
    return wanted.fits(record.spec, shown_state(record), called)


def _has(look: SiteView, record: JobRecord, text: str) -> bool:
    if not text:
        return True
    spec, past = record.spec, look.history[record.id]
    if text == spec.array:
        return True
    said = f"{spec.id} {past.paper.get('name', '')} {spec.user} {spec.tenant} {spec.queue}"
    return text.casefold() in said.casefold()


def _foreseen(
    look: SiteView, waiting: Sequence[JobRecord], running: Sequence[JobRecord]
) -> dict[str, float]:
    """Seconds until each could start if they start in this order and only GPUs count.

    A job of unknown length is not expected to end; behind it nothing is foreseen that needs its
    GPUs.
    """
    free = sum(node.gpu_count for node in look.core.config.cluster.nodes)
    free -= sum(one.gpus for one in running)
    ends: list[tuple[float, int]] = []
    for one in running:
        left_s = job_row(look, one.id)["remaining_s"]
        if left_s is not None:
            heapq.heappush(ends, (left_s, one.gpus))
    found: dict[str, float] = {}
    at_s = 0.0
    for one in waiting[:FORESEEN]:
        while free < one.spec.least_gpus and ends:
            at_s, gpus = heapq.heappop(ends)
            free += gpus
        if free < one.spec.least_gpus:
            return found
        found[one.id] = at_s
        free -= one.spec.least_gpus
        if one.spec.duration_s is not None:
            heapq.heappush(ends, (at_s + one.spec.duration_s, one.spec.least_gpus))
    return found


def _shares(look: SiteView) -> Iterator[dict[str, Any]]:
    """What each queue is promised and uses."""
    total = sum(node.gpu_count for node in look.core.config.cluster.nodes)
    by_job = look.book.samples[-1].by_job if look.book.samples else {}
    found: dict[str, dict[str, Any]] = {}
    for record in look.core.jobs.values():
        row = found.setdefault(
            record.spec.queue, {"gpus": 0, "watts": 0.0, "running": 0, "waiting": 0}
        )
        row["running" if record.active else "waiting"] += 1
        row["gpus"] += record.gpus if record.active else 0
        row["watts"] += by_job.get(record.id, 0.0)
    promised = _promised(look)
    for name in sorted({*found, *promised}):
        empty = {"gpus": 0, "watts": 0.0, "running": 0, "waiting": 0}
        row = found.get(name, empty)
        part = promised.get(name)
        used = row["gpus"] / total if total else 0.0
        yield {"queue": name, **row, "used": used, "promised": part}


def _promised(look: SiteView) -> dict[str, float]:
    """The guaranteed part of the site of every leaf, where there is a tree of queues."""
    quota = look.core.config.quota
    root = getattr(quota, "root", None)
    found: dict[str, float] = {}

    def walk(queue: Any, part: float) -> None:
        part *= queue.guaranteed_pct / 100.0
        if not queue.children:
            found[queue.name] = part
        for child in queue.children:
            walk(child, part)

    if root is not None:
        walk(root, 1.0)
    return found


def _ended(scene: PageSource, asked: _Asked) -> dict[str, Any]:
    """Jobs that are over, from the archive, the latest first."""
    page = asked.page
    tenant = None if asked.caller.of_site else asked.caller.tenant
    found = asked.wanted.ended(tenant, asked.text, page * LISTED + 1)
    array = scene.look(lambda look: array_of(look.history, asked.text)) if asked.text else None
    if array is not None:
        found = replace(found, text="", numbers=(array.numbers[0], array.numbers[-1]))
    rows = scene.projection.jobs(found)
    part = rows[(page - 1) * LISTED : page * LISTED]
    more = page + (len(rows) > page * LISTED)
    cut: Paged[Any] = Paged(part, page, more, len(rows))
    pasts = [past_of(row) for row in part]
    return {"rows": scene.look(lambda look: [_over(look, one) for one in pasts]), "cut": cut}


def _over(look: SiteView, past: Any) -> dict[str, Any]:
    row = {
        "id": past.spec.id,
        "name": past.paper.get("name", ""),
        "user": past.spec.user,
        "queue": past.spec.queue,
        "gpus": past.spec.gpus,
        "state": past.state,
        "why": past.why,
        "energy_j": past.energy_j,
        "bill": bill_row(bill_of(past.bill), past.energy_j),
        "finished": look.time(past.finish_s),
        "hue": hue_of(past.spec.id),
    }
    began_s = past.first_start_s
    row["waited_s"] = None if began_s is None else began_s - past.spec.submit_s
    ran = began_s is not None and past.finish_s is not None
    row["ran_s"] = past.finish_s - began_s if ran else None
    return row


def _by_class(waits: Sequence[Wait]) -> Iterator[tuple[str, list[float]]]:
    for place, (most, name) in enumerate(SIZES):
        least = SIZES[place - 1][0] if place else -1
        found = sorted(one.wait_s for one in waits if least < one.gpus <= most)
        if found:
            yield name, found


def _classes(waits: Sequence[Wait]) -> Iterator[dict[str, Any]]:
    """Waits for the first start, by size."""
    for name, found in _by_class(waits):
        middle_s, most_s = np.quantile(found, [0.5, 0.9]).tolist()
        yield {"name": name, "jobs": len(found), "median_s": middle_s, "p90_s": most_s}


def _picture(waits: Sequence[Wait]) -> TwoThemePicture | None:
    lines = []
    for number, (name, found) in enumerate(_by_class(waits)):
        y = [100.0 * (place + 1) / len(found) for place in range(len(found))]
        lines.append(PlotLine(name=name, number=number, x=[1.0, *found], y=[0.0, *y]))
    if not lines or max(one.wait_s for one in waits) <= 1.0:
        return None
    plot = Lines(
        title="Waits",
        about="Part of the jobs that had started within a time, by size",
        x_title="waited for the first start",
        y_title="% of jobs started",
        lines=tuple(lines),
        y_high=100.0,
        log=True,
    )
    caption = "Which part of the jobs had started after how long."
    chart = Chart(
        key="waits",
        title="How long jobs waited",
        caption=caption,
        draw=lambda frame, key: draw_timelines(plot, frame, key),
    )
    return picture(chart, HALF)

"""The page of an array: how far its tasks are, how many run at a time, why the next one waits."""

from __future__ import annotations

from typing import Any

from wattherd.report.draw_picture import hue_of
from wattherd.server.auth.caller import Caller
from wattherd.server.documents.arrays import Array, array_explanation, array_of, states
from wattherd.server.documents.documents import SiteView, job_row
from wattherd.server.documents.privacy import seen_by
from wattherd.server.web.page_source import PageSource
from wattherd.server.web.paging import paged

LISTED = 50
OVER = ("Succeeded", "Failed", "Cancelled", "TimedOut")


def array_view(
    scene: PageSource, caller: Caller, name: str, state: str, page: int
) -> dict[str, Any] | None:
    """All that the page shows, of tasks in one state or (empty) any; None: no such array."""
    found: dict[str, Any] | None = scene.look(
        lambda look: _taken(look, scene, caller, name, state, page)
    )
    return found


def _taken(
    look: SiteView, scene: PageSource, caller: Caller, name: str, state: str, page: int
) -> dict[str, Any] | None:
    array = array_of(look.history, name)
    if array is None or not caller.sees(array.first.spec):
        return None
    told = array_explanation(look, array, scene.chronicle, seen_by(look, caller))
    stand = list(zip(array.indices, array.jobs(), states(look, array), strict=True))
    chosen = [one for one in stand if state in ("", one[2])]
    cut = paged(chosen, page, LISTED)
    over = sum(told["states"].get(one, 0) for one in OVER)
    going = scene.keeper is not None and over < told["count"]
    return {
        "array": told,
        "over": over,
        "state": state if state in told["states"] else "",
        "cut": cut,
        "rows": [_row(look, array, *one) for one in cut.items],
        "touches": going and caller.touches(array.first.spec),
    }


def _row(look: SiteView, array: Array, index: int, job_id: str, state: str) -> dict[str, Any]:
    """A task; of one that the core has not heard of yet what is known."""
    values = array.first.paper["array"].get("grid", {})
    row: dict[str, Any] = {"id": job_id, "state": state}
    if job_id in look.history:
        row = job_row(look, job_id)
    known = (row.get("array") or {}).get("values", {}) if values else {}
    return {**row, "index": index, "values": known, "hue": hue_of(job_id)}

"""What a running service has delivered in an event, by its own record of what was drawn.

The store keeps a sample a second for an hour, then means of a minute for 30 days: enough for either
baseline. Each sample counts for the time it stands for; where none was taken nothing is proved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import tzinfo
from typing import Any

import numpy as np

from wattherd.errors import UserError
from wattherd.experiments.grid.delivery import (
    MOST_BACK_DAYS,
    BaselineMethod,
    DeliveredWatts,
    DeliveryEvent,
)
from wattherd.experiments.grid.promise import delivery_document, proof
from wattherd.server.limits.seen_events import SeenEvent
from wattherd.store.projection import Projection, Row

DAY_S = 86_400.0


def drawn(store: Projection, epoch: float, from_s: float, until_s: float) -> tuple[
    DeliveredWatts, str
]:  # fmt: skip
    """What was drawn between two Unix times, and whether that was measured or modelled.

    Raises:
        UserError: nothing was written down of that time.
        StoreFailure: it cannot be read.
    """
    begins_s: list[float] = []
    ends_s: list[float] = []
    draws_w: list[float] = []
    stated = set[str]()
    for row in _rows(store, from_s - epoch):
        end_s = epoch + row["at_s"]
        begin_s = max(end_s - row["span_s"], ends_s[-1] if ends_s else -np.inf)
        if begin_s >= until_s:
            break
        if end_s <= begin_s:
            continue
        begins_s.append(begin_s)
        ends_s.append(end_s)
        draws_w.append(row["draw_w"])
        stated.add(row["stated"])
    if not ends_s:
        raise UserError(
            "nothing of that time was written down", field="start", hint="30 days back are kept"
        )
    readings = DeliveredWatts(np.array(begins_s), np.array(ends_s), np.array(draws_w))
    return readings, "measured" if stated == {"measured"} else "model"


def _rows(store: Projection, after_s: float) -> Iterator[Row]:
    while rows := store.samples(after_s):
        yield from rows
        after_s = rows[-1]["at_s"]


DAY_AHEAD_S = 86_400.0
"""What was announced earlier was no news to the hour before: schedules are known always."""


def asked_in(event: SeenEvent) -> DeliveryEvent:
    """What an event that the service has seen asked for."""
    fresh = event.start_s - event.announced_s <= DAY_AHEAD_S
    return DeliveryEvent(
        start_s=event.start_s, end_s=event.end_s, limit_w=event.limit_w,
        announced_s=event.announced_s if fresh and event.announced_s < event.start_s else None,
    )  # fmt: skip


def event_document(event: SeenEvent) -> dict[str, Any]:
    """As part of a document."""
    return {
        "id": event.id, "source": event.source, "limit_w": event.limit_w,
        "start_s": event.start_s, "end_s": event.end_s, "announced_s": event.announced_s,
        "cancelled": event.cancelled,
    }  # fmt: skip


def site_delivery(
    store: Projection, epoch: float, event: DeliveryEvent, method: BaselineMethod, zone: tzinfo,
    event_days: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    """`wattherd.delivery/1`, and whether what was drawn is measured or comes from a model.

    Raises:
        UserError: too little was written down for that baseline, or of the event.
        StoreFailure: it cannot be read.
    """
    back_s = event.start_s if event.announced_s is None else min(event.start_s, event.announced_s)
    from_s = back_s - (
        (MOST_BACK_DAYS + 2) * DAY_S if method is BaselineMethod.TEN_IN_TEN else DAY_S / 4
    )
    readings, stated = drawn(store, epoch, from_s, event.end_s)
    try:
        found = proof(readings, event, method, zone, tuple(event_days))
    except UserError as error:
        field = "event_day" if error.field == "--event-day" else error.field
        hint = error.hint.replace("--baseline ", "baseline=")
        raise UserError(error.problem, field=field, hint=hint) from None
    return {**delivery_document(found), "stated": stated}

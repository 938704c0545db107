"""The page Now: draw against budget, four numbers, and who draws most."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from wattherd.engine.jobs.record import JobRecord
from wattherd.report.charts import Chart
from wattherd.report.draw_picture import draw_draw, hue_of
from wattherd.server.auth.caller import Caller
from wattherd.server.documents.documents import OPERATORS, SiteView, job_row, site_bill
from wattherd.server.documents.privacy import of_draw, seen_by
from wattherd.server.hardware.draw import DrawSample
from wattherd.server.web.budget_changes import ToldChange, marks, told_changes
from wattherd.server.web.picture import TALL, TwoThemePicture, picture
from wattherd.server.web.scene import Scene
from wattherd.server.web.watts_view import draw_picture, unit_of

SPANS_S = {"2m": 120.0, "5m": 300.0, "15m": 900.0, "1h": 3600.0, "2h": 7200.0}
LISTED = 20
_Now: TypeAlias = "tuple[list[DrawSample], Numbers, list[dict[str, Any]], Container[str] | None]"


@dataclass(frozen=True, slots=True)
class Numbers:
    """What stands in large figures; watts are None before the first sample."""

    draw_w: float | None
    budget_w: float | None
    busy: int
    gpus: int
    running: int
    waiting: int
    over_s: float
    over_j: float
    estimated: bool
    announced: tuple[tuple[str | None, float | None], ...] = ()
    budgets: tuple[tuple[str, float], ...] = ()
    """By source, where there are several."""
    bill: dict[str, Any] | None = None
    """What all energy has cost and emitted; None where there are no rates."""

    @property
    def headroom_w(self) -> float | None:
        """What may still be drawn, below zero where the budget is broken; None without budget."""
        if self.draw_w is None or self.budget_w is None:
            return None
        return self.budget_w - self.draw_w


def now_view(scene: Scene, caller: Caller, span: str) -> dict[str, Any]:
    """All that the page shows."""
    span_s = SPANS_S[span]
    (samples, numbers, jobs, seen), changes = scene.look(
        lambda look: (_now(look, caller), _changes(look, scene, caller))
    )
    end_s = scene.now_s() if scene.live or not samples else samples[-1].at_s
    changes = [one for one in changes if one.at_s >= end_s - span_s]
    samples = [one for one in samples if one.at_s >= end_s - span_s]
    if seen is not None:
        samples = [replace(one, by_job=of_draw(dict(one.by_job), seen)) for one in samples]
    return {
        "numbers": numbers,
        "jobs": jobs,
        "picture": _picture(samples, changes, end_s - span_s, end_s),
        "changes": list(reversed(changes))[:LISTED],
        "more_changes": max(0, len(changes) - LISTED),
        "span": span,
        "spans": list(SPANS_S),
        "signals": scene.signals(),
    }


def _changes(look: SiteView, scene: Scene, caller: Caller) -> list[ToldChange]:
    return told_changes(look, caller, scene.chronicle.budgets)


def _picture(
    samples: list[DrawSample], changes: list[ToldChange], begin_s: float, end_s: float
) -> TwoThemePicture | None:
    plot = draw_picture(samples, begin_s, end_s, ago=True)
    if plot is None:
        return None
    each_s, _ = unit_of(end_s - begin_s)
    first_s = end_s + float(plot.at[0]) * each_s
    told = marks(changes[-LISTED:], first_s, end_s, each_s)
    plot = replace(plot, marks=told)
    chart = Chart(
        key="draw",
        title="Draw against budget",
        caption=plot.about,
        draw=lambda frame, key: draw_draw(plot, frame, key),
    )
    return picture(chart, TALL)


def _now(look: SiteView, caller: Caller) -> _Now:
    """Samples, numbers, the jobs listed, and the jobs seen (None: all)."""
    samples = list(look.book.samples)
    last = samples[-1] if samples else None
    active = [record for record in look.core.jobs.values() if record.active]
    by_job = last.by_job if last else {}
    active.sort(key=lambda record: by_job.get(record.id, 0.0), reverse=True)
    stated = look.core.budgets.by_source.get("", {})
    numbers = Numbers(
        draw_w=last.draw_w if last else None,
        budget_w=look.core.watts.stated_w,
        busy=sum(record.gpus for record in active),
        gpus=sum(node.gpu_count for node in look.core.config.cluster.nodes),
        running=len(active),
        waiting=len(look.core.jobs) - len(active),
        over_s=look.book.over_s,
        over_j=look.book.over_j,
        estimated=look.stated == "model",
        announced=tuple(
            (look.time(one.begins_s), one.budget_w)
            for one in look.core.budgets.announced
            if not one.domain
        ),
        bill=site_bill(look),
        budgets=tuple((source or OPERATORS, stated[source]) for source in sorted(stated)),
    )
    mine = [record for record in active if caller.sees(record.spec)][:LISTED]
    seen = None if caller.of_site else seen_by(look, caller)
    return samples, numbers, [_row(look, record) for record in mine], seen


def _row(look: SiteView, record: JobRecord) -> dict[str, Any]:
    return {**job_row(look, record.id), "hue": hue_of(record.id)}

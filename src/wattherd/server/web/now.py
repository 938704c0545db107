"""The page Now: draw against budget, four numbers, and who draws most."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.jobs.record import JobRecord
from wattherd.report.charts import Chart
from wattherd.report.draw_picture import DrawLayer, DrawMark, DrawPicture, draw_draw, hue_of
from wattherd.report.timeline import time_unit
from wattherd.server.auth.caller import Caller
from wattherd.server.documents.changeable_settings import CONFIGURATION
from wattherd.server.documents.documents import OPERATORS, SiteView, job_row, site_bill
from wattherd.server.documents.privacy import of_draw, seen_by
from wattherd.server.hardware.draw import LONGEST_S, DrawSample
from wattherd.server.journal.timeline import SYSTEM, BudgetChange
from wattherd.server.web.page_source import PageSource
from wattherd.server.web.picture import TALL, TwoThemePicture, picture
from wattherd.units import show_exact_watts, show_seconds

# --- Samples of watts as the picture of draw against budget.

POINTS = 240
"""Spans across the picture; more could not be told apart."""
SECONDS_UP_TO_S = 300.0
MOST_LAYERS = 9
"""Jobs with a layer of their own: those that drew most; the others share one."""
Floats = NDArray[np.float64]


def draw_picture(
    samples: Sequence[DrawSample], begin_s: float, end_s: float, *, ago: bool
) -> DrawPicture | None:
    """The samples between two times, None if there are none; with `ago` time counts to the end.

    Spans are means, but for the highest draw, so that no violation is averaged away.
    """
    taken = [one for one in samples if begin_s <= one.at_s <= end_s]
    if not taken:
        return None
    groups = _with_gaps(_spans(taken, begin_s, end_s))
    draw_w = np.array([_mean([one.draw_w for one in group]) for _, group in groups])
    layers = _layers(groups, draw_w)
    each, name = unit_of(end_s - begin_s)
    origin_s = end_s if ago else begin_s
    return DrawPicture(
        at=np.array([(at_s - origin_s) / each for at_s, _ in groups]),
        unit=f"{name} before now" if ago else f"time ({name})",
        layers=layers,
        most_w=np.array([max((one.draw_w for one in group), default=0.0) for _, group in groups]),
        budget_w=np.array([_budget(group) for _, group in groups]),
        until=0.0 if ago else (taken[-1].at_s - begin_s) / each,
        estimated=any(one.stated == "model" for one in taken),
    )


def unit_of(span_s: float) -> tuple[float, str]:
    """Seconds per unit of a picture that is so long, and the unit's name."""
    return (1.0, "s") if span_s <= SECONDS_UP_TO_S else time_unit(span_s)


Group = tuple[float, list[DrawSample]]


def _spans(samples: Sequence[DrawSample], begin_s: float, end_s: float) -> list[Group]:
    """Samples by span, and the time of the last in each."""
    width_s = max((end_s - begin_s) / POINTS, 1e-9)
    spans: dict[int, list[DrawSample]] = {}
    for sample in samples:
        spans.setdefault(int((sample.at_s - begin_s) / width_s), []).append(sample)
    return [(group[-1].at_s, group) for group in spans.values()]


def _with_gaps(groups: list[Group]) -> list[Group]:
    """Nothing is known, and so nothing drawn, where no sample was taken for long."""
    usual_s = max(LONGEST_S, 2.5 * _median_step_s(groups))
    found = groups[:1]
    for (before_s, _), (at_s, group) in pairwise(groups):
        if at_s - before_s > usual_s:
            found += [(before_s + 1e-3, []), (at_s - 1e-3, [])]
        found.append((at_s, group))
    return found


def _median_step_s(groups: list[Group]) -> float:
    return float(np.median(np.diff([at_s for at_s, _ in groups]))) if len(groups) > 1 else 0.0


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _budget(group: list[DrawSample]) -> float:
    """The lowest in force within the span."""
    return min((one.budget_w for one in group if one.budget_w is not None), default=math.inf)


def _layers(groups: list[Group], draw_w: Floats) -> list[DrawLayer]:
    """What belongs to no job, then jobs in order of their first sample, then the small ones."""
    by_job: dict[str, Floats] = {}
    for place, (_, group) in enumerate(groups):
        for sample in group:
            for job_id, watts in sample.by_job.items():
                watts_of = by_job.setdefault(job_id, np.zeros(len(groups)))
                watts_of[place] += watts / len(group)
    most = sorted(by_job, key=lambda job: float(by_job[job].sum()), reverse=True)[:MOST_LAYERS]
    rest = draw_w - sum(by_job.values(), np.zeros(len(groups)))
    layers = [DrawLayer(name="idle and host", watts=np.maximum(rest, 0.0))]
    layers += [
        DrawLayer(name=job, watts=watts, hue=hue_of(job))
        for job, watts in by_job.items()
        if job in most
    ]
    others = [watts for job, watts in by_job.items() if job not in most]
    if others:
        layers.append(DrawLayer(name=f"{len(others)} others", watts=np.sum(others, axis=0)))
    return layers


# --- Changes of budgets as people are told of them: when, from what to what, by whom and why.

NO_LIMIT = "no limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldChange:
    """One change in words; `decision` says whether its entry may be looked up by the caller."""

    seq: int
    at_s: float
    at: str | None
    before: str
    after: str
    who: str
    why: str
    decision: bool

    @property
    def lines(self) -> tuple[str, ...]:
        """All of it in short lines."""
        return f"Budget {self.before} to {self.after}", f"by {self.who}: {self.why}."


def told_changes(
    look: SiteView, caller: Caller, changes: Iterable[BudgetChange]
) -> list[ToldChange]:
    """All of them in words, in their order."""
    return [_told(look, caller, one) for one in changes]


def _told(look: SiteView, caller: Caller, one: BudgetChange) -> ToldChange:
    return ToldChange(
        seq=one.seq,
        at_s=one.at_s,
        at=look.time(one.at_s),
        before=_watts(one.before_w) if one.known else "unknown",
        after=_watts(one.budget_w),
        who=_who(one, caller),
        why=_why(one),
        decision=caller.of_site,
    )


def _who(one: BudgetChange, caller: Caller) -> str:
    """Names of operators are for the site's own people; tenants are told the role."""
    if one.source:
        return f"signal {signal_name(one.cause)}" if one.cause else one.source
    if one.by == CONFIGURATION:
        return "the configuration"
    if one.by in (SYSTEM, ""):
        return "the service"
    return one.by if caller.of_site else "an operator"


def _why(one: BudgetChange) -> str:
    """What the change is in effect, and on what occasion."""
    where = f" for {one.domain}" if one.domain else ""
    if one.source:
        why = "the limit from outside ended" if one.budget_w is None else "a limit from outside"
    elif one.by == CONFIGURATION:
        why = "the configuration was edited"
    else:
        why = "set at work"
    if one.announced_s is not None:
        why += f", announced {show_seconds(one.at_s - one.announced_s)} before"
    return why + where


def signal_name(cause: str) -> str:
    """The kind and the last part of a signal's address: folders and secrets stay out of pages."""
    scheme, _, rest = cause.partition(":")
    if not rest:
        return cause
    path = unquote(urlsplit(cause).path or rest)
    host = urlsplit(cause).hostname or ""
    return " ".join(part for part in (scheme, host or path.rpartition("/")[2]) if part)


def marks(
    told: Iterable[ToldChange], begin_s: float, end_s: float, each_s: float
) -> list[DrawMark]:
    """Where they are in a picture that counts back from `end_s` in units of `each_s`."""
    return [
        DrawMark(at=(one.at_s - end_s) / each_s, lines=one.lines, link=f"#b-{one.seq}")
        for one in told
        if begin_s <= one.at_s <= end_s
    ]


def _watts(value: float | None) -> str:
    return NO_LIMIT if value is None else show_exact_watts(value)


SPANS_S = {"2m": 120.0, "5m": 300.0, "15m": 900.0, "1h": 3600.0, "2h": 7200.0}
LISTED = 20
_Now: TypeAlias = (
    "tuple[list[DrawSample], HeadlineNumbers, list[dict[str, Any]], Container[str] | None]"
)


@dataclass(frozen=True, slots=True)
class HeadlineNumbers:
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


def now_view(scene: PageSource, caller: Caller, span: str) -> dict[str, Any]:
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


def _changes(look: SiteView, scene: PageSource, caller: Caller) -> list[ToldChange]:
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
    numbers = HeadlineNumbers(
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

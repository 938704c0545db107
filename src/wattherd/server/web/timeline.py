"""The page Timeline: who held which GPU when, at which cap, and when decisions were made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wattherd.report.charts import Chart
from wattherd.report.draw_picture import hue_of
from wattherd.report.gpu_gantt import Bar, GpuGantt, Marker, draw_gpu_gantt
from wattherd.report.timeline import time_unit
from wattherd.server.auth.caller import Caller
from wattherd.server.documents.documents import SiteView, shown_state
from wattherd.server.documents.privacy import OTHERS, of_decisions, seen_by
from wattherd.server.documents.sentences import ToldDecision, told
from wattherd.server.journal.job_history import past_of
from wattherd.server.journal.timeline import DecisionEntry, GpuSpan
from wattherd.server.web.filters import STATES, QueueFilter
from wattherd.server.web.page_source import PageSource
from wattherd.server.web.paging import paged
from wattherd.server.web.picture import TALL, picture
from wattherd.server.web.render import show_w
from wattherd.units import counted

SPANS_S = {"2m": 120.0, "10m": 600.0, "1h": 3600.0, "6h": 21_600.0, "1d": 86_400.0}
ROWS = 40
MARKERS = 60
LOOKED_UP = 1000
"""Jobs that are over, of which the archive is asked whether they pass a filter."""


def timeline_view(
    scene: PageSource, caller: Caller, span: str, wanted: QueueFilter, page: int
) -> dict[str, Any]:
    """All that the page shows."""
    devices, spans, decisions, most_w, seen, now_s, fitting, names = scene.look(
        lambda look: _taken(look, scene, caller, wanted)
    )
    end_s = scene.now_s() if scene.live else now_s
    begin_s = max(0.0, end_s - SPANS_S[span])
    spans = [one for one in spans if one.stop_s is None or one.stop_s >= begin_s]
    too_many = False
    if wanted:
        too_many = _look_up_ended(scene, caller, spans, fitting, wanted)
        spans = [one for one in spans if fitting.get(one.job_id)]
        decisions = [one for one in decisions if fitting.get(one.about)]
    cut = paged(devices, page, ROWS)
    each, name = time_unit(end_s - begin_s) if end_s - begin_s > 300 else (1.0, "s")
    rows = {device[:2]: row for row, device in enumerate(cut.items)}

    def at(time_s: float) -> float:
        return (time_s - end_s) / each

    plot = GpuGantt(
        rows=[device[2] for device in cut.items],
        bars=[
            _moved(bar, at)
            for one in spans
            for bar in _bars(one, rows, end_s, most_w, seen)
            if bar.stop >= begin_s
        ],
        markers=[
            Marker(
                at=at(one.at_s),
                tip=_tip(told(one, names)),
                link=f"/decisions?seq={one.seq}#d-{one.seq}",
            )
            for one in _moments(decisions, begin_s)
        ],
        low=at(begin_s),
        high=0.0,
        unit=f"{name} before now" if scene.live else f"{name} before the end",
    )
    chart = Chart(
        key="gantt",
        title="Who held which GPU when",
        caption="A bar is a run, the paler the lower it was capped; triangles are decisions.",
        draw=lambda frame, key: draw_gpu_gantt(plot, frame, key),
    )
    return {
        "picture": picture(chart, TALL),
        "cut": cut,
        "span": span,
        "spans": list(SPANS_S),
        "wanted": wanted,
        "states": [state for states in STATES.values() for state in states],
        "fitting": len(spans),
        "too_many": too_many,
    }


def _look_up_ended(
    scene: PageSource,
    caller: Caller,
    spans: Sequence[GpuSpan],
    fitting: dict[str, bool],
    wanted: QueueFilter,
) -> bool:
    """Whether jobs that are over pass, the latest of them; True if there were more."""
    ended = dict.fromkeys(one.job_id for one in reversed(spans) if one.job_id not in fitting)
    for job_id in list(ended)[:LOOKED_UP]:
        row = scene.projection.job(job_id)
        if row is not None:
            past = past_of(row)
            fits = wanted.fits(past.spec, past.state, str(row["name"]))
            fitting[job_id] = fits and caller.sees(past.spec)
    return len(ended) > LOOKED_UP


def _taken(
    look: SiteView, scene: PageSource, caller: Caller, wanted: QueueFilter
) -> tuple[Any, ...]:
    """What the picture is made of, as it is between two turns."""
    nodes = look.core.config.cluster.nodes
    many = len(nodes) > 1
    devices = [
        (number, gpu, f"{node.name} {gpu}" if many else f"GPU {gpu}")
        for number, node in enumerate(nodes)
        for gpu in range(node.gpu_count)
    ]
    spans = [_copied(one) for one in scene.chronicle.spans]
    seen = None if caller.of_site else seen_by(look, caller)
    decisions = list(scene.chronicle.decisions)
    if seen is not None:
        decisions = of_decisions(decisions, seen)
    most_w = look.machine.gpu.max_w
    # A job of others never passes: filters must not tell whose it is, or how it is labelled.
    fitting = {
        job_id: caller.sees(record.spec)
        and wanted.fits(
            record.spec, shown_state(record), str(look.history[job_id].paper.get("name") or "")
        )
        for job_id, record in (look.core.jobs.items() if wanted else ())
    }
    names = [node.name for node in nodes]
    return devices, spans, decisions, most_w, seen, look.core.now_s, fitting, names


def _copied(one: GpuSpan) -> GpuSpan:
    """As it is now: the keeper goes on with the original."""
    caps = list(one.caps)
    return GpuSpan(one.job_id, one.attempt, one.node, one.gpus, one.start_s, caps, one.stop_s)


def _bars(
    span: GpuSpan, rows: Mapping[tuple[int, int], int], end_s: float, most_w: float, seen: Any
) -> Iterator[Bar]:
    """One for every GPU on the page and every cap it had."""
    stop_s = end_s if span.stop_s is None else span.stop_s
    name = span.job_id if seen is None or span.job_id in seen else OTHERS
    ends = [*(at_s for at_s, _ in span.caps[1:]), stop_s]
    for gpu in span.gpus:
        row = rows.get((span.node, gpu))
        if row is None:
            continue
        for (start_s, cap_w), until_s in zip(span.caps, ends, strict=True):
            if until_s > start_s:
                cap = "no cap" if cap_w is None else f"cap {show_w(cap_w)}"
                yield Bar(
                    row=row, start=start_s, stop=until_s, name=name, hue=hue_of(span.job_id),
                    share=1.0 if cap_w is None else cap_w / most_w,
                    tip=f"{name}, run {span.attempt}, GPU {gpu}, {cap}",
                    link="/queue" if name == OTHERS else f"/jobs/{name}#story",
                )  # fmt: skip


def _moved(bar: Bar, at: Any) -> Bar:
    return Bar(
        row=bar.row, start=at(bar.start), stop=at(bar.stop), name=bar.name, hue=bar.hue,
        share=bar.share, tip=bar.tip, link=bar.link,
    )  # fmt: skip


def _moments(decisions: list[DecisionEntry], begin_s: float) -> list[DecisionEntry]:
    """The last in which more was ordered than caps."""
    found = [
        one
        for one in decisions
        if one.at_s >= begin_s and any(not order.startswith("SetCap") for order in one.orders)
    ]
    return found[-MARKERS:]


def _tip(said: ToldDecision) -> str:
    """What happened, and the first order."""
    left = len(said.orders) - 1
    more = f" {counted(left, 'more order')}." if left > 0 else ""
    return " ".join((said.happened, *said.orders[:1])) + more

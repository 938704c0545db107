"""The page of a live site's past: its draw under its budget, when its jobs ran, and every job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from wattherd.report.charts import Chart
from wattherd.report.plugin_reports import ShownSection
from wattherd.report.rendering import figure, rendered
from wattherd.report.report_files import ReportContent
from wattherd.report.site_past import SiteJob, SitePast
from wattherd.report.svg import Element, Frame, PlotAxis, Scale, boxes, document, label, x_axis
from wattherd.report.theme import series_class
from wattherd.report.timeline import Floats, Stack, draw_stack, time_ends
from wattherd.units import show_joules, show_seconds

COLOURS = 9
"""Jobs that get a colour of their own, those that drew most; the others share one."""
ROW, MOST_ROWS = 20.0, 60
OTHERS = "other jobs"
UNITS = ((1.0, "s", 600.0), (60.0, "min", 7200.0), (3600.0, "h", 4 * 86400.0))


def state_content(past: SitePast) -> ReportContent:
    """What its report consists of."""
    charts = [*_draw(past), *_gantt(past)]
    return ReportContent(
        run=past,
        html=lambda added: render_state(past, added),
        plots={chart.key: chart for chart in charts},
        series=COLOURS + 1,
    )


def render_state(past: SitePast, added: Sequence[ShownSection] = ()) -> str:
    """The whole page as text, with what packages add; the same input gives the same bytes."""
    charts = [*_draw(past), *_gantt(past)]
    return rendered(
        "state.html.j2",
        max([COLOURS + 1, *(one.series for one in added)]),
        past=past,
        sections=added,
        figures=[figure(chart, chart.key) for chart in charts],
        numbers=_numbers(past),
        rows=[_row(job) for job in past.jobs],
        done=sum(job.state == "Succeeded" for job in past.jobs),
        span=show_seconds(_end_s(past)),
        energy=show_joules(sum(job.energy_j for job in past.jobs)),
        over=_over(past),
    )


def _over(past: SitePast) -> str:
    if not past.over_s:
        return "never"
    return f"{show_seconds(past.over_s)} in all ({show_joules(past.over_j)})"


def _numbers(past: SitePast) -> dict[str, int]:
    """Colours of those that drew most, by id, in order of submission."""
    most = sorted(past.jobs, key=lambda job: -job.energy_j)[:COLOURS]
    chosen = {job.id for job in most}
    return {job.id: at for at, job in enumerate(j for j in past.jobs if j.id in chosen)}


def _row(job: SiteJob) -> list[str]:
    first_s = job.runs[0][0] if job.runs else None
    finish = None if job.finish_s is None else job.finish_s - job.submit_s
    return [
        job.user or "-",
        job.state,
        str(len(job.runs)),
        "-" if first_s is None else show_seconds(first_s - job.submit_s),
        show_seconds(sum(stop_s - start_s for start_s, stop_s in job.runs)),
        "-" if finish is None else show_seconds(finish),
        f"{job.progress:,.0f}" if job.progress else "-",
        "-" if job.loss is None else f"{job.loss:.4g}",
        show_joules(job.energy_j),
    ]


def _end_s(past: SitePast) -> float:
    ends = [stop_s for job in past.jobs for _, stop_s in job.runs]
    return max([*ends, *(one.at_s for one in past.samples)], default=1.0)


def _unit(past: SitePast) -> tuple[float, str]:
    span_s = _end_s(past)
    return next(((each, name) for each, name, most in UNITS if span_s <= most), (86400.0, "d"))


def _draw(past: SitePast) -> list[Chart]:
    if len(past.samples) < 2:
        return []
    each, unit = _unit(past)
    draw_w = np.array([one.draw_w for one in past.samples])
    budget_w = np.array([one.budget_w for one in past.samples])
    stated = " (estimated)" if past.estimated else ""
    finite = budget_w[np.isfinite(budget_w)]
    plot = Stack(
        title="Draw and budget",
        about=f"Watts{stated} of the site by job, the budget as a line",
        x_title=f"time ({unit})",
        y_title=f"draw (W){stated}",
        x=np.array([one.at_s for one in past.samples]) / each,
        layers=tuple(_layers(past, draw_w)),
        peak=draw_w,
        peak_name="draw",
        ceiling=budget_w,
        ceiling_name="budget",
        y_high=1.05 * max(float(draw_w.max()), float(finite.max(initial=0.0))),
    )
    caption = (
        "Means of a second or two, stacked by job in the colours of the table below; grey is what "
        "idle devices draw. The draw must stay under the budget."
    )
    return [
        Chart(
            key="draw",
            title=plot.title,
            caption=caption,
            draw=lambda frame, key: draw_stack(plot, frame, key),
        )
    ]


def _layers(past: SitePast, draw_w: Floats) -> list[tuple[str, str, Floats]]:
    """Idle devices, each job that has a colour, and the rest."""
    numbers = _numbers(past)
    heights = {job_id: np.zeros(len(draw_w)) for job_id in numbers}
    other = np.zeros(len(draw_w))
    for at, one in enumerate(past.samples):
        for job_id, watts in one.by_job.items():
            heights.get(job_id, other)[at] += watts
    jobs_w = sum(heights.values(), other)
    layers = [("rest", "idle", np.maximum(draw_w - jobs_w, 0.0))]
    names = {job.id: job.label for job in past.jobs}
    for job_id, number in numbers.items():
        layers.append((f"bar {series_class(number)}", names[job_id], heights[job_id]))
    return [*layers, ("busy", OTHERS, other)] if other.any() else layers


def _gantt(past: SitePast) -> list[Chart]:
    shown = past.jobs[-MOST_ROWS:]
    if not any(job.runs for job in shown):
        return []
    less = "" if len(shown) == len(past.jobs) else f" The last {len(shown)} jobs."
    caption = f"A row per job: a line while it waits, a bar while it runs.{less}"
    return [
        Chart(
            key="runs",
            title="When jobs ran",
            caption=caption,
            draw=lambda frame, key: _draw_gantt(past, shown, frame, key),
        )
    ]


def _draw_gantt(past: SitePast, shown: Sequence[SiteJob], frame: Frame, key: str) -> Element:
    each, unit = _unit(past)
    numbers = _numbers(past)
    frame = replace(frame, left=100, right=14, height=frame.top + ROW * len(shown) + frame.bottom)
    begin_s = min(job.submit_s for job in shown)
    end_s = _end_s(past)
    x = Scale(*time_ends(begin_s / each, end_s / each), *frame.x_range)
    marks = []
    for at, job in enumerate(shown):
        y = frame.top + ROW * (at + 0.5)
        marks.append(label(job.label[:14], frame.left - 8, y, anchor="end"))
        marks += _bars(job, x, each, y, end_s, numbers.get(job.id))
    span = PlotAxis(low=x.low, high=x.high, title=f"time ({unit})", count=int(frame.width // 80))
    about = "A row per job in order of submission; a line while it waits, a bar while it runs"
    return document(
        frame, x_axis(span, x, frame), Element("g", *marks),
        title="When jobs ran", about=about, key=key,
    )  # fmt: skip


def _bars(
    job: SiteJob, x: Scale, each: float, y: float, end_s: float, number: int | None
) -> list[Element]:
    """The job's line from submission to its end, and its runs on it."""
    over = x((end_s if job.finish_s is None else job.finish_s) / each)
    wait = Element("path", d=f"M{x(job.submit_s / each):.1f} {y:.1f}H{over:.1f}", class_="wait")
    ends = [(x(start_s / each), x(stop_s / each)) for start_s, stop_s in job.runs]
    cells = [(left, y - 6, max(right - left, 1.0), 12.0) for left, right in ends]
    class_ = "area busy" if number is None else f"bar {series_class(number)}"
    return [wait, boxes(cells, class_)] if cells else [wait]

"""Which plots a report holds, what they show, and how to read each of them in two sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from wattherd.report.compare import (
    SAVING_SPAN,
    CompareRow,
    Curves,
    Floats,
    SeedSpread,
    baseline_policy,
    curves,
    pareto_front,
    power_and_gpus,
    saving_curves,
)
from wattherd.report.labels import Box, PlacedLabel, place_around
from wattherd.report.lines import LinePlot, Series, draw_lines
from wattherd.report.runs import TraceRuns
from wattherd.report.svg import (
    Element,
    Frame,
    PlotAxis,
    Point,
    Scale,
    document,
    dot,
    label,
    polyline,
    room_for_ticks,
    segment,
    text_width,
    tick_label,
    x_axis,
    y_axis,
)
from wattherd.report.theme import series_class

# --- The Pareto plot: power saved to the right, GPUs allocated upwards, the front drawn.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    name: str
    number: int
    at: Point
    whiskers: tuple[tuple[Point, Point], ...]
    tip: str


def draw_pareto(
    rows: Sequence[CompareRow],
    numbers: dict[str, int],
    frame: Frame,
    key: str,
    title: str,
    about: str,
) -> Element:
    """One point per policy with its range over seeds, the front, and a name at each point."""
    points = power_and_gpus(rows)
    shown = [row for row in rows if row.policy in points]
    x_span, y_span = _spans(shown, points, frame)
    frame = replace(frame, left=room_for_ticks(y_span, frame), right=24)
    x = Scale(x_span.low, x_span.high, *frame.x_range)
    y = Scale(y_span.low, y_span.high, *frame.y_range)
    marks = [_mark(row, points[row.policy], numbers[row.policy], x, y) for row in shown]
    front = [(x(points[name][0]), y(points[name][1])) for name in pareto_front(points)]
    edge = _staircase(front, frame)
    return document(
        frame,
        x_axis(x_span, x, frame),
        y_axis(y_span, y, frame),
        polyline(edge, "front"),
        Element("g", *_whiskers(marks)),
        Element("g", *(_dot(mark) for mark in marks)),
        Element("g", *_labels(marks, edge, frame)),
        title=title,
        about=about,
        key=key,
    )


def _spans(
    rows: Sequence[CompareRow], points: dict[str, tuple[float, float]], frame: Frame
) -> tuple[PlotAxis, PlotAxis]:
    saved = [value for row in rows for value in _ends(row.mean_saving_pct, points[row.policy][0])]
    held = [value for row in rows for value in _ends(row.allocated_gpus, points[row.policy][1])]
    count = int(frame.width // 90)
    (x_low, x_high), (y_low, y_high) = _padded(saved), _padded(held)
    x_title = f"power saved against {rows[0].baseline}, %"
    return (
        PlotAxis(low=x_low, high=x_high, title=x_title, count=count),
        PlotAxis(low=y_low, high=y_high, title="GPUs allocated at the end", count=5),
    )


def _ends(value: SeedSpread | None, otherwise: float) -> tuple[float, float]:
    return (value.low, value.high) if value else (otherwise, otherwise)


def _padded(values: Sequence[float]) -> tuple[float, float]:
    room = 0.08 * (max(values) - min(values)) or max(1.0, 0.01 * abs(values[0]))
    return min(values) - room, max(values) + room


def _mark(row: CompareRow, point: tuple[float, float], number: int, x: Scale, y: Scale) -> _Mark:
    at = x(point[0]), y(point[1])
    left, right = _ends(row.mean_saving_pct, point[0])
    low, high = _ends(row.allocated_gpus, point[1])
    across = (x(left), at[1]), (x(right), at[1])
    upright = (at[0], y(low)), (at[0], y(high))
    tip = f"{row.policy}: {tick_label(point[0], 2)} % saved, {tick_label(point[1], 0)} GPUs"
    return _Mark(name=row.policy, number=number, at=at, whiskers=(across, upright), tip=tip)


def _staircase(front: Sequence[Point], frame: Frame) -> list[Point]:
    """The edge of the dominated area: each point holds until the next one starts."""
    bottom = frame.y_range[0]
    corners = [(frame.x_range[0], front[0][1])]
    for here, after in zip(front, [*front[1:], None], strict=True):
        corners += [here, (here[0], after[1] if after else bottom)]
    return corners


def _whiskers(marks: Sequence[_Mark]) -> list[Element]:
    return [
        segment(*ends, f"whisker {series_class(mark.number)}")
        for mark in marks
        for ends in mark.whiskers
    ]


def _dot(mark: _Mark) -> Element:
    return dot(mark.at, 6, f"dot {series_class(mark.number)}", mark.tip)


def _labels(marks: Sequence[_Mark], edge: Sequence[Point], frame: Frame) -> list[Element]:
    (left, right), (bottom, top) = frame.x_range, frame.y_range
    widths = [text_width(mark.name, frame.font) * 1.08 for mark in marks]
    bounds = (left + 2, top, right + frame.right - 2, bottom)
    lines = [*pairwise(edge), *(w for mark in marks for w in mark.whiskers)]
    places = place_around(
        [mark.at for mark in marks], widths, 15, bounds, [_around(*line) for line in lines]
    )
    found = []
    for mark, place in zip(marks, places, strict=True):
        me = series_class(mark.number)
        if place.leader:
            found.append(segment(mark.at, _near_end(place), f"leader {me}"))
        found.append(label(mark.name, place.x, place.y, anchor=place.anchor, class_=f"name {me}"))
    return found


def _around(start: Point, end: Point) -> Box:
    (left, right), (top, bottom) = sorted((start[0], end[0])), sorted((start[1], end[1]))
    return left - 1, top - 1, right + 1, bottom + 1


def _near_end(place: PlacedLabel) -> Point:
    return place.x + {"start": -2, "middle": 0, "end": 2}[place.anchor], place.y


WIDE = Frame(width=560, height=340)
NARROW = Frame(width=360, height=320, left=44, font=11)
ZOOM_FROM = 85.0
"""Below this arrived load hardly any policy fails a request, so their lines coincide."""
ARRIVED = "GPUs requested so far, % of capacity"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTable:
    """The numbers behind a plot, as text."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture: `draw(frame, key)` gives its SVG, `key` names it in files and ids.

    `note` stands beside the title where the picture has no page around it.
    """

    key: str
    title: str
    caption: str
    draw: Callable[[Frame, str], Element]
    table: DataTable | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """One quantity of all policies, ready to be drawn."""

    title: str
    caption: str
    y_title: str
    lines: dict[str, Curves]
    factor: float = 1.0
    y_low: float | None = None
    y_high: float | None = None
    digits: int = 1
    unit: str = ""
    x_low: float = 0.0


def trace_charts(
    trace: TraceRuns, rows: Sequence[CompareRow], numbers: dict[str, int]
) -> list[Chart]:
    """Every plot of one trace that its data allow, in reading order."""
    found = []
    for key, subject in _subjects(trace).items():
        if chart := _line_chart(key, subject, numbers):
            found.append(chart)
    return [replace(chart, note=_note(trace)) for chart in found + _pareto(rows, numbers)]


def _note(trace: TraceRuns) -> str:
    seeds = trace.seeds
    return f"{trace.label}, " + (
        f"range of {len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    )


def _subjects(trace: TraceRuns) -> dict[str, _Subject]:
    last = _last_load(trace)
    zoom = ZOOM_FROM if last >= ZOOM_FROM + 10 else 0.0
    found = {"allocation": _allocation(trace)}
    if zoom:
        found["allocation-zoom"] = _allocation_full(trace, zoom)
    found["unallocated"] = _unallocated(trace, zoom)
    found["frag-ratio"] = _frag_ratio(trace)
    found["frag-amount"] = _frag_amount(trace)
    found["power"] = _power(trace)
    if len(trace.policies) > 1:
        found["savings"] = _savings(trace)
    return found


def _last_load(trace: TraceRuns) -> float:
    reached = [
        load
        for run in trace.runs
        for load, value in zip(run.curve.arrived_pct, run.curve.allocated_pct, strict=True)
        if value is not None
    ]
    return max(reached, default=0.0)


def _all(trace: TraceRuns, quantity: str) -> dict[str, Curves]:
    return {policy: curves(trace, policy, quantity) for policy in trace.policies}


def _allocation(trace: TraceRuns) -> _Subject:
    return _Subject(
        title="GPUs allocated",
        caption="Each line shows the share of all GPUs handed out while requests keep arriving. "
        "It rises along the diagonal as long as every request is placed and bends where requests "
        "begin to fail.",
        y_title="allocated, % of GPUs",
        lines=_all(trace, "allocated_pct"),
        y_low=0,
        y_high=100,
        unit="%",
    )


def _allocation_full(trace: TraceRuns, zoom: float) -> _Subject:
    return _Subject(
        title="GPUs allocated as the cluster fills up",
        caption="The same lines, enlarged where the policies part; note that the scale does not "
        "start at zero. The higher a line ends, the fewer GPUs its policy wastes.",
        y_title="allocated, % of GPUs",
        lines=_all(trace, "allocated_pct"),
        digits=2,
        unit="%",
        x_low=zoom,
    )


def _unallocated(trace: TraceRuns, zoom: float) -> _Subject:
    gpus = trace.cluster.gpus
    lines = {
        policy: Curves(lines.x, gpus * (1 - lines.y / 100))
        for policy, lines in _all(trace, "allocated_pct").items()
    }
    return _Subject(
        title="GPUs left unallocated",
        caption=f"Of {tick_label(gpus)} GPUs, so many are in nobody's hands at each load, shares "
        "of GPUs counted as shares. Once more than 100 % has been requested, each of them stands "
        "for a GPU that was asked for and not granted.",
        y_title="unallocated GPUs",
        lines=lines,
        y_low=0,
        digits=0 if gpus >= 500 else 1,
        x_low=zoom,
    )


def _frag_ratio(trace: TraceRuns) -> _Subject:
    return _Subject(
        title="Fragmentation ratio",
        caption="The share of the free GPUs that a typical request could not use. A line that "
        "stays low for longer keeps free GPUs usable; near 100 % hardly any of them is.",
        y_title="fragmented, % of free GPUs",
        lines=_all(trace, "frag_ratio_pct"),
        y_low=0,
        y_high=100,
        unit="%",
    )


def _frag_amount(trace: TraceRuns) -> _Subject:
    return _Subject(
        title="Fragmented GPUs",
        caption="The same unusable GPUs, counted against the whole cluster instead of what is "
        "free. Lower is better, and the value at the right is what stays wasted in the end.",
        y_title="fragmented, % of all GPUs",
        lines=_all(trace, "frag_amount_pct"),
        y_low=0,
        unit="%",
    )


def _power(trace: TraceRuns) -> _Subject:
    lines = _all(trace, "power_w")
    highest = max((_highest(line.y) for line in lines.values()), default=0.0)
    unit, factor = ("MW", 1e-6) if highest >= 1e6 else ("kW", 1e-3) if highest >= 1e4 else ("W", 1)
    return _Subject(
        title="Power of the whole cluster",
        caption="Estimated draw of all nodes, idle ones included, at each load. Compare lines "
        "straight above each other: while no request fails, the lower one does the same work with "
        "less power.",
        y_title=f"power, {unit}",
        lines=lines,
        factor=factor,
        y_low=0,
        digits={"MW": 3, "kW": 1, "W": 0}[unit],
        unit=unit,
    )


def _savings(trace: TraceRuns) -> _Subject:
    baseline = baseline_policy(trace.policies)
    others = [policy for policy in trace.policies if policy != baseline]
    return _Subject(
        title=f"Power saved against {baseline}",
        caption=f"Power saved against {baseline} on the same arrivals and at the same load; above "
        "zero is less power. Where a policy has begun to fail requests, a part of its saving is "
        "work not done.",
        y_title=f"saved, % of {baseline}'s power",
        lines={policy: saving_curves(trace, policy, baseline) for policy in others},
        y_low=None,
        unit="%",
    )


def _highest(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.max()) if known.size else 0.0


def _line_chart(key: str, subject: _Subject, numbers: dict[str, int]) -> Chart | None:
    series = tuple(
        _series(policy, lines, subject.factor, numbers[policy])
        for policy, lines in subject.lines.items()
        if np.isfinite(lines.mean).any()
    )
    if not series:
        return None
    plot = LinePlot(
        title=subject.title,
        about=subject.caption,
        x_title=ARRIVED,
        y_title=subject.y_title,
        series=series,
        x_low=subject.x_low,
        x_high=_end_of(series, subject.x_low),
        y_low=_with_zero(subject, series) if key == "savings" else subject.y_low,
        y_high=subject.y_high,
        digits=subject.digits,
        unit=subject.unit,
    )
    return Chart(
        key=key,
        title=subject.title,
        caption=subject.caption,
        draw=lambda frame, name: draw_lines(plot, frame, name),
        table=_table(plot),
    )


def _with_zero(subject: _Subject, series: Sequence[Series]) -> float | None:
    """Savings keep the zero line in sight."""
    lowest = min(value for line in series for value in (*line.low, *line.y) if np.isfinite(value))
    return min(0.0, float(lowest)) if subject.y_low is None else subject.y_low


def _series(policy: str, lines: Curves, factor: float, number: int) -> Series:
    banded = lines.y.shape[0] > 1
    return Series(
        name=policy,
        number=number,
        x=tuple(lines.x.tolist()),
        y=tuple((lines.mean * factor).tolist()),
        low=tuple((lines.low * factor).tolist()) if banded else (),
        high=tuple((lines.high * factor).tolist()) if banded else (),
    )


def _end_of(series: Sequence[Series], low: float) -> float:
    known = [
        at
        for line in series
        for at, value in zip(line.x, line.y, strict=True)
        if np.isfinite(value)
    ]
    return max(*known, low + 1)


def _table(plot: LinePlot) -> DataTable:
    step = 5 if plot.x_low else 10
    first, last = int(np.ceil(plot.x_low / step)) * step, int(plot.x_high)
    loads = list(range(first, last + 1, step))
    heads = ("policy", *(f"{load} %" for load in loads))
    return DataTable(heads=heads, rows=tuple(_table_row(plot, line, loads) for line in plot.series))


def _table_row(plot: LinePlot, series: Series, loads: Sequence[int]) -> tuple[str, ...]:
    values = np.interp(loads, series.x, series.y, np.nan, np.nan)
    cells = (tick_label(v, plot.digits) if np.isfinite(v) else "\N{EN DASH}" for v in values)
    return (series.name, *cells)


def _pareto(rows: Sequence[CompareRow], numbers: dict[str, int]) -> list[Chart]:
    if len(power_and_gpus(rows)) < 2:
        return []
    low, high = SAVING_SPAN
    caption = (
        f"To the right: more power saved against {rows[0].baseline}, mean over {low:.0f} to "
        f"{high:.0f} % arrived; upwards: more GPUs allocated at the end. Policies on the dashed "
        "line are not beaten in both at once; every other policy is."
    )
    title = "Power saved against GPUs allocated"
    return [
        Chart(
            key="pareto",
            title=title,
            caption=caption,
            draw=lambda frame, key: draw_pareto(rows, numbers, frame, key, title, caption),
        )
    ]

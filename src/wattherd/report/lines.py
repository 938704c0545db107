"""Line plots: one line and one seed band per series, with names beside the lines.

Names stand at the line ends where these are far enough apart. Where lines converge, they stand
in the order, and with the values, that the lines have at a dotted guide, which is put where the
lines are furthest apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from wattherd.report.labels import spread_out
from wattherd.report.svg import (
    Element,
    Frame,
    PlotAxis,
    Point,
    Scale,
    band,
    document,
    dot,
    label,
    polyline,
    room_for_ticks,
    round_domain,
    segment,
    text_width,
    tick_label,
    x_axis,
    y_axis,
)
from wattherd.report.theme import series_class

ROW = 15.0
"""Height of a line of labels."""
FAR = 48.0
"""A label further than this from its line end is no longer read as its name."""
EARLY = 0.25
"""No guide in this share of the range: one node more or less decides there."""
MOST_NAMES = 16
BOLD = 1.06
Y_TICKS = 6
LONGEST_NAME = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line; `low` and `high` bound its band. NaN leaves a gap at either end."""

    name: str
    number: int
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePlot:
    """What to draw: `y_low` and `y_high` are fixed ends of the scale where given."""

    title: str
    about: str
    x_title: str
    y_title: str
    series: tuple[Series, ...]
    x_low: float
    x_high: float
    y_low: float | None = None
    y_high: float | None = None
    digits: int = 1
    unit: str = ""


@dataclass(frozen=True, slots=True)
class _Canvas:
    """The plot with its scales."""

    plot: LinePlot
    frame: Frame
    x: Scale
    y: Scale

    def points(self, series: Series, values: Sequence[float]) -> list[Point]:
        """Coordinates of the known values within the plot's range of x."""
        return [
            (self.x(at), self.y(value))
            for at, value in zip(series.x, values, strict=True)
            if self.plot.x_low <= at <= self.plot.x_high and math.isfinite(value)
        ]


def draw_lines(plot: LinePlot, frame: Frame, key: str) -> Element:
    """The plot as SVG; `key` makes its ids unique on a page."""
    canvas, x_span, y_span = _canvas(plot, frame)
    marks = [*_bands(canvas), *_lines(canvas), *_names(canvas)]
    return document(
        canvas.frame,
        x_axis(x_span, canvas.x, canvas.frame),
        y_axis(y_span, canvas.y, canvas.frame),
        Element("g", *marks),
        title=plot.title,
        about=plot.about,
        key=key,
        data_x=_attribute(canvas.x),
        data_y=_attribute(canvas.y),
        data_digits=plot.digits,
        data_unit=plot.unit,
    )


def _attribute(scale: Scale) -> str:
    return f"{scale.start:g} {scale.stop:g} {scale.low:g} {scale.high:g}"


def _canvas(plot: LinePlot, frame: Frame) -> tuple[_Canvas, PlotAxis, PlotAxis]:
    low, high = _y_domain(plot)
    y_span = PlotAxis(low=low, high=high, title=plot.y_title, count=Y_TICKS)
    left, right = room_for_ticks(y_span, frame), _label_room(plot, frame, (low, high))
    frame = replace(frame, left=left, right=right)
    x_span = PlotAxis(
        low=plot.x_low, high=plot.x_high, title=plot.x_title, count=int(frame.width // 80)
    )
    x = Scale(plot.x_low, plot.x_high, *frame.x_range)
    return _Canvas(plot, frame, x, Scale(low, high, *frame.y_range)), x_span, y_span


def _label_room(plot: LinePlot, frame: Frame, ends: tuple[float, float]) -> float:
    """The right margin for the longest name with the longest value that may stand beside it."""
    if len(plot.series) > MOST_NAMES:
        return frame.right
    texts = (_text(plot, series, frame, end) for series in plot.series for end in ends)
    return 24 + BOLD * max((text_width(text, frame.font) for text in texts), default=0.0)


def _text(plot: LinePlot, series: Series, frame: Frame, value: float) -> str:
    name = series.name
    if len(name) > LONGEST_NAME:
        name = name[: LONGEST_NAME - 1] + "\N{HORIZONTAL ELLIPSIS}"
    if frame.width < 450:
        return name
    return f"{name} {tick_label(value, plot.digits)}"


def _y_domain(plot: LinePlot) -> tuple[float, float]:
    shown = [
        value
        for series in plot.series
        for values in (series.y, series.low, series.high)
        for at, value in zip(series.x, values, strict=False)
        if plot.x_low <= at <= plot.x_high and math.isfinite(value)
    ]
    low = min(shown, default=0.0) if plot.y_low is None else plot.y_low
    high = max(shown, default=1.0) if plot.y_high is None else plot.y_high
    return round_domain(low, high, Y_TICKS)


def _bands(canvas: _Canvas) -> list[Element]:
    found = []
    for series in canvas.plot.series:
        upper = canvas.points(series, series.high) if series.high else []
        lower = canvas.points(series, series.low) if series.low else []
        if len(upper) > 1:
            found.append(band(upper, lower, f"band {series_class(series.number)}"))
    return found


def _lines(canvas: _Canvas) -> list[Element]:
    found: list[Element] = []
    for series in canvas.plot.series:
        points, me = canvas.points(series, series.y), series_class(series.number)
        if len(points) == 1:
            found.append(dot(points[0], 4, f"dot {me}"))
        elif points:
            found.append(polyline(points, f"line {me}", data_name=series.name))
    return found


@dataclass(frozen=True, slots=True)
class _Name:
    series: Series
    at: Point
    value: float


def _names(canvas: _Canvas) -> list[Element]:
    ends = [name for series in canvas.plot.series if (name := _end(canvas, series))]
    if not ends or len(canvas.plot.series) > MOST_NAMES:
        return []
    places = _places(canvas, ends)
    if max(abs(place - name.at[1]) for place, name in zip(places, ends, strict=True)) <= FAR:
        beside = zip(ends, places, strict=True)
        return [mark for name, place in beside for mark in _end_name(canvas, name, place)]
    return _guided_names(canvas)


def _places(canvas: _Canvas, names: list[_Name], *, above: float = 0.0) -> list[float]:
    """Heights of a column of names that leaves `above` free at its head."""
    bottom, top = canvas.frame.y_range
    return spread_out([name.at[1] for name in names], ROW, top + 2 + above, bottom - 2)


def _end(canvas: _Canvas, series: Series) -> _Name | None:
    known = [
        (at, value)
        for at, value in zip(series.x, series.y, strict=True)
        if canvas.plot.x_low <= at <= canvas.plot.x_high and math.isfinite(value)
    ]
    if not known:
        return None
    at, value = known[-1]
    return _Name(series, (canvas.x(at), canvas.y(value)), value)


def _end_name(canvas: _Canvas, name: _Name, place: float) -> list[Element]:
    me = series_class(name.series.number)
    right = canvas.frame.x_range[1]
    x, y = name.at
    path = f"M{x + 1:.1f} {y:.1f}H{right + 3:.1f}L{right + 15:.1f} {place:.1f}"
    text = _text(canvas.plot, name.series, canvas.frame, name.value)
    return [
        Element("path", d=path, class_=f"leader {me}"),
        label(text, right + 18, place, class_=f"name {me}"),
    ]


def _guided_names(canvas: _Canvas) -> list[Element]:
    names = max(_columns(canvas), key=_separation)
    x, (bottom, top) = names[0].at[0], canvas.frame.y_range
    marks = [segment((x, bottom), (x, top), "guide")]
    places = _places(canvas, names, above=ROW)
    marks.append(_guide_note(canvas, names[0].at[0], min(places) - ROW - 2))
    marks += [dot(name.at, 3, f"dot {series_class(name.series.number)}") for name in names]
    for name, place in zip(names, places, strict=True):
        me = series_class(name.series.number)
        right = canvas.frame.x_range[1]
        text = _text(canvas.plot, name.series, canvas.frame, name.value)
        marks.append(dot((right + 10, place), 4, f"dot {me}"))
        marks.append(label(text, right + 18, place, class_=f"name {me}"))
    return marks


def _guide_note(canvas: _Canvas, at: float, height: float) -> Element:
    """Says at the head of the column of names where its values are taken."""
    x = canvas.x
    load = x.low + (at - x.start) / (x.stop - x.start) * (x.high - x.low)
    return label(f"at {load:.0f} %, dotted:", canvas.frame.x_range[1] + 6, height)


def _columns(canvas: _Canvas) -> list[list[_Name]]:
    """All series at each x where as many as possible have a value, past the first stretch."""
    columns: dict[float, list[_Name]] = {}
    for series in canvas.plot.series:
        for at, value in zip(series.x, series.y, strict=True):
            if canvas.plot.x_low <= at <= canvas.plot.x_high and math.isfinite(value):
                point = (canvas.x(at), canvas.y(value))
                columns.setdefault(at, []).append(_Name(series, point, value))
    start = canvas.plot.x_low + EARLY * (canvas.plot.x_high - canvas.plot.x_low)
    most = max(len(column) for column in columns.values())
    full = {at: column for at, column in columns.items() if len(column) == most}
    return [column for at, column in full.items() if at >= start] or list(full.values())


def _separation(column: list[_Name]) -> float:
    heights = sorted(name.at[1] for name in column)
    return sum(min(after - before, ROW) for before, after in pairwise(heights))

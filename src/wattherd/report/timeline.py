"""Pictures along an axis of time: lines, stacked areas, and axes in hours or powers of ten."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wattherd.report.labels import spread_out
from wattherd.report.svg import (
    Element,
    Frame,
    PlotAxis,
    Scale,
    band,
    curve_points,
    document,
    label,
    limit_steps,
    polyline,
    room_for_ticks,
    round_domain,
    segment,
    text_width,
    x_axis,
    y_axis,
)
from wattherd.report.theme import series_class

Floats = NDArray[np.float64]

POINTS = 240
"""Points of a line across a picture; more could not be told apart."""
UNITS = ((60.0, "min", 2 * 3600.0), (3600.0, "h", 4 * 86400.0), (86400.0, "d", math.inf))
"""Seconds of a unit, its name, and up to which span it is used."""
_DECADES = (("1 s", 1), ("10 s", 10), ("1 min", 60), ("10 min", 600), ("1 h", 3600),
            ("4 h", 14400), ("1 d", 86400), ("4 d", 345600), ("20 d", 1728000),
            ("100 d", 8640000))  # fmt: skip
_ROW = 15.0
_BOLD = 1.06


def time_unit(span_s: float) -> tuple[float, str]:
    """Seconds per unit, and the unit's name, for an axis of that length."""
    return next((each, name) for each, name, most in UNITS if span_s <= most)


def time_ends(low: float, high: float) -> tuple[float, float]:
    """The ends of an axis of time: from zero, unless all happens long after it."""
    high = high if high > low else low + 1.0
    return (0.0 if low < 0.1 * high else low), high


def averaged(time_s: Floats, end_s: float, values: Floats, points: int = POINTS) -> Floats:
    """Steps that begin at `time_s` (S,), averaged over `points` equal spans up to `end_s`."""
    edges = np.append(time_s, end_s)
    total = np.concatenate([[0.0], np.cumsum(values * np.diff(edges))])
    cuts = np.linspace(time_s[0], end_s, points + 1)
    return np.asarray(np.diff(np.interp(cuts, edges, total)) / np.diff(cuts))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotLine:
    """One line; x and y of equal length."""

    name: str
    number: int
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Lines over time; with `log` the x are seconds on a logarithmic axis."""

    title: str
    about: str
    x_title: str
    y_title: str
    lines: tuple[PlotLine, ...]
    y_high: float | None = None
    log: bool = False


def draw_timelines(plot: Lines, frame: Frame, key: str) -> Element:
    """The lines with their names at the right, where there are few enough."""
    flat = [value for line in plot.lines for value in line.y]
    y_low, y_high = round_domain(0.0, plot.y_high or max(flat, default=1.0), 5)
    y_span = PlotAxis(low=y_low, high=y_high, title=plot.y_title, count=5)
    names = max((text_width(line.name, frame.font) for line in plot.lines), default=0.0)
    frame = replace(frame, left=room_for_ticks(y_span, frame), right=24 + _BOLD * names)
    across = [value for line in plot.lines for value in line.x]
    scale, axis = _log_axis(across, plot, frame) if plot.log else _axis(across, plot, frame)
    y = Scale(y_low, y_high, *frame.y_range)
    marks = []
    for line in plot.lines:
        points = [
            (scale(_place(at, plot)), y(value)) for at, value in zip(line.x, line.y, strict=True)
        ]
        marks.append(polyline(points, f"line {series_class(line.number)}", data_name=line.name))
    return document(
        frame,
        axis,
        y_axis(y_span, y, frame),
        Element("g", *marks),
        Element("g", *_names(plot, scale, y, frame)),
        title=plot.title,
        about=plot.about,
        key=key,
    )


def _place(at: float, plot: Lines) -> float:
    return math.log10(max(at, 1.0)) if plot.log else at


def _axis(across: Sequence[float], plot: Lines, frame: Frame) -> tuple[Scale, Element]:
    low, high = time_ends(min(across, default=0.0), max(across, default=1.0))
    span = PlotAxis(low=low, high=high, title=plot.x_title, count=int(frame.width // 80))
    scale = Scale(low, high, *frame.x_range)
    return scale, x_axis(span, scale, frame)


def _log_axis(across: Sequence[float], plot: Lines, frame: Frame) -> tuple[Scale, Element]:
    least, most = max(min(across, default=1.0), 1.0), max(across, default=10.0)
    low = max(value for _, value in _DECADES if value <= least)
    high = min((value for _, value in _DECADES if value >= most and value > low), default=most)
    scale = Scale(math.log10(low), math.log10(high), *frame.x_range)
    bottom, top = frame.y_range
    group = Element("g", class_="axis")
    for text, value in _DECADES:
        if low <= value <= high:
            x = scale(math.log10(value))
            group.add(segment((x, bottom), (x, top), "rule"))
            group.add(label(text, x, bottom + 14, anchor="middle"))
    middle = sum(frame.x_range) / 2
    title = label(plot.x_title, middle, bottom + 33, anchor="middle", class_="axis-title")
    return scale, group.add(segment((scale.start, bottom), (scale.stop, bottom), "base"), title)


def _names(plot: Lines, x: Scale, y: Scale, frame: Frame) -> list[Element]:
    """Each line's name at the right edge, led to its end."""
    ends = [(_place(line.x[-1], plot), line.y[-1]) for line in plot.lines]
    bottom, top = frame.y_range
    places = spread_out([y(value) for _, value in ends], _ROW, top + 2, bottom - 2)
    right, found = frame.x_range[1], []
    for line, (at, value), place in zip(plot.lines, ends, places, strict=True):
        me = series_class(line.number)
        path = f"M{x(at) + 1:.1f} {y(value):.1f}H{right + 3:.1f}L{right + 14:.1f} {place:.1f}"
        found.append(Element("path", d=path, class_=f"leader {me}"))
        found.append(label(line.name, right + 17, place, class_=f"name {me}"))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Areas on top of each other, a ceiling, and the peak below it; columns by span (P,).

    `layers` are (class, name, heights), the lowest first. The ceiling is infinite where there is
    none.
    """

    title: str
    about: str
    x_title: str
    y_title: str
    x: Floats
    layers: tuple[tuple[str, str, Floats], ...]
    peak: Floats
    ceiling: Floats
    ceiling_name: str
    y_high: float
    peak_name: str = "peak"


def draw_stack(plot: Stack, frame: Frame, key: str) -> Element:
    """The stack as SVG."""
    y_low, y_high = round_domain(0.0, plot.y_high, 5)
    y_span = PlotAxis(low=y_low, high=y_high, title=plot.y_title, count=5)
    frame = replace(frame, left=room_for_ticks(y_span, frame), right=14, top=frame.top + 18)
    x = Scale(*time_ends(float(plot.x[0]), float(plot.x[-1])), *frame.x_range)
    y = Scale(y_low, y_high, *frame.y_range)
    span = PlotAxis(low=x.low, high=x.high, title=plot.x_title, count=int(frame.width // 80))
    return document(
        frame,
        Element("g", *_areas(plot, x, y)),
        x_axis(span, x, frame),
        y_axis(y_span, y, frame),
        polyline(curve_points(plot.x, plot.peak, x, y), "peak"),
        *(polyline(part, "ceiling") for part in limit_steps(plot.x, plot.ceiling, x, y)),
        Element("g", *_key(plot, frame)),
        title=plot.title,
        about=plot.about,
        key=key,
    )


def _areas(plot: Stack, x: Scale, y: Scale) -> Iterable[Element]:
    below = np.zeros(len(plot.x))
    for class_, _, heights in plot.layers:
        above = below + heights
        yield band(
            curve_points(plot.x, above, x, y), curve_points(plot.x, below, x, y), f"area {class_}"
        )
        below = above


def _key(plot: Stack, frame: Frame) -> list[Element]:
    """Names of the layers and lines, above the picture."""
    found, at, y = [], frame.x_range[0], frame.top - 12
    for class_, name, _ in plot.layers:
        found.append(Element("rect", x=at, y=y - 5, width=11, height=10, class_=f"area {class_}"))
        found.append(label(name, at + 16, y))
        at += 30 + text_width(name, frame.font)
    lines = [("peak", plot.peak_name)]
    if np.isfinite(plot.ceiling).any():
        lines.append(("ceiling", plot.ceiling_name))
    for class_, name in lines:
        found.append(segment((at, y), (at + 14, y), class_))
        found.append(label(name, at + 19, y))
        at += 34 + text_width(name, frame.font)
    return found

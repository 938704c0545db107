"""The Pareto plot: power saved to the right, GPUs allocated upwards, the front drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from wattherd.report.compare import CompareRow, SeedSpread, pareto_front, power_and_gpus
from wattherd.report.labels import Box, PlacedLabel, place_around
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

"""The Pareto plot of schedulers: energy to the right, mean completion time upwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wattherd.report.compare import pareto_front
from wattherd.report.labels import place_around
from wattherd.report.schedule_runs import PolicyFigures
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
    x_axis,
    y_axis,
)
from wattherd.report.theme import series_class
from wattherd.units import show_seconds

_JOULES = ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1.0, "J"))


def eligible(figures: PolicyFigures) -> bool:
    """Whether a policy may stand on the front: all jobs done, never above the budget."""
    return figures.finished == figures.jobs and figures.over_budget_s == 0


def front(shown: Sequence[PolicyFigures]) -> list[str]:
    """Policies on the front of energy and mean completion time, by ascending energy."""
    points = {
        one.policy: (-one.all_energy_j, -(one.avg_jct_s or 0.0)) for one in shown if eligible(one)
    }
    return list(reversed(pareto_front(points)))


def draw_energy_pareto(
    shown: Sequence[PolicyFigures], numbers: dict[str, int], frame: Frame, key: str
) -> Element:
    """A dot and a name per policy, and the front; policies that are not eligible are hollow."""
    largest = max(one.all_energy_j for one in shown)
    each, joules = next(unit for unit in _JOULES if largest >= 10 * unit[0] or unit[0] == 1.0)
    longest = max(one.avg_jct_s or 0.0 for one in shown)
    per, time = (3600.0, "h") if longest >= 7200 else (60.0, "min")
    points = [(one.all_energy_j / each, (one.avg_jct_s or 0.0) / per) for one in shown]
    x_span = _span([x for x, _ in points], f"energy ({joules})", int(frame.width // 90))
    y_span = _span([y for _, y in points], f"mean completion time ({time})", 5)
    frame = replace(frame, left=room_for_ticks(y_span, frame), right=24)
    x = Scale(x_span.low, x_span.high, *frame.x_range)
    y = Scale(y_span.low, y_span.high, *frame.y_range)
    at = [(x(a), y(b)) for a, b in points]
    place = {one.policy: point for one, point in zip(shown, at, strict=True)}
    marks = [_dot(one, numbers[one.policy], place[one.policy]) for one in shown]
    return document(
        frame,
        x_axis(x_span, x, frame),
        y_axis(y_span, y, frame),
        polyline([place[name] for name in front(shown)], "front"),
        Element("g", *marks),
        Element("g", *_names(shown, numbers, at, frame)),
        title="Completion time against energy",
        about="One dot per policy; lower left is better, the dashed line joins the best",
        key=key,
    )


def _span(values: Sequence[float], title: str, count: int) -> PlotAxis:
    room = 0.1 * (max(values) - min(values)) or max(0.05 * abs(values[0]), 1.0)
    return PlotAxis(
        low=max(min(values) - room, 0.0), high=max(values) + room, title=title, count=count
    )


def _dot(one: PolicyFigures, number: int, at: Point) -> Element:
    mean = show_seconds(one.avg_jct_s or 0.0)
    tip = f"{one.policy}: {mean} on average, {one.all_energy_j / 1e6:,.1f} MJ"
    me = series_class(number)
    return dot(at, 6, f"dot {me}" if eligible(one) else f"hollow {me} line", tip)


def _names(
    shown: Sequence[PolicyFigures], numbers: dict[str, int], at: Sequence[Point], frame: Frame
) -> list[Element]:
    (left, right), (bottom, top) = frame.x_range, frame.y_range
    widths = [text_width(one.policy, frame.font) * 1.08 for one in shown]
    places = place_around(at, widths, 15, (left + 2, top, right + frame.right - 2, bottom))
    found = []
    for one, point, place in zip(shown, at, places, strict=True):
        me = series_class(numbers[one.policy])
        if place.leader:
            end = place.x + {"start": -2, "middle": 0, "end": 2}[place.anchor], place.y
            found.append(segment(point, end, f"leader {me}"))
        found.append(label(one.policy, place.x, place.y, anchor=place.anchor, class_=f"name {me}"))
    return found

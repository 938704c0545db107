"""How fast a job would be at how many watts: its curve, what was measured, and where it is now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    round_domain,
    segment,
    x_axis,
    y_axis,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePicture:
    """Points are (watts per GPU, throughput in `unit`); `now` is the operating point."""

    curve: Sequence[Point]
    measured: Sequence[Point]
    now: Point | None
    unit: str
    estimated: bool


def draw_curve(plot: CurvePicture, frame: Frame, key: str) -> Element:
    """The picture as SVG."""
    points = [*plot.curve, *plot.measured, *([plot.now] if plot.now else [])]
    low_w, high_w = round_domain(0.0, max(w for w, _ in points), 5)
    low, high = round_domain(0.0, 1.08 * max(rate for _, rate in points), 4)
    rates = PlotAxis(low=low, high=high, title=plot.unit, count=4)
    title = "W per GPU (estimated)" if plot.estimated else "W per GPU"
    watts = PlotAxis(low=low_w, high=high_w, title=title, count=5)
    frame = replace(frame, left=room_for_ticks(rates, frame), right=14)
    x, y = Scale(low_w, high_w, *frame.x_range), Scale(low, high, *frame.y_range)
    marks = [polyline([(x(w), y(r)) for w, r in plot.curve], "line k0")]
    marks += [dot((x(w), y(r)), 3, "dot k1", f"{r:,.3g} at {w:,.1f} W") for w, r in plot.measured]
    if plot.now is not None:
        marks += _operating_point(plot.now, x, y, frame)
    about = f"A curve of {len(plot.curve)} points, {len(plot.measured)} measured"
    return document(
        frame, x_axis(watts, x, frame), y_axis(rates, y, frame), *marks,
        title="Throughput by power", about=about, key=key,
    )  # fmt: skip


def _operating_point(now: Point, x: Scale, y: Scale, frame: Frame) -> list[Element]:
    at = x(now[0]), y(now[1])
    right = at[0] < frame.width / 2
    text = label("now", at[0] + (10 if right else -10), at[1] + 12,
                 anchor="start" if right else "end", class_="axis-title")  # fmt: skip
    return [
        segment((at[0], y.start), at, "guide"),
        dot(at, 6, "dot k2", f"now: {now[1]:,.3g} at {now[0]:,.1f} W"),
        text,
    ]

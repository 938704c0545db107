"""Who held which GPU when: a row per GPU, a bar per run, paler where it was capped lower."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from wattherd.report.svg import (
    Element,
    Frame,
    PlotAxis,
    Scale,
    document,
    label,
    number,
    segment,
    text_width,
    x_axis,
)

ROW, GAP = 18.0, 3.0
PALEST = 0.35
"""Opacity at the lowest caps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A run on GPU row `row` from `start` to `stop` at one cap; `share` is cap by highest draw."""

    row: int
    start: float
    stop: float
    name: str
    hue: int
    share: float
    tip: str
    link: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """Something was decided at `at`."""

    at: float
    tip: str
    link: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuGantt:
    """Bars and markers between `low` and `high`, in `unit`; `rows` are the names of the GPUs."""

    rows: Sequence[str]
    bars: Sequence[Bar]
    markers: Sequence[Marker]
    low: float
    high: float
    unit: str


def draw_gpu_gantt(plot: GpuGantt, frame: Frame, key: str) -> Element:
    """The chart as SVG; it is as high as it has rows."""
    names = max((text_width(name, frame.font) for name in plot.rows), default=20.0)
    top = frame.top + 18
    height = top + len(plot.rows) * (ROW + GAP) + frame.bottom
    frame = replace(frame, left=min(names + 12, 130.0), right=14, top=top, height=height)
    x = Scale(plot.low, max(plot.high, plot.low + 1e-9), *frame.x_range)
    span = PlotAxis(low=x.low, high=x.high, title=plot.unit, count=int(frame.width // 90))
    picture = document(
        frame,
        x_axis(span, x, frame),
        Element("g", *_rows(plot, frame)),
        *_bars(plot, x, frame),
        *_markers(plot, x, frame),
        title="Who held which GPU when",
        about=f"{len(plot.rows)} GPUs, {len(plot.bars)} bars, {len(plot.markers)} decisions",
        key=key,
    )
    picture.attributes["role"] = "group"  # an image could hold no links
    return picture


def _middle(row: int, frame: Frame) -> float:
    return frame.top + row * (ROW + GAP) + ROW / 2


def _rows(plot: GpuGantt, frame: Frame) -> Iterator[Element]:
    for row, name in enumerate(plot.rows):
        y = _middle(row, frame)
        yield label(name, frame.left - 8, y, anchor="end")
        yield segment((frame.left, y + ROW / 2 + 1), (frame.x_range[1], y + ROW / 2 + 1), "rule")


def _bars(plot: GpuGantt, x: Scale, frame: Frame) -> Iterator[Element]:
    for bar in plot.bars:
        left, right = max(x(bar.start), x.start), min(x(bar.stop), x.stop)
        width = max(right - left, 1.0)
        y = _middle(bar.row, frame)
        opacity = number(PALEST + (1 - PALEST) * min(max(bar.share, 0.0), 1.0), 2)
        shape = Element(
            "rect", x=left, y=y - ROW / 2, width=width, height=ROW, rx=2,
            class_=f"bar k{bar.hue} held", fill_opacity=opacity,
        )  # fmt: skip
        link = Element("a", shape.add(Element("title", bar.tip)), href=bar.link)
        link.attributes["aria-label"] = bar.tip
        if width > text_width(bar.name, frame.font) + 8:
            link.add(label(bar.name, left + width / 2, y, anchor="middle", class_="inside"))
        yield link


def _markers(plot: GpuGantt, x: Scale, frame: Frame) -> Iterator[Element]:
    """Triangles along the upper edge."""
    y = frame.top - 12
    for marker in plot.markers:
        at = number(x(marker.at))
        shape = Element("path", d=f"M{at} {number(y + 9)}l-5 -9h10z", class_="marker held")
        yield Element(
            "a", shape.add(Element("title", marker.tip)), href=marker.link, aria_label=marker.tip
        )

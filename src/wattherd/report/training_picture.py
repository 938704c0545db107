"""How a training went: a figure by step or time, a line for every run, marked where runs begin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    number,
    polyline,
    room_for_ticks,
    round_domain,
    segment,
    text_width,
    x_axis,
    y_axis,
)
from wattherd.report.theme import series_class


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """Reports of one run, in order of time; `name` is what its beginning is marked with."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPicture:
    """`runs` have a point each at least; with `from_zero` the axis begins there."""

    title: str
    about: str
    x_title: str
    y_title: str
    hue: int
    runs: Sequence[RunLine]
    from_zero: bool = False


def draw_training(plot: TrainingPicture, frame: Frame, key: str) -> Element:
    """The picture as SVG."""
    across = [x for run in plot.runs for x, _ in run.points]
    values = [y for run in plot.runs for _, y in run.points]
    low, high = round_domain(min(0.0, *values) if plot.from_zero else min(values), max(values), 5)
    span = PlotAxis(low=low, high=high, title=plot.y_title, count=5)
    frame = replace(frame, left=room_for_ticks(span, frame), right=14, top=frame.top + 16)
    y = Scale(low, high, *frame.y_range)
    begin, end = min(across), max(across)
    x = Scale(begin, end if end > begin else begin + 1.0, *frame.x_range)
    along = PlotAxis(low=x.low, high=x.high, title=plot.x_title, count=int(frame.width // 90))
    me = series_class(plot.hue)
    marks = [shape for run in plot.runs for shape in _line(run, x, y, me)]
    return document(
        frame,
        x_axis(along, x, frame),
        y_axis(span, y, frame),
        Element("g", *marks),
        Element("g", *_beginnings(plot, x, frame)),
        title=plot.title,
        about=plot.about,
        key=key,
    )


def _line(run: RunLine, x: Scale, y: Scale, me: str) -> Iterator[Element]:
    points = [(x(across), y(value)) for across, value in run.points]
    if len(points) == 1:
        yield dot(points[0], 2.5, f"dot {me}")
    else:
        yield polyline(points, f"line {me}", data_name=run.name)


def _beginnings(plot: TrainingPicture, x: Scale, frame: Frame) -> Iterator[Element]:
    """A line down where a later run begins; its name where there is room for it."""
    bottom, top = frame.y_range
    free = x.start
    for run in plot.runs[1:]:
        at = x(run.points[0][0])
        guide = segment((at, bottom), (at, top - 4), "guide")
        yield guide.add(Element("title", run.name))
        width = text_width(run.name, frame.font)
        left = min(at, frame.x_range[1] - width)
        if left >= free:
            yield label(run.name, float(number(left)), top - 11)
            free = left + width + 8

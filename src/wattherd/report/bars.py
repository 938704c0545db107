"""Grouped bars, one picture per family of traces: a group per trace, a bar per policy.

Families are told by name (`cpu050`, `gpushare40`, `multigpu20`, `gpuspec33`); all other traces
form one of their own. Bars start at zero, and all families share one scale.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wattherd.report.charts import Chart
from wattherd.report.compare import CompareRow, SeedSpread
from wattherd.report.svg import (
    Element,
    Frame,
    PlotAxis,
    Point,
    Scale,
    bar,
    document,
    label,
    room_for_ticks,
    round_domain,
    segment,
    text_width,
    tick_label,
    y_axis,
)
from wattherd.report.theme import series_class

FAMILIES = {
    "cpu": "CPU-only requests",
    "gpushare": "GPU-sharing requests",
    "multigpu": "Multi-GPU requests",
    "gpuspec": "Requests for certain GPU models",
}
OTHER = "Other traces"
GAP = 14.0
"""Space between two traces."""
WIDEST = 26.0
ALONE = 450.0
"""From this width on a picture names its policies itself; narrower ones stand below a legend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What the bars show, in words and as a figure of a row."""

    title: str
    y_title: str
    caption: str
    quantity: Callable[[CompareRow], SeedSpread | None]
    smaller_is_better: bool
    digits: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPlot:
    """One family: its rows by trace, and the scale that all families share."""

    name: str
    measure: Measure
    groups: dict[str, tuple[CompareRow, ...]]
    low: float
    high: float

    @property
    def title(self) -> str:
        """The measure and the family."""
        return f"{self.measure.title}: {self.name}"


def family(trace: str) -> str:
    """The family a trace belongs to, by the letters before its number."""
    found = re.match(r"([a-z]+)\d+", trace)
    return FAMILIES.get(found[1], OTHER) if found else OTHER


def by_family(rows: Sequence[CompareRow]) -> dict[str, dict[str, tuple[CompareRow, ...]]]:
    """Family to trace to its rows; families in a fixed order, traces sorted by name."""
    found: dict[str, dict[str, list[CompareRow]]] = {}
    for row in sorted(rows, key=lambda row: row.trace):
        found.setdefault(family(row.trace), {}).setdefault(row.trace, []).append(row)
    order = [OTHER, *FAMILIES.values()]
    return {
        name: {trace: tuple(members) for trace, members in found[name].items()}
        for name in order
        if name in found
    }


def unallocated_pct(row: CompareRow) -> SeedSpread:
    """GPUs left over at the end, in percent of all."""
    held = row.allocated_pct
    return SeedSpread(
        mean=100 - held.mean, sd=held.sd, low=100 - held.high, high=100 - held.low, seeds=held.seeds
    )


def mean_saving(row: CompareRow) -> SeedSpread | None:
    """Power saved, mean over 20..80 % arrived."""
    return row.mean_saving_pct


MEASURES = {
    "unallocated": Measure(
        title="GPUs left unallocated at the end",
        y_title="unallocated, % of GPUs",
        caption="Shorter bars waste fewer GPUs; the best policy of each trace is named below it. "
        "Thin lines run from the lowest to the highest seed.",
        quantity=unallocated_pct,
        smaller_is_better=True,
    ),
    "savings": Measure(
        title="Power saved at equal load",
        y_title="power saved, %",
        caption="Longer bars save more power against the baseline, mean over 20 to 80 % arrived; "
        "the best policy of each trace is named below it. Thin lines run from the lowest to the "
        "highest seed.",
        quantity=mean_saving,
        smaller_is_better=False,
    ),
}


def bar_domain(rows: Sequence[CompareRow], measure: Measure) -> tuple[float, float]:
    """A common scale for all families that includes zero."""
    known = [found for row in rows if (found := measure.quantity(row))]
    low, high = min(found.low for found in known), max(found.high for found in known)
    return round_domain(min(0.0, low), max(0.0, high), 5)


def draw_bars(plot: BarPlot, numbers: dict[str, int], frame: Frame, key: str) -> Element:
    """The bars of one family; below each trace stands who is best, and at what value."""
    axis = PlotAxis(low=plot.low, high=plot.high, title=plot.measure.y_title, count=5)
    names = _policies(plot) if frame.width >= ALONE else []
    wide = max((text_width(name, frame.font) for name in names), default=0.0)
    frame = replace(
        frame, left=room_for_ticks(axis, frame), right=frame.right + (28 + wide if names else 0)
    )
    y = Scale(plot.low, plot.high, *frame.y_range)
    left, right = frame.x_range
    share = (right - left) / len(plot.groups)
    marks = Element("g")
    for place, (trace, rows) in enumerate(plot.groups.items()):
        middle, floor = left + (place + 0.5) * share, frame.y_range[0]
        marks.add(*_group(plot, rows, numbers, (middle, share - GAP), y))
        marks.add(label(trace, middle, floor + 13, anchor="middle", class_="axis-title"))
        marks.add(*_best(plot, rows, numbers, (middle, floor + 28), share / frame.font))
    marks.add(*_legend(names, numbers, frame))
    words = {"title": plot.title, "about": plot.measure.caption}
    return document(frame, y_axis(axis, y, frame), marks, **words, key=key)


def _policies(plot: BarPlot) -> list[str]:
    return list(dict.fromkeys(row.policy for rows in plot.groups.values() for row in rows))


def _legend(names: Sequence[str], numbers: dict[str, int], frame: Frame) -> list[Element]:
    """A column of policies at the right, each with its colour."""
    x, top = frame.x_range[1] + 6, frame.y_range[1] + 8
    found = []
    for place, name in enumerate(names):
        me, y = series_class(numbers[name]), top + 16 * place
        found.append(Element("rect", x=x, y=y - 5, width=10, height=10, class_=f"bar {me}"))
        found.append(label(name, x + 16, y, class_=f"name {me}"))
    return found


def _group(
    plot: BarPlot,
    rows: Sequence[CompareRow],
    numbers: dict[str, int],
    span: tuple[float, float],
    y: Scale,
) -> list[Element]:
    """The bars of one trace; `span` is the middle and the room they may take."""
    width = min(WIDEST, span[1] / len(rows))
    thick = max(width - 1.5, 1.0)
    found: list[Element] = []
    for place, row in enumerate(rows):
        if value := plot.measure.quantity(row):
            x = span[0] + (place - len(rows) / 2) * width
            me = series_class(numbers[row.policy])
            tip = f"{row.trace}, {row.policy}: {tick_label(value.mean, 2)} %"
            found.append(bar(x, thick, (y(0), y(value.mean)), f"bar {me}", tip))
            found += _range(value, x + thick / 2, y)
    return found


def _range(value: SeedSpread, x: float, y: Scale) -> list[Element]:
    return [segment((x, y(value.low)), (x, y(value.high)), "spread")] if value.seeds > 1 else []


def _best(
    plot: BarPlot, rows: Sequence[CompareRow], numbers: dict[str, int], at: Point, room: float
) -> list[Element]:
    """The best policy's name, where it fits, and value; `room` in units of the font size."""
    known = [(value.mean, row.policy) for row in rows if (value := plot.measure.quantity(row))]
    if len(known) < 2:
        return []
    best, policy = min(known) if plot.measure.smaller_is_better else max(known)
    figure = tick_label(best, plot.measure.digits)
    whole = f"{policy} {figure}"
    text = whole if text_width(whole, 1.0) <= room else figure
    me = series_class(numbers[policy])
    return [label(text, *at, anchor="middle", class_=f"name {me}")]


def charts(rows: Sequence[CompareRow], numbers: dict[str, int], measure: Measure) -> list[Chart]:
    """A chart of `measure` per family."""
    low, high = bar_domain(rows, measure)
    plots = (
        BarPlot(name=name, measure=measure, groups=groups, low=low, high=high)
        for name, groups in by_family(rows).items()
    )
    return [_chart(plot, numbers) for plot in plots]


def _chart(plot: BarPlot, numbers: dict[str, int]) -> Chart:
    return Chart(
        key=plot.name.lower().replace(" ", "-"),
        title=plot.title,
        caption=plot.measure.caption,
        draw=lambda frame, key: draw_bars(plot, numbers, frame, key),
    )

"""The signature picture: what a site draws, stacked by job, against what it may draw.

Colour is a job's, in every picture alike; what belongs to no job is grey. Where the draw is above
the budget, the part above it is hatched and marked along the axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

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
    number,
    polyline,
    room_for_ticks,
    round_domain,
    segment,
    text_width,
    x_axis,
    y_axis,
)

Floats = NDArray[np.float64]
HUES = 10
"""Colours that jobs take turns with."""
LEAST_NAMED = 15.0
"""Height at which a layer has room for its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawLayer:
    """One job's watts (P,), or with `hue` None what belongs to no job."""

    name: str
    watts: Floats
    hue: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawMark:
    """Something that happened at a time of the picture; `lines` say what, `link` leads to more."""

    at: float
    lines: tuple[str, ...]
    link: str

    @property
    def tip(self) -> str:
        """All that it says."""
        return " ".join(self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawPicture:
    """Draw over time; `at` (P,) in `unit`, ascending; `budget_w` (P,) is infinite where none is.

    `until` is where the axis ends. The stack shows means, `most_w` (P,) the highest draw within
    each span.
    """

    at: Floats
    unit: str
    layers: Sequence[DrawLayer]
    most_w: Floats
    budget_w: Floats
    estimated: bool
    until: float
    marks: Sequence[DrawMark] = ()

    @property
    def over(self) -> NDArray[np.bool_]:
        """Where the draw was above the budget (P,)."""
        return self.most_w > self.budget_w

    @property
    def about(self) -> str:
        """The picture in words."""
        last_w, budget_w = float(self.most_w[-1]), float(self.budget_w[-1])
        within = "no budget" if math.isinf(budget_w) else f"a budget of {budget_w:,.1f} W"
        share = float(self.over.mean())
        return f"{last_w:,.1f} W at the end, under {within}; above it {share:.0%} of the time"


def hue_of(job_id: str) -> int:
    """The colour number of a job: neighbours in order of submission differ."""
    digits = "".join(one for one in job_id if one.isdigit())
    return (int(digits) - 1) % HUES if digits else sum(job_id.encode()) % HUES


def draw_draw(plot: DrawPicture, frame: Frame, key: str) -> Element:
    """The picture as SVG."""
    finite = plot.budget_w[np.isfinite(plot.budget_w)]
    top = max(float(plot.most_w.max(initial=1.0)), float(finite.max(initial=0.0)))
    low_w, high_w = round_domain(0.0, 1.08 * top, 5)
    title = "W (estimated)" if plot.estimated else "W"
    watts = PlotAxis(low=low_w, high=high_w, title=title, count=5)
    frame = replace(frame, left=room_for_ticks(watts, frame), right=14, top=frame.top + 20)
    low, high = float(plot.at[0]), plot.until
    x = Scale(low, high if high > low else low + 1.0, *frame.x_range)
    y = Scale(low_w, high_w, *frame.y_range)
    time = PlotAxis(low=x.low, high=x.high, title=plot.unit, count=int(frame.width // 90))
    picture = document(
        frame,
        _hatch(key),
        Element("g", *_areas(plot, x, y, frame)),
        x_axis(time, x, frame),
        y_axis(watts, y, frame),
        *_violations(plot, x, y, key),
        polyline(curve_points(plot.at, plot.most_w, x, y), "total"),
        *(polyline(part, "ceiling") for part in limit_steps(plot.at, plot.budget_w, x, y)),
        Element("g", *_key(plot, frame)),
        *_marks(plot, x, frame),
        title="Draw against budget, by job",
        about=plot.about,
        key=key,
    )
    if plot.marks:
        picture.attributes["role"] = "group"  # an image could hold no links
    return picture


def _marks(plot: DrawPicture, x: Scale, frame: Frame) -> Iterator[Element]:
    """A triangle at the upper edge, a dashed line down; its text shows under mouse and focus."""
    bottom, top = frame.y_range
    left, right = frame.x_range
    for mark in plot.marks:
        at = x(mark.at)
        anchor = "start" if at < left + (right - left) / 3 else "end"
        shown = at + 8 if anchor == "start" else at - 8
        yield Element(
            "a",
            segment((at, bottom), (at, top), "guide"),
            Element("path", Element("title", mark.tip), class_="marker held",
                    d=f"M{number(at)} {number(top + 9)}l-5 -9h10z"),
            *(
                label(line, shown, top + 14 + 16 * row, anchor=anchor, class_="inside tip")
                for row, line in enumerate(mark.lines)
            ),
            href=mark.link,
            aria_label=mark.tip,
        )  # fmt: skip


def _hatch(key: str) -> Element:
    stroke = Element("path", d="M0 6L6 0M-1 1L1 -1M5 7L7 5", class_="hatch")
    return Element("defs").add(
        Element(
            "pattern", stroke, id=f"{key}-hatch", width=6, height=6, patternUnits="userSpaceOnUse"
        )
    )


def _areas(plot: DrawPicture, x: Scale, y: Scale, frame: Frame) -> Iterator[Element]:
    below = np.zeros(len(plot.at))
    for layer in plot.layers:
        above = below + layer.watts
        class_ = "area rest" if layer.hue is None else f"bar stack k{layer.hue}"
        area = band(curve_points(plot.at, above, x, y), curve_points(plot.at, below, x, y), class_)
        yield area.add(Element("title", layer.name))
        yield from _name(layer, below, above, y, frame)
        below = above


def _name(
    layer: DrawLayer, below: Floats, above: Floats, y: Scale, frame: Frame
) -> Iterator[Element]:
    """Its name where the layer is thickest, if it fits in there."""
    at = int(np.argmax(_smooth(layer.watts)))
    height = y(float(below[at])) - y(float(above[at]))
    half = text_width(layer.name, frame.font) / 2
    left, right = frame.x_range
    wide = (right - left) * float((layer.watts > 0).mean())
    if height < LEAST_NAMED or wide < 2 * half + 8:
        return
    share = at / max(len(above) - 1, 1)
    middle = min(max(left + share * (right - left), left + half + 4), right - half - 4)
    height_y = y(float(below[at] + above[at]) / 2)
    yield label(layer.name, middle, height_y, anchor="middle", class_="inside")


def _smooth(watts: Floats) -> Floats:
    """Means of the surroundings, so that a short peak attracts no name."""
    width = max(1, len(watts) // 6)
    return np.convolve(watts, np.ones(width) / width, mode="same")


def _violations(plot: DrawPicture, x: Scale, y: Scale, key: str) -> Iterator[Element]:
    """The part above the budget, and where along the axis that was."""
    if not plot.over.any():
        return
    budget_w = np.where(np.isfinite(plot.budget_w), plot.budget_w, plot.most_w)
    upper = np.maximum(plot.most_w, budget_w)
    above = band(curve_points(plot.at, upper, x, y), curve_points(plot.at, budget_w, x, y), "over")
    above.attributes["fill"] = f"url(#{key}-hatch)"
    yield above
    bottom = y.start
    each = (x.stop - x.start) / max(len(plot.at) - 1, 1)
    for at in plot.at[plot.over].tolist():
        left = max(x(at) - each / 2, x.start)
        yield segment((left, bottom), (min(left + max(each, 2.0), x.stop), bottom), "offence")


def _key(plot: DrawPicture, frame: Frame) -> Iterator[Element]:
    names = [("total", "draw")]
    if np.isfinite(plot.budget_w).any():
        names.append(("ceiling", "budget"))
    if plot.over.any():
        names.append(("offence", "above budget"))
    at, y = frame.x_range[0], frame.top - 13
    for class_, name in names:
        yield segment((at, y), (at + 16, y), class_)
        yield label(name, at + 21, y)
        at += 36 + text_width(name, frame.font)

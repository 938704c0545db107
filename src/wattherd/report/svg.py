"""A small SVG writer: elements, linear scales with round ticks, axes, and the marks of a plot.

Colours and fonts are left to the style sheet: marks carry classes only, so that the same picture
serves a light page, a dark page and a printed figure. Knows nothing of policies, runs or pages.
Lengths are in user units of the view box, which are CSS pixels at natural size.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Point = tuple[float, float]
Value = str | float | int | None

NAMESPACE = "http://www.w3.org/2000/svg"
CHARACTER_WIDTH = 0.6
"""Mean width of a character of a wide sans-serif face, in units of the font size."""


class Element:
    """One SVG element; `class_` and `text_anchor` become `class` and `text-anchor`."""

    __slots__ = ("attributes", "children", "tag")

    def __init__(self, tag: str, *children: Element | str, **attributes: Value) -> None:
        """Keep the children in order; attributes that are None are left out."""
        self.tag = tag
        self.children: list[Element | str] = list(children)
        self.attributes = attributes

    def add(self, *children: Element | str) -> Element:
        """Append children and return the element itself."""
        self.children.extend(children)
        return self

    def render(self) -> str:
        """The element as XML text, every attribute and text escaped."""
        head = f"{self.tag}{_attributes(self.attributes)}"
        if not self.children:
            return f"<{head}/>"
        inner = (
            child.render() if isinstance(child, Element) else html.escape(child, quote=False)
            for child in self.children
        )
        return f"<{head}>{''.join(inner)}</{self.tag}>"


def _attributes(attributes: dict[str, Value]) -> str:
    written = []
    for name, value in attributes.items():
        if value is None:
            continue
        text = value if isinstance(value, str) else number(value)
        written.append(f' {name.rstrip("_").replace("_", "-")}="{html.escape(text)}"')
    return "".join(written)


def number(value: float, digits: int = 1) -> str:
    """A coordinate with at most `digits` decimals and no superfluous zeros."""
    text = f"{value:.{digits}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values `low..high` linearly to coordinates `start..stop`."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """The coordinate of `value`; values outside the range map outside."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)


def tick_step(low: float, high: float, count: int) -> float:
    """The round step (1, 2 or 5 times a power of ten) that gives about `count` intervals."""
    raw = (high - low) / max(count, 1)
    if not (math.isfinite(raw) and raw > 0):
        return 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    for factor in (1.0, 2.0, 5.0):
        if raw <= factor * power * (1 + 1e-9):
            return factor * power
    return 10.0 * power


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round values within `low..high`, about `count` intervals apart."""
    step = tick_step(low, high, count)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def round_domain(low: float, high: float, count: int) -> tuple[float, float]:
    """Widen `low..high` to whole tick steps; a single value gets room on both sides."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return 0.0, 1.0
    if math.isclose(low, high, rel_tol=1e-9, abs_tol=1e-12):
        room = abs(low) * 0.05 or 1.0
        low, high = low - room, high + room
    step = tick_step(low, high, count)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def decimals(step: float) -> int:
    """Decimals needed to tell values `step` apart."""
    return max(0, -math.floor(math.log10(step) + 1e-9))


def tick_label(value: float, places: int = 0) -> str:
    """A value for people: thousands separated by commas, and a true minus sign."""
    text = f"{value:,.{places}f}"
    if text.strip("-0.,") == "":
        text = text.lstrip("-")
    return text.replace("-", "\N{MINUS SIGN}")


def text_width(text: str, size: float) -> float:
    """About how wide `text` is at font size `size`; rather too wide than too narrow."""
    return len(text) * CHARACTER_WIDTH * size


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The picture's size and the margins around its plotting area."""

    width: float
    height: float
    left: float = 52
    right: float = 12
    top: float = 10
    bottom: float = 44
    font: float = 12

    @property
    def x_range(self) -> tuple[float, float]:
        """Left and right edge of the plotting area."""
        return self.left, self.width - self.right

    @property
    def y_range(self) -> tuple[float, float]:
        """Bottom and top edge of the plotting area, bottom first."""
        return self.height - self.bottom, self.top

    def titled(self) -> Frame:
        """The same plotting area below a headline, for a picture that stands alone."""
        return replace(self, height=self.height + 28, top=self.top + 28)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotAxis:
    """What an axis shows: its range, its title and how many ticks are wanted."""

    low: float
    high: float
    title: str
    count: int = 6


def room_for_ticks(axis: PlotAxis, frame: Frame) -> float:
    """The left margin that a y axis needs for its tick labels and its title."""
    places = decimals(tick_step(axis.low, axis.high, axis.count))
    texts = (tick_label(value, places) for value in ticks(axis.low, axis.high, axis.count))
    return 30 + max((text_width(text, frame.font) for text in texts), default=0.0)


def document(
    frame: Frame, *children: Element, title: str, about: str, key: str, **more: Value
) -> Element:
    """The root element; `title` and `about` are what a screen reader says."""
    return Element(
        "svg",
        Element("title", title, id=f"{key}-title"),
        Element("desc", about, id=f"{key}-about"),
        *children,
        xmlns=NAMESPACE,
        viewBox=f"0 0 {number(frame.width)} {number(frame.height)}",
        width=frame.width,
        height=frame.height,
        class_="plot",
        role="img",
        aria_labelledby=f"{key}-title {key}-about",
        font_size=frame.font,
        **more,
    )


def headline(text: str, *, note: str = "") -> Element:
    """The title line inside a picture that stands alone."""
    line = Element("text", text, x=12, y=20, class_="headline")
    return line.add(Element("tspan", f"  {note}", class_="note")) if note else line


def label(text: str, x: float, y: float, *, anchor: str = "start", class_: str = "") -> Element:
    """Text whose middle line lies at `y`."""
    return Element("text", text, x=x, y=y + 4, text_anchor=anchor, class_=class_ or None)


def x_axis(axis: PlotAxis, scale: Scale, frame: Frame) -> Element:
    """Vertical grid lines, tick labels and the title below."""
    bottom, top = frame.y_range
    group = Element("g", class_="axis")
    step = tick_step(axis.low, axis.high, axis.count)
    for value in ticks(axis.low, axis.high, axis.count):
        x = scale(value)
        group.add(segment((x, bottom), (x, top), "rule"))
        group.add(label(tick_label(value, decimals(step)), x, bottom + 14, anchor="middle"))
    middle = (scale.start + scale.stop) / 2
    title = label(axis.title, middle, bottom + 33, anchor="middle", class_="axis-title")
    return group.add(segment((scale.start, bottom), (scale.stop, bottom), "base"), title)


def y_axis(axis: PlotAxis, scale: Scale, frame: Frame) -> Element:
    """Horizontal grid lines, tick labels and the title, turned, at the left."""
    left, right = frame.x_range
    group = Element("g", class_="axis")
    step = tick_step(axis.low, axis.high, axis.count)
    for value in ticks(axis.low, axis.high, axis.count):
        y = scale(value)
        name = "base" if value == 0 else "rule"
        group.add(segment((left, y), (right, y), name))
        group.add(label(tick_label(value, decimals(step)), left - 7, y, anchor="end"))
    middle = (scale.start + scale.stop) / 2
    turn = f"rotate(-90 12 {number(middle)})"
    title = label(axis.title, 12, middle, anchor="middle", class_="axis-title")
    title.attributes["transform"] = turn
    return group.add(title)


def segment(start: Point, end: Point, class_: str) -> Element:
    """A straight line."""
    return Element("line", x1=start[0], y1=start[1], x2=end[0], y2=end[1], class_=class_)


def curve_points(at: Floats, values: Floats, x: Scale, y: Scale) -> list[Point]:
    """Where a curve (N,) over `at` (N,) lies on the picture."""
    return [(x(one), y(value)) for one, value in zip(at.tolist(), values.tolist(), strict=True)]


def limit_steps(at: Floats, values: Floats, x: Scale, y: Scale) -> list[list[Point]]:
    """A limit (N,) that holds until its next value, cut where it is infinite."""
    parts: list[list[Point]] = [[]]
    for one, value in zip(at.tolist(), values.tolist(), strict=True):
        if math.isinf(value):
            parts.append([])
            continue
        if parts[-1]:
            parts[-1].append((x(one), parts[-1][-1][1]))
        parts[-1].append((x(one), y(value)))
    return [part for part in parts if len(part) > 1]


def polyline(points: Iterable[Point], class_: str, **more: Value) -> Element:
    """An open line through `points`; two decimals keep read-outs exact to the printed digit."""
    path = " ".join(f"{number(x)},{number(y, 2)}" for x, y in points)
    return Element("polyline", points=path, class_=class_, **more)


def band(upper: Sequence[Point], lower: Sequence[Point], class_: str) -> Element:
    """The filled area between two lines that share their x."""
    outline = [*upper, *reversed(lower)]
    path = " ".join(f"{number(x)},{number(y)}" for x, y in outline)
    return Element("polygon", points=path, class_=class_)


def dot(at: Point, radius: float, class_: str, tip: str = "") -> Element:
    """A filled circle, with a tool tip where `tip` is given."""
    circle = Element("circle", cx=at[0], cy=at[1], r=radius, class_=class_)
    return circle.add(Element("title", tip)) if tip else circle


def bar(x: float, width: float, ends: tuple[float, float], class_: str, tip: str) -> Element:
    """A rectangle between two heights, with a tool tip."""
    top, bottom = min(ends), max(ends)
    shape = Element("rect", x=x, y=top, width=width, height=max(bottom - top, 0.5), class_=class_)
    return shape.add(Element("title", tip))


def boxes(rectangles: Iterable[tuple[float, float, float, float]], class_: str) -> Element:
    """Many rectangles (x, y, width, height) of one colour as a single path."""
    path = "".join(
        f"M{number(x)} {number(y)}h{number(w)}v{number(h)}h-{number(w)}z"
        for x, y, w, h in rectangles
    )
    return Element("path", d=path, class_=class_)

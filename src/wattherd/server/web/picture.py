"""Charts in the sizes that pages want."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from wattherd.report.charts import Chart
from wattherd.report.rendering import markup
from wattherd.report.svg import Frame


@dataclass(frozen=True, slots=True)
class Size:
    """Frames for wide and for narrow screens."""

    wide: Frame
    narrow: Frame


TALL = Size(Frame(width=1000, height=380), Frame(width=344, height=320, font=11))
LOW = Size(Frame(width=1000, height=220), Frame(width=344, height=220, font=11))
HALF = Size(Frame(width=480, height=280), Frame(width=344, height=260, font=11))


@dataclass(frozen=True, slots=True)
class TwoThemePicture:
    """A chart drawn twice; style sheets show the one that fits."""

    title: str
    caption: str
    wide: Markup
    narrow: Markup


def picture(chart: Chart, size: Size) -> TwoThemePicture:
    """Draw it."""
    return TwoThemePicture(
        chart.title,
        chart.caption,
        markup(chart, size.wide, f"{chart.key}-w"),
        markup(chart, size.narrow, f"{chart.key}-n"),
    )

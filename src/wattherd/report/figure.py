"""A chart as templates want it: SVG text for wide and for narrow screens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from wattherd.report.charts import NARROW, WIDE, Chart
from wattherd.report.svg import Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotFigure:
    """One plot with its words; `narrow` None shows the wide one everywhere."""

    title: str
    caption: str
    wide: Markup
    narrow: Markup | None
    table: Any = None


def figure(chart: Chart, key: str) -> PlotFigure:
    """A chart in both widths; `key` keeps the names within its SVG apart from others."""
    return PlotFigure(
        title=chart.title,
        caption=chart.caption,
        wide=markup(chart, WIDE, f"{key}-w"),
        narrow=markup(chart, NARROW, f"{key}-n"),
        table=chart.table,
    )


def markup(chart: Chart, frame: Frame, key: str) -> Markup:
    """The SVG text of a chart."""
    return Markup(chart.draw(frame, key).render())  # noqa: S704 - the SVG writer escapes

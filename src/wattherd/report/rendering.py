"""Pages from templates, and charts as templates want them.

Text is escaped, a name that is not given is an error; a chart is SVG text for wide and for narrow
screens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from wattherd import __version__
from wattherd.report import theme
from wattherd.report.charts import NARROW, WIDE, Chart
from wattherd.report.svg import Frame


def environment() -> Environment:
    """Where templates are, and how they are read."""
    return Environment(
        loader=PackageLoader("wattherd.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def rendered(template: str, series: int, **values: Any) -> str:
    """A whole page with our style, for so many `series` of its plots, and our script."""
    return (
        environment()
        .get_template(template)
        .render(
            version=__version__,
            style=Markup(theme.page_rules(series)),  # noqa: S704 - our own text
            script=Markup(theme.read_asset("report.js")),  # noqa: S704 - our own text
            **values,
        )
    )


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

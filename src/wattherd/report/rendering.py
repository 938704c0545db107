"""Pages from templates: text is escaped, a name that is not given is an error."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from wattherd import __version__
from wattherd.report import theme


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

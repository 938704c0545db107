"""Templates, and how they write numbers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from wattherd import __version__
from wattherd.report import theme
from wattherd.report.draw_picture import HUES
from wattherd.units import show_bytes, show_joules, show_seconds

NOTHING = "–"


def render(name: str, **values: Any) -> str:
    """A template of this package as text."""
    return _environment().get_template(name).render(version=__version__, **values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("wattherd.server.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "watts": show_w,
        "joules": lambda value: NOTHING if value is None else show_joules(value),
        "span": lambda value: NOTHING if value is None else show_seconds(value),
        "clock": _clock,
        "part": lambda value: NOTHING if value is None else f"{value:.0%}",
        "cost": lambda bill: show_bill(bill, "cost", "unpriced_j", _currency(bill)),
        "co2e": lambda bill: show_bill(bill, "co2e_kg", "unrated_j", "kgCO2e"),
        "bytes": lambda value: NOTHING if value is None else show_bytes(value),
        "pretty": lambda value: json.dumps(value, indent=1),
    }
    return environment


def _currency(bill: Any) -> str:
    return "" if bill is None else str(bill["currency"])


def show_bill(bill: Any, what: str, unknown: str, unit: str) -> str:
    """A sum of a bill; energy at unknown rates is said beside it."""
    if bill is None or bill[what] is None:
        return NOTHING if bill is None else "unknown"
    beside = f" without {show_joules(bill[unknown])} at unknown rates" if bill[unknown] else ""
    return f"{bill[what]:,.4f} {unit}".rstrip() + beside


def show_w(value: float | None) -> str:
    """Watts with three digits or more."""
    if value is None:
        return NOTHING
    if abs(value) >= 10_000:
        return f"{value / 1e3:,.1f} kW"
    return f"{value:,.1f} W" if abs(value) < 1000 else f"{value:,.0f} W"


def _clock(value: str | None) -> str:
    """A time of a document for people, in UTC."""
    if value is None:
        return NOTHING
    return datetime.fromisoformat(value).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@cache
def style_sheet() -> str:
    """The style sheet of all pages: that of reports, and what dashboards add to it."""
    return theme.page_rules(HUES) + "\n" + static("dashboard.css").decode()


@cache
def static(name: str) -> bytes:
    """A file of the folder `static`."""
    folder = resources.files("wattherd.server.web").joinpath("static")
    return folder.joinpath(name).read_bytes()

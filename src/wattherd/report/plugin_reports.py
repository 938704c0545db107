"""What packages add to reports: sections of the page, and formats of their own.

An entry of `wattherd.reports` is a function of what was read: a run directory (`SimRun`, `RunSet`)
or the state folder of a service (`SitePast`). It gives a `ReportSection`, which our page shows in
our style, or a `ReportFile`, which is written beside the page. None says that it has nothing to
tell of such a run.

A section that raises, or gives what no page can show, says so in its place: the page is written
all the same. A format that raises is an error with the entry point's name.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattherd.errors import UserError
from wattherd.plugin_watch import PluginWatch
from wattherd.plugins import GUIDE, announced, loaded
from wattherd.report.charts import Chart, DataTable
from wattherd.report.rendering import PlotFigure, figure
from wattherd.report.runs import RunSet
from wattherd.report.schedule_runs import SimRun
from wattherd.report.site_past import SitePast
from wattherd.spelling import hint_for

MOST_WORDS = 200
_ENDING = re.compile(r"[a-z0-9]+(\.[a-z0-9]+)*")
_SERIES = re.compile(r'class="[^"]*\bk(\d+)\b')
_log = logging.getLogger(__name__)

ReportedRun = SimRun | RunSet | SitePast
"""What was simulated, training jobs or pods that were placed; or the past of a service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSection:
    """A part of the page: title, sentences, tables and charts, in this order. Text is escaped."""

    title: str
    sentences: tuple[str, ...] = ()
    tables: tuple[DataTable, ...] = ()
    charts: tuple[Chart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFile:
    """A file beside the page, `report.ENDING`."""

    ending: str
    content: str | bytes


MakeReport = Callable[[ReportedRun], ReportSection | ReportFile | None]
"""What the entry point `wattherd.reports` of a package names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSection:
    """A section as templates take it: text, and charts that are drawn. `failure` is why not."""

    title: str
    sentences: tuple[str, ...] = ()
    tables: tuple[DataTable, ...] = ()
    figures: tuple[PlotFigure, ...] = ()
    series: int = 0
    """How many series the style sheet must describe for them."""
    failure: str = ""


def known() -> list[str]:
    """Names that installed packages announce."""
    return sorted(announced("reports"))


def made_by(name: str) -> MakeReport:
    """What makes the section or file of this name.

    Raises:
        UserError: no package offers it, or it cannot be imported or called.
    """
    if name not in announced("reports"):
        hint = hint_for(name, known()) if known() else GUIDE
        raise UserError(f"no package offers a report {name!r}", field="wattherd.reports", hint=hint)
    make = loaded("reports", name)
    if not callable(make):
        raise _wrong(name, "makes no report: it cannot be called")
    found: MakeReport = make
    return found


def shown_sections(sections: Mapping[str, MakeReport], run: ReportedRun) -> list[ShownSection]:
    """Each section that has something to tell of a run, or why it could not, in this order."""
    found = []
    for at, (name, make) in enumerate(sections.items()):
        try:
            with PluginWatch(f"report section {name!r}"):
                given = make(run)
            if given is not None:
                found.append(_shown(_section(given), f"x{at}"))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody else's code may raise anything
            told = _words(error)
            _log.error("report section %r failed: %s", name, told)
            _log.debug("report section %r failed", name, exc_info=error)
            found.append(ShownSection(title=name, failure=told))
    return found


def written_file(name: str, run: ReportedRun) -> ReportFile | None:
    """The file of a format, or None where it has nothing to tell of such a run.

    Raises:
        UserError: no package offers it, or it failed, or gave no file.
    """
    make = made_by(name)
    try:
        with PluginWatch(f"report format {name!r}"):
            found = make(run)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise _wrong(name, f"failed: {_words(error)}") from error
    if isinstance(found, ReportSection):
        hint = f"ask for it by --section {name}"
        raise UserError("is a section of the page, and no format", field=name, hint=hint)
    if found is None:
        return None
    if not isinstance(found, ReportFile) or not isinstance(found.content, str | bytes):
        raise _wrong(name, f"gave a {type(found).__name__}, and no ReportFile with text or bytes")
    if not isinstance(found.ending, str) or not _ENDING.fullmatch(found.ending):
        raise _wrong(name, f"{found.ending!r} is no ending of a file name")
    return found


def by_name(names: Sequence[str | MakeReport]) -> dict[str, MakeReport]:
    """Sections by name: of packages, or functions of the caller, called as each function is.

    Raises:
        UserError: a name that no package offers, or what is neither.
    """
    found: dict[str, MakeReport] = {}
    for one in names:
        if isinstance(one, str):
            found[one] = made_by(one)
            continue
        name = getattr(one, "__name__", "").replace("_", "-").strip("-<>")
        if not callable(one) or not name:
            hint = "a name, or a function of the run that makes a ReportSection"
            raise UserError(f"{one!r} is no section", field="sections", hint=hint)
        if name in found:
            problem = f"two sections are called {name!r}"
            raise UserError(problem, field="sections", hint="call one of the functions otherwise")
        found[name] = one
    return found


def _wrong(name: str, problem: str) -> UserError:
    entry = announced("reports").get(name)
    return UserError(problem, where=entry.value if entry else "", field=name, hint=GUIDE)


def _words(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:MOST_WORDS]


def _section(given: object) -> ReportSection:
    if isinstance(given, ReportFile):
        raise TypeError("it is a format: ask for it by --format")
    if not isinstance(given, ReportSection):
        raise TypeError(f"a {type(given).__name__} is no ReportSection")
    if not _text(given.title).strip():
        raise ValueError("a section needs a title")
    return given


def _shown(given: ReportSection, key: str) -> ShownSection:
    """Everything that may raise is done here, within reach of whoever tells why."""
    figures = [figure(chart, f"{key}-{at}") for at, chart in enumerate(given.charts)]
    used = [int(n) for one in figures for n in _SERIES.findall(str(one.wide))]
    return ShownSection(
        title=_text(given.title),
        sentences=tuple(_text(one) for one in given.sentences),
        tables=tuple(_table(one) for one in given.tables),
        figures=tuple(figures),
        series=max(used, default=-1) + 1,
    )


def _table(given: DataTable) -> DataTable:
    heads = tuple(_text(one) for one in given.heads)
    rows = tuple(tuple(_text(cell) for cell in row) for row in given.rows)
    for row in rows:
        if len(row) != len(heads):
            raise ValueError(f"a row has {len(row)} cells under {len(heads)} heads: {row}")
    return DataTable(heads=heads, rows=rows)


def _text(given: Any) -> str:
    """Plain text, which the page escapes: markup of others must not get in."""
    if not isinstance(given, str):
        raise TypeError(f"{given!r} is no text")
    return "".join(given)

"""The files of a report: the page, its plots apart, and what packages write beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wattherd.errors import UserError
from wattherd.report.charts import Chart
from wattherd.report.export import write_plots
from wattherd.report.plugin_reports import (
    MakeReport,
    ReportedRun,
    ShownSection,
    by_name,
    known,
    shown_sections,
    written_file,
)

FORMATS = ("html", "svg", "png", "pdf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportContent:
    """What a report consists of; `html` makes the page when it is wanted."""

    run: ReportedRun
    html: Callable[[Sequence[ShownSection]], str]
    plots: Mapping[str, Chart]
    series: int


def page_path(directory: Path, out: Path | None) -> Path:
    """The page to write: `DIR/report.html` unless another is named; `out` may be a folder."""
    if out is None:
        return directory / "report.html"
    return out / "report.html" if out.is_dir() else out


def asked_sections(
    formats: Sequence[str], sections: Sequence[str | MakeReport]
) -> dict[str, MakeReport]:
    """What makes the sections, by name; asked before anything is read.

    Raises:
        UserError: a format or section is unknown, or there is no page for a section.
    """
    allowed = [*FORMATS, *known()]
    for name in formats:
        if name not in allowed:
            raise UserError(f"unknown format {name!r}", hint=f"one of {', '.join(allowed)}")
    if not formats:
        raise UserError("no format to write", hint=f"any of {', '.join(allowed)}")
    added = by_name(sections)
    if added and "html" not in formats:
        hint = "ask for html as well"
        raise UserError("there is no page to add a section to", field="--section", hint=hint)
    return added


def write_content(
    content: ReportContent,
    page: Path,
    *,
    formats: Sequence[str] = ("html",),
    sections: Mapping[str, MakeReport],
) -> list[Path]:
    """Write the page, plots into the folder `NAME-plots` beside it, and packages' formats.

    Raises:
        UserError: a package's format failed, the extra `plot` is missing, or a file cannot be
            written.
    """
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        written = [_write_page(content, page, sections)] if "html" in formats else []
        others = [name for name in dict.fromkeys(formats) if name != "html"]
        pictures = [name for name in others if name in FORMATS]
        folder = page.with_name(f"{page.stem}-plots")
        written += write_plots(content.plots, content.series, folder, pictures)
        return written + [
            _write_file(content, page, name) for name in others if name not in FORMATS
        ]
    except OSError as problem:
        where = str(problem.filename or page)
        raise UserError(f"cannot be written: {problem.strerror}", where=where) from None


def _write_page(content: ReportContent, page: Path, sections: Mapping[str, MakeReport]) -> Path:
    text = content.html(shown_sections(sections, content.run))
    page.write_text(text, encoding="utf-8", errors="replace")
    return page


def _write_file(content: ReportContent, page: Path, name: str) -> Path:
    """A package's format, beside the page."""
    found = written_file(name, content.run)
    if found is None:
        hint = "it may tell of something else: training jobs, placed pods, or a service"
        raise UserError("has nothing to tell of this run", field=f"--format {name}", hint=hint)
    file = page.with_name(f"{page.stem}.{found.ending}")
    if file == page:
        raise UserError("would overwrite the page", where=str(file), field=f"--format {name}")
    content_bytes = found.content
    if isinstance(content_bytes, str):
        content_bytes = content_bytes.encode("utf-8", errors="replace")
    file.write_bytes(content_bytes)
    return file

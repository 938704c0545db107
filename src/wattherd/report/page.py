"""The report: one self-contained HTML page, and its plots as files on request.

The page loads nothing from anywhere and needs no script to be read; the script adds read-outs,
sorting and hiding of policies. The same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from wattherd import __version__
from wattherd.report import bars, heatmap, table, theme
from wattherd.report.charts import Chart, trace_charts
from wattherd.report.cluster import read_final
from wattherd.report.compare import CompareRow, comparison_table, trace_rows
from wattherd.report.export import standalone
from wattherd.report.findings import pack_findings
from wattherd.report.heatmap import READING, Panel, draw_map, panels
from wattherd.report.plugin_reports import MakeReport, ShownSection
from wattherd.report.rendering import PlotFigure, environment, figure, markup
from wattherd.report.report_files import (
    ReportContent,
    asked_sections,
    page_path,
    write_content,
)
from wattherd.report.runs import PackRun, RunSet, RunSource, TraceRuns, load_runs
from wattherd.report.schedule_page import render_sim, series_count, sim_plots
from wattherd.report.schedule_runs import holds_sim, load_sim
from wattherd.report.svg import Frame, tick_label

# --- Which final clusters a report shows: one per policy, of the lowest seed that was kept.


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalCluster:
    """The cluster at the end of `run`, by GPU model; `used` is the share of GPUs in use."""

    run: PackRun
    panels: tuple[Panel, ...]

    @property
    def used(self) -> float:
        """Used share of all GPUs."""
        gpus = sum(panel.gpus for panel in self.panels)
        return sum(panel.used * panel.gpus for panel in self.panels) / gpus

    def chart(self) -> Chart:
        """The map as one picture."""
        title = f"The cluster at the end: {self.run.policy}, seed {self.run.seed}"
        return Chart(
            key="cluster",
            title=title,
            caption=READING,
            draw=lambda frame, key: draw_map(self.panels, title, frame, key),
        )


def final_clusters(trace: TraceRuns) -> list[FinalCluster]:
    """Final clusters of one trace, the policy that allocates most first."""
    by_merit = sorted(trace_rows(trace), key=lambda row: -row.allocated_pct.mean)
    kept = (_kept(trace, row.policy) for row in by_merit)
    found = (_final(*each) for each in kept if each)
    return [final for final in found if final.panels]


def _kept(trace: TraceRuns, policy: str) -> tuple[PackRun, Path] | None:
    for run in trace.of(policy):
        for source in trace.sources:
            if run in source.pack.runs and source.final_file(run).is_file():
                return run, source.final_file(run)
    return None


def _final(run: PackRun, file: Path) -> FinalCluster:
    return FinalCluster(run=run, panels=tuple(panels(read_final(file))))


BAR_FRAME = Frame(width=360, height=280, bottom=42, font=11)
BRIEF = ("allocation-zoom", "savings", "pareto")
"""Plots shown for each trace after the first."""


def write_report(
    directory: Path,
    *,
    out: Path | None = None,
    formats: Sequence[str] = ("html",),
    sections: Sequence[str | MakeReport] = (),
) -> list[Path]:
    """Write the report of a run directory and return the files written.

    Args:
        directory: what `wattherd sim run --out` or `wattherd sim pack --out` wrote, or a directory
            of directories of the latter.
        out: the page to write, `DIR/report.html` by default; an existing directory is allowed.
            Plots go into the folder `NAME-plots` beside it.
        formats: any of html, svg, png and pdf (the last two need the extra `plot`), and what
            packages announce as `wattherd.reports`, written beside the page.
        sections: what the page has besides, by a package's name or as a function
            (docs/guides/plugins.md). One that fails says so on the page.

    Raises:
        UserError: the directory cannot be used, a format or section is unknown, a package's
            format failed, the extra is missing, or the output cannot be written.
    """
    added = asked_sections(formats, sections)
    content = _sim_content(directory) if holds_sim(directory) else _pack_content(directory)
    return write_content(content, page_path(directory, out), formats=formats, sections=added)


def plots_as_svg(directory: Path) -> dict[str, str]:
    """The plots of a run directory by name, each an SVG document of its own.

    Raises:
        UserError: the directory cannot be used.
    """
    content = _sim_content(directory) if holds_sim(directory) else _pack_content(directory)
    return {name: standalone(chart, content.series, name) for name, chart in content.plots.items()}


def _pack_content(directory: Path) -> ReportContent:
    runs = load_runs(directory)
    series = theme.series_count(theme.series_numbers(runs.policies))
    return ReportContent(
        run=runs, html=lambda added: render_page(runs, added), plots=all_charts(runs), series=series
    )


def _sim_content(directory: Path) -> ReportContent:
    found = load_sim(directory)
    return ReportContent(
        run=found,
        html=lambda added: render_sim(found, added),
        plots=sim_plots(found),
        series=series_count(found),
    )


def all_charts(runs: RunSet) -> dict[str, Chart]:
    """Every plot by file name: `TRACE-PLOT`, and `family-...` for the bars."""
    numbers = theme.series_numbers(runs.policies)
    found = {}
    for index, trace in enumerate(runs.traces):
        for chart in trace_charts(trace, trace_rows(trace), numbers):
            found[f"{index + 1}-{_slug(trace.label)}-{chart.key}"] = chart
        for final in final_clusters(trace):
            found[f"{index + 1}-{_slug(trace.label)}-cluster-{_slug(final.run.policy)}"] = (
                final.chart()
            )
    for measure, charts in _family_charts(comparison_table(runs), numbers):
        for chart in charts:
            found[f"family-{measure}-{chart.key}"] = chart
    return found


def _slug(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text).strip("-") or "trace"


def render_page(runs: RunSet, added: Sequence[ShownSection] = ()) -> str:
    """The whole page as text, with what packages add."""
    numbers = theme.series_numbers(runs.policies)
    rows = comparison_table(runs)
    finals = final_clusters(runs.traces[0])
    sections = [_section(trace, numbers, index) for index, trace in enumerate(runs.traces)]
    series = max([theme.series_count(numbers), *(one.series for one in added)])
    return environment().get_template("report.html.j2").render(
        version=__version__,
        style=Markup(theme.page_rules(series)),  # noqa: S704 - our own text
        script=Markup(theme.read_asset("report.js")),  # noqa: S704 - our own text
        numbers=numbers,
        sections=added,
        first=sections[0],
        others=sections[1:],
        families=_families(rows, numbers),
        maps=[_map(final, f"map{index}") for index, final in enumerate(finals)],
        impossible=[_impossible(source) for source in runs.sources],
        sources=[_provenance(source) for source in runs.sources],
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Everything the page says about one trace."""

    trace: TraceRuns
    rows: list[CompareRow]
    columns: list[table.Field]
    cells: list[list[table.TableCell]]
    findings: list[str]
    figures: list[PlotFigure]
    pods: str


def _section(trace: TraceRuns, numbers: dict[str, int], index: int) -> Section:
    rows = trace_rows(trace)
    columns = table.fields(rows)
    charts = trace_charts(trace, rows, numbers)
    shown = [chart for chart in charts if index == 0 or chart.key in BRIEF]
    return Section(
        trace=trace,
        rows=rows,
        columns=columns,
        cells=table.cells(rows, columns),
        findings=pack_findings(rows),
        figures=[figure(chart, f"s{index}-{chart.key}") for chart in shown],
        pods=_pods(trace.runs),
    )


def _pods(runs: Sequence[PackRun]) -> str:
    least, most = min(run.pods for run in runs), max(run.pods for run in runs)
    few, many = tick_label(least), tick_label(most)
    return few if least == most else f"{few} to {many}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyBlock:
    """One measure for all families of traces."""

    title: str
    caption: str
    figures: list[PlotFigure]


def _families(rows: Sequence[CompareRow], numbers: dict[str, int]) -> list[FamilyBlock]:
    blocks = []
    for measure, charts in _family_charts(rows, numbers):
        figures = [
            PlotFigure(title=chart.title, caption=chart.caption, narrow=None,
                   wide=markup(chart, BAR_FRAME, f"bars-{measure}-{chart.key}"))
            for chart in charts
        ]  # fmt: skip
        words = bars.MEASURES[measure]
        blocks.append(FamilyBlock(title=words.title, caption=words.caption, figures=figures))
    return blocks


def _family_charts(
    rows: Sequence[CompareRow], numbers: dict[str, int]
) -> list[tuple[str, list[Chart]]]:
    """Bars only where there is more than one trace to compare."""
    if len({row.trace for row in rows}) < 2:
        return []
    found = []
    for key, measure in bars.MEASURES.items():
        known = [row for row in rows if measure.quantity(row)]
        if known:
            found.append((key, bars.charts(known, numbers, measure)))
    return found


def _map(final: FinalCluster, key: str) -> dict[str, Any]:
    pitch = heatmap.pitch_for(final.panels)
    drawn = [
        heatmap.draw_panel(panel, pitch, f"{key}-{at}").render()
        for at, panel in enumerate(final.panels)
    ]
    titles = [heatmap.panel_title(panel) for panel in final.panels]
    return {
        "policy": final.run.policy,
        "seed": final.run.seed,
        "used": f"{100 * final.used:.2f}",
        "per_column": max(panel.nodes_per_column for panel in final.panels),
        "panels": [(t, Markup(svg)) for t, svg in zip(titles, drawn, strict=True)],  # noqa: S704
    }


MOST_REQUESTS = 40


def _impossible(source: RunSource) -> dict[str, Any]:
    """Heads and rows for the pods that fit no node."""
    requests = source.pack.impossible.requests
    heads = [name for name in dict.fromkeys(k for r in requests for k in r) if name != "reason"]
    if any("reason" in request for request in requests):
        heads.append("reason")
    shown = requests[:MOST_REQUESTS]
    return {
        "trace": source.pack.trace,
        "pods": source.pack.impossible.pods,
        "heads": [head.replace("_", " ") for head in heads],
        "rows": [[_text(request.get(head)) for head in heads] for request in shown],
        "more": len(requests) - len(shown),
    }


def _text(value: object) -> str:
    if value is None or value == "":
        return table.NONE
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return tick_label(value) if isinstance(value, int) else str(value)


def _provenance(source: RunSource) -> dict[str, str]:
    pack = source.pack
    seeds = sorted({run.seed for run in pack.runs})
    command = pack.command if isinstance(pack.command, str) else " ".join(pack.command)
    return {
        "directory": source.directory.name or ".",
        "version": pack.version,
        "nodes": pack.nodes_file,
        "pods": pack.pods_file,
        "trace": pack.trace,
        "order": Path(pack.order_file).name if pack.order_file else "drawn from the seed",
        "ties": pack.ties,
        "load": f"{pack.load:g}",
        "seeds": _ranges(seeds),
        "command": command,
    }


def _ranges(seeds: Sequence[int]) -> str:
    """`42..51, 60` for consecutive numbers, as the command line takes them."""
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}..{p[-1]}" for p in parts)

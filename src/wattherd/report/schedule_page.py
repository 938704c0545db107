"""The page of a simulated run: results, completion times, use and power over time, every job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wattherd.report import theme
from wattherd.report.charts import Chart
from wattherd.report.findings import sim_findings
from wattherd.report.plugin_reports import ShownSection
from wattherd.report.rendering import figure, rendered
from wattherd.report.schedule_charts import policy_charts, sim_charts
from wattherd.report.schedule_runs import SimRun
from wattherd.report.schedule_table import (
    LEVEL_HEADS,
    columns_of,
    level_rows,
    table_rows,
)


def series_count(found: SimRun) -> int:
    """How many series the style sheet must describe."""
    return theme.series_count(theme.series_numbers(found.policies))


def sim_plots(found: SimRun) -> dict[str, Chart]:
    """Every plot by file name."""
    numbers = theme.series_numbers(found.policies)
    charts = [*sim_charts(found, numbers)]
    charts += [chart for run in found.runs for chart in policy_charts(found, run)]
    return {chart.key: chart for chart in charts}


def render_sim(found: SimRun, sections: Sequence[ShownSection] = ()) -> str:
    """The whole page as text, with what packages add; the same input gives the same bytes."""
    numbers = theme.series_numbers(found.policies)
    figures = [run.figures for run in found.runs]
    return rendered(
        "schedule.html.j2",
        max([series_count(found), *(one.series for one in sections)]),
        sections=sections,
        numbers=numbers,
        sim=found.sim,
        jobs=max(one.jobs for one in figures),
        source=Path(found.sim.jobs).name,
        columns=columns_of(figures),
        figures=figures,
        cells=table_rows(figures),
        findings=sim_findings(found.sim),
        level_heads=LEVEL_HEADS,
        levels=level_rows(figures),
        shared=[figure(chart, f"all-{chart.key}") for chart in sim_charts(found, numbers)],
        policies=[
            (run.policy, [figure(chart, f"p{at}-{chart.key}") for chart in charts])
            for at, run in enumerate(found.runs)
            if (charts := policy_charts(found, run))
        ],
    )

"""The page Compare: simulated runs, policies by metrics, and the report of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wattherd.errors import UserError
from wattherd.report.schedule_page import render_sim
from wattherd.report.schedule_runs import SimRun, holds_sim, load_sim
from wattherd.report.schedule_table import COLUMNS, table_rows
from wattherd.server.web.page_source import PageSource

MOST_RUNS = 50


def compare_view(scene: PageSource, name: str) -> dict[str, Any]:
    """Names of the runs, and the table of the chosen one."""
    names = run_names(scene.runs)
    chosen = name if name in names else next(iter(names), "")
    problem, table = "", None
    if chosen:
        try:
            table = _table(load_sim(scene.runs / chosen))
        except UserError as error:
            problem = error.line()
    return {
        "names": names,
        "chosen": chosen,
        "table": table,
        "problem": problem,
        "folder": str(scene.runs),
    }


def run_names(folder: Path) -> list[str]:
    """Folders of runs, the newest first."""
    if not folder.is_dir():
        return []
    found = [one for one in folder.iterdir() if holds_sim(one)]
    found.sort(key=lambda one: one.stat().st_mtime, reverse=True)
    return [one.name for one in found[:MOST_RUNS]]


def compare_report(scene: PageSource, name: str) -> str | None:
    """The whole report of a run as a page of its own; None if there is no such run."""
    return render_sim(load_sim(scene.runs / name)) if name in run_names(scene.runs) else None


def _table(found: SimRun) -> dict[str, Any]:
    figures = [run.figures for run in found.runs]
    return {
        "heads": COLUMNS,
        "rows": list(zip([one.policy for one in figures], table_rows(figures), strict=True)),
        "jobs": max(one.jobs for one in figures),
    }

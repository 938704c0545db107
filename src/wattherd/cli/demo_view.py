"""The live picture of a demonstration in a terminal: draw against budget, and the jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from wattherd.cli.live_tables import where_or_why

ROWS, COLUMNS = 8, 72
"""Of the picture; a column is a sample, the newest at the right."""
EIGHTHS = " ▁▂▃▄▅▆▇█"
STATES = {"Running": "green", "Succeeded": "bold green", "Queued": "yellow", "Failed": "bold red"}


def frame(
    power: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]], top_w: float, news: Sequence[str]
) -> Group:
    """Everything, for `power` with its last samples and documents of jobs; `top_w` is the scale."""
    return Group(
        headline(power),
        chart(power["samples"], top_w),
        job_table(jobs),
        *(Text(line, style="cyan") for line in news[-4:]),
    )


def headline(power: Mapping[str, Any]) -> Text:
    """Draw and budget in one line."""
    budget_w, draw_w = power["budget_w"], power["draw_w"]
    text = Text("draw ", style="bold")
    text.append("-" if draw_w is None else f"{draw_w:.2f} W")
    text.append(f"   budget {'none' if budget_w is None else f'{budget_w:.2f} W'}", style="red")
    if power["stated"] == "model":
        text.append("   (watts estimated from processor time)", style="dim")
    return text


def chart(samples: Sequence[Mapping[str, Any]], top_w: float) -> Text:
    """Draw as columns, the budget as a line through them."""
    shown = samples[-COLUMNS:]
    picture = Text()
    for row in reversed(range(ROWS)):
        low_w, each_w = row * top_w / ROWS, top_w / ROWS
        label = f"{low_w + each_w:5.1f} W " if row % 2 else " " * 8
        picture.append(label, style="dim")
        for one in shown:
            picture.append(*_cell(one, low_w, each_w))
        picture.append("\n")
    return picture


def _cell(sample: Mapping[str, Any], low_w: float, each_w: float) -> tuple[str, str]:
    """One character: part of a column, or the budget above it."""
    budget_w, draw_w = sample["budget_w"], sample["draw_w"]
    part = min(max((draw_w - low_w) / each_w, 0.0), 1.0)
    here = budget_w is not None and low_w <= budget_w < low_w + each_w
    if here and part < 0.5:
        return "━", "red"
    over = budget_w is not None and draw_w > budget_w
    return EIGHTHS[round(8 * part)], "bold red" if over else "blue on red" if here else "blue"


def job_table(jobs: Sequence[Mapping[str, Any]]) -> Table:
    """A line for every job."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("JOB", "STATE", "WATTS", "STEPS", "", "LOSS", "WHERE/WHY"):
        table.add_column(name, justify="right" if name in ("WATTS", "STEPS", "LOSS") else "left")
    for job in jobs:
        bar = ProgressBar(total=job["total"] or 1.0, completed=job["progress"], width=20)
        table.add_row(
            job["name"],
            Text(job["state"], style=STATES.get(job["state"], "")),
            "-" if job["watts"] is None else f"{job['watts']:.2f}",
            f"{job['progress']:,.0f}",
            bar,
            "-" if job["loss"] is None else f"{job['loss']:.4f}",
            Text(where_or_why(job), no_wrap=True, overflow="ellipsis"),
        )
    return table

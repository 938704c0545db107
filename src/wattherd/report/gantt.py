"""The Gantt chart of a simulated run: a row per job, waiting as a line, running as a bar.

Rows are jobs in order of submission, from the top. The darker a bar, the more GPUs it holds. Where
there are more jobs than rows, jobs at equal distances in that order stand for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wattherd.report.heatmap import heat_step
from wattherd.report.schedule_runs import JobFigures, PolicyRun, Stretch
from wattherd.report.svg import (
    Element,
    Frame,
    PlotAxis,
    Scale,
    boxes,
    document,
    label,
    number,
    text_width,
    x_axis,
)
from wattherd.report.theme import HEAT_STEPS
from wattherd.report.timeline import time_ends

MOST_ROWS = 160
ROW = 2.6
"""Height of a job's row; bars fill most of it."""
FAINTEST = 3
"""The heat step of the narrowest job; those below are too faint for thin bars."""


def shown_jobs(run: PolicyRun) -> list[JobFigures]:
    """The jobs that get a row: all, or as many at equal distances, by submission."""
    ordered = sorted(run.jobs, key=lambda job: (job.submit_s, job.job_id))
    count = len(ordered)
    if count <= MOST_ROWS:
        return ordered
    return [ordered[at * count // MOST_ROWS] for at in range(MOST_ROWS)]


def draw_gantt(
    run: PolicyRun, end_s: float, unit: tuple[float, str], frame: Frame, key: str
) -> Element:
    """The chart up to `end_s`, its axis in `unit` (seconds each, name)."""
    jobs = shown_jobs(run)
    rows = {job.job_id: at for at, job in enumerate(jobs)}
    top = frame.top + 20
    height = top + ROW * max(len(jobs), 1) + frame.bottom
    frame = replace(frame, left=16, right=14, top=top, height=height)
    begin_s = min((job.submit_s for job in jobs), default=0.0)
    each, name = unit
    x = Scale(*time_ends(begin_s / each, end_s / each), *frame.x_range)
    span = PlotAxis(low=x.low, high=x.high, title=f"time ({name})", count=int(frame.width // 80))
    return document(
        frame,
        x_axis(span, x, frame),
        _waits(jobs, rows, x, each, end_s, top),
        *_bars(run.stretches, rows, x, each, top),
        Element("g", *_key(run.stretches, frame)),
        title=f"When jobs ran: {run.policy}",
        about="A row per job in order of submission; a line while it waits, a bar while it runs",
        key=key,
    )


def _waits(
    jobs: Sequence[JobFigures],
    rows: dict[str, int],
    x: Scale,
    each: float,
    end_s: float,
    top: float,
) -> Element:
    """From submission to the end, as one path."""
    path = "".join(
        f"M{number(x(job.submit_s / each))} {number(_middle(rows[job.job_id], top), 2)}"
        f"H{number(x((end_s if job.finish_s is None else job.finish_s) / each))}"
        for job in jobs
    )
    return Element("path", d=path or "M0 0", class_="wait")


def _middle(row: int, top: float) -> float:
    return top + ROW * (row + 0.5)


def _bars(
    stretches: Sequence[Stretch], rows: dict[str, int], x: Scale, each: float, top: float
) -> list[Element]:
    """One path for each shade."""
    most = max((stretch.gpus for stretch in stretches), default=1)
    shades: dict[int, list[tuple[float, float, float, float]]] = {}
    for stretch in stretches:
        if stretch.job_id not in rows:
            continue
        left, right = x(stretch.start_s / each), x(stretch.stop_s / each)
        y = _middle(rows[stretch.job_id], top) - 0.4 * ROW
        box = left, y, max(right - left, 0.4), 0.8 * ROW
        shades.setdefault(_shade(stretch.gpus, most), []).append(box)
    return [boxes(shades[shade], f"cells h{shade}") for shade in sorted(shades)]


def _shade(gpus: int, most: int) -> int:
    share = (gpus - 1) / (most - 1) if most > 1 else 1.0
    return FAINTEST + heat_step(share) * (HEAT_STEPS - FAINTEST) // HEAT_STEPS


def _key(stretches: Sequence[Stretch], frame: Frame) -> list[Element]:
    """Which shade means how many GPUs."""
    most = max((stretch.gpus for stretch in stretches), default=1)
    sizes = sorted({1, max(most // 2, 1), most})
    found, at, y = [], frame.x_range[0], frame.top - 12
    for size in sizes:
        text = f"{size} GPU" + ("s" if size > 1 else "")
        box = [(at, y - 5, 14.0, 10.0)]
        found += [boxes(box, f"cells h{_shade(size, most)}"), label(text, at + 19, y)]
        at += 34 + text_width(text, frame.font)
    found.append(Element("path", d=f"M{number(at)} {number(y)}h14", class_="wait"))
    found.append(label("waits", at + 19, y))
    return found

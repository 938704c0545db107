"""Which plots the report of a simulated run holds, and how to read each of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from wattherd.report.charts import Chart, DataTable
from wattherd.report.heatmap import heat_step
from wattherd.report.schedule_pareto import draw_energy_pareto
from wattherd.report.schedule_runs import JobFigures, PolicyRun, PowerLevels, SimRun, Stretch
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
    tick_label,
    x_axis,
)
from wattherd.report.theme import HEAT_STEPS
from wattherd.report.timeline import (
    POINTS,
    Lines,
    PlotLine,
    Stack,
    averaged,
    draw_stack,
    draw_timelines,
    time_ends,
    time_unit,
)
from wattherd.units import counted, show_seconds

# --- The Gantt chart of a simulated run: a row per job, waiting as a line, running as a bar.
#
# Rows are jobs in order of submission, from the top. The darker a bar, the more GPUs it holds.
# Where there are more jobs than rows, jobs at equal distances in that order stand for all.

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
        text = counted(size, "GPU")
        box = [(at, y - 5, 14.0, 10.0)]
        found += [boxes(box, f"cells h{_shade(size, most)}"), label(text, at + 19, y)]
        at += 34 + text_width(text, frame.font)
    found.append(Element("path", d=f"M{number(at)} {number(y)}h14", class_="wait"))
    found.append(label("waits", at + 19, y))
    return found


Floats = NDArray[np.float64]

QUANTILES = 200
SHOWN_PCT = (10, 25, 50, 75, 90, 99)


def sim_charts(found: SimRun, numbers: dict[str, int]) -> list[Chart]:
    """Plots that compare policies, in reading order; those without data are left out."""
    charts = [_completion(found, numbers), _pareto(found, numbers), *_usage(found, numbers)]
    return [chart for chart in charts if chart is not None]


def policy_charts(found: SimRun, run: PolicyRun) -> list[Chart]:
    """Plots of one policy: its power over time, and when jobs ran."""
    return [*_power(found, run), *_gantt(found, run)]


def _end_s(found: SimRun) -> float:
    """When the last of the policies was done."""
    ends = [stretch.stop_s for run in found.runs for stretch in run.stretches]
    ends += [job.finish_s for run in found.runs for job in run.jobs if job.finish_s is not None]
    ends += [float(run.levels.time_s[-1]) for run in found.runs if run.levels is not None]
    return max(ends, default=1.0)


# Completion times -------------------------------------------------------------------------------


def _completion(found: SimRun, numbers: dict[str, int]) -> Chart | None:
    known = {run.policy: _jcts(run) for run in found.runs if len(_jcts(run))}
    if not known:
        return None
    lines = tuple(
        _distribution(run, known[run.policy], numbers[run.policy])
        for run in found.runs
        if run.policy in known
    )
    plot = Lines(
        title="Completion times",
        about="Share of all jobs that were done within a time of their submission, by policy",
        x_title="time from submission to completion (logarithmic)",
        y_title="jobs done, %",
        lines=lines,
        y_high=100.0,
        log=True,
    )
    return Chart(
        key="completion",
        title=plot.title,
        caption="Each line shows the share of all jobs that were done within the time below. "
        "Further to the left and up is better; a line that ends below 100 % left jobs undone.",
        draw=lambda frame, key: draw_timelines(plot, frame, key),
        table=_percentiles(known),
    )


def _jcts(run: PolicyRun) -> Floats:
    return np.sort(np.array([job.jct_s for job in run.jobs if job.jct_s is not None]))


def _distribution(run: PolicyRun, jcts: Floats, number: int) -> PlotLine:
    """The cumulative distribution, at no more than `QUANTILES` jobs."""
    ranks = np.unique(np.linspace(0, len(jcts) - 1, QUANTILES).round().astype(int))
    share = 100 * (ranks + 1) / len(run.jobs)
    return PlotLine(name=run.policy, number=number, x=jcts[ranks].tolist(), y=share.tolist())


def _percentiles(known: dict[str, Floats]) -> DataTable:
    rows = [
        (policy, *(show_seconds(float(np.percentile(jcts, at))) for at in SHOWN_PCT))
        for policy, jcts in known.items()
    ]
    return DataTable(heads=("policy", *(f"{at} %" for at in SHOWN_PCT)), rows=tuple(rows))


def _pareto(found: SimRun, numbers: dict[str, int]) -> Chart | None:
    shown = [run.figures for run in found.runs if run.figures.avg_jct_s is not None]
    if len(shown) < 2:
        return None
    return Chart(
        key="pareto",
        title="Completion time against energy",
        caption="Lower left is better. The dashed line joins policies that no other one beats in "
        "both; hollow ones left jobs undone or drew more than the budget, and do not count.",
        draw=lambda frame, key: draw_energy_pareto(shown, numbers, frame, key),
    )


# Over time --------------------------------------------------------------------------------------


def _usage(found: SimRun, numbers: dict[str, int]) -> Iterator[Chart]:
    capacity = found.sim.capacity
    for name, most, what in (("gpus", capacity.gpus, "GPUs"), ("cpus", capacity.cpus, "vCPUs")):
        known = [run for run in found.runs if run.levels is not None]
        if known and any(getattr(run.levels, name).any() for run in known):
            yield _in_use(found, known, numbers, name, float(most), what)


def _in_use(
    found: SimRun,
    known: Sequence[PolicyRun],
    numbers: dict[str, int],
    name: str,
    most: float,
    what: str,
) -> Chart:
    end_s = _end_s(found)
    each, unit = time_unit(end_s)
    factor = 100 / most if most else 1.0
    lines = []
    for run in known:
        if run.levels is not None:
            x, heights = _spans(run.levels, end_s, getattr(run.levels, name) * factor)
            line = PlotLine(name=run.policy, number=numbers[run.policy], x=(x / each).tolist(),
                        y=heights.tolist())  # fmt: skip
            lines.append(line)
    plot = Lines(
        title=f"{what} in use",
        about=f"{what} in use over time, by policy",
        x_title=f"time ({unit})",
        y_title=f"{what} in use, % of all" if most else f"{what} in use",
        lines=tuple(lines),
        y_high=100.0 if most else None,
    )
    return Chart(
        key=name,
        title=plot.title,
        caption=f"{what} held by jobs, averaged over spans of {show_seconds(end_s / POINTS)}. "
        "A policy that is done early has its line fall to zero early.",
        draw=lambda frame, key: draw_timelines(plot, frame, key),
    )


def _spans(levels: PowerLevels, end_s: float, values: Floats) -> tuple[Floats, Floats]:
    """Middles of spans up to `end_s`, and the averages in them; nothing is in use once all ends."""
    time_s, heights = _until(levels, end_s, values)
    found = averaged(time_s, end_s, heights)
    cuts = np.linspace(time_s[0], end_s, len(found) + 1)
    return (cuts[1:] + cuts[:-1]) / 2, found


def _until(levels: PowerLevels, end_s: float, values: Floats) -> tuple[Floats, Floats]:
    """The steps, the last of them only as long as those before it, then nothing."""
    time_s = levels.time_s
    if len(time_s) < 2:
        return time_s, values
    over_s = time_s[-1] + np.median(np.diff(time_s))
    if over_s >= end_s:
        return time_s, values
    return np.append(time_s, over_s), np.append(values, 0.0)


# One policy -------------------------------------------------------------------------------------


def _power(found: SimRun, run: PolicyRun) -> Iterator[Chart]:
    levels = run.levels
    if levels is None or len(levels.time_s) < 2:
        return
    end_s = float(levels.time_s[-1] + np.median(np.diff(levels.time_s)))
    each, unit = time_unit(_end_s(found))
    x, busy = _spans(levels, end_s, levels.run_w)
    _, rest = _spans(levels, end_s, levels.draw_w - levels.run_w)
    at = np.searchsorted(levels.time_s, x, side="right") - 1
    ceiling = levels.budget_w[at]
    peak = _peaks(levels, x, end_s)
    limited = bool(np.isfinite(ceiling).any())
    highest = [peak.max(), *(value for value in ceiling.tolist() if math.isfinite(value))]
    factor, watts = (1e-3, "kW") if max(highest) >= 1e4 else (1.0, "W")
    plot = Stack(
        title=f"Power: {run.policy}",
        about="Watts of running jobs and of idle devices over time, beside the budget",
        x_title=f"time ({unit})",
        y_title=f"power, {watts}",
        x=x / each,
        layers=(("busy", "running jobs", busy * factor), ("rest", "idle devices", rest * factor)),
        peak=peak * factor,
        ceiling=ceiling * factor,
        ceiling_name="budget",
        y_high=max(highest) * factor,
    )
    yield Chart(
        key=f"power-{run.policy}",
        title=plot.title,
        caption="Averages over short spans, one on top of the other; the thin line is the highest "
        "draw within each span." + (" It must stay under the budget." if limited else ""),
        draw=lambda frame, key: draw_stack(plot, frame, key),
    )


def _peaks(levels: PowerLevels, x: Floats, end_s: float) -> Floats:
    """The highest draw in each span, and in the steps that reach into it."""
    cuts = np.linspace(levels.time_s[0], end_s, len(x) + 1)
    first = np.searchsorted(levels.time_s, cuts[:-1], side="right") - 1
    last = np.searchsorted(levels.time_s, cuts[1:], side="left")
    peaks = [
        levels.peak_w[one : max(other, one + 1)].max()
        for one, other in zip(first.tolist(), last.tolist(), strict=True)
    ]
    return np.array(peaks)


def _gantt(found: SimRun, run: PolicyRun) -> Iterator[Chart]:
    if not run.stretches or not run.jobs:
        return
    end_s = _end_s(found)
    shown, count = len(shown_jobs(run)), len(run.jobs)
    some = "" if shown == count else f" {shown} of {tick_label(count)} jobs stand for all."
    yield Chart(
        key=f"gantt-{run.policy}",
        title=f"When jobs ran: {run.policy}",
        caption="A row per job, the first submitted at the top: a line while it waits, a bar while "
        f"it runs, darker the more GPUs it has.{some}",
        draw=lambda frame, key: draw_gantt(run, end_s, time_unit(end_s), frame, key),
    )

"""Loss and throughput of a job as it reported them; restarts and changes of width are marked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from wattherd.report.charts import Chart
from wattherd.report.svg import tick_label
from wattherd.report.timeline import time_unit
from wattherd.report.training_picture import RunLine, TrainingPicture, draw_training
from wattherd.server.documents.training_reports import Report
from wattherd.server.journal.timeline import GpuSpan
from wattherd.server.web.picture import HALF, TwoThemePicture, picture


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPictures:
    """Pictures of what was reported, and a line about each run."""

    pictures: tuple[TwoThemePicture, ...]
    runs: tuple[Mapping[str, Any], ...]


def widths(spans: Iterable[GpuSpan], job_id: str) -> dict[int, int]:
    """GPUs of each run of a job that is still remembered."""
    found: dict[int, int] = {}
    for span in spans:
        if span.job_id == job_id:
            found[span.attempt] = found.get(span.attempt, 0) + len(span.gpus)
    return found


def training(reports: Sequence[Report], gpus: Mapping[int, int], hue: int) -> TrainingPictures:
    """What is shown of these reports; nothing where there are none."""
    names = _names(dict.fromkeys(one.attempt for one in reports), gpus)
    timed = bool(reports) and all(one.at_unix_s is not None for one in reports)
    figures = (
        _loss(reports, names, hue),
        _rate(reports, names, hue, timed=timed),
    )
    return TrainingPictures(
        pictures=tuple(one for one in figures if one is not None),
        runs=tuple(_run(list(group), names) for _, group in groupby(reports, _attempt)),
    )


def _attempt(report: Report) -> int:
    return report.attempt


def _names(attempts: Iterable[int], gpus: Mapping[int, int]) -> dict[int, str]:
    """`run 3, 4 GPUs (before: 2)`, as far as it is known."""
    found: dict[int, str] = {}
    before: int | None = None
    for attempt in attempts:
        width = gpus.get(attempt)
        text = f"run {attempt}"
        if width is not None:
            text += f", {width} GPU{'' if width == 1 else 's'}"
            text += f" (before: {before})" if before not in (None, width) else ""
            before = width
        found[attempt] = text
    return found


def _run(reports: Sequence[Report], names: Mapping[int, str]) -> Mapping[str, Any]:
    last = reports[-1]
    return {
        "name": names[last.attempt],
        "from": reports[0].step,
        "to": last.step,
        "loss": next((one.loss for one in reversed(reports) if one.loss is not None), None),
        "rate": next((one.rate_per_s for one in reversed(reports) if one.rate_per_s), None),
    }


def _loss(reports: Sequence[Report], names: Mapping[int, str], hue: int) -> TwoThemePicture | None:
    runs = _lines(reports, names, lambda one: one.step, lambda one: one.loss)
    if not runs:
        return None
    (_, first), (step, last) = runs[0].points[0], runs[-1].points[-1]
    about = f"Loss {first:.4g} at first, {last:.4g} at step {tick_label(step)}"
    plot = TrainingPicture(
        title="Loss", about=about, x_title="step", y_title="loss", hue=hue, runs=runs
    )
    return _figure("job-loss", plot, f"{about}{_marked(runs)}.")


def _rate(
    reports: Sequence[Report], names: Mapping[int, str], hue: int, *, timed: bool
) -> TwoThemePicture | None:
    """Over time where all reports say when they were made, by step otherwise."""
    place, x_title = _clock(reports) if timed else ((lambda one: one.step), "step")
    runs = _lines(reports, names, place, lambda one: one.rate_per_s)
    if not runs:
        return None
    about = f"{runs[-1].points[-1][1]:,.3g} steps per second at the end"
    plot = TrainingPicture(
        title="Throughput", about=about, x_title=x_title, y_title="steps per second", hue=hue,
        runs=runs, from_zero=True,
    )  # fmt: skip
    return _figure("job-rate", plot, f"{about}{_marked(runs)}.")


def _clock(reports: Sequence[Report]) -> tuple[Callable[[Report], float], str]:
    at = [one.at_unix_s or 0.0 for one in reports]
    begun_s = min(at)
    span_s = max(at) - begun_s
    each, unit = (1.0, "s") if span_s <= 300 else time_unit(span_s)
    return (lambda one: ((one.at_unix_s or 0.0) - begun_s) / each), f"{unit} since the first report"


def _lines(
    reports: Sequence[Report],
    names: Mapping[int, str],
    place: Callable[[Report], float],
    value: Callable[[Report], float | None],
) -> list[RunLine]:
    found = []
    for attempt, group in groupby(reports, _attempt):
        points = [(place(one), known) for one in group if (known := value(one)) is not None]
        if points:
            found.append(RunLine(name=names[attempt], points=points))
    return found


def _marked(runs: Sequence[RunLine]) -> str:
    return "; dashed lines are where a later run begins" if len(runs) > 1 else ""


def _figure(key: str, plot: TrainingPicture, caption: str) -> TwoThemePicture:
    chart = Chart(
        key=key,
        title=plot.title,
        caption=caption,
        draw=lambda frame, name: draw_training(plot, frame, name),
    )
    return picture(chart, HALF)

"""The page of a job: how far, how fast, at how many watts, and what full power would change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from wattherd.engine.jobs.record import JobRecord
from wattherd.estimate.power_curve import PowerCurve
from wattherd.report.charts import Chart
from wattherd.report.curve_picture import CurvePicture, draw_curve
from wattherd.report.draw_picture import hue_of
from wattherd.report.svg import tick_label
from wattherd.report.timeline import Lines, PlotLine, draw_timelines, time_unit
from wattherd.report.training_picture import RunLine, TrainingPicture, draw_training
from wattherd.server.auth.caller import Caller
from wattherd.server.documents.documents import SiteView, job_document
from wattherd.server.documents.explanation import explanation
from wattherd.server.documents.job_swing import swing_of
from wattherd.server.documents.privacy import seen_by
from wattherd.server.documents.task_logs import TaskLog
from wattherd.server.documents.training_reports import TrainingReportLine, training_reports
from wattherd.server.hardware.device_use import GpuUse
from wattherd.server.hardware.draw import DrawSample
from wattherd.server.journal.timeline import GpuSpan
from wattherd.server.web.app_access import opens
from wattherd.server.web.cluster import summed
from wattherd.server.web.page_source import PageSource
from wattherd.server.web.picture import HALF, TwoThemePicture, picture
from wattherd.units import counted

# --- Loss and throughput of a job as it reported them; restarts and changes of width are marked.


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


def training(
    reports: Sequence[TrainingReportLine], gpus: Mapping[int, int], hue: int
) -> TrainingPictures:
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


def _attempt(report: TrainingReportLine) -> int:
    return report.attempt


def _names(attempts: Iterable[int], gpus: Mapping[int, int]) -> dict[int, str]:
    """`run 3, 4 GPUs (before: 2)`, as far as it is known."""
    found: dict[int, str] = {}
    before: int | None = None
    for attempt in attempts:
        width = gpus.get(attempt)
        text = f"run {attempt}"
        if width is not None:
            text += f", {counted(width, 'GPU')}"
            text += f" (before: {before})" if before not in (None, width) else ""
            before = width
        found[attempt] = text
    return found


def _run(reports: Sequence[TrainingReportLine], names: Mapping[int, str]) -> Mapping[str, Any]:
    last = reports[-1]
    return {
        "name": names[last.attempt],
        "from": reports[0].step,
        "to": last.step,
        "loss": next((one.loss for one in reversed(reports) if one.loss is not None), None),
        "rate": next((one.rate_per_s for one in reversed(reports) if one.rate_per_s), None),
    }


def _loss(
    reports: Sequence[TrainingReportLine], names: Mapping[int, str], hue: int
) -> TwoThemePicture | None:
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
    reports: Sequence[TrainingReportLine], names: Mapping[int, str], hue: int, *, timed: bool
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


def _clock(
    reports: Sequence[TrainingReportLine],
) -> tuple[Callable[[TrainingReportLine], float], str]:
    at = [one.at_unix_s or 0.0 for one in reports]
    begun_s = min(at)
    span_s = max(at) - begun_s
    each, unit = (1.0, "s") if span_s <= 300 else time_unit(span_s)
    return (lambda one: ((one.at_unix_s or 0.0) - begun_s) / each), f"{unit} since the first report"


def _lines(
    reports: Sequence[TrainingReportLine],
    names: Mapping[int, str],
    place: Callable[[TrainingReportLine], float],
    value: Callable[[TrainingReportLine], float | None],
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


LOG_LINES = 200
SWING_SAMPLES = 600
"""Of the past that the page judges: ten minutes."""
MOST_LOG_BYTES = 64_000
POINTS = 240
BOUND = 0.9
"""Part of its cap from which on a job is taken to be held back by it."""
MEASURED = 24
"""Measured points of the throughput by power that are shown, the latest."""


def job_view(scene: PageSource, caller: Caller, job_id: str) -> dict[str, Any] | None:
    """All that the page shows; None where there is no such job for this caller."""
    found = scene.look(lambda look: _taken(look, scene, caller, job_id))
    if found is None:
        return None
    document, told, facts, samples, rates, curve, stories, gpus = found
    estimated = facts["estimated"]
    reports = training_reports(scene.state / "jobs", job_id, document["attempts"])
    return {
        "job": document,
        "told": told,
        "facts": facts,
        "story": stories,
        "hue": hue_of(job_id),
        "training": training(reports, gpus, hue_of(job_id)),
        "use": _use(document, scene),
        "log": _log(scene.state / "jobs", job_id, document["attempts"]),
        "pictures": [
            one
            for one in (
                _watts_picture(job_id, samples, estimated),
                _curve_picture(curve, rates, samples, job_id, facts, estimated),
            )
            if one is not None
        ],
        "touches": scene.keeper is not None and facts["touches"] and facts["going"],
        "opens": scene.keeper is not None and document["app"] is not None and facts["opens"],
    }


def _taken(look: SiteView, scene: PageSource, caller: Caller, job_id: str) -> Any:
    past = look.history.get(job_id)
    if past is None or not caller.sees(past.spec):
        return None
    document = job_document(look, job_id)
    record = look.core.jobs.get(job_id)
    curve = look.core.watts.curve(record.spec, record.allocations) if record else None
    samples = [one for one in list(look.book.samples) if job_id in one.by_job]
    rates = list(scene.chronicle.rates.get(job_id, ()))
    facts = {
        **_facts(document, record, curve),
        "estimated": look.stated == "model",
        "swing": swing_of(samples[-SWING_SAMPLES:], job_id),
        "touches": caller.touches(past.spec),
        "opens": opens(caller, past),
        "going": record is not None,
        "gpus": max(1, record.gpus) if record else max(1, past.spec.gpus),
        "preemptions": record.preemptions if record else None,
        "failures": record.failures if record else None,
    }
    told = explanation(look, job_id, scene.chronicle, seen_by(look, caller))
    stories = list(reversed(document["story"] or told["story"]))[:40]
    gpus = widths(list(scene.chronicle.spans), job_id)
    return document, told, facts, samples, rates, curve, stories, gpus


def _use(document: dict[str, Any], scene: PageSource) -> GpuUse:
    """Of the devices that it holds; a service has one node, whose devices are numbered."""
    use = scene.use()
    held = [gpu for place in document["where"] for gpu in place["gpus"]]
    return summed([use[gpu] for gpu in held if gpu < len(use)])


def _facts(
    document: dict[str, Any], record: JobRecord | None, curve: PowerCurve | None
) -> dict[str, Any]:
    """What is left at the present power, and at full power, which is told apart from what is."""
    left_s, watts = document["remaining_s"], document["watts"]
    facts: dict[str, Any] = {"left_j": None, "full": None, "speed": None, "bound": True}
    if left_s is not None and watts is not None:
        facts["left_j"] = left_s * watts
    if record is None or curve is None or record.cap_w is None:
        return facts
    speed = curve.rate(record.cap_w) / curve.rates[-1]
    facts["speed"] = speed
    facts["bound"] = watts is None or watts >= BOUND * record.cap_w * record.gpus
    if left_s is not None and speed > 0 and facts["bound"]:
        full_s = left_s * speed
        most_w = min(curve.max_w, curve.watts[-1]) * record.gpus
        facts["full"] = {"left_s": full_s, "left_j": full_s * most_w, "sooner_s": left_s - full_s}
    return facts


def _watts_picture(
    job_id: str,
    samples: Sequence[DrawSample],
    estimated: bool,  # noqa: FBT001 - said by whoever measured
) -> TwoThemePicture | None:
    if len(samples) < 2:
        return None
    taken = samples[-7200:][:: max(1, len(samples) // POINTS)]
    end_s = taken[-1].at_s
    each, unit = time_unit(end_s - taken[0].at_s)
    line = PlotLine(
        name="draw",
        number=hue_of(job_id),
        x=[(one.at_s - taken[0].at_s) / each for one in taken],
        y=[one.by_job[job_id] for one in taken],
    )
    plot = Lines(
        title="Draw",
        about=f"{line.y[-1]:,.1f} W at the end",
        x_title=f"{unit} since it was first seen",
        y_title="W (estimated)" if estimated else "W",
        lines=(line,),
    )
    return picture(
        Chart(
            key="job-watts",
            title="Draw",
            caption=f"{plot.about}.",
            draw=lambda frame, key: draw_timelines(plot, frame, key),
        ),
        HALF,
    )


def _curve_picture(
    curve: PowerCurve | None,
    rates: Sequence[tuple[float, float]],
    samples: Sequence[DrawSample],
    job_id: str,
    facts: dict[str, Any],
    estimated: bool,  # noqa: FBT001 - said by whoever measured
) -> TwoThemePicture | None:
    """The curve that decisions are made by, scaled to what was measured."""
    if curve is None:
        return None
    measured = _measured(rates, samples, job_id, facts["gpus"])[-MEASURED:]
    factor, unit = _scale(curve, measured)
    now = _now_point(curve, facts, factor, measured)
    plot = CurvePicture(
        curve=[(w, factor * r) for w, r in zip(curve.watts, curve.rates, strict=True)],
        measured=measured,
        now=now,
        unit=unit,
        estimated=estimated,
    )
    caption = (
        "The line is what decisions reckon with, dots are what the job reported"
        " at the watts it drew, the large one is where it is now."
    )
    return picture(
        Chart(
            key="job-curve",
            title="Throughput by power",
            caption=caption,
            draw=lambda frame, key: draw_curve(plot, frame, key),
        ),
        HALF,
    )


def _measured(
    rates: Sequence[tuple[float, float]], samples: Sequence[DrawSample], job_id: str, gpus: int
) -> list[tuple[float, float]]:
    """Reported rates at the watts per GPU of the sample before each."""
    if not samples:
        return []
    at = np.array([one.at_s for one in samples])
    found = []
    for at_s, rate in rates:
        place = int(np.searchsorted(at, at_s, side="right")) - 1
        if place >= 0:
            found.append((samples[place].by_job[job_id] / gpus, rate))
    return found


def _scale(curve: PowerCurve, measured: Sequence[tuple[float, float]]) -> tuple[float, str]:
    """What full speed is in steps per second, by the median of what was measured."""
    factors = [rate / curve.rate(w) for w, rate in measured if curve.rate(w) > 0]
    if not factors:
        return 1.0 / curve.rates[-1], "part of full speed"
    return float(np.median(factors)), "steps per second"


def _now_point(
    curve: PowerCurve,
    facts: dict[str, Any],
    factor: float,
    measured: Sequence[tuple[float, float]],
) -> tuple[float, float] | None:
    """The latest that was measured; without, where the curve is at the cap."""
    if measured:
        return measured[-1]
    speed = facts["speed"]
    if speed is None:
        return None
    at_w = next((w for w in np.linspace(curve.floor_w, curve.max_w, 400).tolist()
                 if curve.rate(w) >= speed * curve.rates[-1] - 1e-9), curve.max_w)  # fmt: skip
    return at_w, factor * curve.rate(at_w)


def _log(root: Path, job_id: str, attempt: int) -> str:
    """The end of what its first task printed in its last run."""
    if attempt < 1:
        return ""
    text = TaskLog(root, job_id, attempt, 0).end(LOG_LINES, MOST_LOG_BYTES)
    return text.decode("utf-8", "replace")

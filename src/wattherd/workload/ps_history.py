"""Past parameter-server jobs, looked at while they ran: what the curve judge learns from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattherd.estimate.curve_judge import MOST_POINTS, CurveJudge, CurveLook, Point, look, taught
from wattherd.estimate.ps_job import PsJob
from wattherd.estimate.shapes import asked_shape
from wattherd.workload.ps_jobs import Mix, PsWorkload, generate
from wattherd.workload.streams import stream

LOOKS_PER_JOB = 4


def past_looks(
    past: PsWorkload, chance: np.random.Generator, report_s: float
) -> list[tuple[CurveLook, bool]]:
    """(what was seen, whether the curve told by then) at random moments of past jobs."""
    found: list[tuple[CurveLook, bool]] = []
    for spec in past.specs:
        truth = past.truths[spec.id]
        whole_s = truth.steps * truth.speed.step_s(asked_shape(spec))
        for part in chance.random(LOOKS_PER_JOB).tolist():
            seen = look(_points(truth, part, whole_s / report_s), past.target_loss[spec.id])
            if seen is not None:
                tells = truth.predictable and part * truth.steps >= truth.loss.tells_from
                found.append((seen, tells))
    return found


def _points(truth: PsJob, part: float, reports: float) -> list[Point]:
    """What would have been reported up to a part of the run."""
    count = min(int(part * reports), MOST_POINTS)
    steps = np.linspace(0.0, part * truth.steps, count + 1)[1:]
    return [(step, truth.loss.at(step)) for step in steps.tolist()]


def judge_of_the_past(mix: Mix, seed: int, report_s: float) -> CurveJudge:
    """A judge taught by a workload of another seed, half of whose jobs tell."""
    past = generate(replace(mix, unpredictable=0.5, jobs=400), seed)
    looks = past_looks(past, stream(seed, "ps past"), report_s)
    return taught([seen for seen, _ in looks], [tells for _, tells in looks])

"""What schedulers may know of parameter-server jobs beforehand: sample runs, and past jobs.

Sample runs tell speed and target of a job; past jobs, looked at while they ran, teach the judge of
loss curves.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattherd.estimate.curve_judge import MOST_POINTS, CurveJudge, CurveLook, Point, look, taught
from wattherd.estimate.ps_job import PsJob
from wattherd.estimate.speed import JobShape, PsBelief, SpeedModel, asked_shape, fit_speed
from wattherd.workload.ps_jobs import PsMix, PsWorkload, generate
from wattherd.workload.random_streams import stream

SAMPLE_NOISE = 0.05
"""Relative error of a step time measured over ten seconds."""
SAMPLES = (
    (1, 1, 1),
    (1, 2, 2),
    (1, 8, 4),
    (2, 1, 1),
    (2, 4, 2),
    (4, 1, 1),
    (4, 8, 1),
    (8, 2, 1),
    (8, 8, 1),
)
"""(workers, servers, GPUs per worker) that are tried out, with the cores that were asked for."""


def beliefs(workload: PsWorkload, seed: int) -> dict[str, PsBelief]:
    """One belief per job."""
    return {
        spec.id: PsBelief(
            speed=profiled(
                workload.truths[spec.id], asked_shape(spec), stream(seed, f"ps profile {spec.id}")
            ),
            target_loss=workload.target_loss[spec.id],
            most_steps=workload.most_steps[spec.id],
            epoch_steps=workload.epoch_steps[spec.id],
        )
        for spec in workload.specs
    }


def profiled(truth: PsJob, asked: JobShape, chance: np.random.Generator) -> SpeedModel:
    """A speed model fitted to nine noisy samples."""
    samples = []
    for workers, servers, gpus in SAMPLES:
        shape = JobShape(
            workers=workers,
            servers=servers if asked.servers else 0,
            worker_cores=max(asked.worker_cores, gpus),
            server_cores=asked.server_cores,
            gpus=workers * gpus if asked.gpus else 0,
        )
        measured = truth.speed.step_s(shape) * np.exp(SAMPLE_NOISE * chance.standard_normal())
        samples.append((shape, float(measured)))
    return fit_speed(samples, truth.speed.batch, truth.speed.curves)


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


def judge_of_the_past(mix: PsMix, seed: int, report_s: float) -> CurveJudge:
    """A judge taught by a workload of another seed, half of whose jobs tell."""
    past = generate(replace(mix, unpredictable=0.5, jobs=400), seed)
    looks = past_looks(past, stream(seed, "ps past"), report_s)
    return taught([seen for seen, _ in looks], [tells for _, tells in looks])

"""Sample runs of parameter-server jobs: what schedulers may know of their speed and target."""

from __future__ import annotations

import numpy as np

from wattherd.estimate.ps_belief import PsBelief
from wattherd.estimate.ps_job import PsJob
from wattherd.estimate.shapes import asked_shape
from wattherd.estimate.speed import JobShape, SpeedModel, fit_speed
from wattherd.workload.ps_jobs import PsWorkload
from wattherd.workload.streams import stream

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

"""How much work a job is: seconds of training at the width it asked for.

Orders by length look at it, and plants of known durations count it down. None means that nobody
knows; such jobs come last wherever length decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from wattherd.estimate.application import Application, Placement
from wattherd.model.job import JobSpec

Work = Callable[[JobSpec], float | None]
"""A job's work (s at the width it asked for), None where it is not known."""


def as_submitted(spec: JobSpec) -> float | None:
    """What the job says of itself."""
    return spec.duration_s


def stretched(factor: float) -> Work:
    """What the job says of itself, times `factor`."""

    def work(spec: JobSpec) -> float | None:
        return None if spec.duration_s is None else spec.duration_s * factor

    return work


def by_application(applications: Mapping[str, Application], node_gpus: int) -> Work:
    """An oracle: what the application's true model says, on nodes of `node_gpus` GPUs."""
    known: dict[tuple[str, int, int | None], float] = {}

    def work(spec: JobSpec) -> float | None:
        application = applications.get(spec.profile)
        if application is None:
            return spec.duration_s
        shape = (spec.profile, spec.gpus, spec.batch_size)
        if shape not in known:
            known[shape] = _training_s(application, spec, node_gpus)
        return known[shape]

    return work


def _training_s(application: Application, spec: JobSpec, node_gpus: int) -> float:
    """All epochs, one after the other, on as few nodes as possible."""
    plan = application.batch_plan(spec.batch_size or application.initial_batch, spec.gpus)
    placement, bounds = _packed(spec.gpus, node_gpus), application.boundaries
    return math.fsum(
        (bounds[epoch + 1] - bounds[epoch]) / application.goodput(placement, plan, epoch)
        for epoch in range(application.epochs)
    )


def _packed(gpus: int, node_gpus: int) -> Placement:
    full, rest = divmod(gpus, node_gpus)
    return (node_gpus,) * full + ((rest,) if rest else ())

"""How long a job takes: seconds of training at the width it asked for, and what restarts add.

Orders by length look at the work, and plants of known durations count it down. None means that
nobody knows; such jobs come last wherever length decides. In a restart a job holds its devices and
gets nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wattherd.estimate.application import Application, Placement
from wattherd.model.job import JobSpec

# --- Work -------------------------------------------------------------------------------------
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


# --- Restarts ---------------------------------------------------------------------------------


def nothing(spec: JobSpec) -> float:
    """Restarts that cost nothing."""
    del spec
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartCost:
    """`pause_s` of a job is the time (s) from getting its devices to the first step of training.

    It is paid at the beginning of every run. Some simulators (Muri's, SIGCOMM'22 artifact) place
    all jobs anew whenever anything happens, and let every running job pay at every such event:
    `every_event`.
    """

    pause_s: Callable[[JobSpec], float] = nothing
    every_event: bool = False


FREE = RestartCost()


def constant(seconds: float) -> RestartCost:
    """The same pause for every job, at the beginning of each run."""

    def pause_s(spec: JobSpec) -> float:
        del spec
        return seconds

    return RestartCost(pause_s=pause_s)


MURI_WIDTHS = (1, 2, 4, 8, 16, 32)
MURI_START_S: dict[str, tuple[float, ...]] = {
    "vgg16": (7, 7, 8, 9, 9, 10),
    "vgg19": (7, 7, 8, 9, 10, 10),
    "resnet18": (4, 5, 5, 7, 7, 7),
    "shufflenet_v2_x1_0": (4, 4, 5, 5, 7, 8),
    "bert": (10, 10, 10, 10, 10, 10),
    "gpt2": (10, 10, 10, 10, 10, 10),
    "a2c": (38, 39, 39, 46, 46, 46),
    "dqn": (5, 5, 6, 6, 8, 8),
}
"""Seconds that models take to start on so many GPUs (Muri, SIGCOMM'22, artifact)."""
MURI_OTHER_START_S = 10.0


_MEASURED_S = {
    (model, gpus): start_s
    for model, times in MURI_START_S.items()
    for gpus, start_s in zip(MURI_WIDTHS, times, strict=True)
}


def muri_start_s(spec: JobSpec) -> float:
    """What Muri's simulator takes a start for: measured where it was, 10 s elsewhere."""
    return _MEASURED_S.get((spec.profile, spec.gpus), MURI_OTHER_START_S)


EVERY_EVENT = RestartCost(pause_s=muri_start_s, every_event=True)
"""Muri's simulator: all jobs are placed anew whenever anything happens, and all of them pay."""


def kept(spec: JobSpec, work_s: float) -> float:
    """Work (s) that is kept of `work_s` when a run is stopped.

    A job with a checkpoint period goes back to its last checkpoint, any other one loses nothing.
    """
    if not spec.checkpoint_s:
        return work_s
    return math.floor(work_s / spec.checkpoint_s) * spec.checkpoint_s

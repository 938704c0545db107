"""How long one step takes in parameter-server training, from a few sampled configurations.

The five phases of a synchronous step (AITurbo, HPDC'21; Optimus, EuroSys'18): forward and backward
on the workers, push of gradients, update on the parameter servers, pull of parameters.

    T = (th0 m + th1) / eff_w(c_w)   forward and backward; m samples per device
      + th2 w / p                    push and pull through p servers
      + th3 w / (p eff_p(c_p))       update on the servers' cores
      + th4 w + th5 p                connections
      + th6 g                        aggregation over g GPUs (nothing for workers without)

A worker may have several GPUs: m = batch / g, or batch / w without GPUs, which is the published
batch / w where each worker has one. eff is the speed that cores (per device on workers) give
relative to a reference, 1 where no curve is known. All th >= 0: every phase takes time. Unbounded
least squares on a handful of samples, as was published, gives negative step times away from them.
A model refuses configurations outside of what was sampled: there it knows nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError
from wattherd.model.allocation import Allocation
from wattherd.model.job import JobSpec

TERMS = 7
LEAST_SAMPLES = 8
"""Fewer cannot tell the seven phases apart and leave nothing to check against."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShape:
    """How a job runs: workers, servers, cores per task of each, GPUs over all workers.

    A job without parameter servers has `servers` 0 and no phase that involves them.
    """

    workers: int
    servers: int
    worker_cores: float = 1.0
    server_cores: float = 1.0
    gpus: int = 0

    @property
    def devices(self) -> int:
        """What the batch is split over: GPUs, or workers without."""
        return self.gpus or self.workers


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreCurve:
    """Speed against cores, a exp(-b cores) + d: more cores help less and less."""

    a: float
    b: float
    d: float

    def speed(self, cores: float) -> float:
        """Relative speed with `cores` cores.

        Raises:
            UserError: the curve gives no speed there (it was fitted elsewhere).
        """
        value = self.a * math.exp(-self.b * cores) + self.d
        if not value > 0:
            raise UserError(
                f"no speed with {cores:g} cores ({value:.3g})", hint="fitted for more cores"
            )
        return value


FLAT = CoreCurve(a=0.0, b=0.0, d=1.0)
"""Cores make no difference, or none is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreCurves:
    """Of a job's workers and of its parameter servers."""

    worker: CoreCurve = FLAT
    server: CoreCurve = FLAT


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRanges:
    """The ranges a model was fitted on, inclusive."""

    workers: tuple[int, int]
    servers: tuple[int, int]

    def holds(self, shape: JobShape) -> bool:
        """Whether a shape lies within."""
        (least_w, most_w), (least_p, most_p) = self.workers, self.servers
        return least_w <= shape.workers <= most_w and least_p <= shape.servers <= most_p


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedModel:
    """Step time of one job; `theta` is (th0 .. th6), `batch` the samples per step."""

    theta: tuple[float, ...]
    batch: int
    sampled: FittedRanges
    curves: CoreCurves = CoreCurves()

    def step_s(self, shape: JobShape) -> float:
        """Seconds per step.

        Raises:
            UserError: the shape lies outside of what was sampled.
        """
        if not self.sampled.holds(shape):
            raise UserError(
                f"{shape.workers} workers and {shape.servers} servers were not sampled",
                hint=f"workers {self.sampled.workers}, servers {self.sampled.servers}",
            )
        phases = phase_terms(shape, self.batch, self.curves)
        return math.fsum(share * term for share, term in zip(self.theta, phases, strict=True))


def phase_terms(shape: JobShape, batch: int, curves: CoreCurves) -> tuple[float, ...]:
    """What multiplies (th0 .. th6)."""
    cores = shape.worker_cores * shape.workers / shape.devices
    per_worker = 1.0 / curves.worker.speed(cores)
    per_server = shape.workers / shape.servers if shape.servers else 0.0
    return (
        per_worker * batch / shape.devices,
        per_worker,
        per_server,
        per_server / curves.server.speed(shape.server_cores) if shape.servers else 0.0,
        float(shape.workers),
        float(shape.servers),
        float(shape.gpus),
    )


def fit_speed(
    samples: Sequence[tuple[JobShape, float]], batch: int, curves: CoreCurves | None = None
) -> SpeedModel:
    """Bounded least squares of *relative* error over (shape, seconds per step).

    Relative, because a step of 0.1 s missed by 0.1 s matters more than one of 10 s.

    Raises:
        UserError: too few samples, a step time that is none, or SciPy is not installed.
    """
    if len(samples) < LEAST_SAMPLES:
        raise UserError(
            f"{len(samples)} samples cannot fit {TERMS} phases", hint=f"at least {LEAST_SAMPLES}"
        )
    if not all(math.isfinite(seconds) and seconds > 0 for _, seconds in samples):
        raise UserError("a step time is not a positive number", field="step_s")
    known = curves or CoreCurves()
    rows = np.array(
        [np.array(phase_terms(shape, batch, known)) / seconds for shape, seconds in samples]
    )
    theta = non_negative(rows, np.ones(len(samples)))
    workers = [shape.workers for shape, _ in samples]
    servers = [shape.servers for shape, _ in samples]
    return SpeedModel(
        theta=tuple(theta.tolist()),
        batch=batch,
        sampled=FittedRanges(
            workers=(min(workers), max(workers)), servers=(min(servers), max(servers))
        ),
        curves=known,
    )


def non_negative(rows: Floats, wanted: Floats) -> Floats:
    """Least squares with all coefficients >= 0 (Lawson and Hanson), columns scaled to length one.

    Raises:
        UserError: SciPy is not installed.
    """
    try:
        from scipy.optimize import nnls
    except ImportError:
        raise UserError("fitting needs SciPy", hint="pip install 'wattherd[science]'") from None
    length = np.linalg.norm(rows, axis=0)
    length[length == 0] = 1.0
    theta: Floats = nnls(rows / length, wanted)[0] / length
    return theta


def asked_shape(spec: JobSpec) -> JobShape:
    """The shape a job was submitted with; its first role are workers, its second servers."""
    worker, *others = spec.roles
    return JobShape(
        workers=worker.count,
        servers=others[0].count if others else 0,
        worker_cores=worker.cpu_milli / 1000,
        server_cores=others[0].cpu_milli / 1000 if others else 0.0,
        gpus=worker.count * worker.gpu_count,
    )


def shape_of(spec: JobSpec, allocations: Sequence[Allocation]) -> JobShape:
    """The shape in which a job is started; tasks of one role are all of one size."""
    tasks, cpu = [0] * len(spec.roles), [0] * len(spec.roles)
    for one in allocations:
        tasks[one.role] += one.tasks
        cpu[one.role] += one.request.cpu_milli
    has_servers = len(tasks) > 1 and tasks[1] > 0
    return JobShape(
        workers=tasks[0],
        servers=tasks[1] if has_servers else 0,
        worker_cores=cpu[0] / tasks[0] / 1000,
        server_cores=cpu[1] / tasks[1] / 1000 if has_servers else 0.0,
        gpus=sum(len(one.gpus) for one in allocations),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PsBelief:
    """What is believed of a parameter-server job: a fitted speed, and what its user declared.

    `speed` comes from sample runs; training goes on until the loss is `target_loss`.

    `most_steps` is where its user would give up, `epoch_steps` how many steps make an epoch.
    """

    speed: SpeedModel
    target_loss: float
    most_steps: float
    epoch_steps: float

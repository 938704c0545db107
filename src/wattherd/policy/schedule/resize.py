"""The moves by which a parameter-server job grows and shrinks, one unit of one resource at a time.

The five axes of AITurbo (HPDC'21): a server, a worker with its GPUs and cores, a core on every
server, a core on every worker, a GPU on every worker. A job without servers, GPUs or a choice of
cores has no moves along that axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

from wattherd.estimate.speed import JobShape
from wattherd.model.cluster import WHOLE_GPU_MILLI
from wattherd.model.job import JobSpec


class ResizeAxis(IntEnum):
    """What is added or removed."""

    SERVER = 0
    WORKER = 1
    SERVER_CORE = 2
    WORKER_CORE = 3
    GPU = 4


@dataclass(frozen=True, slots=True)
class ShapeDevices:
    """Devices that a shape holds."""

    gpus: int
    cores: float

    def __sub__(self, other: ShapeDevices) -> ShapeDevices:
        """What the one holds more than the other."""
        return ShapeDevices(self.gpus - other.gpus, self.cores - other.cores)

    def __add__(self, other: ShapeDevices) -> ShapeDevices:
        """Both together."""
        return ShapeDevices(self.gpus + other.gpus, self.cores + other.cores)

    def within(self, other: ShapeDevices) -> bool:
        """Whether `other` has it all."""
        return self.gpus <= other.gpus and self.cores <= other.cores + 1e-9


def has_shape(spec: JobSpec) -> bool:
    """Whether workers, and servers without GPUs, are all of a job; others run as asked for."""
    whole = all(role.gpu_milli == WHOLE_GPU_MILLI for role in spec.roles)
    return len(spec.roles) <= 2 and whole and not any(role.gpu_count for role in spec.roles[1:])


def cost_of(shape: JobShape) -> ShapeDevices:
    """GPUs and cores of all tasks."""
    cores = shape.workers * shape.worker_cores + shape.servers * shape.server_cores
    return ShapeDevices(shape.gpus, cores)


def moved(spec: JobSpec, shape: JobShape, axis: ResizeAxis, sign: int) -> JobShape | None:
    """The shape after one move, or None where the job cannot run so."""
    worker = spec.roles[0]
    gpus = shape.gpus // shape.workers
    if axis in (ResizeAxis.SERVER, ResizeAxis.SERVER_CORE) and not shape.servers:
        return None
    match axis:
        case ResizeAxis.SERVER:
            count = shape.servers + sign
            fits = count >= 1 and count in spec.counts(1)
            return replace(shape, servers=count) if fits else None
        case ResizeAxis.WORKER:
            count = shape.workers + sign
            fits = count in spec.counts(0)
            return replace(shape, workers=count, gpus=count * gpus) if fits else None
        case ResizeAxis.SERVER_CORE:
            cores = shape.server_cores + sign
            fits = round(1000 * cores) in spec.roles[1].cpus
            return replace(shape, server_cores=cores) if fits else None
        case ResizeAxis.WORKER_CORE:
            cores = shape.worker_cores + sign
            fits = round(1000 * cores) in worker.cpus
            return replace(shape, worker_cores=cores) if fits else None
        case ResizeAxis.GPU:
            fits = gpus > 0 and gpus + sign in worker.gpu_counts
            return replace(shape, gpus=(gpus + sign) * shape.workers) if fits else None


def moves(spec: JobSpec, shape: JobShape, sign: int) -> Iterator[tuple[ResizeAxis, JobShape]]:
    """Every possible move in one direction."""
    for axis in ResizeAxis:
        found = moved(spec, shape, axis, sign)
        if found is not None:
            yield axis, found

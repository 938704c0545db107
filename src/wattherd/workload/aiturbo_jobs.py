"""Job lists of AITurbo's later public code (`60jobs.txt`): parameter-server jobs to schedule.

A row says what was submitted: model, batch size, steps, target loss, arrival, servers, workers,
cores of each, GPUs in percent. What is true of the job is not in it and follows from the model as
in `workload.ps_jobs` (benchmarked images per second, bytes of its parameters over the network);
models without a benchmark are scaled by their floating-point operations per image.

A second file (`temp_copy.txt`, no header, one line per job) has minutes of each job in its authors'
run, waiting included, and the minute at which it became predictable, 99999 for never. With it, a
job tells how long it will run from that part of its steps on, as in their code. Without it, every
job does from 49 % on, the mean of those that ever did.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from wattherd.errors import UserError
from wattherd.estimate.ps_job import LossKind, PsJob, TrueLoss
from wattherd.estimate.speed import JobShape
from wattherd.estimate.steps import LossCurve
from wattherd.model.job import JobSpec
from wattherd.spelling import hint_for
from wattherd.workload.cells import CellPlace
from wattherd.workload.job_table import TableRow, check_new, placed
from wattherd.workload.ps_jobs import (
    NETWORKS,
    PARTS,
    STEP_NOISE,
    Network,
    PsWorkload,
    roles_of,
    slow_noise,
    speed_of,
)
from wattherd.workload.random_streams import stream
from wattherd.workload.source import opened
from wattherd.workload.table import Layout, rows

LAYOUT = Layout(
    kind="AITurbo job list",
    required=(
        "id", "model_name", "batch_size", "target_loss", "total_steps", "arrive_time", "ps_num",
        "worker_num", "gpu_num", "cpu_core_worker", "cpu_core_ps",
    ),
    separator="\t",
)  # fmt: skip
NEVER = 99_999
TELLS_FROM = 0.49
IMAGENET = 1_281_167
"""Images of an epoch."""
START_LOSS = float(np.log(1000.0))
_BENCHMARKED = {network.name: network for network in NETWORKS}


def _like(
    name: str, other: str, parameters: float, operations: float,
    worker: tuple[float, float, float], server: tuple[float, float, float],
) -> Network:  # fmt: skip
    """A model that needs `operations` times as many of them per image as a benchmarked one."""
    known = _BENCHMARKED[other]
    small = known.images_per_s_at_32
    return Network(
        name=name,
        parameters=parameters,
        batch=known.batch,
        images_per_s=known.images_per_s / operations,
        images_per_s_at_32=None if small is None else small / operations,
        worker=worker,
        server=server,
    )


MODELS = _BENCHMARKED | {
    network.name: network
    for network in (
        _like("vgg11", "vgg16", 132.9e6, 7.6 / 15.5, (-10.73, 0.8124, 9.701),
              (-7.74, 2.3719, 8.795)),
        _like("vgg19", "vgg16", 143.7e6, 19.6 / 15.5, (-12.2, 0.893, 10.6),
              (-6.68, 4.2738, 5.652)),
        _like("googlenet", "inception3", 7.0e6, 1.5 / 5.7, (-19.01, 0.6058, 16.68),
              (-0.89, 1.4462, 1.909)),
        _like("inception4", "inception3", 42.7e6, 12.3 / 5.7, (-15.93, 0.7909, 13.45),
              (-4.806, 2.853, 5.236)),
        _like("resnet101", "resnet152", 44.5e6, 7.6 / 11.3, (-10.45, 0.9715, 9.179),
              (-2.433, 2.349, 3.395)),
    )
}  # fmt: skip
"""Parameters and multiply-adds per image as their authors give them; core curves as published."""


def read_jobs(path: Path, times: Path | None = None) -> PsWorkload:
    """The jobs of a list, by time of arrival.

    Raises:
        UserError: with file, line and column; another number of times than of jobs.
    """
    found = [TableRow(dict(zip(LAYOUT.required, cells, strict=True)),
                      CellPlace(f"{path}:{line}"), line)
             for line, cells in rows(path, LAYOUT)]  # fmt: skip
    tells = [TELLS_FROM] * len(found) if times is None else read_times(times)
    if len(tells) != len(found):
        problem = f"{len(tells)} times for {len(found)} jobs"
        raise UserError(problem, where=str(times), hint="one line per job")
    lines: dict[str, int] = {}
    workload = PsWorkload(specs=(), truths={}, target_loss={}, most_steps={}, epoch_steps={})
    specs = []
    for row, part in zip(found, tells, strict=True):
        check_new(row.text("id"), row.number, lines, row.place, "id")
        specs.append(placed(_spec, row))
        _add(workload, row, specs[-1], part)
    return replace(workload, specs=tuple(sorted(specs, key=lambda spec: spec.submit_s)))


def _spec(row: TableRow) -> JobSpec:
    return JobSpec(
        id=row.place.name("id", row.text("id")),
        submit_s=row.seconds("arrive_time"),
        roles=roles_of(_shape(row)),
        profile=_model(row).name,
        batch_size=row.whole("batch_size", least=1) * row.whole("worker_num", least=1),
    )


def _shape(row: TableRow) -> JobShape:
    workers, percent = row.whole("worker_num", least=1), row.whole("gpu_num")
    if percent % (100 * workers):
        hint = "shares of GPUs are not simulated"
        raise row.place.error("gpu_num", f"{percent} % are no whole GPUs per worker", hint)
    return JobShape(
        workers=workers,
        servers=row.whole("ps_num"),
        worker_cores=row.whole("cpu_core_worker", least=1),
        server_cores=row.whole("cpu_core_ps", least=1),
        gpus=percent // 100,
    )


def _model(row: TableRow) -> Network:
    name = row.text("model_name")
    if name not in MODELS:
        raise row.place.error("model_name", f"unknown model {name!r}", hint_for(name, MODELS))
    return MODELS[name]


def _add(workload: PsWorkload, row: TableRow, spec: JobSpec, tells: float | None) -> None:
    """Note what is true of a job, and what its user declares."""
    steps = float(row.whole("total_steps", least=1, most=1 << 53))
    shape, target = _shape(row), _target(row)
    speed = replace(speed_of(_model(row), shape), batch=spec.batch_size or 1)
    chance = stream(0, f"aiturbo job {spec.id}")
    workload.truths[spec.id] = PsJob(
        id=spec.id,
        speed=speed,
        steps=steps,
        loss=_loss(chance, steps, target, tells),
        run_noise=tuple(np.exp(STEP_NOISE * chance.standard_normal(64)).tolist()),
    )
    workload.target_loss[spec.id] = target
    workload.most_steps[spec.id] = 2 * steps
    workload.epoch_steps[spec.id] = IMAGENET / (spec.batch_size or 1)


def _target(row: TableRow) -> float:
    target = row.seconds("target_loss")
    if not 0 < target < START_LOSS:
        hint = f"above 0, below {START_LOSS:.2f}, where training starts"
        raise row.place.error("target_loss", f"{target:g} cannot be reached", hint)
    return target


def _loss(
    chance: np.random.Generator, steps: float, target: float, tells: float | None
) -> TrueLoss:
    """From ln(1000) to the target at the last step, above a floor of half of it."""
    floor = target / 2
    first, last = 1 / (START_LOSS - floor), 1 / (target - floor)
    return TrueLoss(
        kind=LossKind.WANDERING if tells is None else LossKind.CONVERGING,
        curve=LossCurve(b0=(last - first) / steps, b1=first, b2=floor, error=0.0),
        steps=steps,
        tells_from=steps * (1.0 if tells is None else tells),
        slow=tuple(slow_noise(chance).tolist()),
        quick=tuple(chance.standard_normal(PARTS).tolist()),
    )


def read_times(path: Path) -> list[float | None]:
    """The part of each job's run after which it tells, 0 to 1; None for never.

    Raises:
        UserError: with file and line.
    """
    found = []
    with opened(path) as lines:
        for number, raw in enumerate(lines, start=1):
            text = raw.decode("utf-8", errors="replace").strip()
            if text:
                found.append(_part(text, f"{path}:{number}"))
    if not found:
        raise UserError("the file is empty", where=str(path))
    return found


def _part(text: str, where: str) -> float | None:
    try:
        whole, tells = (float(cell) for cell in text.split())
    except ValueError:
        raise UserError(f"{text[:40]!r} is no pair of minutes", where=where) from None
    if not (0 < whole < NEVER and tells >= 0):
        raise UserError(f"{text[:40]!r} is out of range", where=where, hint="minutes, 99999: never")
    return None if tells >= NEVER else min(tells / whole, 1.0)

"""Parameter-server jobs drawn from published statistics, with all that is true of them.

What follows what:

- shapes (servers, workers, GPUs, cores): the thirty most frequent combinations of the AITurbo
  data set (8,692 jobs; these are 80 % of them), in their frequencies. GPUs and cores there are a
  job's totals; they are split evenly over its tasks, at least one core each, and a job never has
  more workers than GPUs unless it has none;
- running times at the submitted shape: the percentiles of the same data set (median 2 h, 83 %
  below 5 h, at most 24.8 h), independent of the shape;
- models: InceptionV3, ResNet-50, ResNet-152, AlexNet, VGG16 with the images per second that the
  TensorFlow benchmarks (2017) measured on one P100, at batch sizes 64 (512) and 32; aggregation
  inside a node from their 8-GPU runs; gradients of the known parameter counts through one 10 Gbit/s
  link per server; core curves as published with AITurbo's successor, scaled to 1 at many cores. A
  CPU worker is taken to compute 30 times slower than a GPU;
- arrivals: Poisson at a given load, which is device time asked for over device time there is. The
  default is a burst, a day and a half of work handed in within four hours: the published sixty
  jobs came to four GPUs within 212 seconds;
- which jobs ever tell (their loss predicts how many steps are left) is a parameter; among the
  others half go stepwise, 40 % wander and 10 % are cut short (assumed). Jobs that tell do so from
  a fraction of their run on that is drawn from the 24 published ones (mean 49 %);
- the length of an epoch: the quantiles of the data set, independent of how long a job runs. There,
  epochs asked for x their time and the running time have a rank correlation of -0.16: what users
  declare says nothing about how long they will train.

The work of a job does not depend on whether it tells, nor its arrival: for one seed, mixes differ
in the loss curves alone, and the unpredictable jobs of a mix are among those of any larger share.
(In the data set unpredictable jobs are shorter, median 8 minutes instead of 2.5 hours; following
that would change the work with the mix, and no longer show what predictability is worth.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattherd.errors import UserError
from wattherd.estimate.ps_job import LossKind, PsJob, TrueLoss
from wattherd.estimate.speed import (
    CoreCurve,
    CoreCurves,
    FittedRanges,
    Floats,
    JobShape,
    SpeedModel,
)
from wattherd.estimate.steps import LossCurve
from wattherd.model.job import JobSpec, TaskRole
from wattherd.workload.random_streams import stream

SHAPES = (
    (2, 2, 1, 4, 583), (2, 2, 6, 24, 529), (2, 4, 1, 4, 497), (2, 2, 6, 56, 467),
    (0, 1, 6, 24, 398), (1, 1, 0, 1, 357), (1, 2, 8, 64, 332), (3, 3, 6, 24, 295),
    (2, 2, 0, 1, 281), (2, 6, 6, 24, 281), (2, 1, 2, 4, 233), (2, 1, 1, 4, 213),
    (2, 1, 2, 2, 211), (1, 2, 6, 24, 198), (1, 2, 8, 16, 198), (2, 6, 6, 16, 181),
    (2, 3, 2, 2, 173), (1, 2, 8, 56, 172), (2, 4, 1, 1, 156), (4, 2, 6, 24, 155),
    (4, 2, 6, 30, 140), (1, 2, 6, 20, 138), (2, 4, 6, 60, 138), (2, 2, 6, 30, 130),
    (3, 3, 1, 3, 118), (2, 1, 4, 4, 103), (4, 4, 0, 2, 100), (4, 2, 8, 64, 99),
    (3, 3, 6, 20, 88), (2, 2, 6, 20, 87),
)  # fmt: skip
"""(servers, workers, GPUs, cores, jobs) of the data set."""
RUNNING_TIMES_S = (
    (0.0, 10.0), (0.05, 70.0), (0.25, 693.0), (0.50, 7278.0), (0.75, 14087.0),
    (0.83, 17734.0), (0.90, 28393.0), (0.99, 71298.0), (1.0, 89145.0),
)  # fmt: skip
"""Quantiles of the data set, joined log-linearly."""
EPOCHS_S = (
    (0.0, 0.46), (0.05, 3.0), (0.25, 32.0), (0.50, 115.0), (0.75, 362.0), (0.90, 1303.0),
    (1.0, 2708.0),
)  # fmt: skip
"""Quantiles of the time of an epoch, steps x batch / throughput; the highest twentieth, up to 73
days, cut off."""
TELLS_FROM = (
    0.48, 0.50, 0.80, 0.45, 0.60, 0.27, 0.36, 0.23, 0.89, 0.49, 0.73, 0.86,
    0.63, 0.50, 0.73, 0.67, 0.09, 0.33, 0.63, 0.33, 0.39, 0.23, 0.30, 0.21,
)  # fmt: skip
"""Fractions of their run at which 24 jobs became predictable (AITurbo's successor)."""
UNTOLD = (
    (LossKind.STEPWISE, 0.5),
    (LossKind.WANDERING, 0.4),
    (LossKind.CUT_SHORT, 0.1),
)

NETWORK_B_PER_S = 1.25e9
IN_NODE_B_PER_S = 75e9
UPDATE_B_PER_S = 10e9
"""Of one core of a server: memory-bound update of three vectors."""
CONNECTION_S = 0.002
CPU_SLOWER = 30.0
STEP_NOISE = 0.05
MOST_WORKERS, MOST_SERVERS, MOST_CORES, MOST_GPUS = 8, 8, 16, 4
"""How far jobs scale: workers, servers, cores per task, GPUs per worker."""
PARTS = 128
"""Values of noise over a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A model as benchmarked: images/s on one GPU at `batch` and at 32, and its parameters."""

    name: str
    parameters: float
    batch: int
    images_per_s: float
    images_per_s_at_32: float | None
    worker: tuple[float, float, float]
    server: tuple[float, float, float]


NETWORKS = (
    Network(
        name="inception3", parameters=23.9e6, batch=64, images_per_s=142, images_per_s_at_32=128,
        worker=(-16.94, 0.717, 14.68), server=(-1.837, 1.477, 2.813),
    ),
    Network(
        name="resnet50", parameters=25.6e6, batch=64, images_per_s=219, images_per_s_at_32=195,
        worker=(-11.13, 1.05, 9.4), server=(-1.975, 1.884, 2.799),
    ),
    Network(
        name="resnet152", parameters=60.4e6, batch=64, images_per_s=91.8, images_per_s_at_32=82.7,
        worker=(-12.04, 1.033, 10.12), server=(-3.975, 2.784, 4.817),
    ),
    Network(
        name="alexnet", parameters=62.4e6, batch=512, images_per_s=2987, images_per_s_at_32=None,
        worker=(-11.08, 0.9342, 9.498), server=(-14.38, 1.639, 15.734),
    ),
    Network(
        name="vgg16", parameters=138.4e6, batch=64, images_per_s=154, images_per_s_at_32=144,
        worker=(-11.68, 0.888, 10.37), server=(-7.03, 3.6715, 5.598),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PsWorkload:
    """Jobs as submitted, and what is true of each, by id."""

    specs: tuple[JobSpec, ...]
    truths: dict[str, PsJob]
    target_loss: dict[str, float]
    most_steps: dict[str, float]
    epoch_steps: dict[str, float]
    """What users declare: the loss they want, the steps after which they give up, and an epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PsMix:
    """How much there is of what; `load` is of `gpus`."""

    jobs: int = 160
    unpredictable: float = 0.5
    load: float = 8.0
    gpus: int = 64

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn."""
        if self.jobs < 1 or self.gpus < 1:
            raise UserError("a workload needs jobs and GPUs", field="jobs")
        if not 0 <= self.unpredictable <= 1:
            raise UserError(
                f"{self.unpredictable} is no share", field="unpredictable", hint="0 to 1"
            )
        if not self.load > 0:
            raise UserError(f"load {self.load} is not positive", field="load")


def generate(mix: PsMix, seed: int) -> PsWorkload:
    """Draw a workload; the same seed gives the same work and arrivals whatever the mix."""
    shapes = [_shape(stream(seed, f"ps shape {number}")) for number in range(mix.jobs)]
    running_s = _quantiles(RUNNING_TIMES_S, stream(seed, "ps times").random(mix.jobs))
    device_s = sum(
        max(shape.gpus, 0) * seconds for shape, seconds in zip(shapes, running_s, strict=True)
    )
    gaps = stream(seed, "ps arrivals").exponential(size=mix.jobs)
    arrivals = np.cumsum(gaps) / gaps.sum() * device_s / (mix.load * mix.gpus)
    untold = np.argsort(stream(seed, "ps mix").random(mix.jobs)) < round(
        mix.unpredictable * mix.jobs
    )
    parts = [
        _job(seed, number, shape, float(seconds), float(at_s), tells=not silent)
        for number, (shape, seconds, at_s, silent) in enumerate(
            zip(shapes, running_s, arrivals, untold, strict=True)
        )
    ]
    return PsWorkload(
        specs=tuple(spec for spec, *_ in parts),
        truths={spec.id: truth for spec, truth, *_ in parts},
        target_loss={spec.id: target for spec, _, target, *_ in parts},
        most_steps={spec.id: most for spec, _, _, most, _ in parts},
        epoch_steps={spec.id: epoch for spec, _, _, _, epoch in parts},
    )


def _quantiles(known: Sequence[tuple[float, float]], chance: Floats | float) -> Floats:
    """Values at `chance`, joined log-linearly."""
    at, values = zip(*known, strict=True)
    found: Floats = np.exp(np.interp(chance, at, np.log(values)))
    return found


def _shape(chance: np.random.Generator) -> JobShape:
    counts = np.array([row[-1] for row in SHAPES], dtype=float)
    servers, workers, gpus, cores, _ = SHAPES[
        int(chance.choice(len(SHAPES), p=counts / counts.sum()))
    ]
    workers = min(workers, gpus) if gpus else workers
    each = max(cores // (workers + servers), 1)
    whole = workers * (gpus // workers) if gpus else 0
    return JobShape(
        workers=workers, servers=servers, worker_cores=each, server_cores=each, gpus=whole
    )


def _job(
    seed: int, number: int, shape: JobShape, seconds: float, at_s: float, *, tells: bool
) -> tuple[JobSpec, PsJob, float, float, float]:
    chance = stream(seed, f"ps job {number}")
    network = NETWORKS[int(chance.integers(len(NETWORKS)))]
    speed = speed_of(network, shape)
    name = f"ps-{number:04d}"
    noise = np.exp(STEP_NOISE * chance.standard_normal(64))
    steps = max(seconds / speed.step_s(shape), 1.0)
    loss = _loss(chance, steps, tells=tells)
    truth = PsJob(id=name, speed=speed, steps=steps, loss=loss, run_noise=tuple(noise.tolist()))
    # Everything is drawn in every mix, so that a job differs between mixes in its loss alone.
    cut, wanted, epoch = chance.uniform(0.5, 1.0), chance.uniform(1.2, 5.0), chance.random()
    target = loss.curve.loss(steps) * (1.0 if tells else cut)
    most, epoch_s = steps * wanted, float(_quantiles(EPOCHS_S, epoch))
    spec = JobSpec(
        id=name,
        submit_s=at_s,
        roles=roles_of(shape),
        profile=network.name,
        batch_size=speed.batch,
    )
    return spec, truth, target, most, max(epoch_s / speed.step_s(shape), 1.0)


def roles_of(shape: JobShape) -> tuple[TaskRole, ...]:
    """Workers and servers as asked for, and how far they scale."""
    gpus = shape.gpus // shape.workers
    worker = TaskRole(
        name="worker",
        count=shape.workers,
        min_count=1,
        max_count=MOST_WORKERS,
        cpu_milli=round(1000 * shape.worker_cores),
        min_cpu_milli=1000,
        max_cpu_milli=1000 * max(MOST_CORES, int(shape.worker_cores)),
        gpu_count=gpus,
        min_gpu_count=min(gpus, 1),
        max_gpu_count=max(gpus, MOST_GPUS) if gpus else 0,
    )
    if not shape.servers:
        return (worker,)
    server = TaskRole(
        name="ps",
        count=shape.servers,
        min_count=1,
        max_count=MOST_SERVERS,
        cpu_milli=round(1000 * shape.server_cores),
        min_cpu_milli=1000,
        max_cpu_milli=1000 * max(MOST_CORES, int(shape.server_cores)),
        gpu_count=0,
    )
    return worker, server


def speed_of(network: Network, shape: JobShape) -> SpeedModel:
    """The speed of a job that splits its batch over the devices it was submitted with."""
    theta0, theta1 = _compute_s(network)
    slower = 1.0 if shape.gpus else CPU_SLOWER
    size_b = 4 * network.parameters
    return SpeedModel(
        theta=(
            theta0 * slower,
            theta1 * slower,
            2 * size_b / NETWORK_B_PER_S,
            3 * size_b / UPDATE_B_PER_S,
            CONNECTION_S,
            CONNECTION_S,
            size_b / IN_NODE_B_PER_S,
        ),
        batch=network.batch * shape.devices,
        sampled=FittedRanges(workers=(1, 64), servers=(0, 64)),
        curves=CoreCurves(worker=_scaled(network.worker), server=_scaled(network.server)),
    )


def _compute_s(network: Network) -> tuple[float, float]:
    """Seconds per image and per step, through the two measured batch sizes (a tenth if one)."""
    whole_s = network.batch / network.images_per_s
    if network.images_per_s_at_32 is None:
        return 0.9 * whole_s / network.batch, 0.1 * whole_s
    small_s = 32 / network.images_per_s_at_32
    per_image = (whole_s - small_s) / (network.batch - 32)
    return per_image, whole_s - per_image * network.batch


def _scaled(curve: Sequence[float]) -> CoreCurve:
    a, b, d = curve
    return CoreCurve(a=a / d, b=b, d=1.0)


def _loss(chance: np.random.Generator, steps: float, *, tells: bool) -> TrueLoss:
    """From a start of ln(1000) down to 1/5 to 1/40 of the way above a floor."""
    floor = float(chance.uniform(0.1, 1.0))
    start = float(np.log(1000.0)) - floor
    end = start / float(np.exp(chance.uniform(np.log(5), np.log(40))))
    curve = LossCurve(b0=(1 / end - 1 / start) / steps, b1=1 / start, b2=floor, error=0.0)
    tells_from = steps * float(chance.choice(TELLS_FROM))
    untold = LossKind(chance.choice([kind for kind, _ in UNTOLD], p=[share for _, share in UNTOLD]))
    drops = np.sort(chance.uniform(0.15, 0.95, int(chance.integers(1, 4)))) * steps
    return TrueLoss(
        kind=LossKind.CONVERGING if tells else untold,
        curve=curve,
        steps=steps,
        tells_from=tells_from,
        slow=tuple(slow_noise(chance).tolist()),
        quick=tuple(chance.standard_normal(PARTS).tolist()),
        drops=tuple(drops.tolist()),
    )


def slow_noise(chance: np.random.Generator) -> Floats:
    """A stationary walk: nine tenths of each value stay in the next."""
    values = chance.standard_normal(PARTS)
    for at in range(1, PARTS):
        values[at] = 0.9 * values[at - 1] + np.sqrt(1 - 0.81) * values[at]
    return values

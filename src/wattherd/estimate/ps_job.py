"""What is true of a parameter-server training job: speed, loss, and when it is done.

Simulated worlds run by it; schedulers never see it. A job trains at the pace of its speed model
until it has made its steps. Its loss is a function of the step alone, so that it does not depend
on who scheduled it:

- converging: 1 / (b0 k + b1) + b2, hidden at first under a slow wobble that fades until step
  `tells_from`; from there on the curve tells how many steps are left to the target;
- stepwise: plateaus with sudden drops, as learning-rate schedules make them;
- wandering: about one level, as where training does not converge;
- cut short: a clean curve whose target its user did not wait for.

The last three never tell when the job will end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from wattherd.estimate.speed import JobShape, SpeedModel, phase_terms
from wattherd.estimate.steps import LossCurve

WOBBLE = 0.25
"""Relative size of the wobble that hides a curve at first."""
NOISE = 0.02
"""Relative noise of every reported loss."""


class LossKind(StrEnum):
    """How the loss of a job develops."""

    CONVERGING = "converging"
    STEPWISE = "stepwise"
    WANDERING = "wandering"
    CUT_SHORT = "cut short"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrueLoss:
    """A job's loss by step; `slow` and `quick` are its noise, one value per equal part of the run.

    `slow` is correlated from one to the next, `quick` is not; both of standard deviation one.
    """

    kind: LossKind
    curve: LossCurve
    steps: float
    tells_from: float
    slow: tuple[float, ...]
    quick: tuple[float, ...]
    drops: tuple[float, ...] = ()

    def at(self, step: float) -> float:
        """The loss that is reported after `step` steps."""
        part = min(max(step / self.steps, 0.0), 1.0)
        slow = _between(self.slow, part)
        quick = self.quick[min(int(part * len(self.quick)), len(self.quick) - 1)]
        return self._level(step, slow) * math.exp(NOISE * quick)

    def _level(self, step: float, slow: float) -> float:
        match self.kind:
            case LossKind.CONVERGING:
                hidden = max(1 - step / self.tells_from, 0.0) if self.tells_from else 0.0
                return self.curve.loss(step) * math.exp(WOBBLE * hidden * slow)
            case LossKind.STEPWISE:
                passed = sum(step >= drop for drop in self.drops)
                return self.curve.loss(0.0) * 0.45**passed * math.exp(WOBBLE / 4 * slow)
            case LossKind.WANDERING:
                return self.curve.loss(0.0) * 0.6 * math.exp(WOBBLE * slow)
            case LossKind.CUT_SHORT:
                return self.curve.loss(step)


def _between(values: tuple[float, ...], part: float) -> float:
    place = part * (len(values) - 1)
    low = min(int(place), len(values) - 2)
    return values[low] + (values[low + 1] - values[low]) * (place - low)


@dataclass(frozen=True, slots=True, kw_only=True)
class PsJob:
    """One job: `run_noise` multiplies its step time, another value in every run."""

    id: str
    speed: SpeedModel
    steps: float
    loss: TrueLoss
    run_noise: tuple[float, ...]

    @property
    def predictable(self) -> bool:
        """Whether its loss ever tells how much is left."""
        return self.loss.kind is LossKind.CONVERGING

    def step_s(self, shape: JobShape, attempt: int) -> float:
        """Seconds per step in run number `attempt`."""
        return self.speed.step_s(shape) * self.run_noise[attempt % len(self.run_noise)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyDevices:
    """Devices that really work, on average over a step: the rest waits for another phase."""

    gpus: float
    cores: float


def busy(job: PsJob, shape: JobShape, step_s: float) -> BusyDevices:
    """What a step keeps busy, per second.

    GPUs compute for (th0 m + th1) whatever their cores do; the cores' work in a step is what one
    core per device, or per server, would need for it.
    """
    speed = job.speed
    terms = phase_terms(shape, speed.batch, speed.curves)
    cores = shape.worker_cores * shape.workers / shape.devices
    compute_s = (speed.theta[0] * terms[0] + speed.theta[1] * terms[1]) * (
        speed.curves.worker.speed(cores)
    )
    feeding_s = compute_s / speed.curves.worker.speed(1.0) * shape.devices
    update_s = speed.theta[3] * shape.workers / speed.curves.server.speed(1.0)
    update_s = update_s if shape.servers else 0.0
    gpus = compute_s * shape.gpus / step_s
    return BusyDevices(gpus=gpus, cores=(feeding_s + update_s) / step_s)

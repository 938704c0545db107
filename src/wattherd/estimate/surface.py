"""A job's ways to run: (batch, accumulation, layout, cap) with watts, samples and *progress*.

Samples per second mislead: a larger batch passes more samples and may need more of them. Progress
is targets reached per second, 1 / (epochs to target x seconds per epoch), as in Zeus' time to
accuracy (You, Chung, Chowdhury, NSDI'23, 3.1). Accumulating gradients over passes keeps the global
batch, and with it the statistics, and frees memory; what one pass costs is that of its own batch.
Layouts of the model over devices are further points of the same frontier.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from wattherd.errors import UserError
from wattherd.estimate.measured_curve import JobCurve, JobSetting, MeasuredPoint
from wattherd.estimate.power_curve import concave_hull


class SurfaceGoal(StrEnum):
    """What a point of a surface is worth."""

    PROGRESS = "progress"
    SAMPLES = "samples"


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfacePoint:
    """Measured or derived: watts of the whole job, epochs per second, epochs that it will need."""

    setting: JobSetting
    cap_w: float
    power_w: float
    epochs_per_s: float
    epochs_to_target: float

    @property
    def progress_per_s(self) -> float:
        """Targets reached per second."""
        return self.epochs_per_s / self.epochs_to_target

    def point(self, value: SurfaceGoal) -> MeasuredPoint:
        """For an allocator."""
        rate = self.progress_per_s if value is SurfaceGoal.PROGRESS else self.epochs_per_s
        return MeasuredPoint(self.cap_w, self.power_w, rate, self.setting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """All ways to run one job, on so many devices.

    Raises:
        UserError: no point.
    """

    job: str
    points: tuple[SurfacePoint, ...]
    devices: int = 1
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Refuse an empty surface."""
        if not self.points:
            raise UserError("has no way to run", where=f"job {self.job}", field="points")

    def global_batches(self) -> tuple[int, ...]:
        """Those it can run with, ascending."""
        return tuple(sorted({point.setting.global_batch for point in self.points}))

    def kept_at(self, global_batch: int) -> Surface:
        """With the global batch that its user chose; accumulation, layout and cap stay open.

        Raises:
            UserError: nothing was measured with it.
        """
        kept = tuple(one for one in self.points if one.setting.global_batch == global_batch)
        if not kept:
            known = ", ".join(str(one) for one in self.global_batches())
            problem = f"nothing measured at a global batch of {global_batch}"
            raise UserError(problem, where=f"job {self.job}", field="batch_size", hint=known)
        return replace(self, points=kept)

    def curve(self, value: SurfaceGoal = SurfaceGoal.PROGRESS) -> JobCurve:
        """Every way as a point of a curve, whose choices are the Pareto front."""
        return JobCurve(
            job=self.job, points=tuple(one.point(value) for one in self.points),
            weight=self.weight, devices=self.devices,
        )  # fmt: skip

    def frontier(self, value: SurfaceGoal = SurfaceGoal.PROGRESS) -> tuple[SurfacePoint, ...]:
        """Corners of the concave hull of (watts, worth), from the least watts up."""
        found: dict[float, tuple[float, SurfacePoint]] = {}
        for one in self.points:
            rate = one.point(value).rate
            if one.power_w not in found or rate > found[one.power_w][0]:
                found[one.power_w] = (rate, one)
        hull = concave_hull([(watts, rate) for watts, (rate, _) in found.items()])
        return tuple(found[watts][1] for watts in hull.watts)


def expected_epochs(runs: Sequence[float | None], least_share: float = 0.5) -> float | None:
    """Epochs to the target, with those of the attempts that fail (None in `runs`) before.

    A failed attempt is taken to cost as much as a successful one; None if fewer than `least_share`
    of the attempts succeed, which is no way to train.
    """
    reached = [epochs for epochs in runs if epochs is not None]
    if not reached or len(reached) < least_share * len(runs):
        return None
    return math.fsum(reached) / len(reached) * len(runs) / len(reached)


def accumulated(
    points: Sequence[SurfacePoint], epochs_by_batch: Mapping[int, float]
) -> tuple[SurfacePoint, ...]:
    """`points` and, at larger global batches, the same passes accumulated.

    Passes draw and last what they did; fewer updates of the weights only make them faster, so that
    the progress stated is a lower bound.
    """
    made = [
        replace(
            one,
            setting=replace(one.setting, accumulation=batch // one.setting.batch_size),
            epochs_to_target=epochs,
        )
        for one in points
        if one.setting.accumulation == 1
        for batch, epochs in sorted(epochs_by_batch.items())
        if batch > one.setting.batch_size and batch % one.setting.batch_size == 0
    ]
    return (*points, *made)

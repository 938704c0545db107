"""How much a step advances training at each width: by the gradient noise that a job tells.

A step with a batch of M samples advances training as M / (phi + M) of what a step with the exact
gradient would, where phi is the gradient noise scale in samples (McCandlish et al., 2018; Pollux,
OSDI'21, equation 7). A job tells phi and how many samples its steps take; the batch may follow its
width. Of a job that tells no noise, or whose batch was seen at one width only, all steps count
alike: nobody knows better.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container
from statistics import median
from typing import NamedTuple

MOST_TOLD = 31
"""Of a job, the last ones: noise grows while a model trains, and single words of it vary much."""
MOST_WIDTHS = 32
MOST_SAMPLES = 1e12
"""Beyond that, a word is no number of samples."""
SPARE_JOBS = 100
"""Jobs that are over and still remembered, beyond as many as are live."""


class StepWorth(NamedTuple):
    """What a step is worth at a width: `share` of a step with the exact gradient, 0 to 1.

    `noise` (phi) and `batch` in samples, None where nothing tells; then every step is worth 1.
    """

    share: float = 1.0
    noise: float | None = None
    batch: float | None = None


ALIKE_STEPS = StepWorth()
"""Of a job that tells nothing."""


class _JobNoise:
    """What one job told: noise lately, and batches by number of GPUs."""

    __slots__ = ("batches", "noise")

    def __init__(self) -> None:
        self.noise: deque[float] = deque(maxlen=MOST_TOLD)
        self.batches: dict[int, float] = {}


class LearnedNoise:
    """What was learned of all jobs; changed by `heard` alone."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._jobs: dict[str, _JobNoise] = {}

    def heard(self, job_id: str, gpus: int, noise: float | None, batch: float | None) -> None:
        """A run on `gpus` GPUs has told its noise scale and its batch (samples), or one of them."""
        sound = [_samples(one) for one in (noise, batch)]
        if sound == [None, None]:
            return
        job = self._jobs.setdefault(job_id, _JobNoise())
        noise, batch = sound
        if noise is not None:
            job.noise.append(noise)
        if batch is not None and (gpus in job.batches or len(job.batches) < MOST_WIDTHS):
            job.batches[gpus] = batch

    def forget(self, live: Container[str], count: int) -> None:
        """Jobs that are over, where there are many."""
        if len(self._jobs) > 2 * count + SPARE_JOBS:
            for gone in [job_id for job_id in self._jobs if job_id not in live]:
                del self._jobs[gone]

    def worth(self, job_id: str, gpus: int) -> StepWorth:
        """What a step of the job is worth on `gpus` GPUs.

        Its batch at a width at which it has not run lies on the line between those at which it
        has, or is that of the nearest one beyond them in proportion to the width.
        """
        job = self._jobs.get(job_id)
        if job is None or not job.noise or not job.batches:
            return ALIKE_STEPS
        noise, batch = median(job.noise), _batch_at(job.batches, gpus)
        return StepWorth(batch / (noise + batch), noise, batch)


def _samples(told: float | None) -> float | None:
    """None for what is no number of samples."""
    if told is None or not math.isfinite(told) or not 0 < told < MOST_SAMPLES:
        return None
    return told


def _batch_at(batches: dict[int, float], gpus: int) -> float:
    """The batch at a width, by those that were seen."""
    if gpus in batches:
        return batches[gpus]
    below = [width for width in batches if width < gpus]
    above = [width for width in batches if width > gpus]
    if below and above:
        low, high = max(below), min(above)
        part = (gpus - low) / (high - low)
        return batches[low] + part * (batches[high] - batches[low])
    near = max(below) if below else min(above)
    if len(set(batches.values())) == 1:  # one width, or the same batch at all of them
        return batches[near]
    return batches[near] * gpus / near

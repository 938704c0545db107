"""What a job draws, and how fast it is, at each size of micro-batch: learned from what is measured.

With the global batch kept, a smaller micro-batch needs more passes a step (gradient accumulation):
training is the same up to rounding, draw and speed are not. What was measured under a duty is
reckoned back to computing all of the time. Sizes are kept as settings of a measured curve, whose
accumulation is what keeps the global batch (`estimate.measured_curve.Setting`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from wattherd.estimate.measured_curve import JobSetting

MARGIN = 1.05
"""On the highest draw seen at a size: means of seconds hide what is between."""
FORGETS = 0.9
"""Of the distance to a lower draw that is kept at each look: a peak counts for a while."""
LEAST_DUTY = 0.05
"""Below it nothing is reckoned back: the error would be larger than the figure."""


@dataclass(slots=True)
class MicroBatchSeen:
    """Watts per device and steps per second (None: not told) at one size, unthrottled."""

    full_w: float
    rate_per_s: float | None


class MicroBatches:
    """The sizes a job allows, largest first, and what was seen at them."""

    def __init__(self, sizes: Sequence[int], global_batch: int) -> None:
        """Nothing was seen yet."""
        self.sizes = tuple(sorted(set(sizes), reverse=True))
        self._global = global_batch
        self._seen: dict[JobSetting, MicroBatchSeen] = {}

    def setting(self, size: int) -> JobSetting:
        """A size as a way to run, with the passes that keep the global batch."""
        return JobSetting(batch_size=size, accumulation=math.ceil(self._global / size))

    def seen(self, size: int) -> MicroBatchSeen | None:
        """What is known of a size."""
        return self._seen.get(self.setting(size))

    def note(
        self, size: int, watts: float, *, duty: float, idle_w: float, rate_per_s: float | None
    ) -> None:
        """A device drew `watts` on average at `size`, computing for the part `duty` of the time."""
        if size not in self.sizes or not LEAST_DUTY <= duty <= 1.0:
            return
        full_w = idle_w + max(watts - idle_w, 0.0) / duty
        rate = None if rate_per_s is None else rate_per_s / duty
        known = self.seen(size)
        if known is None:
            self._seen[self.setting(size)] = MicroBatchSeen(full_w, rate)
            return
        known.full_w = max(full_w, full_w + FORGETS * (known.full_w - full_w))
        known.rate_per_s = known.rate_per_s if rate is None else rate

    def full_w(self, size: int) -> float | None:
        """The most that a device is believed to draw at a size; None where it was not measured."""
        known = self.seen(size)
        return None if known is None else MARGIN * known.full_w

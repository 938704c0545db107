"""The gradient noise scale of a training, from gradients of parts of a batch and of the whole.

Up to that many samples a larger batch makes a step worth more in proportion; far beyond it nothing
is gained. The squared norm of a gradient over b samples is on average |G|^2 + S / b, so two sizes
tell both (McCandlish et al., 2018, appendix A.1), and the scale is S / |G|^2.
"""

from __future__ import annotations

import math

KEPT = 0.95
"""Of what was known, at each step: single steps say little."""
FIRST = 10
"""Steps before anything is said."""


class GradientNoise:
    """Smoothed over steps; `scale` is what `Job.step(noise_scale=)` takes."""

    def __init__(self, kept: float = KEPT) -> None:
        """`kept` of the estimate is left by each step, 0 to 1."""
        self._kept = kept
        self._steps = 0
        self._variance = self._signal = 0.0

    def step(
        self, part_square: float, part_samples: float, whole_square: float, whole_samples: float
    ) -> None:
        """Squared norms: the mean of those of gradients over parts, and that over the whole batch.

        Parts are micro-batches or ranks, of `part_samples` each. A step with a single part, or
        with a norm that is no number, tells nothing and is passed over.
        """
        if not 0 < part_samples < whole_samples:
            return
        if not (math.isfinite(part_square) and math.isfinite(whole_square)):
            return
        difference = 1 / part_samples - 1 / whole_samples
        variance = (part_square - whole_square) / difference
        signal = whole_samples * whole_square - part_samples * part_square
        self._steps += 1
        kept = self._kept if self._steps > 1 else 0.0
        self._variance = kept * self._variance + (1 - kept) * variance
        self._signal = kept * self._signal + (1 - kept) * signal / (whole_samples - part_samples)

    @property
    def scale(self) -> float | None:
        """In samples; None until enough steps tell, or while they contradict each other."""
        if self._steps < FIRST or self._variance <= 0 or self._signal <= 0:
            return None
        return self._variance / self._signal

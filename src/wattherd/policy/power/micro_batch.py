"""Which micro-batch a job trains with under a cap that no device keeps for it.

Sizes are tried from the largest down while that saves watts and the cap is still above what they
draw; then the best known one counts: that with the most steps per second, its duty reckoned in.
What is worth trying follows from measurements alone, since how a model's watts and speed follow its
micro-batch is its own (Zeus, NSDI'23, figure 3 has them fall, stay and rise).
"""

from __future__ import annotations

from wattherd.estimate.micro_batches import MARGIN, MicroBatches

SAVES = 0.03
"""Part of its draw that the smallest size tried must have saved for a smaller one to be tried."""


def choose(curve: MicroBatches, cap_w: float | None, idle_w: float) -> int:
    """A size of `curve` for a device that may draw `cap_w` (None: all it can), `idle_w` idle."""
    largest = curve.sizes[0]
    tried = [size for size in curve.sizes if curve.seen(size) is not None]
    if cap_w is None or not tried:
        return largest
    fits = any((curve.full_w(size) or 0.0) <= cap_w for size in tried)
    smaller = [size for size in curve.sizes if size < tried[-1]]
    if not fits and smaller and (len(tried) == 1 or _saves(curve, tried[0], tried[-1], idle_w)):
        return smaller[0]
    return max(tried, key=lambda size: (_worth(curve, size, cap_w, idle_w), size))


def _saves(curve: MicroBatches, large: int, small: int, idle_w: float) -> bool:
    """Whether the smaller size draws noticeably less above idle."""
    before, after = curve.full_w(large), curve.full_w(small)
    if before is None or after is None:
        return False
    return after - idle_w <= (1.0 - SAVES) * (before - idle_w)


def _worth(curve: MicroBatches, size: int, cap_w: float, idle_w: float) -> float:
    """Steps per second at a size under the cap; without a rate, the time it computes."""
    seen = curve.seen(size)
    if seen is None:
        return 0.0
    span_w = MARGIN * seen.full_w - idle_w
    duty = 1.0 if span_w <= 0 else min(1.0, max(0.0, (cap_w - idle_w) / span_w))
    return duty * (1.0 if seen.rate_per_s is None else seen.rate_per_s)

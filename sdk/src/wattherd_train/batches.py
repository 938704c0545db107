"""Micro-batches of any size that add up to the same global batch, and so to the same training.

A step is computed on `global_batch` samples over all ranks. What of it is in memory at once is the
micro-batch; its size may change from step to step, to draw fewer watts or to fit beside another
job, and only the rounding of sums tells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A part of one step's batch.

    `weight` is by what the mean loss of `items` is multiplied: then the gradients of all parts, as
    they add up, and their mean over ranks, are those of the mean over the global batch. Gradients
    need to be averaged over ranks only at the `last` part (in PyTorch: `no_sync` for the others).
    """

    items: Any
    size: int
    weight: float
    last: bool


def share(global_batch: int, rank: int, size: int) -> tuple[int, int]:
    """First and end of a rank's part of a batch; the first ranks have one more if it must be."""
    each, over = divmod(global_batch, size)
    first = rank * each + min(rank, over)
    return first, first + each + (rank < over)


class BatchPlan:
    """How this rank goes through its part of each step."""

    def __init__(
        self,
        global_batch: int,
        micro_batch: int | None = None,
        *,
        rank: int = 0,
        size: int = 1,
        wanted: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`micro_batch` is the most that fits (default: all); `wanted` tells a smaller one.

        Raises:
            ValueError: some rank would be left without a sample.
        """
        if global_batch < size:
            raise ValueError(f"a global batch of {global_batch} is too small for {size} ranks")
        if micro_batch is not None and micro_batch < 1:
            raise ValueError(f"micro_batch must be at least 1, not {micro_batch}")
        self.global_batch = global_batch
        first, end = share(global_batch, rank, size)
        self.share = end - first
        """Samples of each step that are this rank's."""
        self._most = micro_batch or self.share
        self._size, self._wanted = size, wanted

    @property
    def micro_batch(self) -> int:
        """Samples at once, from the next step on."""
        return max(1, min(self._most, self._wanted() or self._most, self.share))

    @property
    def accumulation(self) -> int:
        """Micro-batches of a whole step."""
        return math.ceil(self.share / self.micro_batch)

    def split(self, batch: Any, *, total: int | None = None) -> Iterator[MicroBatch]:
        """The parts of one step's batch of this rank, in order.

        `batch` is anything that has a length and slices (a tensor, an array, a list of samples), or
        a tuple or dict of such, all equally long. `total` is the samples of the step over all
        ranks where that is not the global batch, as in a short last step of an epoch.
        """
        length = _length(batch)
        if total is None:
            total = self.global_batch if length == self.share else length * self._size
        micro = self.micro_batch  # one size throughout a step
        for first in range(0, length, micro):
            end = min(first + micro, length)
            weight = (end - first) * self._size / total
            yield MicroBatch(_cut(batch, first, end), end - first, weight, end == length)


def _length(batch: Any) -> int:
    if isinstance(batch, dict):
        return _length(next(iter(batch.values())))
    return _length(batch[0]) if isinstance(batch, tuple) else len(batch)


def _cut(batch: Any, first: int, end: int) -> Any:
    if isinstance(batch, dict):
        return {name: _cut(column, first, end) for name, column in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_cut(column, first, end) for column in batch)
    return batch[first:end]

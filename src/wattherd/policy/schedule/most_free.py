"""Placement of the Pollux artifact: again and again from the node with most free GPUs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wattherd.policy.contract import Share


def most_free(free: NDArray[np.int64], gpus: int) -> list[Share] | None:
    """Shares of `gpus` GPUs in rank order, or None if fewer are free; ties to the first node."""
    left = free.copy()
    shares: list[Share] = []
    while gpus > 0:
        node = int(np.argmax(left))
        taken = min(int(left[node]), gpus)
        if taken == 0:
            return None
        shares.append(Share(node, taken))
        left[node] -= taken
        gpus -= taken
    return shares

"""First fit: the first node, in cluster order, that has room."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wattherd.jit import kernel
from wattherd.policy.place.contract import Ints, ScoredWorld, Scorer
from wattherd.policy.place.within_node import best_fit, best_fit_rows

KERNEL_ID = 0


def first_fit_rows(
    world: ScoredWorld, shape: int, rows: Ints, options: NDArray[np.float64]
) -> tuple[Ints, Ints]:
    """Every feasible node is equally good, so that the tie order decides."""
    return np.zeros(len(rows), dtype=np.int64), best_fit_rows(world, shape, rows)


@kernel
def first_fit(world, shape, n, options):  # type: ignore[no-untyped-def]
    """`first_fit_rows` for one node."""
    return 0, best_fit(world, shape, n)


SCORER = Scorer(
    name="first-fit",
    doc="First node in cluster order with room",
    rows=first_fit_rows,
    kernel_id=KERNEL_ID,
)

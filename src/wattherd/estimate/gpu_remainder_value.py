"""What the rest of a partly used GPU is worth to the pods that are expected.

810 of 1000 milli taken leave 190, into which almost nothing fits: that rest is lost, and a rest of
530 may not be. The exact price follows from cutting stock: pack the expected single-GPU pods into
as few GPUs as possible; the dual price of a size says what share of a GPU one such pod takes up,
and a rest is worth the dearest set of pods that it holds. Gilmore and Gomory's column generation
with a small dense simplex, so that no solver is needed; knows nothing of nodes or CPUs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wattherd.model.cluster import WHOLE_GPU_MILLI

MICRO = 1_000_000
"""Values are integers in millionths of a GPU, so that sums are exact in any order."""
_MOST_SIZES = 16
_COARSE_MILLI = 10
_MOST_ROUNDS = 1000
_TOLERANCE = 1e-9

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def remainder_values(sizes: Ints, demand: Floats) -> Ints:
    """Worth, in millionths of a GPU, of 0 to 1000 free milli on one GPU.

    `sizes` are the milli that single-GPU pods ask for (1000 for a whole GPU), `demand` how often
    each is expected, in any unit. Without any expectation only a whole GPU is worth anything.
    """
    wanted = demand > 0
    sizes, demand = _merged(np.append(sizes[wanted], WHOLE_GPU_MILLI), np.append(demand[wanted], 0))
    unit = int(np.gcd.reduce(sizes))
    best = _prices(sizes // unit, demand, WHOLE_GPU_MILLI // unit)
    values = best[np.arange(WHOLE_GPU_MILLI + 1) // unit]
    exact: Ints = np.rint(np.clip(values, 0.0, 1.0) * MICRO).astype(np.int64)
    return exact


def _merged(sizes: Ints, demand: Floats) -> tuple[Ints, Floats]:
    """Distinct sizes and their demand; where there are many, in steps of `_COARSE_MILLI`."""
    if len(np.unique(sizes)) > _MOST_SIZES:
        # Exact prices of many odd sizes would take seconds; a wrong step costs little here.
        sizes = np.maximum(sizes // _COARSE_MILLI, 1) * _COARSE_MILLI
    distinct, where = np.unique(sizes, return_inverse=True)
    return distinct, np.bincount(where, weights=demand).astype(np.float64)


def _prices(lengths: Ints, demand: Floats, capacity: int) -> Floats:
    """Worth of every length up to `capacity` under the dual prices of the cutting-stock problem."""
    patterns = np.diag(capacity // lengths).astype(np.float64)
    used = demand / patterns.diagonal()
    for _ in range(_MOST_ROUNDS):
        price = np.maximum(np.linalg.solve(patterns.T, np.ones(len(lengths))), 0.0)
        best, last = _knapsack(lengths, price, capacity)
        if best[capacity] <= 1.0 + _TOLERANCE:
            break
        entering = _pattern(last, lengths, capacity)
        along = np.linalg.solve(patterns, entering)
        rising = along > _TOLERANCE
        ratio = np.where(rising, used / np.where(rising, along, 1.0), np.inf)
        leaving = int(ratio.argmin())
        used -= ratio[leaving] * along
        used[leaving] = ratio[leaving]
        patterns[:, leaving] = entering
    return best


def _knapsack(lengths: Ints, price: Floats, capacity: int) -> tuple[Floats, Ints]:
    """Dearest multiset within each length, and the piece that was added last (-1: none)."""
    best = np.zeros(capacity + 1)
    last = np.full(capacity + 1, -1, dtype=np.int64)
    for room in range(1, capacity + 1):
        fitting = int(np.searchsorted(lengths, room, side="right"))
        best[room] = best[room - 1]
        if not fitting:
            continue
        worth = best[room - lengths[:fitting]] + price[:fitting]
        piece = int(worth.argmax())
        if worth[piece] > best[room] + 1e-12:
            best[room], last[room] = worth[piece], piece
    return best, last


def _pattern(last: Ints, lengths: Ints, capacity: int) -> Floats:
    """How often each piece is in the dearest set that `capacity` holds."""
    counts = np.zeros(len(lengths))
    while capacity > 0:
        piece = last[capacity]
        counts[piece] += piece >= 0
        capacity -= lengths[piece] if piece >= 0 else 1
    return counts

"""The target workload: which pods we expect, and how often.

FGD (ATC'23, section 4) measures fragmentation against this distribution. The published
experiments group the original trace by specification and keep the most popular ones until 95 %
of the pods are covered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattherd.model.job import Request

PUBLISHED_COVERAGE = 0.95


class TargetWorkload(NamedTuple):
    """T specifications as columns, most popular first.

    `allowed` is T x (models + 1); its last column is False and stands for "no GPU", so that a
    node without GPUs can carry model index -1.
    """

    weight: NDArray[np.float64]
    cpu_milli: NDArray[np.int64]
    gpu_milli: NDArray[np.int64]
    gpu_count: NDArray[np.int64]
    allowed: NDArray[np.bool_]


Spec = tuple[int, int, int, str]


def target_workload(
    requests: Iterable[Request], models: Sequence[str], *, coverage: float = PUBLISHED_COVERAGE
) -> TargetWorkload:
    """Group `requests` by specification and keep the most popular ones.

    Specifications are taken in descending count (ties: descending cpu, gpu_milli, gpu_count,
    model list) up to and including the one that reaches `coverage` (0 to 1) of all pods; the
    weights then sum to 1.
    """
    counts: Counter[Spec] = Counter(map(_spec, requests))
    ranked = sorted(counts.items(), key=lambda item: (item[1], item[0]), reverse=True)
    kept = ranked[: _cut([count for _, count in ranked], coverage)]
    return TargetWorkload(
        weight=_weights([count for _, count in kept], sum(counts.values())),
        cpu_milli=np.array([spec[0] for spec, _ in kept], dtype=np.int64),
        gpu_milli=np.array([spec[1] for spec, _ in kept], dtype=np.int64),
        gpu_count=np.array([spec[2] for spec, _ in kept], dtype=np.int64),
        allowed=np.array(
            [[*_access(spec[3], models), False] for spec, _ in kept], dtype=np.bool_
        ).reshape(len(kept), len(models) + 1),
    )


def _weights(kept: Sequence[int], pods: int) -> NDArray[np.float64]:
    """Shares of all pods, then divided by their sum.

    The two divisions are deliberate: counts divided by their own sum differ in the last bit, and
    FGD's integer score turns that bit into other decisions (checked against every published bin).
    """
    share = np.array(kept, dtype=np.float64) / max(pods, 1)
    return share if sum(kept) == pods else share / (sum(kept) / pods)


def _spec(request: Request) -> Spec:
    return request.cpu_milli, request.gpu_milli, request.gpu_count, "|".join(request.models)


def _access(models: str, present: Sequence[str]) -> list[bool]:
    return [not models or model in models.split("|") for model in present]


def _cut(counts: Sequence[int], coverage: float) -> int:
    """How many of the descending `counts` it takes to reach `coverage` of their sum."""
    covered, total = 0, sum(counts)
    for kept, count in enumerate(counts):
        if covered >= coverage * total:
            return kept
        covered += count
    return len(counts)

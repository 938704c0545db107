"""Goodput: training speed that counts, throughput times statistical efficiency (Pollux, OSDI'21).

Throughput follows from a model of the time of a step with seven parameters (`StepTime`).
Efficiency is how much a sample is worth in a batch of M samples beside one in a batch of the
initial size M0: (phi + M0) / (phi + M), where phi is the gradient noise scale. Nodes only matter
as one or several, because synchronisation is as slow as the slowest link it crosses.

All functions take scalars or arrays that broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wattherd.estimate.application import BatchPlan
from wattherd.model.training import StepTime, TrainingReport

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CANDIDATES = 50
"""Batch sizes tried, in geometric steps."""
NO_SYNC_S = 1e-8
"""Stands for zero where a logarithm or a power is taken."""
_ROUNDING = 1e-8


def pass_s(model: StepTime, local: ArrayLike) -> Floats:
    """Seconds of a forward and backward pass over `local` samples (equation 9)."""
    return model.pass_s + model.sample_s * np.asarray(local, dtype=np.float64)


def sync_s(model: StepTime, nodes: ArrayLike, replicas: ArrayLike) -> Floats:
    """Seconds in which replicas agree on a gradient (equation 10)."""
    several, many = np.asarray(nodes) > 1, np.asarray(replicas) > 1
    link = np.where(several, model.network_sync_s, np.where(many, model.node_sync_s, NO_SYNC_S))
    ring = np.where(several, model.network_ring_s, np.where(many, model.node_ring_s, NO_SYNC_S))
    return np.asarray(link + ring * np.maximum(np.asarray(replicas) - 2.0, _ROUNDING))


def step_s(model: StepTime, nodes: ArrayLike, replicas: ArrayLike, local: ArrayLike) -> Floats:
    """Seconds of a pass with synchronisation, which overlap in part (equation 11)."""
    return _overlapped(model, pass_s(model, local), sync_s(model, nodes, replicas))


def _overlapped(model: StepTime, compute_s: Floats, network_s: Floats) -> Floats:
    """(compute^gamma + network^gamma)^(1/gamma), the larger factored out against underflow."""
    longer, shorter = np.maximum(compute_s, network_s), np.minimum(compute_s, network_s)
    return np.asarray(longer * (1.0 + (shorter / longer) ** model.overlap) ** (1.0 / model.overlap))


def efficiency(report: TrainingReport, batch: ArrayLike) -> Floats:
    """Progress per sample in a batch of this size, relative to the initial size (equation 7)."""
    scale = np.asarray(batch, dtype=np.float64) / report.batches.initial
    below = report.grad_var / scale + report.grad_sqr
    gain = np.where(below > 0, (report.grad_var + report.grad_sqr) / np.maximum(below, 1e-300), 1.0)
    return np.asarray(gain / scale)


def goodput(
    report: TrainingReport,
    nodes: ArrayLike,
    replicas: ArrayLike,
    local: ArrayLike,
    accumulation: ArrayLike,
) -> Floats:
    """Useful samples per second; `accumulation` passes go before the one that synchronises."""
    alone_s = pass_s(report.step_time, local)
    last_s = _overlapped(report.step_time, alone_s, sync_s(report.step_time, nodes, replicas))
    batch = np.asarray(replicas) * np.asarray(local) * (np.asarray(accumulation) + 1)
    seconds = np.asarray(accumulation) * alone_s + last_s
    return np.asarray(batch / seconds * efficiency(report, batch))


@dataclass(frozen=True, slots=True)
class BestBatch:
    """The best batch size for each of several placements: columns (P,).

    `goodput` in samples per second, 0 where no batch size is allowed.
    """

    goodput: Floats
    local: Ints
    accumulation: Ints

    def plan(self, index: int = 0) -> BatchPlan:
        """One of them, as a plan."""
        return BatchPlan(local=int(self.local[index]), accumulation=int(self.accumulation[index]))


def best(report: TrainingReport, nodes: ArrayLike, replicas: ArrayLike) -> BestBatch:
    """The batch size of most goodput for each placement (`nodes`, `replicas`: (P,)).

    Total batch sizes are tried in geometric steps from the initial one to the largest; what does
    not fit into a replica's memory is accumulated. A single replica accumulates at least once
    above the initial batch size, for one pass alone cannot tell the variance of the gradient.
    """
    across, count = np.atleast_1d(nodes), np.atleast_1d(replicas)
    batches = report.batches
    first = np.maximum(batches.initial, batches.least_local * count).astype(np.float64)
    share = np.geomspace(first, float(batches.most), CANDIDATES) / count
    passes = np.ceil(share / batches.most_local - _ROUNDING) - 1
    grown = (count == 1) & (share > batches.initial + _ROUNDING)
    passes = np.where(grown, np.maximum(passes, 1), passes).astype(np.int64)
    local = np.ceil(share / (passes + 1) - _ROUNDING).astype(np.int64)
    found = goodput(report, across, count, local, passes)
    found = np.where((batches.least_local <= local) & (local <= batches.most_local), found, 0.0)
    rows, columns = np.argmax(found, axis=0), np.arange(len(count))
    return BestBatch(found[rows, columns], local[rows, columns], passes[rows, columns])

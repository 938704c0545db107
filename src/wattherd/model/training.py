"""What a training job's agent reports about it: how fast it is, and what its gradients allow.

These are the numbers from which goodput follows (Pollux, Qiao et al., OSDI'21, section 3); the
formulas are in `estimate.goodput`. Times in seconds, batch sizes in samples.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Time of a training step, fitted to measurements (Pollux, equations 8 to 11).

    A forward and backward pass over m samples takes `pass_s + sample_s * m` (the paper's alpha_c,
    beta_c). Synchronising K > 1 replicas takes `node_sync_s + node_ring_s * (K - 2)` on one node
    (alpha_r, beta_r) and `network_sync_s + network_ring_s * (K - 2)` on several (alpha_n, beta_n).
    `overlap` (gamma, 1 to 10) tells how far the two run at the same time: 1 not at all.
    """

    pass_s: float
    sample_s: float
    network_sync_s: float
    network_ring_s: float
    node_sync_s: float
    node_ring_s: float
    overlap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRange:
    """Batch sizes at which a job may train: `initial` (the user's) to `most`, in samples.

    Each replica handles `least_local` to `most_local` of them at a time.
    """

    initial: int
    most: int
    least_local: int
    most_local: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReport:
    """A job's step time, gradient and batch sizes, as known when it was written.

    `grad_sqr` is the squared norm of the gradient, `grad_var` its variance at the initial batch
    size; `most_replicas` is the largest number of replicas that it has ever run with.
    """

    step_time: StepTime
    grad_sqr: float
    grad_var: float
    most_replicas: int
    batches: BatchRange

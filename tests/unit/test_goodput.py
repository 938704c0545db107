"""Goodput by hand: step times, efficiency, and the best batch size (Pollux, OSDI'21, section 3)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from wattherd.estimate.goodput import best, efficiency, goodput, pass_s, step_s, sync_s
from wattherd.model.training import BatchRange, StepTime, TrainingReport

MODEL = StepTime(
    pass_s=0.1,
    sample_s=0.01,
    network_sync_s=0.4,
    network_ring_s=0.05,
    node_sync_s=0.2,
    node_ring_s=0.02,
    overlap=1.0,
)
REPORT = TrainingReport(
    step_time=MODEL,
    grad_sqr=1.0,
    grad_var=9.0,
    most_replicas=1,
    batches=BatchRange(initial=10, most=160, least_local=4, most_local=40),
)


def test_a_pass_takes_longer_with_more_samples() -> None:
    assert pass_s(MODEL, 10) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("nodes", "replicas", "seconds"),
    [(1, 1, 0.0), (1, 2, 0.2), (1, 4, 0.24), (2, 2, 0.4), (2, 4, 0.5), (4, 4, 0.5)],
)
def test_synchronising_goes_by_replicas_and_whether_they_share_a_node(
    nodes: int, replicas: int, seconds: float
) -> None:
    assert sync_s(MODEL, nodes, replicas) == pytest.approx(seconds, abs=1e-7)


def test_without_overlap_times_add_up_and_with_much_the_longer_one_counts() -> None:
    assert step_s(MODEL, 1, 2, 10) == pytest.approx(0.2 + 0.2)
    assert step_s(replace(MODEL, overlap=2.0), 1, 2, 10) == pytest.approx(0.2 * 2**0.5)
    assert step_s(replace(MODEL, overlap=10.0), 2, 2, 10) == pytest.approx(0.4, rel=1e-3)


def test_tiny_times_do_not_underflow() -> None:
    tiny = replace(MODEL, pass_s=1e-8, sample_s=1e-60, overlap=10.0)
    assert step_s(tiny, 1, 1, 1) == pytest.approx(1e-8 * 2**0.1, rel=1e-3)


def test_efficiency_follows_the_noise_scale() -> None:
    """Noise scale 9 / 1 * 10 = 90 samples: (90 + 10) / (90 + M)."""
    for batch in (10, 20, 90, 160):
        assert efficiency(REPORT, batch) == pytest.approx(100 / (90 + batch))


def test_without_gradient_statistics_a_batch_is_worth_one_step() -> None:
    unknown = replace(REPORT, grad_sqr=0.0, grad_var=0.0)
    assert efficiency(unknown, 20) == pytest.approx(0.5)


def test_goodput_counts_accumulated_passes() -> None:
    """2 replicas, 10 samples, 1 + 1 passes: 40 samples in 0.2 + 0.4 s, each worth 100 / 130."""
    assert goodput(REPORT, 1, 2, 10, 1) == pytest.approx(40 / 0.6 * 100 / 130)


def test_the_best_batch_beats_all_others_nearby() -> None:
    for nodes, replicas in ((1, 1), (1, 2), (2, 4), (4, 16)):
        found = best(REPORT, nodes, replicas)
        plan = found.plan()
        for local in range(REPORT.batches.least_local, REPORT.batches.most_local + 1):
            for passes in range(8):
                total = local * (passes + 1) * replicas
                alone_once = replicas == 1 and total > 10 and passes == 0
                if not 10 <= total <= 160 or alone_once:
                    continue
                # 50 geometric steps from M0 to 16 M0 lie 6 % apart.
                value = float(goodput(REPORT, nodes, replicas, local, passes))
                assert value <= found.goodput[0] * 1.03, (nodes, replicas, local, passes)
        assert plan.total(replicas) >= REPORT.batches.initial


def test_a_single_replica_accumulates_once_above_the_initial_batch() -> None:
    noisy = replace(REPORT, grad_var=1e6)
    plan = best(noisy, 1, 1).plan()
    assert plan.total(1) > 10
    assert plan.accumulation >= 1
    pair = best(replace(noisy, batches=replace(REPORT.batches, most=80)), 1, 2).plan()
    assert (pair.local, pair.accumulation) == (40, 0)


def test_more_replicas_than_the_largest_batch_can_be_split_over_still_give_the_least() -> None:
    found = best(REPORT, 16, 64)
    assert found.goodput[0] > 0
    assert int(found.local[0]) == 4


def test_placements_are_computed_together_as_they_are_alone() -> None:
    nodes, replicas = np.array([1, 1, 2, 2]), np.array([1, 4, 4, 8])
    together = best(REPORT, nodes, replicas)
    for at in range(4):
        alone = best(REPORT, nodes[at], replicas[at])
        assert together.goodput[at] == alone.goodput[0]
        assert together.plan(at) == alone.plan()

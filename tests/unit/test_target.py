"""The target workload: which specifications are kept, in which order, and with which weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from wattherd.catalog.gpus import GPUS
from wattherd.estimate.target_workload import target_workload
from wattherd.model.job import Request
from wattherd.testing import plain_cluster
from wattherd.testing.builders import cpu_only, exclusive, sharing
from wattherd.testing.strategies import MODELS, histories
from wattherd.workload.openb import read_pods


def times(count: int, request: Request) -> list[Request]:
    return [request] * count


def specs(history: Sequence[Request], **options: float) -> list[tuple[int, int, int]]:
    target = target_workload(history, ("G2", "T4"), **options)
    columns = (target.cpu_milli, target.gpu_milli, target.gpu_count)
    return list(zip(*(column.tolist() for column in columns), strict=True))


# --- which are kept -------------------------------------------------------------------------


def test_specifications_are_taken_until_one_reaches_95_percent() -> None:
    history = [
        *times(60, cpu_only(1)),
        *times(30, cpu_only(2)),
        *times(6, cpu_only(3)),  # 90 % is not enough, 96 % is
        *times(4, cpu_only(4)),
    ]
    assert specs(history) == [(1, 0, 0), (2, 0, 0), (3, 0, 0)]


def test_exactly_95_percent_is_enough() -> None:
    history = [*times(95, cpu_only(1)), *times(5, cpu_only(2))]
    assert specs(history) == [(1, 0, 0)]


def test_just_under_95_percent_takes_one_more() -> None:
    history = [*times(94, cpu_only(1)), *times(3, cpu_only(3)), *times(3, cpu_only(2))]
    assert specs(history) == [(1, 0, 0), (3, 0, 0)]


@pytest.mark.parametrize(("coverage", "kept"), [(1.0, 4), (0.5, 1), (0.61, 2), (0.0, 0)])
def test_coverage_can_be_chosen(coverage: float, kept: int) -> None:
    counts = enumerate((6, 2, 1, 1))
    history = [request for n, count in counts for request in times(count, cpu_only(n))]
    assert len(specs(history, coverage=coverage)) == kept


def test_equal_counts_go_by_cpu_then_milli_then_count_then_models_all_descending() -> None:
    history = [
        exclusive(1000, 1),
        sharing(1000, 500, "T4"),
        exclusive(1000, 2),
        cpu_only(2000),
        sharing(1000, 500, "G2"),
        sharing(1000, 500),
    ]
    target = target_workload(history, ("G2", "T4"), coverage=1.0)
    assert target.cpu_milli.tolist() == [2000, 1000, 1000, 1000, 1000, 1000]
    assert target.gpu_milli.tolist() == [0, 1000, 1000, 500, 500, 500]
    assert target.gpu_count.tolist() == [0, 2, 1, 1, 1, 1]
    assert target.allowed[3:].tolist() == [
        [False, True, False],  # "T4" sorts after "G2", which sorts after ""
        [True, False, False],
        [True, True, False],
    ]


def test_memory_tells_no_specifications_apart() -> None:
    history = [cpu_only(1, memory_mib=1), cpu_only(1, memory_mib=2)]
    assert specs(history) == [(1, 0, 0)]


def test_the_spelling_of_a_model_list_tells_specifications_apart() -> None:
    history = [sharing(1, 1, "T4", "G2"), sharing(1, 1, "G2", "T4"), sharing(1, 1, "T4", "T4")]
    target = target_workload(history, ("G2", "T4"))
    assert len(target.weight) == 3
    both, only = [True, True, False], [False, True, False]
    assert sorted(target.allowed.tolist()) == sorted([both, both, only])


def test_no_history_expects_nothing() -> None:
    target = target_workload([], ("G2", "T4"))
    assert target.weight.shape == (0,)
    assert target.allowed.shape == (0, 3)


def test_models_that_the_cluster_lacks_allow_no_node() -> None:
    target = target_workload([sharing(1, 1, "V100M32")], ("G2", "T4"))
    assert target.allowed.tolist() == [[False, False, False]]


def test_order_of_the_history_does_not_matter() -> None:
    history = [*times(3, cpu_only(1)), *times(3, exclusive(1, 2)), *times(2, sharing(9, 10, "T4"))]
    forwards, backwards = (
        target_workload(one, ("G2", "T4")) for one in (history, list(reversed(history)))
    )
    for one, other in zip(forwards, backwards, strict=True):
        assert one.tobytes() == other.tobytes()


# --- weights --------------------------------------------------------------------------------


def test_weights_are_shares_of_the_kept_pods() -> None:
    history = [*times(64, cpu_only(1)), *times(32, exclusive(1, 1)), *times(4, cpu_only(7))]
    assert target_workload(history, ()).weight.tolist() == pytest.approx([2 / 3, 1 / 3], abs=1e-15)


@given(histories())
def test_specifications_and_weights_equal_the_plain_restatement(history: list[Request]) -> None:
    target, expected = target_workload(history, MODELS), plain_cluster.tasks(history)
    assert target.cpu_milli.tolist() == [task.cpu for task in expected]
    assert target.gpu_milli.tolist() == [task.gpu_milli for task in expected]
    assert target.gpu_count.tolist() == [task.gpus for task in expected]
    assert target.allowed.tolist() == [
        [*(task.allows(model) for model in MODELS), False] for task in expected
    ]
    assert target.weight.tolist() == pytest.approx([task.share for task in expected], rel=1e-14)
    assert float(target.weight.sum()) == pytest.approx(1.0 if history else 0.0)


# --- the public trace -----------------------------------------------------------------------


@pytest.mark.data
def test_the_default_trace_gives_the_published_target(openb: Path) -> None:
    pods = read_pods(openb / "openb_pod_list_default.csv", known=GPUS)
    history = [pod.request for pod in pods]
    target = target_workload(history, ("G2", "T4"))
    assert len({(r.cpu_milli, r.gpu_milli, r.gpu_count) for r in history}) == 91
    assert len(target.weight) == 35
    assert len(plain_cluster.tasks(history)) == 35
    of_all_pods = np.rint(target.weight[:5] * 0.9526 * 8152).astype(int).tolist()
    columns = (target.cpu_milli[:5].tolist(), target.gpu_milli[:5].tolist(), of_all_pods)
    assert list(zip(*columns, strict=True)) == [
        (3152, 810, 1047),
        (11_300, 1000, 874),
        (11_400, 1000, 599),
        (3152, 1000, 470),
        (11_908, 470, 388),
    ]
    assert target.gpu_count.max() == 1  # the cut leaves no multi-GPU task
    whole = target.gpu_milli == 1000
    parts = [target.gpu_count == 0, (target.gpu_count == 1) & ~whole, whole]
    weights = [float(target.weight[part].sum()) for part in parts]
    assert weights == pytest.approx([0.13598, 0.37317, 0.49086], abs=1e-5)

"""Fragmentation: worked values, the class of every (task, node) pair, and an exact oracle."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.catalog.gpus import GPUS
from wattherd.engine.placement.state import ClusterState
from wattherd.estimate.fragmentation import count_roomy, fragment_after, fragment_rows
from wattherd.estimate.target_workload import TargetWorkload
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import NodeSpec
from wattherd.model.job import Request
from wattherd.testing.builders import a_cluster, a_node, a_state, a_target, cpu_only, exclusive
from wattherd.testing.builders import sharing as share_of
from wattherd.testing.plain_cluster import PlainNode, Task, class_of, exact_fragment, tasks
from wattherd.testing.strategies import MODELS, clusters, histories
from wattherd.workload.openb import read_pods


def plain(node: NodeSpec, *, cpu: int, gpus: Sequence[int]) -> PlainNode:
    return PlainNode(node, cpu, node.memory_mib, list(gpus))


def by_definition(target: TargetWorkload, node: PlainNode, models: Sequence[str]) -> float:
    model = models.index(node.spec.gpu_model) if node.gpus else -1
    free = np.array([node.gpus or [0]], dtype=np.int64)
    return float(fragment_rows(target, np.array([node.cpu]), free, np.array([model]))[0])


def by_kernel(target: TargetWorkload, node: PlainNode, models: Sequence[str]) -> float:
    model = models.index(node.spec.gpu_model) if node.gpus else -1
    free = np.array(node.gpus or [0], dtype=np.int64)
    roomy, small = np.zeros((2, len(target.weight)), dtype=np.int64)
    count_roomy(target, free, roomy, small)
    return float(fragment_after(target, model, node.cpu, node.idle, roomy, small, 0, 0, 0))


# --- worked values of the published target ---------------------------------------------------


@pytest.fixture(scope="module")
def default_target(openb: Path) -> TargetWorkload:
    pods = read_pods(openb / "openb_pod_list_default.csv", known=GPUS)
    return a_target((pod.request for pod in pods), a_cluster(*A_NODE_EACH))


G2 = a_node("g2")
T4 = a_node("t4", cpu_milli=104_000, gpus=2, model="T4")
P100 = a_node("p100", cpu_milli=8_000, gpus=2, model="P100")
A_NODE_EACH = (G2, P100, T4)

WORKED = {
    "empty G2": (plain(G2, cpu=96_000, gpus=[1000] * 8), 1087.8187),
    "empty T4 with 104 vCPU": (plain(T4, cpu=104_000, gpus=[1000] * 2), 271.9547),
    "empty P100 with 8 vCPU": (plain(P100, cpu=8_000, gpus=[1000] * 2), 1210.4043),
    "G2 with one GPU at 190 milli": (plain(G2, cpu=92_850, gpus=[190, *[1000] * 7]), 1140.5202),
    "G2 with all GPUs and 2 vCPU": (plain(G2, cpu=2_000, gpus=[1000] * 8), 8000.0),
    "G2 with 4 GPUs and 48 vCPU": (plain(G2, cpu=48_000, gpus=[1000] * 4 + [0] * 4), 543.9093),
}


@pytest.mark.data
@pytest.mark.parametrize("case", WORKED)
def test_worked_values_of_the_default_trace(default_target: TargetWorkload, case: str) -> None:
    node, expected = WORKED[case]
    models = ("G2", "P100", "T4")
    assert by_definition(default_target, node, models) == pytest.approx(expected, abs=1e-4)
    assert by_kernel(default_target, node, models) == pytest.approx(expected, abs=1e-4)


# --- every class by hand ---------------------------------------------------------------------

NODE = plain(a_node(gpus=4), cpu=8_000, gpus=[1000, 300, 0, 700])
CLASSES: dict[str, tuple[Request, str, int]] = {
    "CPU-only that fits: all idle GPU is lost on it": (cpu_only(8_000), "XL", 2000),
    "CPU-only that does not": (cpu_only(8_001), "XR", 2000),
    "another model": (share_of(1, 1, "T4"), "NA", 2000),
    "one of several models": (share_of(1, 301, "T4", "G2"), "Q3", 300),
    "room for all": (share_of(8_000, 300), "Q3", 0),
    "two GPUs too small, one of them empty": (share_of(1, 500), "Q3", 300),
    "only the untouched GPU will do": (exclusive(1, 1), "Q3", 1000),
    "enough GPU, too little CPU": (share_of(8_001, 300), "Q4", 2000),
    "too few GPUs": (exclusive(8_000, 2), "Q2", 2000),
    "neither": (exclusive(8_001, 2), "Q1", 2000),
}


@pytest.mark.parametrize("case", CLASSES)
def test_what_a_single_task_cannot_use(case: str) -> None:
    request, expected_class, lost = CLASSES[case]
    cluster = a_cluster(a_node("n0", gpus=4), a_node("n1", gpus=1, model="T4"))
    target = a_target([request], cluster)
    assert class_of(NODE, tasks([request])[0]) == expected_class
    assert by_definition(target, NODE, cluster.gpu_models) == lost
    assert by_kernel(target, NODE, cluster.gpu_models) == lost


def test_expectation_over_tasks() -> None:
    history = [share_of(1, 500)] * 3 + [exclusive(1, 8)]
    target = a_target(history, a_cluster())
    assert by_kernel(target, NODE, ("G2",)) == 0.75 * 300 + 0.25 * 2000


def test_nothing_expected_means_no_fragment() -> None:
    assert by_definition(a_target([], a_cluster()), NODE, ("G2",)) == 0.0
    assert by_kernel(a_target([], a_cluster()), NODE, ("G2",)) == 0.0


def test_a_node_without_gpus_has_no_fragment() -> None:
    node = plain(a_node(gpus=0), cpu=8_000, gpus=[])
    target = a_target([exclusive(1, 1), cpu_only(1)], a_cluster())
    assert by_definition(target, node, ("G2",)) == by_kernel(target, node, ("G2",)) == 0.0


# --- every (task, node) of random clusters ---------------------------------------------------


@st.composite
def used_nodes(draw: st.DrawFn) -> list[PlainNode]:
    cluster = draw(clusters())
    milli = st.sampled_from((0, 1, 124, 125, 250, 460, 540, 999, 1000))
    return [
        plain(
            spec,
            cpu=draw(st.integers(0, spec.cpu_milli)),
            gpus=draw(st.lists(milli, min_size=spec.gpu_count, max_size=spec.gpu_count)),
        )
        for spec in cluster.nodes
    ]


def expected_of(node: PlainNode, workload: Sequence[Task]) -> Fraction:
    """Every task's class by the written definition, and what it wastes, added up exactly."""
    total = Fraction(0)
    for task in workload:
        waste = node.idle
        if class_of(node, task) == "Q3":
            waste = sum(free for free in node.gpus if free < task.gpu_milli)
        total += Fraction(task.share) * waste
    return total


@given(used_nodes(), histories())
def test_fragment_equals_the_enumeration(nodes: list[PlainNode], history: list[Request]) -> None:
    target = a_target(history, a_cluster(*(node.spec for node in nodes)))
    models = a_cluster(*(node.spec for node in nodes)).gpu_models
    workload = tasks(history)
    for node in nodes:
        exact = float(expected_of(node, workload))
        assert by_definition(target, node, models) == pytest.approx(exact, rel=1e-12, abs=1e-9)
        assert by_kernel(target, node, models) == by_definition(target, node, models)
        assert 0 <= by_kernel(target, node, models) <= node.idle * (1 + 1e-12)


@given(used_nodes(), histories(), st.data())
def test_a_hypothesis_costs_no_more_than_trying_it(
    nodes: list[PlainNode], history: list[Request], data: st.DataObject
) -> None:
    """`fragment_after` with some GPUs changed equals counting the changed node anew."""
    node = data.draw(st.sampled_from([n for n in nodes if n.gpus] or [plain(G2, cpu=1, gpus=[7])]))
    models = sorted({*MODELS})
    target = a_target(history, a_cluster(*(a_node(m, model=m) for m in models)))
    old = data.draw(st.sampled_from(node.gpus))
    alike = [gpu for gpu, free in enumerate(node.gpus) if free == old]
    devices = data.draw(st.integers(0, len(alike)))
    new = data.draw(st.integers(0, old))
    changed = plain(node.spec, cpu=node.cpu, gpus=node.gpus)
    for gpu in alike[:devices]:
        changed.gpus[gpu] = new
    free = np.array(node.gpus, dtype=np.int64)
    roomy, small = np.zeros((2, len(target.weight)), dtype=np.int64)
    count_roomy(target, free, roomy, small)
    model = models.index(node.spec.gpu_model)
    guess = fragment_after(
        target, model, changed.cpu, changed.idle, roomy, small, old, new, devices
    )
    assert float(guess) == by_kernel(target, changed, models)


# --- the cluster -----------------------------------------------------------------------------


def test_the_state_sums_up_its_nodes() -> None:
    cluster = a_cluster(G2, P100, T4, a_node("c", gpus=0))
    history = [share_of(3_152, 810), exclusive(11_300, 1), cpu_only(4_000), exclusive(16_000, 2)]
    state = a_state(cluster, history)
    free = {0: [190, *[1000] * 7], 1: [1000] * 2, 2: [1000] * 2, 3: []}
    state.place(Allocation(share_of(3_152, 810), 0, (0,)))
    cpu = {0: 96_000 - 3_152, 1: 8_000, 2: 104_000, 3: 96_000}
    exact = sum(
        exact_fragment(plain(spec, cpu=cpu[n], gpus=free[n]), tasks(history))
        for n, spec in enumerate(cluster.nodes)
    )
    assert state.fragment_gpu_milli == pytest.approx(float(exact), abs=1e-6)


@pytest.mark.data
def test_an_empty_openb_cluster_has_the_published_floor(openb: Path) -> None:
    """CPU-only tasks count all idle GPU as lost: 13.6 % of the weight, so 13.9 to 14.1 %."""
    from wattherd.experiments.placement.policies import build_placer, place_policy
    from wattherd.workload.openb import read_nodes

    cluster = read_nodes(openb / "openb_node_list_gpu_node.csv", known=GPUS)
    pods = read_pods(openb / "openb_pod_list_default.csv", known=GPUS)
    placer = build_placer(cluster, pods, place_policy("fgd"), draws=np.random.default_rng(0))
    state: ClusterState = placer.state
    ratio = 100 * state.fragment_gpu_milli / state.idle_gpu_milli
    assert 13.6 < ratio < 14.1

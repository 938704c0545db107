"""Watts: the paper's cluster constants, steps of CPU packages and GPUs, and an exact oracle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.catalog.gpus import GPUS
from wattherd.engine.placement.state import ClusterState
from wattherd.estimate.node_power import (
    cpu_mw,
    cpu_power_mw,
    gpu_mw,
    gpu_power_mw,
    power_columns,
)
from wattherd.experiments.placement.policies import idle_and_full_w
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.testing.builders import a_cluster, a_node, a_state, cpu_only, exclusive, sharing
from wattherd.testing.plain_cluster import PlainNode, cpu_watts, gpu_watts
from wattherd.testing.strategies import clusters
from wattherd.workload.openb import read_nodes

# The published cluster: (model, GPUs, vCPUs) and how many nodes are so.
OPENB = (
    (("G2", 8, 96), 549),
    (("T4", 2, 104), 387),
    (("T4", 4, 96), 17),
    (("G3", 8, 128), 39),
    (("P100", 2, 16), 107),
    (("P100", 2, 64), 22),
    (("P100", 1, 8), 3),
    (("P100", 2, 8), 2),
    (("V100M32", 8, 96), 21),
    (("V100M32", 4, 48), 9),
    (("V100M16", 4, 32), 28),
    (("V100M16", 1, 8), 19),
    (("V100M16", 8, 64), 7),
    (("V100M16", 8, 82), 1),
    (("A10", 1, 128), 2),
)


def openb_like() -> ClusterSpec:
    return a_cluster(
        *(
            a_node(f"{shape}-{n}", model=shape[0], gpus=shape[1], cpu_milli=1000 * shape[2])
            for shape, count in OPENB
            for n in range(count)
        )
    )


def cpu_w(node: NodeSpec, free_milli: int) -> float:
    power, row = power_columns(a_cluster(node), GPUS), np.array([0])
    draw = int(cpu_power_mw(power, row, np.array([free_milli]))[0])
    assert int(cpu_mw(power, 0, free_milli)) == draw  # the compiled twin
    return draw / 1000


def gpu_w(node: NodeSpec, active: int) -> float:
    power, row = power_columns(a_cluster(node), GPUS), np.array([0])
    draw = int(gpu_power_mw(power, row, np.array([active]), np.array([node.gpu_count]))[0])
    assert int(gpu_mw(power, 0, active, node.gpu_count)) == draw
    return draw / 1000


# --- the published constants -----------------------------------------------------------------


def test_the_published_cluster_idles_at_230100_w_and_draws_1474110_w_when_full() -> None:
    cluster = openb_like()
    assert len(cluster.nodes) == 1213
    assert cluster.gpu_milli == 6_212_000
    assert idle_and_full_w(cluster) == (230_100.0, 1_474_110.0)


def test_its_cpus_are_3711_packages() -> None:
    power = power_columns(openb_like(), GPUS)
    assert int(power.packages.sum()) == 3711
    assert int((power.packages * power.cpu_idle_mw).sum()) == 55_665_000
    assert int((power.packages * power.cpu_max_mw).sum()) == 445_320_000


def test_an_empty_state_draws_the_idle_power() -> None:
    state = a_state(openb_like())
    assert (state.cpu_power_w, state.gpu_power_w) == (55_665.0, 174_435.0)


def test_the_first_cpu_only_pod_wakes_one_package_for_230205_w() -> None:
    state = a_state(openb_like())
    state.place(Allocation(cpu_only(4_000), 0))
    assert state.cpu_power_w + state.gpu_power_w == 230_205.0


def test_a_full_state_draws_the_full_power() -> None:
    state = a_state(openb_like())
    for n, node in enumerate(state.cluster.nodes):
        everything = exclusive(node.cpu_milli, node.gpu_count)
        state.place(Allocation(everything, n, tuple(range(node.gpu_count))))
    assert (state.cpu_power_w, state.gpu_power_w) == (445_320.0, 1_028_790.0)


@pytest.mark.data
def test_the_public_node_list_gives_the_same_constants(openb: Path) -> None:
    cluster = read_nodes(openb / "openb_node_list_gpu_node.csv", known=GPUS)
    assert idle_and_full_w(cluster) == (230_100.0, 1_474_110.0)


# --- CPU: two vCPUs a core, sixteen cores a package, a package is on or off ------------------


@pytest.mark.parametrize(
    ("free_vcpu", "watts"),
    [(96.0, 45.0), (95.999, 150.0), (94.0, 150.0), (64.0, 150.0), (63.999, 255.0), (63.0, 255.0),
     (32.0, 255.0), (31.9, 360.0), (0.0, 360.0)],
)  # fmt: skip
def test_a_package_draws_its_maximum_once_a_core_of_it_works(
    free_vcpu: float, watts: float
) -> None:
    assert cpu_w(a_node(cpu_milli=96_000), round(1000 * free_vcpu)) == watts


@pytest.mark.parametrize(
    ("vcpu", "packages"), [(1, 1), (31, 1), (32, 1), (33, 2), (82, 3), (104, 4), (128, 4)]
)
def test_cores_and_packages_are_rounded_up(vcpu: int, packages: int) -> None:
    assert cpu_w(a_node(cpu_milli=1000 * vcpu), 1000 * vcpu - 1000 * (vcpu % 2)) == (
        # An odd vCPU is half a core that is never free.
        15.0 * packages + (105.0 if vcpu % 2 else 0.0)
    )


def test_a_node_may_name_its_cpu() -> None:
    named = a_node(cpu_milli=64_000, cpu_model="Xeon 6326")
    assert cpu_w(named, 64_000) == 2 * 20.0
    assert cpu_w(named, 0) == 2 * 185.0


def test_a_node_without_cpus_draws_nothing_for_them() -> None:
    assert cpu_w(a_node(cpu_milli=0), 0) == 0.0


# --- GPUs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "idle", "most"),
    [("T4", 10, 70), ("A10", 30, 150), ("G2", 30, 150), ("G3", 50, 400), ("P100", 25, 250),
     ("V100M16", 30, 300), ("V100M32", 30, 300)],
)  # fmt: skip
def test_published_gpus(model: str, idle: float, most: float) -> None:
    node = a_node(model=model, gpus=4)
    assert [gpu_w(node, active) for active in (0, 1, 4)] == [
        4 * idle,
        3 * idle + most,
        4 * most,
    ]


def test_a_node_without_gpus_draws_nothing_for_them() -> None:
    assert gpu_w(a_node(gpus=0), 0) == 0.0


def test_one_milli_is_enough_to_wake_a_gpu() -> None:
    state = a_state(a_cluster(a_node(gpus=2)))
    first, second = (Allocation(sharing(0, 1), 0, (1,)) for _ in range(2))
    assert state.gpu_power_w == 60.0
    state.place(first)
    assert state.gpu_power_w == 180.0
    state.place(second)
    assert state.gpu_power_w == 180.0


# --- anything else ---------------------------------------------------------------------------


@given(clusters(max_nodes=3), st.data())
def test_watts_equal_the_exact_restatement(cluster: ClusterSpec, data: st.DataObject) -> None:
    for spec in cluster.nodes:
        cpu = data.draw(st.integers(0, spec.cpu_milli))
        active = data.draw(st.integers(0, spec.gpu_count))
        gpus = [999] * active + [1000] * (spec.gpu_count - active)
        node = PlainNode(spec, cpu, 0, gpus)
        assert cpu_w(spec, cpu) == cpu_watts(node)
        assert gpu_w(spec, active) == gpu_watts(node)


@given(clusters(max_nodes=3))
def test_idle_and_full_bound_every_state(cluster: ClusterSpec) -> None:
    state = ClusterState(cluster, a_state(cluster).world.target, power_columns(cluster, GPUS))
    idle, full = idle_and_full_w(cluster)
    odd = any(node.cpu_milli % 2000 for node in cluster.nodes)  # a half core counts as at work
    assert idle <= state.cpu_power_w + state.gpu_power_w <= full
    assert odd or state.cpu_power_w + state.gpu_power_w == idle

"""Watts of a node from what is allocated on it (PWR, CCGrid'25, section on the power model).

A GPU with any allocation draws its maximum, a free one its idle power; CPU packages likewise, two
vCPUs to a physical core. Nodes are never off. Integer milliwatts, so that sums over a cluster are
exact and do not depend on their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattherd.catalog.cpus import CPUS, REFERENCE_CPU
from wattherd.catalog.gpus import GpuModel
from wattherd.jit import kernel
from wattherd.model.cluster import ClusterSpec

MILLI_VCPU_PER_CORE = 2000


class PowerColumns(NamedTuple):
    """Per node: physical cores, cores per package, packages, and idle and maximum milliwatts."""

    cores: NDArray[np.int64]
    package_cores: NDArray[np.int64]
    packages: NDArray[np.int64]
    cpu_idle_mw: NDArray[np.int64]
    cpu_max_mw: NDArray[np.int64]
    gpu_idle_mw: NDArray[np.int64]
    gpu_max_mw: NDArray[np.int64]


def power_columns(cluster: ClusterSpec, gpus: Mapping[str, GpuModel]) -> PowerColumns:
    """Look every node's parts up; a node without `cpu_model` gets the paper's reference CPU."""
    cpus = [CPUS[node.cpu_model or REFERENCE_CPU] for node in cluster.nodes]
    cards = [gpus[node.gpu_model] if node.gpu_count else None for node in cluster.nodes]
    vcpus = np.array([node.cpu_milli for node in cluster.nodes], dtype=np.int64)
    cores = -(-vcpus // MILLI_VCPU_PER_CORE)
    package_cores = np.array([cpu.cores for cpu in cpus], dtype=np.int64)
    return PowerColumns(
        cores=cores,
        package_cores=package_cores,
        packages=-(-cores // package_cores),
        cpu_idle_mw=_milli([cpu.idle_w for cpu in cpus]),
        cpu_max_mw=_milli([cpu.max_w for cpu in cpus]),
        gpu_idle_mw=_milli([card.idle_w if card else 0.0 for card in cards]),
        gpu_max_mw=_milli([card.max_w if card else 0.0 for card in cards]),
    )


def _milli(watts: list[float]) -> NDArray[np.int64]:
    return np.array([round(watt * 1000) for watt in watts], dtype=np.int64)


def cpu_power_mw(
    power: PowerColumns, rows: NDArray[np.int64], cpu_free: NDArray[np.int64]
) -> NDArray[np.int64]:
    """CPU draw (mW) of the nodes `rows` at `cpu_free` milli-vCPU free each."""
    working = power.cores[rows] - cpu_free // MILLI_VCPU_PER_CORE
    active = -(-working // power.package_cores[rows])
    asleep = power.packages[rows] - active
    draw = active * power.cpu_max_mw[rows] + asleep * power.cpu_idle_mw[rows]
    return np.asarray(draw, dtype=np.int64)


def gpu_power_mw(
    power: PowerColumns,
    rows: NDArray[np.int64],
    active: NDArray[np.int64],
    devices: NDArray[np.int64],
) -> NDArray[np.int64]:
    """GPU draw (mW) of the nodes `rows` with `active` of their `devices` GPUs in use."""
    draw: NDArray[np.int64] = (
        active * power.gpu_max_mw[rows] + (devices - active) * power.gpu_idle_mw[rows]
    )
    return draw


@kernel
def cpu_mw(power, n, cpu_free):  # type: ignore[no-untyped-def]
    """`cpu_power_mw` for one node."""
    working = power.cores[n] - cpu_free // 2000
    active = (working + power.package_cores[n] - 1) // power.package_cores[n]
    return active * power.cpu_max_mw[n] + (power.packages[n] - active) * power.cpu_idle_mw[n]


@kernel
def gpu_mw(power, n, active, devices):  # type: ignore[no-untyped-def]
    """`gpu_power_mw` for one node."""
    return active * power.gpu_max_mw[n] + (devices - active) * power.gpu_idle_mw[n]

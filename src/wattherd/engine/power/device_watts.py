"""What devices and machines draw idle and at most, in milliwatts: one count for everybody.

The core's account (`engine.power.account`) and that of Kubernetes (`kube.account.domains`) count
the same machines by these numbers. They know no caps and no jobs.
"""

from __future__ import annotations

from collections.abc import Mapping

from wattherd.catalog.gpus import GpuModel
from wattherd.model.cluster import NodeSpec


# Rounded once, where a number of watts enters. Python's round is to even at a half: it does not
# matter which, as long as budgets and caps take the same way.
def as_mw(watts: float) -> int:
    """Watts in whole milliwatts."""
    return round(watts * 1000)


def device_idle_mw(node: NodeSpec, gpus: Mapping[str, GpuModel]) -> int:
    """What one GPU of a node draws idle; 0 where there is none."""
    return as_mw(gpus[node.gpu_model].idle_w) if node.gpu_count else 0


def device_rise_mw(node: NodeSpec, gpus: Mapping[str, GpuModel]) -> int:
    """What one GPU of a node draws above that at most, uncapped; 0 where there is none."""
    if not node.gpu_count:
        return 0
    # Each rounded and then subtracted, as the account does: the difference may round otherwise.
    return as_mw(gpus[node.gpu_model].max_w) - device_idle_mw(node, gpus)


def node_idle_mw(node: NodeSpec, gpus: Mapping[str, GpuModel]) -> int:
    """What a node draws while nothing runs on it: the machine and all of its GPUs."""
    return device_idle_mw(node, gpus) * node.gpu_count + as_mw(node.idle_w)

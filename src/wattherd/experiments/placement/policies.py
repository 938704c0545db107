"""The composition root: names and files become objects of the core, here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
from numpy.random import Generator

from wattherd.catalog.gpus import GPUS
from wattherd.engine.placement.placer import Placer
from wattherd.engine.placement.state import ClusterState
from wattherd.estimate.expected_packing import outlook_of
from wattherd.estimate.node_power import gpu_power_mw, power_columns
from wattherd.estimate.target_workload import target_workload
from wattherd.experiments.placement.plugin_scorers import KnownScorers, answered_for
from wattherd.jit import HAVE_JIT
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.job import Request, TracePod
from wattherd.policy.place.contract import Scorer
from wattherd.policy.place.registry import PlacePolicy, parse_policy


@cache
def scorers() -> Mapping[str, Scorer]:
    """Built-in scorers and those of installed packages (entry points `wattherd.place`)."""
    return KnownScorers()


def place_policy(text: str) -> PlacePolicy:
    """Parse a placement policy as users spell it."""
    return parse_policy(text, scorers())


def live_policy(text: str) -> PlacePolicy:
    """`place_policy` for a scheduler that must go on where a package's scorer fails."""
    return answered_for(place_policy(text))


def build_placer(
    cluster: ClusterSpec,
    pods: tuple[TracePod, ...],
    policy: PlacePolicy,
    *,
    draws: Generator,
    random_ties: bool = False,
    compiled: bool = True,
) -> Placer:
    """A policy at work on an empty cluster; `pods` are the history that tells what to expect."""
    history = [pod.request for pod in pods]
    target = target_workload(history, cluster.gpu_models)
    power = power_columns(cluster, GPUS)
    outlook = None
    if policy.looks_ahead:
        everything = target_workload(history, cluster.gpu_models, coverage=1.0)
        outlook = outlook_of(everything, cluster, power)
    state = ClusterState(cluster, target, power, outlook)
    return Placer(
        state, policy, draws=draws, random_ties=random_ties, compiled=compiled and HAVE_JIT
    )


def warm_up(policy: PlacePolicy) -> None:
    """Load (or compile) the kernels, so that the first measured decision is not slower."""
    node = NodeSpec(name="n", cpu_milli=1000, memory_mib=1, gpu_count=1, gpu_model="T4")
    request = Request(cpu_milli=1, gpu_count=1, gpu_milli=1)
    pods = (TracePod(name="p", request=request),)
    for ties in (False, True):
        draws = np.random.default_rng(0)
        placer = build_placer(ClusterSpec((node,)), pods, policy, draws=draws, random_ties=ties)
        placer.place_one(request)


def idle_and_full_w(cluster: ClusterSpec) -> tuple[float, float]:
    """Estimated draw of the cluster with nothing and with everything allocated, in watts."""
    power = power_columns(cluster, GPUS)
    rows = np.arange(len(cluster.nodes))
    gpus = np.array([node.gpu_count for node in cluster.nodes])
    idle = power.packages * power.cpu_idle_mw + gpu_power_mw(power, rows, 0 * gpus, gpus)
    full = power.packages * power.cpu_max_mw + gpu_power_mw(power, rows, gpus, gpus)
    return float(idle.sum() / 1000), float(full.sum() / 1000)

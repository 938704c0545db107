"""Nodes, requests, states and placers in few words, and every policy by a spelling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

import numpy as np
from numpy.random import Generator

from wattherd.catalog.gpus import GPUS
from wattherd.engine.placement.placer import Placer
from wattherd.engine.placement.state import ClusterState
from wattherd.estimate.expected_packing import outlook_of
from wattherd.estimate.node_power import power_columns
from wattherd.estimate.target_workload import TargetWorkload, target_workload
from wattherd.model.cluster import WHOLE_GPU_MILLI, ClusterSpec, NodeSpec
from wattherd.model.job import Request
from wattherd.policy.place.contract import Scorer
from wattherd.policy.place.registry import BUILT_IN, parse_policy

G2_CPU_MILLI, G2_MEMORY_MIB = 96_000, 393_216


def a_node(
    name: str = "n0",
    *,
    cpu_milli: int = G2_CPU_MILLI,
    memory_mib: int = G2_MEMORY_MIB,
    gpus: int = 8,
    model: str = "G2",
    cpu_model: str = "",
) -> NodeSpec:
    """A node; by default the most frequent one of the openb cluster."""
    return NodeSpec(
        name=name,
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
        gpu_count=gpus,
        gpu_model=model if gpus else "",
        cpu_model=cpu_model,
    )


def a_cluster(*nodes: NodeSpec) -> ClusterSpec:
    """Nodes in tie order; a single default node if none is given."""
    return ClusterSpec(nodes or (a_node(),))


def cpu_only(cpu_milli: int, *, memory_mib: int = 0) -> Request:
    """A request without GPUs."""
    return Request(cpu_milli=cpu_milli, memory_mib=memory_mib)


def sharing(cpu_milli: int, gpu_milli: int, *models: str, memory_mib: int = 0) -> Request:
    """A request for a part of one GPU, of one of `models` if any are named."""
    return Request(
        cpu_milli=cpu_milli, memory_mib=memory_mib, gpu_count=1, gpu_milli=gpu_milli, models=models
    )


def exclusive(cpu_milli: int, gpus: int, *models: str, memory_mib: int = 0) -> Request:
    """A request for `gpus` whole GPUs, of one of `models` if any are named."""
    return Request(
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
        gpu_count=gpus,
        gpu_milli=WHOLE_GPU_MILLI,
        models=models,
    )


def a_target(history: Iterable[Request], cluster: ClusterSpec) -> TargetWorkload:
    """The target workload of `history` on `cluster`."""
    return target_workload(history, cluster.gpu_models)


def a_state(cluster: ClusterSpec, history: Iterable[Request] = ()) -> ClusterState:
    """An empty cluster that expects more of `history`."""
    seen = list(history)
    power = power_columns(cluster, GPUS)
    everything = target_workload(seen, cluster.gpu_models, coverage=1.0)
    outlook = outlook_of(everything, cluster, power)
    return ClusterState(cluster, a_target(seen, cluster), power, outlook)


def a_placer(
    state: ClusterState,
    policy: str,
    *,
    draws: Generator | None = None,
    random_ties: bool = False,
    compiled: bool = True,
    known: Mapping[str, Scorer] = BUILT_IN,
) -> Placer:
    """The policy spelled `policy` at work on `state`; it draws from seed 0 unless told."""
    return Placer(
        state,
        parse_policy(policy, known),
        draws=draws if draws is not None else np.random.default_rng(0),
        random_ties=random_ties,
        compiled=compiled,
    )


def spellings(known: Mapping[str, Scorer] = BUILT_IN) -> list[str]:
    """Every scorer of `known` with all its words, and on either side of a blend.

    Words that set different options are also tried in pairs.
    """
    plain = [spelling for scorer in known.values() for spelling in _with_words(scorer)]
    mixed = [name for name, scorer in known.items() if scorer.blendable]
    partner = "fgd" if "fgd" in known else mixed[0]
    first = [f"{name}+{partner}:0.3" for name in mixed]
    last = [f"{partner}+{name}" for name in mixed if name != partner]
    return [*plain, *first, *last, *_threes(mixed)]


def _with_words(scorer: Scorer) -> list[str]:
    words = list(scorer.tokens)
    pairs = [
        f"{scorer.name}@{one}@{other}"
        for one, other in combinations(words, 2)
        if not set(scorer.tokens[one]) & set(scorer.tokens[other])
    ]
    numbers = [f"{scorer.name}@{name}={2 * value + 1}" for name, value in scorer.options.items()]
    return [scorer.name, *(f"{scorer.name}@{word}" for word in words), *pairs, *numbers]


def _threes(names: list[str]) -> list[str]:
    return [f"{'+'.join(names[-3:])}:0.2:0.3"] if len(names) > 2 else []

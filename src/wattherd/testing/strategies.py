"""Hypothesis strategies for clusters, requests and policies: small, mixed and close to the edge.

Needs Hypothesis, which wattherd itself does not depend on.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from wattherd.model.cluster import WHOLE_GPU_MILLI, ClusterSpec
from wattherd.model.job import Request
from wattherd.testing.builders import a_node, spellings

MODELS = ("G2", "P100", "T4", "V100M32")
CPU_MODELS = ("", "", "Xeon 6326")
# Few distinct sizes, so that equal scores, exact fits and full nodes are frequent.
_CPU_MILLI = (0, 1, 999, 1000, 2000, 3152, 11_300, 16_000)
_GPU_MILLI = (1, 125, 250, 460, 500, 810, 999)
_MEMORY_MIB = (0, 0, 1, 512, 4096)
_NODE_CPU_MILLI = (0, 3999, 8000, 16_000, 33_000, 96_000)
_NODE_MEMORY_MIB = (4096, 8191, 65_536)


@st.composite
def clusters(draw: st.DrawFn, *, max_nodes: int = 5) -> ClusterSpec:
    """One to `max_nodes` nodes of mixed shapes, some of them alike, some without GPUs."""
    shapes = st.tuples(
        st.sampled_from(_NODE_CPU_MILLI),
        st.sampled_from(_NODE_MEMORY_MIB),
        st.sampled_from((0, 1, 2, 4, 8)),
        st.sampled_from(MODELS),
        st.sampled_from(CPU_MODELS),
    )
    drawn = draw(st.lists(shapes, min_size=1, max_size=max_nodes))
    return ClusterSpec(
        tuple(
            a_node(
                f"n{number}",
                cpu_milli=cpu,
                memory_mib=memory,
                gpus=gpus,
                model=model,
                cpu_model=cpu_model,
            )
            for number, (cpu, memory, gpus, model, cpu_model) in enumerate(drawn)
        )
    )


def requests() -> st.SearchStrategy[Request]:
    """CPU-only, sharing and exclusive requests, some of them for certain models only."""
    models = st.one_of(
        st.just(()), st.lists(st.sampled_from(MODELS), min_size=1, max_size=3).map(tuple)
    )
    sizes = st.sampled_from(
        [(0, 0), *((1, milli) for milli in _GPU_MILLI), *((n, WHOLE_GPU_MILLI) for n in (1, 2, 4))]
    )
    return st.builds(
        _request, sizes, models, st.sampled_from(_CPU_MILLI), st.sampled_from(_MEMORY_MIB)
    )


def _request(
    size: tuple[int, int], models: Sequence[str], cpu_milli: int, memory_mib: int
) -> Request:
    count, milli = size
    return Request(
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
        gpu_count=count,
        gpu_milli=milli,
        models=tuple(models) if count else (),
    )


def histories(*, max_size: int = 12) -> st.SearchStrategy[list[Request]]:
    """What a target workload is made of; also none at all."""
    return st.lists(requests(), max_size=max_size)


def policies() -> st.SearchStrategy[str]:
    """Every built-in policy, option and pairing, as spelled on the command line."""
    return st.sampled_from(spellings())

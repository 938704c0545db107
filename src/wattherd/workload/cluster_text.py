"""A cluster in one line: `16x4:T4` (16 nodes of 4 T4) or `v100=8,p100=16` (single-GPU nodes)."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from wattherd.errors import UserError
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.spelling import hint_for, nearest
from wattherd.workload.openb import read_nodes

CPU_MILLI_PER_GPU = 12_000
MEMORY_MIB_PER_GPU = 61_440
MAX_NODES = 100_000
NODE_LIST_ENDS = (".csv", ".csv.gz")
"""What the name of a node list ends with."""
FAMILY = {"v100": "V100M16", "a100": "A100"}
"""Families as trace authors write them."""
_FORM = "write 16x4:T4, 8x8:H100+16x4:A100, or V100M16=8,P100=16"


def read_cluster(text: str, *, known: Collection[str]) -> ClusterSpec:
    """The cluster of a text, or of the node list that the text names (`nodes.csv`).

    Raises:
        UserError: neither a form of `parse_cluster` nor a usable node list.
    """
    if text.endswith(NODE_LIST_ENDS):
        return read_nodes(Path(text), known=known)
    return parse_cluster(text, known=known)


def parse_cluster(text: str, *, known: Collection[str]) -> ClusterSpec:
    """Nodes named by number, `GPUS` of them each; groups joined by `+` or `,`.

    Every node has 12 vCPU and 60 GiB per GPU, which no published training trace exhausts.

    Raises:
        UserError: another form, an unknown GPU, or no or too many nodes.
    """
    nodes: list[NodeSpec] = []
    for group in re.split(r"[+,]", text):
        count, gpus, model = _group(group.strip(), known)
        if len(nodes) + count > MAX_NODES:
            raise UserError(f"more than {MAX_NODES:,} nodes", field="--cluster")
        first = len(nodes)
        nodes.extend(_node(first + i, gpus, model) for i in range(count))
    return ClusterSpec(tuple(nodes))


def _group(text: str, known: Collection[str]) -> tuple[int, int, str]:
    packed = re.fullmatch(r"(\d+)x(\d+):([\w.-]+)", text)
    single = re.fullmatch(r"([\w.-]+)=(\d+)", text)
    if packed:
        count, gpus, name = int(packed[1]), int(packed[2]), packed[3]
    elif single:
        count, gpus, name = int(single[2]), 1, single[1]
    else:
        raise UserError(f"{text!r} is no group of nodes", field="--cluster", hint=_FORM)
    if not count or not gpus:
        raise UserError(f"{text!r} has no GPU", field="--cluster", hint=_FORM)
    return count, gpus, _model(name, known)


def _model(name: str, known: Collection[str]) -> str:
    """The catalogue's spelling; capitals do not matter, a family stands for one of its cards."""
    name = FAMILY.get(name.casefold(), name)
    if name in known:
        return name
    folded = {candidate.casefold(): candidate for candidate in known}
    if name.casefold() in folded:
        return folded[name.casefold()]
    hint = hint_for(nearest(name, known) or name, known)
    raise UserError(f"unknown GPU {name!r}", field="--cluster", hint=hint)


def _node(number: int, gpus: int, model: str) -> NodeSpec:
    return NodeSpec(
        name=f"node-{number:05}",
        cpu_milli=CPU_MILLI_PER_GPU * gpus,
        memory_mib=MEMORY_MIB_PER_GPU * gpus,
        gpu_count=gpus,
        gpu_model=model,
    )

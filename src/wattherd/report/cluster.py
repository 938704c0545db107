"""The final cluster of a run: read from `final-POLICY-SEED.csv.gz`, sorted and summarised.

A node is kept as shares in use (0..1) of each of its GPUs and of its CPU. Nodes without GPUs are
left out. Large clusters are averaged over neighbours in sorted order, see `columns`.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from wattherd.errors import UserError

COLUMNS = ("node", "gpu_model", "cpu_milli", "cpu_free_milli", "gpu_free_milli")
WHOLE_GPU_MILLI = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalNode:
    """One node at the end of a run; `gpus` holds used shares, fullest first."""

    name: str
    model: str
    gpus: tuple[float, ...]
    cpu: float

    @property
    def used(self) -> float:
        """Mean used share of its GPUs."""
        return sum(self.gpus) / len(self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPanel:
    """All nodes with one GPU model, those with more GPUs first, then the fuller ones."""

    model: str
    nodes: tuple[FinalNode, ...]

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return sum(len(node.gpus) for node in self.nodes)

    @property
    def used(self) -> float:
        """Used share of all its GPUs."""
        return sum(sum(node.gpus) for node in self.nodes) / self.gpus


def read_final(file: Path) -> list[ModelPanel]:
    """The final cluster by GPU model, largest first; raises UserError naming file and line."""
    nodes: dict[str, list[FinalNode]] = {}
    for line, row in _rows(file):
        if node := _node(row, f"{file}:{line}"):
            nodes.setdefault(node.model, []).append(node)
    panels = [
        ModelPanel(model=model, nodes=tuple(sorted(members, key=_order)))
        for model, members in nodes.items()
    ]
    return sorted(panels, key=lambda panel: (-panel.gpus, panel.model))


def _order(node: FinalNode) -> tuple[float, ...]:
    return (-len(node.gpus), -node.used, *(-share for share in node.gpus), -node.cpu)


def _rows(file: Path) -> Iterator[tuple[int, dict[str, str | None]]]:
    try:
        with gzip.open(file, "rt", encoding="utf-8", newline="") as text:
            reader = csv.DictReader(text)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise UserError("column is missing", where=f"{file}:1", field=missing[0])
            yield from ((reader.line_num, row) for row in reader)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error):
        raise UserError(
            "is not a readable gzip file of comma-separated values",
            where=str(file),
            hint="the file may be cut off; run the simulation again or remove it",
        ) from None


def _node(row: dict[str, str | None], where: str) -> FinalNode | None:
    free = row["gpu_free_milli"]
    if free is None:
        raise UserError("the row is too short", where=where, field="gpu_free_milli")
    if not free:
        return None
    shares = [_used(text, WHOLE_GPU_MILLI, where, "gpu_free_milli") for text in free.split("-")]
    capacity = _whole(row["cpu_milli"], where, "cpu_milli")
    cpu = _used(row["cpu_free_milli"], capacity, where, "cpu_free_milli") if capacity else 0.0
    gpus = tuple(sorted(shares, reverse=True))
    return FinalNode(name=row["node"] or "", model=row["gpu_model"] or "GPU", gpus=gpus, cpu=cpu)


def _used(text: str | None, capacity: int, where: str, field: str) -> float:
    free = _whole(text, where, field)
    if free > capacity:
        raise UserError(f"{free} is free of only {capacity}", where=where, field=field)
    return 1 - free / capacity


def _whole(text: str | None, where: str, field: str) -> int:
    if text is None or not (text.isascii() and text.isdigit()):
        raise UserError(f"{text!r} is not a whole number of at least 0", where=where, field=field)
    return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class MapColumn:
    """What one column of the map shows: a node, or the mean of `count` alike neighbours."""

    name: str
    gpus: tuple[float, ...]
    cpu: float
    count: int


def columns(panel: ModelPanel, most: int) -> list[MapColumn]:
    """At most about `most` columns: whole nodes, or means over runs of nodes with as many GPUs."""
    size = -(-len(panel.nodes) // max(most, 1))
    found = []
    for alike in _by_gpu_count(panel.nodes):
        found += [_column(alike[at : at + size]) for at in range(0, len(alike), size)]
    return found


def _by_gpu_count(nodes: Sequence[FinalNode]) -> list[list[FinalNode]]:
    groups: dict[int, list[FinalNode]] = {}
    for node in nodes:
        groups.setdefault(len(node.gpus), []).append(node)
    return list(groups.values())


def _column(nodes: Sequence[FinalNode]) -> MapColumn:
    first, last, count = nodes[0], nodes[-1], len(nodes)
    return MapColumn(
        name=first.name if count == 1 else f"{count} nodes, {first.name} to {last.name}",
        gpus=tuple(sum(shares) / count for shares in zip(*(n.gpus for n in nodes), strict=True)),
        cpu=sum(node.cpu for node in nodes) / count,
        count=count,
    )

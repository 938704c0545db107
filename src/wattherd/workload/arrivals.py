"""In which order pods arrive, how many, and which node wins a tie.

Two ways: drawn from a seed by the published Monte-Carlo inflation (FGD, ATC'23), or read from an
order file that repeats a given run exactly. Either way the result is row indices into the pod
list and the node list.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError
from wattherd.model.cluster import ClusterSpec
from wattherd.model.job import TracePod
from wattherd.workload.random_streams import stream
from wattherd.workload.source import opened, shown

MAX_ARRIVALS = 10_000_000
MAX_LOAD = 1000
_BLOCK = 4096
_MAX_ORDER_BYTES = 256 << 20
_SEEDS_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrivals:
    """Rows of the pod list in arrival order, rows of the node list in tie order (first wins)."""

    pods: NDArray[np.int64]
    nodes: NDArray[np.int64]


def draw_arrivals(
    pods: Sequence[TracePod], cluster: ClusterSpec, *, load: float | None, seed: int
) -> Arrivals:
    """Arrivals asking for `load` times the cluster's GPUs, and a random tie order.

    Without a load each pod of the list arrives once, in an order of the seed.

    The two come from separate streams of `seed`, and neither depends on the order of the files'
    rows: both lists are taken by name before they are shuffled, as published.

    Raises:
        UserError: as `inflate`, or the seed is negative.
    """
    asked = list_load(pods, cluster)
    if load is None and not asked:
        raise UserError("no pod asks for a GPU", hint="--load is a share of the cluster's GPUs")
    by_name = np.array(_by_name([pod.name for pod in pods]), dtype=np.int64)
    nodes = np.array(_by_name([node.name for node in cluster.nodes]), dtype=np.int64)
    picked = inflate(
        [pods[row] for row in by_name],
        capacity_milli=cluster.gpu_milli,
        load=asked if load is None else load,
        rng=stream(seed, "arrivals"),
    )
    tie_order = stream(seed, "tie order").permutation(len(nodes))
    return Arrivals(pods=by_name[picked], nodes=nodes[tie_order])


def _by_name(names: list[str]) -> list[int]:
    return sorted(range(len(names)), key=names.__getitem__)


def list_load(pods: Sequence[TracePod], cluster: ClusterSpec) -> float:
    """What a list asks for, over the GPUs there are; 0 where there are none of either."""
    asked = sum(pod.request.total_gpu_milli for pod in pods)
    return asked / cluster.gpu_milli if cluster.gpu_milli else 0.0


def inflate(
    pods: Sequence[TracePod], *, capacity_milli: int, load: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Row indices of `pods` in arrival order, together asking for about `load` of the capacity.

    The whole list is shuffled first. If it asks for less than the target, uniform picks are
    appended; if it asks for more, uniformly random pods are taken out until it no longer does.

    Raises:
        UserError: no pods, no GPU to fill or to ask for, a load outside 0 to `MAX_LOAD`, or one
            that would take more than `MAX_ARRIVALS` pods.
    """
    demand = [pod.request.total_gpu_milli for pod in pods]
    asked = sum(demand)
    target = _target(capacity_milli, load, demand)
    shuffled = rng.permutation(len(demand))
    if asked > target:
        return _thinned(shuffled, demand, asked - target, rng)
    per_gpu = [pod.request.gpu_milli for pod in pods]
    extra = _extra(demand, per_gpu, target - asked, rng)
    return np.concatenate([shuffled, np.array(extra, dtype=np.int64)])


def _target(capacity_milli: int, load: float, demand: list[int]) -> int:
    if not 0 < load <= MAX_LOAD:
        raise UserError(f"load {load} is not between 0 and {MAX_LOAD}", hint="1.3 is 130 %")
    if not demand:
        raise UserError("no pods to draw arrivals from")
    if not capacity_milli:
        raise UserError("the cluster has no GPU", hint="load is a share of its GPUs")
    if not any(demand):
        raise UserError("no pod asks for a GPU", hint="load is a share of the cluster's GPUs")
    # Rounded, since 1.3 × 6,212,000 in floating point may fall short of the published target.
    target = round(load * capacity_milli)
    if target * len(demand) > MAX_ARRIVALS * sum(demand):
        raise UserError(f"load {load} takes more than {MAX_ARRIVALS:,} pods", hint="lower it")
    return target


def _extra(demand: list[int], per_gpu: list[int], room: int, rng: np.random.Generator) -> list[int]:
    """Uniform picks until the next one would exceed `room`.

    The published code asks whether the pick's milli *per GPU* still fits, but books all its GPUs,
    so a last pick of several GPUs may overshoot. Kept, as published figures depend on it.
    """
    picked: list[int] = []
    while True:
        for row in rng.integers(len(demand), size=_BLOCK).tolist():
            if per_gpu[row] > room:
                return picked
            room -= demand[row]
            picked.append(row)


def _thinned(
    shuffled: NDArray[np.int64], demand: list[int], excess: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """`shuffled` without uniformly random pods that together ask for `excess` or more."""
    kept = np.ones(len(demand), dtype=np.bool_)
    for row in rng.permutation(len(demand)).tolist():
        if excess <= 0:
            break
        excess -= demand[row]
        kept[row] = False
    return shuffled[kept[shuffled]]


def read_order(path: Path, *, seed: int, pods: int, nodes: int) -> Arrivals:
    """The arrivals of `seed` in an order file, for lists of `pods` and `nodes` rows.

    The file is JSON, plain or gzip: `{"seeds": {"42": {"pods": [rows], "nodes": [rows]}}}`.

    Raises:
        UserError: the file cannot be read or is no such JSON, lacks the seed, names a row that
            the lists do not have, or its `nodes` do not name every node once.
    """
    seeds = _member(_json(path), "seeds", path, "")
    entry = seeds.get(str(seed))
    if entry is None:
        raise UserError(f"no seed {seed}", where=str(path), field="seeds", hint=_present(seeds))
    field = f"seeds.{seed}"
    order = _rows(entry, "pods", pods, path, field)
    ties = _rows(entry, "nodes", nodes, path, field)
    if len(ties) != nodes or len(np.unique(ties)) != nodes:
        problem = f"{len(ties)} rows, {len(np.unique(ties))} of them distinct, for {nodes} nodes"
        hint = "it names every row of the node list once; was it made for another list?"
        raise UserError(problem, where=str(path), field=f"{field}.nodes", hint=hint)
    return Arrivals(pods=order, nodes=ties)


def _json(path: Path) -> object:
    with opened(path) as source:
        raw = source.read(_MAX_ORDER_BYTES + 1)
    if len(raw) > _MAX_ORDER_BYTES:
        raise UserError(
            f"more than {_MAX_ORDER_BYTES >> 20} MiB",
            where=str(path),
            hint="is this an order file?",
        )
    try:
        content: object = json.loads(raw)
    except json.JSONDecodeError as error:
        raise UserError(f"not JSON: {error.msg}", where=f"{path}:{error.lineno}") from None
    except UnicodeDecodeError:
        raise UserError("not UTF-8 text", where=str(path), hint="is this an order file?") from None
    except (RecursionError, ValueError):
        raise UserError(
            "not an order file: nested too deeply, or a number too long", where=str(path)
        ) from None
    return content


def _member(parent: object, name: str, path: Path, field: str) -> dict[str, object]:
    value = parent.get(name) if isinstance(parent, dict) else None
    if not isinstance(value, dict):
        hint = 'expected {"seeds": {"42": {"pods": [...], "nodes": [...]}}}'
        raise UserError(f"no object {name!r}", where=str(path), field=field, hint=hint)
    return value


def _present(seeds: dict[str, object]) -> str:
    names = sorted(seeds, key=lambda name: (len(name), name))
    more = f" and {len(names) - _SEEDS_SHOWN} more" if len(names) > _SEEDS_SHOWN else ""
    return f"seeds present: {', '.join(shown(name)[1:-1] for name in names[:_SEEDS_SHOWN])}{more}"


def _rows(entry: object, name: str, count: int, path: Path, field: str) -> NDArray[np.int64]:
    """A list of row indices below `count`."""
    field = f"{field}.{name}"
    values = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(values, list) or not values:
        raise UserError("no list of rows", where=str(path), field=field)
    for at, value in enumerate(values):
        if type(value) is not int:
            problem = f"entry {at} is {shown(str(value))}, not a whole number"
            raise UserError(problem, where=str(path), field=field)
        if not 0 <= value < count:
            problem = f"entry {at} is row {shown(str(value))[1:-1]} of a list of {count} rows"
            hint = "rows count from 0; was the order made for another list?"
            raise UserError(problem, where=str(path), field=field, hint=hint)
    return np.array(values, dtype=np.int64)

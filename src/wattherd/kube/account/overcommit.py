"""Seats for a pod that is on a node already, whether or not the node has room for it.

Where others over-commit a node (two schedulers on the same nodes do: the API server checks nothing)
or chose GPUs that nobody tells us, the account takes what there is: the GPUs named, else those that
have room, lowest number first, else whatever is left of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattherd.engine.placement.state import ClusterState
from wattherd.kube.facts.node_facts import Giving, GpuOffer
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import WHOLE_GPU_MILLI
from wattherd.model.request import Request

if TYPE_CHECKING:
    from wattherd.kube.account.fleet import Holding

Seats = tuple[Allocation, ...]


def crowd_in(
    state: ClusterState, row: int, offer: GpuOffer, holding: Holding
) -> tuple[Seats, bool]:
    """Allocations that stand for `holding` on node `row`, and whether they are all of it."""
    nodes, ask = state.world.nodes, holding.ask
    cpu = min(ask.cpu_milli, int(nodes.cpu_free[row]))
    memory = min(ask.memory_mib, int(nodes.memory_free[row]))
    whole = (cpu, memory) == (ask.cpu_milli, ask.memory_mib)
    milli, wanted = _devices(offer, holding)
    free = {gpu: int(nodes.gpu_free[row, gpu]) for gpu in range(int(nodes.gpu_count[row]))}
    parts = _pick(free, milli, wanted, holding.gpus)
    whole = whole and parts == [(gpu, milli) for gpu, _ in parts] and len(parts) == wanted
    return _seats(row, cpu, memory, parts, ask.models), whole


def _devices(offer: GpuOffer, holding: Holding) -> tuple[int, int]:
    """Milli-GPU of each device or slot that it takes, and how many of them."""
    ask = holding.ask
    if not ask.uses_gpus:
        return 0, 0
    if offer.giving is Giving.SLOTS:
        return offer.slot_milli, max(1, ask.whole + ask.slots)
    if ask.share_milli is not None and not ask.whole:
        return ask.share_milli, 1
    return WHOLE_GPU_MILLI, ask.whole + ask.slots


def _pick(
    free: dict[int, int], milli: int, wanted: int, named: tuple[int, ...] | None
) -> list[tuple[int, int]]:
    """(GPU, milli) of `wanted` parts; less of them, or smaller ones, where there is no more."""
    parts: list[tuple[int, int]] = []
    ahead = list(named or ())
    for _ in range(wanted):
        gpu = _next(free, milli, ahead)
        if gpu is None:
            break
        took = min(milli, free[gpu])
        free[gpu] -= took
        parts.append((gpu, took))
    return parts


def _next(free: dict[int, int], milli: int, ahead: list[int]) -> int | None:
    while ahead:
        gpu = ahead.pop(0)
        if free.get(gpu, 0) > 0:
            return gpu
    roomy = [gpu for gpu, left in free.items() if left >= milli]
    if roomy:
        return roomy[0]
    some = [gpu for gpu, left in free.items() if left > 0]
    return max(some, key=lambda gpu: free[gpu]) if some else None


def _seats(
    row: int, cpu: int, memory: int, parts: list[tuple[int, int]], models: tuple[str, ...]
) -> Seats:
    """Whole GPUs in one allocation, every share in its own; the first one carries the rest."""
    full = tuple(sorted(gpu for gpu, milli in parts if milli == WHOLE_GPU_MILLI))
    shares = [((gpu,), milli) for gpu, milli in parts if milli != WHOLE_GPU_MILLI]
    groups = ([(full, WHOLE_GPU_MILLI)] if full else []) + shares
    if not groups:
        return (_seat(row, cpu, memory, (), 0, models),)
    (gpus, milli), *rest = groups
    return (
        _seat(row, cpu, memory, gpus, milli, models),
        *(_seat(row, 0, 0, gpus, milli, models) for gpus, milli in rest),
    )


def _seat(
    row: int, cpu: int, memory: int, gpus: tuple[int, ...], milli: int, models: tuple[str, ...]
) -> Allocation:
    request = Request(
        cpu_milli=cpu,
        memory_mib=memory,
        gpu_count=len(gpus),
        gpu_milli=milli if gpus else 0,
        models=models if gpus else (),
    )
    return Allocation(request, row, gpus)

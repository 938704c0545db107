"""What a request was given: a node, the GPUs on it, and the request itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wattherd.model.job import Request
from wattherd.model.quick import maker, quick


@quick
@dataclass(frozen=True, slots=True)
class Allocation:
    """`request` on node index `node`, on the GPUs numbered in `gpus` (ascending).

    Of a job, it is what `tasks` tasks of its role number `role` need together.
    """

    request: Request
    node: int
    gpus: tuple[int, ...] = ()
    role: int = 0
    tasks: int = 1


allocate = maker(Allocation)


def device_of_rank(
    allocations: Sequence[Allocation], rank: int, ranks: int
) -> tuple[int, int] | None:
    """Node and GPU of one rank of a run, where every rank has one GPU; None where that is not so.

    Ranks are counted through the allocations in order, and through the GPUs of each.
    """
    devices = [(one.node, gpu) for one in allocations for gpu in one.gpus]
    return devices[rank] if len(devices) == ranks and 0 <= rank < ranks else None


def uses_device(allocations: Sequence[Allocation], device: tuple[int, int]) -> bool:
    """Whether any of them has the GPU that is named by its node and its number there."""
    return any(one.node == device[0] and device[1] in one.gpus for one in allocations)

"""What a request was given: a node, the GPUs on it, and the request itself."""

from __future__ import annotations

from dataclasses import dataclass

from wattherd.model.request import Request


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

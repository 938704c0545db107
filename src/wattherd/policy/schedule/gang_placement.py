"""Placement of a gang of roles: workers on few nodes, parameter servers where cores are idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattherd.estimate.speed import JobShape
from wattherd.policy.contract import Draft, Share
from wattherd.policy.eligibility import NodeMask, RoleMasks, inside


@dataclass(slots=True)
class GangRoom:
    """Free GPUs and milli-vCPU of each node; what is placed is taken out at once."""

    gpus: list[int]
    cpu_milli: list[int]

    @classmethod
    def of(cls, draft: Draft) -> GangRoom:
        """What the plan so far leaves."""
        return cls(draft.free_gpus().tolist(), draft.free_cpu_milli().tolist())

    def place(self, shape: JobShape, masks: RoleMasks = ()) -> list[Share] | None:
        """Shares for all tasks of a shape, or None, with nothing taken, if they do not fit.

        Each role stays on the nodes of its mask, if `masks` are given.

        Workers go to the node that they fill best if one holds them all, else to as few as they
        need, largest first; servers one by one to the node with most free cores.
        """
        before = self.gpus.copy(), self.cpu_milli.copy()
        shares = self._workers(shape, masks[0] if masks else None)
        mask = masks[1] if shape.servers and masks else None
        servers = None if shares is None else self._servers(shape, mask)
        if shares is None or servers is None:
            self.gpus, self.cpu_milli = before
            return None
        return shares + servers

    def give_back(self, shares: Sequence[Share]) -> None:
        """Shares that were placed and that the job was not given after all."""
        for share in shares:
            self.gpus[share.node] += share.tasks * (share.gpu_count or 0)
            self.cpu_milli[share.node] += share.tasks * (share.cpu_milli or 0)

    def _workers(self, shape: JobShape, mask: NodeMask | None) -> list[Share] | None:
        gpus = shape.gpus // shape.workers
        cpu = round(1000 * shape.worker_cores)
        holds = self._holds(gpus, cpu, mask)
        (whole,) = (holds >= shape.workers).nonzero()
        if len(whole):
            order = [int(whole[holds[whole].argmin()])]
        else:
            order = np.argsort(-holds, kind="stable").tolist()
        shares: list[Share] = []
        left = shape.workers
        for node in order:
            tasks = min(int(holds[node]), left)
            if tasks == 0:
                break
            shares.append(Share(node, tasks, 0, cpu, gpus))
            self.gpus[node] -= tasks * gpus
            self.cpu_milli[node] -= tasks * cpu
            left -= tasks
        return None if left else shares

    def _holds(self, gpus: int, cpu: int, mask: NodeMask | None) -> NDArray[np.int64]:
        """How many such tasks each node (N,) of the mask has room for."""
        holds = np.full(len(self.gpus), 1_000_000, dtype=np.int64)
        if cpu:
            holds = np.array(self.cpu_milli, dtype=np.int64) // cpu
        if gpus:
            holds = np.minimum(holds, np.array(self.gpus, dtype=np.int64) // gpus)
        return inside(holds, mask)

    def _servers(self, shape: JobShape, mask: NodeMask | None) -> list[Share] | None:
        cpu = round(1000 * shape.server_cores)
        tasks: dict[int, int] = {}
        able = range(len(self.cpu_milli)) if mask is None else mask.nonzero()[0].tolist()
        if shape.servers and not able:
            return None
        for _ in range(shape.servers):
            node = max(able, key=lambda one: (self.cpu_milli[one], -one))
            if self.cpu_milli[node] < cpu:
                return None
            self.cpu_milli[node] -= cpu
            tasks[node] = tasks.get(node, 0) + 1
        return [Share(node, tasks[node], 1, cpu, 0) for node in sorted(tasks)]

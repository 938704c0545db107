"""What nodes that are large enough have too little of just now: devices, then what is beside them.

GPUs that are free but in pieces are told apart from GPUs that are not free: waiting for the first
may take for ever where nobody moves, and a smaller pod would start at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.placement.state import ClusterState
from wattherd.kube.account.fleet import NodeFleet
from wattherd.kube.facts.finding import ADVICE, PodFinding, counted, cpus, gpus, memory
from wattherd.kube.facts.pod_request import PodRequest
from wattherd.kube.facts.refusal import RefusalToken
from wattherd.model.reason import ReasonCode
from wattherd.model.request import Request

Ints = NDArray[np.int64]
Shown = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class NodeShortage:
    """`request` is what the pod takes of the nodes in `rows` (their numbers), none of which has it.

    `behind` are pods of its gang that need as much as well.
    """

    fleet: NodeFleet
    state: ClusterState
    ask: PodRequest
    request: Request
    rows: Ints
    behind: int = 0

    def finding(self) -> PodFinding:
        """The first thing that all of them have too little of."""
        if not self.request.gpu_count:
            return self._beside(self.rows)
        devices = self._devices()
        enough = self.rows[devices >= self.request.gpu_count]
        if len(enough):
            return self._beside(enough)
        return self._share() if self.request.is_sharing else self._whole(devices)

    # GPUs -----------------------------------------------------------------------------------------

    def _devices(self) -> Ints:
        """(R,) devices with as much free as is asked of each."""
        free = self.state.world.nodes.gpu_free[self.rows]
        count: Ints = (free >= max(1, self.request.gpu_milli)).sum(axis=1)
        return count

    def _all_devices(self) -> int:
        return int(self.state.world.nodes.gpu_count[self.rows].sum())

    def _name(self, row: int) -> str:
        return self.fleet.order[row].name

    def _whole(self, free: Ints) -> PodFinding:
        wanted, total = self.request.gpu_count, int(free.sum())
        best = int(np.argmax(free))
        most, node = int(free[best]), self._name(int(self.rows[best]))
        more = counted(wanted - most, "more GPU")
        are = "is" if wanted - most == 1 else "are"
        if total >= wanted * (1 + self.behind) and wanted > 1:
            return PodFinding(
                str(ReasonCode.FRAGMENTED),
                f"needs {wanted} GPUs on one node; {total} of {self._all_devices()} are free, but "
                f"on {counted(int((free > 0).sum()), 'node')}, at most {most} on one ({node})",
                f"wait until {more} on {node} {are} free, or ask for {counted(most, 'GPU')} a pod",
            )
        return PodFinding(
            str(ReasonCode.WAITING_FOR_GPUS),
            f"needs {counted(wanted, 'GPU')}, {total} of {self._all_devices()} that it may use "
            f"{'is' if total == 1 else 'are'} free{self._others()}",
            f"wait until {more} on {node} {are} free, or add a node",
        )

    def _others(self) -> str:
        return f", and {counted(self.behind, 'more pod')} of its gang" if self.behind else ""

    def _share(self) -> PodFinding:
        free = self.state.world.nodes.gpu_free[self.rows]
        wanted, total = self.request.gpu_milli, int(free.sum())
        best = int(np.argmax(free.max(axis=1)))
        most, node = int(free[best].max()), self._name(int(self.rows[best]))
        until = f"wait until {wanted - most}/1000 more of one GPU on {node} is free"
        if total >= wanted * (1 + self.behind):
            return PodFinding(
                str(ReasonCode.FRAGMENTED),
                f"needs {gpus(wanted)}; {gpus(total)} in all are free, but in pieces, the largest "
                f"{most}/1000 ({node})",
                f"{until}, or ask for {most}/1000",
            )
        return PodFinding(
            str(ReasonCode.WAITING_FOR_GPUS),
            f"needs {gpus(wanted)}, {total}/1000 in all of {counted(self._all_devices(), 'GPU')} "
            f"that it may use are free{self._others()}",
            f"{until}, or add a node",
        )

    # Beside them ----------------------------------------------------------------------------------

    def _beside(self, rows: Ints) -> PodFinding:
        """Processors, memory, other resources, places for pods: the first that is short on all."""
        where = f"on {counted(len(rows), 'node')}"
        if self.request.gpu_count:
            where += " with enough free GPUs"
        nodes, request = self.state.world.nodes, self.request
        if nodes.cpu_free[rows].max() < request.cpu_milli:
            return self._short(where, rows, nodes.cpu_free, request.cpu_milli, cpus)
        if nodes.memory_free[rows].max() < request.memory_mib:
            return self._short(where, rows, nodes.memory_free, request.memory_mib, memory)
        return self._other(where, rows)

    def _short(self, where: str, rows: Ints, free: Ints, wanted: int, shown: Shown) -> PodFinding:
        best = int(rows[np.argmax(free[rows])])
        most, node = int(free[best]), self._name(best)
        return PodFinding(
            RefusalToken.RESOURCE,
            f"needs {shown(wanted)} on one node; {where} at most {shown(most)} free ({node})",
            f"wait until {shown(wanted - most)} more free on {node}, or ask for less",
        )

    def _other(self, where: str, rows: Ints) -> PodFinding:
        nodes = [self.fleet.order[row] for row in rows.tolist()]
        short = {self.fleet.short_of(facts, self.ask) for facts in nodes}
        if "" not in short:
            text = f"{where} too little {' and '.join(sorted(short))} is left"
            return PodFinding(RefusalToken.RESOURCE, text, "wait until a pod that uses it ends")
        if all(len(self.fleet.held_on(one.name)) >= one.most_pods for one in nodes):
            text = f"{where} no more pods are taken"
            return PodFinding(RefusalToken.TOO_MANY_PODS, text, ADVICE[RefusalToken.TOO_MANY_PODS])
        text = f"{where} what it asks for is not free together"
        return PodFinding(RefusalToken.ROOM, text, "wait until a pod there ends, or ask for less")

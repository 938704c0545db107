"""How well a simulated run used what there was: CPUs beside GPUs, and free GPUs that fit nobody.

A free GPU is a *fragment* to the extent that jobs of this workload could not use it in one piece: a
job asks a node for as many GPUs as it has, or for all of the node's if it has more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.core.core import Core
from wattherd.model.command import Command, StartJob
from wattherd.model.event import Event, JobExited, JobStopped, NodeLost
from wattherd.model.job import JobSpec
from wattherd.sim.meter import UNMOVED

_GIVES_BACK = frozenset({JobExited, JobStopped, NodeLost})


@dataclass(slots=True)
class UsageMeter:
    """Watches a core; integrals over time, in units times seconds."""

    core: Core
    specs: Iterable[JobSpec]
    begin_s: float | None = None
    """From when on it counts; None: from the first event."""
    cpu_milli_s: float = 0.0
    gap_s: float = 0.0
    """Of the difference between the shares of GPUs and of CPUs in use."""
    free_gpu_s: float = 0.0
    fragment_gpu_s: float = 0.0
    idle_j: float = 0.0
    """What machines draw without jobs, and the devices that are free by the book of devices."""
    cpu_capacity_milli: int = field(init=False)
    """Milli-vCPU of all nodes."""
    _gpus: int = field(init=False)
    _table: NDArray[np.float64] = field(init=False)
    _rows: NDArray[np.int64] = field(init=False)
    """Where the row of each node begins in the table."""
    _at_s: float | None = None
    _stale: bool = True
    _cpu_milli: int = 0
    _gap: float = 0.0
    _free: int = 0
    _fragment: float = 0.0
    _idle_w: float = 0.0
    _machines_w: float = field(init=False)
    _gpu_idle_w: NDArray[np.float64] = field(init=False)
    """What one free GPU of each node draws."""

    def __post_init__(self) -> None:
        """Tabulate fragments by GPUs of a node and how many of them are free."""
        nodes = self.core.config.cluster.nodes
        self.cpu_capacity_milli = sum(node.cpu_milli for node in nodes)
        self._gpus = sum(node.gpu_count for node in nodes)
        gpus = self.core.config.gpus
        self._machines_w = math.fsum(node.idle_w for node in nodes)
        self._gpu_idle_w = np.array(
            [gpus[node.gpu_model].idle_w if node.gpu_count else 0.0 for node in nodes]
        )
        self._at_s = self.begin_s
        table = _fragments(self.specs, int(self.core.held.gpu_count.max(initial=0)))
        self._table, self._rows = table.ravel(), self.core.held.gpu_count * len(table)

    def until(self, now_s: float) -> None:
        """Integrate up to then; time begins with the first event."""
        seconds = 0.0 if self._at_s is None else now_s - self._at_s
        self._at_s = now_s if self._at_s is None else max(now_s, self._at_s)
        if seconds <= 0:
            return
        if self._stale:
            self._look()
        self.cpu_milli_s += self._cpu_milli * seconds
        self.gap_s += self._gap * seconds
        self.free_gpu_s += self._free * seconds
        self.fragment_gpu_s += self._fragment * seconds
        self.idle_j += self._idle_w * seconds

    def mark(self) -> tuple[float, ...]:
        """What was counted so far (`sim.interval`)."""
        used = self.cpu_milli_s, self.gap_s
        return *used, self.free_gpu_s, self.fragment_gpu_s, self.idle_j

    def rewind(self, mark: tuple[float, ...]) -> None:
        """Forget what was counted since."""
        self.cpu_milli_s, self.gap_s, self.free_gpu_s, self.fragment_gpu_s, self.idle_j = mark

    @property
    def ignores(self) -> frozenset[type[Event]]:
        """What changes nothing by itself."""
        return UNMOVED

    def after(self, event: Event, commands: Sequence[Command]) -> None:
        """Note whether something was taken or given back; it is looked at once time passes."""
        if self._stale:
            return
        if type(event) in _GIVES_BACK:
            self._stale = True
        for command in commands:
            if type(command) is StartJob:
                self._stale = True

    def _look(self) -> None:
        held, gpus, cpus = self.core.held, self._gpus, self.cpu_capacity_milli
        self._stale = False
        self._free = held.whole_gpus
        self._cpu_milli = held.used_cpu_milli
        self._fragment, self._idle_w = 0.0, self._machines_w
        if self._free:
            self._idle_w += float(self._gpu_idle_w @ held.whole)
            self._fragment = float(np.add.reduce(self._table.take(self._rows + held.whole)))
        used = (gpus - self._free) / gpus if gpus else 0.0
        self._gap = abs(used - self._cpu_milli / cpus) if cpus else 0.0

    @property
    def fragmentation_pct(self) -> float | None:
        """Fragments in percent of the free GPU time; None if no GPU was ever free."""
        return 100 * self.fragment_gpu_s / self.free_gpu_s if self.free_gpu_s else None


def _fragments(specs: Iterable[JobSpec], most: int) -> NDArray[np.float64]:
    """(size, free): free GPUs of a node times the chance that a job asks for more in one piece."""
    asked = Counter(spec.gpus for spec in specs if spec.gpus)
    jobs = sum(asked.values())
    table = np.zeros((most + 1, most + 1))
    for size in range(most + 1):
        for free in range(size + 1):
            in_vain = sum(count for gpus, count in asked.items() if min(gpus, size) > free)
            table[size, free] = free * in_vain / jobs if jobs else 0.0
    return table

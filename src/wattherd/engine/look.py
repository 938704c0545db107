"""What planners see of the core; nothing can be changed through it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.ledger import JobRecord
from wattherd.model.cluster import NodeSpec
from wattherd.model.event import Computed

if TYPE_CHECKING:
    from wattherd.engine.conduct import Conduct


@dataclass(slots=True)
class Look:
    """Implements `policy.contract.View`."""

    core: Conduct
    now_s: float
    memory: dict[str, Any]
    woke: bool = False

    def live(self) -> Sequence[JobRecord]:
        """Jobs that run or may run now, in order of submission."""
        return self.core.roster.jobs()

    def entered(self) -> Sequence[JobRecord]:
        """Jobs that came, or lost their plan, since the last plan."""
        return list(self.core.roster.entered.values())

    def left(self) -> Sequence[JobRecord]:
        """Jobs that went since the last plan."""
        return list(self.core.roster.left.values())

    def gpus_per_node(self) -> NDArray[np.int64]:
        """GPUs of each usable node."""
        count = self.core.planned.usable_gpus()
        if self.core.lost:
            count[list(self.core.lost)] = 0
        return count

    def gpu_total(self) -> int:
        """GPUs of all usable nodes."""
        return self.core.planned.usable_gpu_total(self.core.lost)

    def usable(self) -> NDArray[np.bool_]:
        """Which nodes are not lost."""
        usable = np.ones(len(self.core.config.cluster.nodes), dtype=np.bool_)
        usable[list(self.core.lost)] = False
        return usable

    def drained(self) -> Collection[tuple[int, int]]:
        """GPUs that are out of use."""
        return self.core.drained.out

    def nodes(self) -> Sequence[NodeSpec]:
        """All nodes in the order of their indices."""
        return self.core.config.cluster.nodes

    @property
    def stopped(self) -> Mapping[str, float]:
        """Stopped queues, and since when."""
        return self.core.stopped

    def computed(self, kind: str) -> Computed | None:
        """The answer to the latest question of this kind."""
        return self.core.questions.answer(kind)

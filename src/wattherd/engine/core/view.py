"""What planners see of the core; nothing can be changed through it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.cluster.capacity import Book
from wattherd.engine.cluster.drained import DrainedDevices
from wattherd.engine.jobs.questions import Questions
from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.jobs.roster import Roster
from wattherd.model.cluster import NodeSpec
from wattherd.model.event import Computed
from wattherd.model.job import JobSpec
from wattherd.policy.eligibility import Eligibility, NodeMask


# A view holds references, not copies: a copy of all jobs at every plan would cost by jobs where
# most plans touch a few. It is safe because planners get read-only protocols (`policy.contract`),
# and because all that changes while they plan is changed by their own proposals.
@dataclass(frozen=True, slots=True, kw_only=True)
class CoreView:
    """Implements `policy.contract.View` on the parts of a core."""

    now_s: float
    memory: dict[str, Any]
    roster: Roster
    planned: Book
    lost: Collection[int]
    devices: DrainedDevices
    stopped: Mapping[str, float]
    """Stopped queues, and since when."""
    questions: Questions
    woke: bool = False
    eligibility: Eligibility | None = None

    def live(self) -> Sequence[JobRecord]:
        """Jobs that run or may run now, in order of submission."""
        return self.roster.jobs()

    def entered(self) -> Sequence[JobRecord]:
        """Jobs that came, or lost their plan, since the last plan."""
        return list(self.roster.entered.values())

    def left(self) -> Sequence[JobRecord]:
        """Jobs that went since the last plan."""
        return list(self.roster.left.values())

    # Drained devices are left out as lost nodes are: a planner that packs an empty cluster must not
    # pack onto them.
    def gpus_per_node(self) -> NDArray[np.int64]:
        """GPUs of each usable node."""
        count = self.planned.usable_gpus()
        if self.lost:
            count[list(self.lost)] = 0
        return count

    def gpu_total(self) -> int:
        """GPUs of all usable nodes."""
        return self.planned.usable_gpu_total(self.lost)

    def usable(self) -> NDArray[np.bool_]:
        """Which nodes are not lost."""
        usable = np.ones(len(self.nodes()), dtype=np.bool_)
        usable[list(self.lost)] = False
        return usable

    def drained(self) -> Collection[tuple[int, int]]:
        """GPUs that are out of use."""
        return self.devices.out

    def nodes(self) -> Sequence[NodeSpec]:
        """All nodes in the order of their indices."""
        return self.planned.cluster.nodes

    # Asked of the shell's mask as it is: what the core knows itself (models, lost and drained
    # nodes) planners see elsewhere.
    def eligible(self, spec: JobSpec, role: int = 0) -> NodeMask | None:
        """Nodes on which the shell lets tasks of a role run; None: on all."""
        return None if self.eligibility is None else self.eligibility.nodes(spec, role)

    def computed(self, kind: str) -> Computed | None:
        """The answer to the latest question of this kind."""
        return self.questions.answer(kind)

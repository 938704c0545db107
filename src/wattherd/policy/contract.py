"""What a scheduling policy sees and how it proposes.

A planner reads a `View` and speaks to a `Draft`: every proposal is checked by the guard at once and
answered with None (done, in the draft) or the reason why not. Nothing reaches the world before the
whole plan is made, and a planner may roll parts of it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wattherd.model.allocation import Allocation
from wattherd.model.cluster import NodeSpec
from wattherd.model.event import Computed
from wattherd.model.job import JobSpec
from wattherd.model.reason import Reason, StopReason


@dataclass(frozen=True, slots=True)
class Share:
    """`tasks` tasks of role number `role`, on node index `node`."""

    node: int
    tasks: int
    role: int = 0


class JobView(Protocol):
    """One job, to be read."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def spec(self) -> JobSpec:
        """What was submitted."""
        ...

    @property
    def number(self) -> int:
        """How many jobs were submitted before it: the last word among equals."""
        ...

    @property
    def wanted(self) -> tuple[Allocation, ...]:
        """What the plan so far gives it; empty if nothing."""
        ...

    @property
    def progress(self) -> float:
        """What it reported last, in its own unit."""
        ...

    def service_gpu_s(self, now_s: float) -> float:
        """GPU time it has received."""
        ...

    def service_s(self, now_s: float) -> float:
        """Time for which it held devices."""
        ...


class View(Protocol):
    """The state of things, to be read.

    `memory` is a planner's own, kept by the engine from cycle to cycle.
    """

    @property
    def now_s(self) -> float:
        """Time of the event that brought this cycle about."""
        ...

    @property
    def memory(self) -> dict[str, Any]:
        """Whatever the planner wants to remember; it must follow from earlier views alone."""
        ...

    def live(self) -> Sequence[JobView]:
        """Jobs that run or may run now, in order of submission."""
        ...

    def gpus_per_node(self) -> NDArray[np.int64]:
        """GPUs of each usable node (N,), 0 for lost ones."""
        ...

    def nodes(self) -> Sequence[NodeSpec]:
        """All nodes in the order of their indices, lost ones too."""
        ...

    @property
    def woke(self) -> bool:
        """Whether this cycle is the one asked for by `Draft.wake_at`."""
        ...

    def computed(self, kind: str) -> Computed | None:
        """The answer to the latest question of this kind, None until it is there."""
        ...


class Draft(Protocol):
    """The plan in the making."""

    def free_gpus(self) -> NDArray[np.int64]:
        """Wholly free GPUs of each usable node (N,) under the plan so far."""
        ...

    def start(self, job: JobView, shares: Sequence[Share]) -> Reason | None:
        """Give a job these shares (all or none); a running job is moved or resized."""
        ...

    def stop(self, job: JobView, why: StopReason) -> None:
        """Take everything from a job; it goes back to the queue."""
        ...

    def wait(self, job: JobView, reason: Reason) -> None:
        """Say why a job gets nothing in this plan."""
        ...

    def wake_at(self, at_s: float) -> None:
        """Ask for a cycle at that time, after all else that happens then; replaces the last one."""
        ...

    def compute(self, kind: str, payload: Any) -> str:
        """Have slow work done outside; a cycle follows when the answer is there.

        Payload and answer are plain data (as JSON has it). Returns the question's key; a question
        replaces an earlier one of its kind, whose answer is then ignored.
        """
        ...


class Planner(Protocol):
    """Decides who runs where and how large; one call makes one plan."""

    def plan(self, view: View, draft: Draft) -> None:
        """Propose through `draft`; what is not touched stays as it is."""
        ...

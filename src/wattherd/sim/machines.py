"""Switching simulated nodes off and on: how long it takes, and what a wake-up costs."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from wattherd.model.command import SleepNode, WakeNode
from wattherd.model.event import Event, NodeAsleep, NodeAwake, NodeLost


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchTimes:
    """Seconds from the order until a node is off, or has booted.

    A booting node draws what an idle one does; `wake_j` is what a wake-up costs beyond that.
    """

    sleep_s: float = 10.0
    wake_s: float = 120.0
    wake_j: float = 0.0


@dataclass(slots=True)
class Machines:
    """Nodes on their way to sleep or back; what they report is in order of time."""

    times: SwitchTimes = SwitchTimes()
    _due: list[tuple[float, int, str, bool]] = field(default_factory=list)
    _count: int = 0

    def order(self, command: SleepNode | WakeNode, now_s: float) -> None:
        """Begin to switch a node."""
        asleep = isinstance(command, SleepNode)
        self._count += 1
        at_s = now_s + (self.times.sleep_s if asleep else self.times.wake_s)
        heapq.heappush(self._due, (at_s, self._count, command.node, asleep))

    def hear(self, event: Event) -> None:
        """A lost node's switching is over."""
        if isinstance(event, NodeLost):
            self._due = [one for one in self._due if one[2] != event.node]
            heapq.heapify(self._due)

    def next_s(self) -> float | None:
        """When the next one is through."""
        return self._due[0][0] if self._due else None

    def advance(self, to_s: float) -> list[Event]:
        """Those that are through by `to_s`."""
        events: list[Event] = []
        while self._due and self._due[0][0] <= to_s:
            at_s, _, node, asleep = heapq.heappop(self._due)
            kind = NodeAsleep if asleep else NodeAwake
            events.append(kind(at_s=at_s, node=node))
        return events

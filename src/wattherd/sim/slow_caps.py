"""A plant whose power caps take their time: an order is in force, and read back, after a delay."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from wattherd.engine.core.executor import Plant
from wattherd.model.command import SetCap, StartJob, StopJob
from wattherd.model.event import Event
from wattherd.model.job import JobSpec


class SlowCaps:
    """Another plant's jobs, with orders for caps carried out in turn after `delay_s`."""

    def __init__(self, plant: Plant, delay_s: float) -> None:
        """No order is under way."""
        self._plant, self._delay_s = plant, delay_s
        self._orders: deque[tuple[float, SetCap]] = deque()

    def start(self, spec: JobSpec, order: StartJob, now_s: float) -> Sequence[Event]:
        """Runs start at their caps."""
        return self._plant.start(spec, order, now_s)

    def stop(self, order: StopJob, now_s: float) -> Sequence[Event]:
        """Stop a run; orders for its cap that are under way come to nothing."""
        self._orders = deque(one for one in self._orders if one[1].job_id != order.job_id)
        return self._plant.stop(order, now_s)

    def cap(self, order: SetCap, now_s: float) -> Sequence[Event]:
        """Send the order on its way."""
        self._orders.append((now_s + self._delay_s, order))
        return ()

    def lose(self, node: int, now_s: float) -> None:
        """What ran on the node is gone."""
        self._plant.lose(node, now_s)

    def next_s(self) -> float | None:
        """The next order to arrive, or what the plant has to come."""
        times = [self._plant.next_s(), self._orders[0][0] if self._orders else None]
        return min((one for one in times if one is not None), default=None)

    def advance(self, to_s: float) -> Sequence[Event]:
        """Let time pass, order by order."""
        events: list[Event] = []
        while self._orders and self._orders[0][0] <= to_s:
            at_s, order = self._orders.popleft()
            events.extend(self._plant.advance(at_s))
            events.extend(self._plant.cap(order, at_s))
        events.extend(self._plant.advance(to_s))
        return events

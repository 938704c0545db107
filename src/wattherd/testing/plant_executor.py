"""A simulated plant behind the contract of executors: the keeper of a live site drives it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from wattherd.engine.core.executor import Plant, RunOrder
from wattherd.model.command import GiveNotice, SetBatch, SetCap, StopJob
from wattherd.model.event import BatchApplied, Event
from wattherd.testing.live import SetClock


class PlantExecutor:
    """Carries orders out in a plant; time passes when `advance` is called, as `clock` then shows.

    What a plant knows at once is told at once.
    """

    def __init__(self, plant: Plant, clock: SetClock, tell: Callable[[Event], None]) -> None:
        """Nothing runs yet."""
        self._plant, self._clock, self._tell = plant, clock, tell
        self._begun: set[tuple[str, int]] = set()

    def adopt(self, runs: Sequence[RunOrder]) -> None:
        """A plant begins with nothing: what is to exist is begun."""
        for run in runs:
            self.start(run)

    def start(self, run: RunOrder) -> None:
        """Begin it, once."""
        key = (run.start.job_id, run.start.attempt)
        if key not in self._begun:
            self._begun.add(key)
            self._say(self._plant.start(run.spec, run.start, self._clock.now_s()))

    def stop(self, order: StopJob) -> None:
        """Have it stop."""
        self._say(self._plant.stop(order, self._clock.now_s()))

    def give_notice(self, order: GiveNotice) -> None:
        """Simulated jobs do not react to notices."""

    def cap(self, order: SetCap) -> None:
        """Set the cap of every device."""
        self._say(self._plant.cap(order, self._clock.now_s()))

    def set_batch(self, order: SetBatch) -> None:
        """Simulated jobs train as they are told, at once."""
        self._tell(
            BatchApplied(
                at_s=0.0,
                job_id=order.job_id,
                attempt=order.attempt,
                micro_batch=order.micro_batch,
            )
        )

    def close(self) -> None:
        """Nothing to leave."""

    def next_s(self) -> float | None:
        """When something happens by itself."""
        return self._plant.next_s()

    def advance(self, to_s: float) -> None:
        """Let time pass; what happened is told."""
        self._clock.at_s = to_s
        self._say(self._plant.advance(to_s))

    def _say(self, events: Iterable[Event]) -> None:
        for event in events:
            self._tell(event)

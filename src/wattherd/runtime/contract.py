"""What a shell offers to the loop that drives the core, and what a simulated world must do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from wattherd.model.command import SetCap, StartJob, StopJob
from wattherd.model.event import Event
from wattherd.model.job import JobSpec


class Plant(Protocol):
    """The jobs' side of a simulated world: carries out orders, and lets time pass."""

    def start(self, spec: JobSpec, order: StartJob, now_s: float) -> Sequence[Event]:
        """Start a run; returns what is known at once (that it started)."""
        ...

    def stop(self, order: StopJob, now_s: float) -> Sequence[Event]:
        """Stop a run, its progress kept; returns what is known at once."""
        ...

    def cap(self, order: SetCap, now_s: float) -> Sequence[Event]:
        """Set a run's power cap; returns the read-back, where it is immediate."""
        ...

    def next_s(self) -> float | None:
        """When something will happen by itself, or None if only `advance` will tell."""
        ...

    def advance(self, to_s: float) -> Sequence[Event]:
        """Let time pass; what happened up to `to_s`, in order of time."""
        ...


@runtime_checkable
class LosesNodes(Protocol):
    """A plant that is to be told of lost nodes."""

    def lose(self, node: int, now_s: float) -> None:
        """What ran on the node (index) is gone; what becomes of its progress is the plant's law."""
        ...

"""What a shell offers to the loop that drives the core, and what a simulated world must do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from wattherd.model.command import GiveNotice, SetBatch, SetCap, StartJob, StopJob
from wattherd.model.event import Event
from wattherd.model.job import JobSpec


# Unlike an `Executor` a plant answers at once: simulated time stands still while it is asked. A
# real cluster needs some, in which the core has to go on.
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

    def lose(self, node: int, now_s: float) -> None:
        """What ran on the node (index) is gone; what becomes of its progress is the plant's law."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
# The latest cap and not all that were ordered: after a restart `adopt` needs to know what is to be,
# and not how it came about.
class RunOrder:
    """All that is ordered of one run: its start, latest cap and micro-batch, its stop if any."""

    spec: JobSpec
    paper: Mapping[str, Any]
    start: StartJob
    cap_w: float | None = None
    stop: StopJob | None = None
    batch: SetBatch | None = None


# Why every order may come twice. A service that is killed after an order cannot know whether it
# arrived, and gives it again when it is back; the attempt number tells whether it was carried out.
# And why no call waits: the core's loop serves all jobs, and one node that does not answer would
# hold up all others.
class Executor(Protocol):
    """The jobs' side of a real cluster: carries orders out, and tells later what came of them.

    No call waits for the world. Outcomes are told as run events with the run's attempt; their time
    is set by whoever listens. Every order may be given twice, the second time to no effect.
    """

    def adopt(self, runs: Sequence[RunOrder]) -> None:
        """After a restart: these runs, and no others, are to exist. The first call of all.

        A run that was ordered but never begun is begun, one that ended meanwhile is told of, and
        what runs without standing here is ended.
        """
        ...

    def start(self, run: RunOrder) -> None:
        """Begin a run; `JobStarted` or `JobExited` follows."""
        ...

    def stop(self, order: StopJob) -> None:
        """Have a run checkpoint and stop; `JobStopped` or `JobExited` follows."""
        ...

    def give_notice(self, order: GiveNotice) -> None:
        """Pass a notice on to the run."""
        ...

    def cap(self, order: SetCap) -> None:
        """Cap every device of a run; `CapApplied` follows once it was read back."""
        ...

    def set_batch(self, order: SetBatch) -> None:
        """Have a run train with another micro-batch; `BatchApplied` follows when it says so."""
        ...

    def close(self) -> None:
        """Leave runs as they are, and stop looking after them."""
        ...

"""What a core is told and commands, until it has no more to say for the moment.

Jobs that it starts have started at once, for what a start leads to here is a promise that is kept
or taken back; and it is woken when it asked to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from wattherd.engine.core.core import Core
from wattherd.kube.account.workload_index import Service
from wattherd.model.command import Command, StartJob, WakeAt
from wattherd.model.event import Event, JobStarted, JobSubmitted, Woke


class CoreDriver:
    """With one core after the other; without any, nothing is said."""

    def __init__(self) -> None:
        """There is no core yet."""
        self.core: Core | None = None
        self.wake_s: float | None = None
        """When the core wants to be asked though nothing was seen, if ever."""
        self.witness: Callable[[Event, Sequence[Command]], None] = lambda *_: None
        """Sees what the core was told and what it answered."""
        self.credits: dict[str, Service] = {}
        """By job that is about to be submitted: what it received before this core knew of it."""
        self._wakes: dict[str, float] = {}

    def begin(self, core: Core) -> None:
        """With a core that knows nothing yet."""
        self.core = core
        self._wakes.clear()

    def forget(self, job_id: str) -> None:
        """A job is over; of the next attempt to run its pods the core hears by another name."""
        if self.core is not None:
            self.core.forget(job_id)

    def say(
        self,
        events: Iterable[Event],
        at_s: float,
        obey: Callable[[Command], Iterable[Event]],
    ) -> None:
        """Tell the core, and have `obey` do as it commands, until all is said that is due.

        What `obey` has to tell of a command is heard before anything else.
        """
        if self.core is None:
            return
        ahead = list(events)
        while ahead or (ahead := self._due(at_s)[:1]):
            event = ahead.pop(0)
            if isinstance(event, Woke):
                self._wakes.pop(event.key, None)
            commands = self.core.handle(event)
            self.witness(event, commands)
            if isinstance(event, JobSubmitted) and event.job.id in self.credits:
                credit = self.credits.pop(event.job.id)
                self.core.credit(event.job.id, credit.seconds, credit.gpu_s)
            news = list[Event]()
            for command in commands:
                if isinstance(command, WakeAt):
                    self._wakes[command.key] = command.at_s
                elif isinstance(command, StartJob):
                    news.append(_started(command, at_s))
                news += obey(command)
            ahead[:0] = news
        self.wake_s = min(self._wakes.values(), default=None)

    def _due(self, at_s: float) -> list[Event]:
        return [Woke(at_s=at_s, key=key) for key, when_s in self._wakes.items() if when_s <= at_s]


def _started(command: StartJob, at_s: float) -> JobStarted:
    return JobStarted(at_s=at_s, job_id=command.job_id, attempt=command.attempt)

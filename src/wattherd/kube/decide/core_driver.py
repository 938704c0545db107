"""What a core is told and commands, until it has no more to say for the moment.

Jobs that it starts have started at once, for what a start leads to here is a promise that is kept
or taken back; and it is woken when it asked to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from wattherd.engine.core.core import Core
from wattherd.kube.account.workload_index import Service
from wattherd.model.command import Command, Compute, StartJob, WakeAt
from wattherd.model.event import Computed, Event, JobStarted, JobSubmitted, Woke


@dataclass(frozen=True, slots=True)
class Question:
    """What a core wants worked out, and which core."""

    order: Compute
    epoch: int


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
        self._epoch = 0
        self._asked: list[Question] = []
        self._answers: list[tuple[Compute, Any]] = []

    def begin(self, core: Core) -> None:
        """With a core that knows nothing yet."""
        self.core = core
        self._wakes.clear()
        self._epoch += 1
        self._asked, self._answers = [], []

    # Questions take long to answer, and nobody waits for them: somebody beside us works them out.
    # A core numbers its own, so what another one asked is answered to nobody.
    def take_questions(self) -> list[Question]:
        """What the core has asked since the last time."""
        asked, self._asked = self._asked, []
        return asked

    def answer(self, question: Question, result: Any) -> None:
        """It was worked out (None: it could not be), and is heard with the next plan."""
        if question.epoch == self._epoch:
            self._answers.append((question.order, result))

    @property
    def is_answered(self) -> bool:
        """Whether the core is to hear an answer."""
        return bool(self._answers)

    def answers(self, at_s: float) -> list[Event]:
        """What the core is to hear of its questions."""
        told, self._answers = self._answers, []
        return [
            Computed(at_s=at_s, kind=order.kind, key=order.key, result=result)
            for order, result in told
        ]

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
                elif isinstance(command, Compute):
                    self._asked.append(Question(command, self._epoch))
                news += obey(command)
            ahead[:0] = news
        self.wake_s = min(self._wakes.values(), default=None)

    def _due(self, at_s: float) -> list[Event]:
        return [Woke(at_s=at_s, key=key) for key, when_s in self._wakes.items() if when_s <= at_s]


def _started(command: StartJob, at_s: float) -> JobStarted:
    return JobStarted(at_s=at_s, job_id=command.job_id, attempt=command.attempt)

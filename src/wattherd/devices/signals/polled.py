"""Asks a web server again and again, in a thread: what it last said, and how long ago.

Knows no meaning of what is said; a slow server delays only its own news.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from wattherd.devices.wire.clock import Clock
from wattherd.devices.wire.device_errors import DeviceError
from wattherd.errors import UserError

Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class LastAnswer(Generic[Content]):
    """The last usable answer, when an answer last came, and what is wrong since then."""

    content: Content | None = None
    at_s: float | None = None
    note: str = ""


class Poller(Generic[Content]):
    """Calls `ask` every `every_s` seconds until closed; None from it means "nothing new"."""

    def __init__(self, ask: Callable[[], Content | None], every_s: float, clock: Clock) -> None:
        """Ask for the first time at once, without waiting for the answer."""
        self._ask, self._every_s, self._clock = ask, every_s, clock
        self._heard: LastAnswer[Content] = LastAnswer()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="signal", daemon=True)
        self._thread.start()

    @property
    def heard(self) -> LastAnswer[Content]:
        """What is known now: one immutable value, replaced as a whole by the thread."""
        return self._heard

    def close(self) -> None:
        """Ask no more; an answer under way is not waited for."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._heard = self._once()
            self._ended.wait(self._every_s)

    def _once(self) -> LastAnswer[Content]:
        before = self._heard
        try:
            content = self._ask()
        except (DeviceError, UserError) as error:
            return LastAnswer(before.content, before.at_s, str(error))
        now_s = self._clock.unix_s()
        return LastAnswer(before.content if content is None else content, now_s)

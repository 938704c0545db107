"""What is looked at every so often, by a thread of its own."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class Rounds(ABC):
    """Calls `look` every `period_s` seconds from `begin` to `end`."""

    def __init__(self, name: str, period_s: float) -> None:
        """Nothing is looked at yet."""
        self._period_s = period_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def look(self) -> None:
        """Do what is to be done each time."""

    def begin(self) -> None:
        """Let it look, first after a period."""
        self._thread.start()

    def end(self) -> None:
        """Stop, when the look that is under way is over."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._period_s):
            self.look()

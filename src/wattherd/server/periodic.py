"""What is looked at every so often, by a thread of its own.

A look that fails is told and tried again: a thread that ended by it would be missed by nobody, and
its budgets would never be announced, its watts never be measured again.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod

_LOG = logging.getLogger(__name__)


class PeriodicThread(ABC):
    """Calls `look` every `period_s` seconds from `begin` to `end`."""

    def __init__(self, name: str, period_s: float) -> None:
        """Nothing is looked at yet."""
        self.failure = ""
        """Why the last look failed; empty if it did not."""
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
            self.try_look()

    def try_look(self) -> None:
        """Look; whatever goes wrong is kept as `failure`, and logged once until it is over."""
        try:
            self.look()
        except Exception as error:  # noqa: BLE001 - the next look may succeed
            said = f"{self._thread.name}: {error or type(error).__name__}"
            if said != self.failure:
                _LOG.exception("%s cannot look; tried again", self._thread.name)
            self.failure = said
        else:
            self.failure = ""

"""Logins of browsers: a random number each, of which only a hash is kept, in memory.

They end by themselves, by logging out, or with the service; the issuer is not asked again.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable

from wattherd.server.auth.caller import Caller

PREFIX = "ws_"
MOST = 10_000
"""Beyond that the oldest ends."""


class BrowserSessions:
    """Callers by what their browsers show."""

    def __init__(self, lasts_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Nobody is logged in."""
        self._lasts_s, self._clock = lasts_s, clock
        self._callers: dict[str, tuple[Caller, float]] = {}
        self._changing = threading.Lock()

    def begin(self, caller: Caller) -> str:
        """Log somebody in; what their browser is to show."""
        shown = PREFIX + secrets.token_urlsafe(32)
        with self._changing:
            now_s = self._clock()
            self._callers = {
                key: (one, until_s)
                for key, (one, until_s) in self._callers.items()
                if until_s > now_s
            }
            while len(self._callers) >= MOST:
                del self._callers[next(iter(self._callers))]
            self._callers[_hash(shown)] = caller, now_s + self._lasts_s
        return shown

    def caller(self, shown: str) -> Caller | None:
        """Who shows that, if they are still logged in."""
        caller, until_s = self._callers.get(_hash(shown), (None, 0.0))
        return caller if until_s > self._clock() else None

    def end(self, shown: str) -> None:
        """Log out."""
        with self._changing:
            self._callers.pop(_hash(shown), None)


def _hash(shown: str) -> str:
    return hashlib.sha256(shown.encode("utf-8", "replace")).hexdigest()

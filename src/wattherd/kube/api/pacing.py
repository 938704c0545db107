"""How fast to ask and how long to wait before asking again. Reads no clock: times are arguments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_ROUNDING_S = 1e-6


@dataclass(slots=True)
class TokenBucket:
    """A token bucket: `rate_per_s` requests for ever, `burst` of them at once.

    Requests take turns: each learns when it may go, in the order of asking, so that none starves.
    """

    rate_per_s: float
    burst: int
    _next_s: float = 0.0

    def wait_s(self, now_s: float) -> float:
        """Take a token; how long to wait until it is there."""
        # The virtual scheduling form of the generic cell rate algorithm (ITU-T I.371).
        tolerance_s = (self.burst - 1) / self.rate_per_s
        due_s = max(self._next_s, now_s)
        self._next_s = due_s + 1 / self.rate_per_s
        return max(0.0, due_s - tolerance_s - now_s)

    def take(self, now_s: float) -> bool:
        """Take a token if one is there now."""
        tolerance_s = (self.burst - 1) / self.rate_per_s
        due_s = max(self._next_s, now_s)
        if due_s - tolerance_s > now_s + _ROUNDING_S:
            return False
        self._next_s = due_s + 1 / self.rate_per_s
        return True


@dataclass(slots=True)
class Backoff:
    """Pauses that double up to a bound, spread by half so that many clients do not come at once.

    Without the pause a watch that is told "410 Expired" over and over asks a thousand times a
    second (measured on 1.36).
    """

    draws: np.random.Generator
    first_s: float = 0.5
    most_s: float = 30.0
    _step: int = 0

    def pause_s(self) -> float:
        """The next pause: between half and one and a half of its step."""
        step_s = min(self.first_s * 2.0**self._step, self.most_s)
        self._step = min(self._step + 1, 32)
        return step_s * float(self.draws.uniform(0.5, 1.5))

    def reset(self) -> None:
        """It went well again."""
        self._step = 0

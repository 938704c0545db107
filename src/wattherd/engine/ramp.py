"""How steeply the site's draw may rise: credit that grows with time, for a window's worth at most.

Within a window that begins with full credit the draw rises by at most twice the rate times the
window; over long times, by the rate. A single rise that is more than a window's worth is let pass
when the credit is full, and paid off afterwards.
"""

from __future__ import annotations

SLACK_MW = 1.0
"""Rounding of credit."""


class Ramp:
    """Counted draw in milliwatts; `rate_mw_s` None lets everything pass."""

    def __init__(self, rate_w_s: float | None, window_s: float, drawn_mw: int) -> None:
        """Begin with a window's worth of credit."""
        self._rate_mw_s = None if rate_w_s is None else rate_w_s * 1000
        self._full_mw = (self._rate_mw_s or 0.0) * window_s
        self._credit_mw = self._full_mw
        self._at_s = 0.0
        self._from_mw = drawn_mw
        self._let_mw = 0
        """What was let rise in this instant."""
        self.next_s: float | None = None
        """When what was refused last may pass."""

    @property
    def limits(self) -> bool:
        """Whether there is a limit at all."""
        return self._rate_mw_s is not None

    def settle(self, now_s: float, drawn_mw: int) -> None:
        """Time passes at this draw: pay for what it rose in the instant before."""
        self._credit_mw -= max(drawn_mw - self._from_mw, 0)
        rate = self._rate_mw_s or 0.0
        self._credit_mw = min(self._credit_mw + rate * (now_s - self._at_s), self._full_mw)
        self._at_s, self._from_mw, self._let_mw, self.next_s = now_s, drawn_mw, 0, None

    def lets(self, to_mw: int) -> bool:
        """Whether the draw may rise so far in this instant; what is let counts for the next."""
        if self._rate_mw_s is None:
            return True
        rise_mw = to_mw - self._from_mw - self._let_mw
        credit_mw = self._credit_mw - self._let_mw
        missing_mw = min(rise_mw, self._full_mw) - credit_mw
        if missing_mw <= SLACK_MW:
            self._let_mw += max(rise_mw, 0)
            return True
        at_s = self._at_s + missing_mw / self._rate_mw_s
        self.next_s = at_s if self.next_s is None else min(self.next_s, at_s)
        return False

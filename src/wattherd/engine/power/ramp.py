"""How steeply counted draw may rise and fall: credit that grows with time, up to a window's worth.

Within a window that begins with full credit the draw rises by at most twice the rate times the
window; over long times, by the rate. A single rise that is more than a window's worth is let pass
when the credit is full, and paid off afterwards. A fall is the rise of what is not drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# A credit is a float that grows with time; a milliwatt is less than any step that a cap can take.
SLACK_MW = 1.0
"""Rounding of credit."""


# Why credit and not a slope. Draw moves in steps: a job starts with thousands of watts at once, and
# no slope lets it. A bucket that fills at the rate and holds a window's worth (a token bucket, as
# networks shape traffic) lets steps pass that are within the window, and keeps the mean below the
# rate over longer times.
class Ramp:
    """Counted draw in milliwatts; `rate_mw_s` None lets everything pass."""

    def __init__(self, rate_w_s: float | None, window_s: float, drawn_mw: int) -> None:
        """Begin with a window's worth of credit."""
        self._rate_mw_s = None if rate_w_s is None else rate_w_s * 1000
        self._full_mw = (self._rate_mw_s or 0.0) * window_s
        self._credit_mw = self._full_mw
        self._at_s = 0.0
        # What was drawn when this instant began. All that happens at one time is judged against it
        # together: ten starts at one event must not each have the whole credit.
        self._from_mw = drawn_mw
        self._let_mw = 0
        """What was let rise in this instant."""
        self.next_s: float | None = None
        """When what was refused last may pass."""

        self._refused_mw = 0
        self._behind_mw: dict[str, int] = {}
        """By name, what was refused in this instant before, and comes first."""

    @property
    def limits(self) -> bool:
        """Whether there is a limit at all."""
        return self._rate_mw_s is not None

    @property
    def rate_w_s(self) -> float:
        """The limit, in watts a second."""
        return (self._rate_mw_s or 0.0) / 1000

    def credit_w(self) -> float:
        """What may rise in this instant, beside what was let."""
        return max(self._credit_mw - self._let_mw, 0.0) / 1000

    def rise_w(self, to_mw: int) -> float:
        """What a rise to there adds to what was let."""
        return max(to_mw - self._from_mw - self._let_mw, 0) / 1000

    # Called when time passes and not when something changes: within one instant draw may go up and
    # down, and only what it comes to counts.
    def settle(self, now_s: float, drawn_mw: int) -> None:
        """Time passes at this draw: pay for what it rose in the instant before."""
        # Paid by what really rose, not by what was let: an order that was not carried out costs
        # nothing. May go below zero, and is earned back before anything else rises.
        self._credit_mw -= max(drawn_mw - self._from_mw, 0)
        rate = self._rate_mw_s or 0.0
        self._credit_mw = min(self._credit_mw + rate * (now_s - self._at_s), self._full_mw)
        self._at_s, self._from_mw, self._let_mw, self.next_s = now_s, drawn_mw, 0, None
        self._refused_mw = 0
        self._behind_mw.clear()

    def lets(self, to_mw: int) -> bool:
        """Whether the draw may rise so far in this instant; what is let counts for the next."""
        if self.due_s(to_mw) > self._at_s:
            return False
        self.take(to_mw)
        return True

    def due_s(self, to_mw: int, who: str = "") -> float:
        """When the draw may rise so far: now, or once there is credit for this and who came first.

        The first time of all that were refused is remembered.
        """
        if self._rate_mw_s is None:
            return self._at_s
        rise_mw = to_mw - self._from_mw - self._let_mw
        credit_mw = self._credit_mw - self._let_mw
        # A step larger than the whole bucket would wait for ever; it passes when the bucket is full
        # and leaves a debt.
        missing_mw = min(rise_mw, self._full_mw) - credit_mw
        if missing_mw <= SLACK_MW:
            return self._at_s
        at_s = self._at_s + missing_mw / self._rate_mw_s
        self.next_s = at_s if self.next_s is None else min(self.next_s, at_s)
        # Without this whoever is small would pass whoever is large, again and again, as credit
        # never grows up to the large one's step.
        return at_s + self._behind_mw.get(who, self._refused_mw) / self._rate_mw_s

    def take(self, to_mw: int) -> None:
        """The draw rises so far."""
        self._let_mw += max(to_mw - self._from_mw - self._let_mw, 0)

    # Who was refused keeps its place for this instant; the next instant's plan has its own order
    # again.
    def queue(self, to_mw: int, who: str) -> None:
        """A rise to there was refused: whoever asks next in this instant waits for it, too."""
        if who not in self._behind_mw:
            self._behind_mw[who] = self._refused_mw
            self._refused_mw += max(to_mw - self._from_mw - self._let_mw, 0)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A change that must wait: of `asked_w` only `credit_w` may come now, the rest by `due_s`.

    `domain` is where that holds, empty for the site, `rate_w_s` what it allows a second.
    """

    domain: str
    asked_w: float
    credit_w: float
    rate_w_s: float
    due_s: float


# The site's ramp goes by the empty name, those of domains by theirs; one draw is told under all its
# names (`PowerAccount._by_name`).
class Ramps:
    """The ramps of the site (the empty name) and of domains of its tree, one way."""

    def __init__(
        self, rates_w_s: Mapping[str, float | None], window_s: float, drawn_mw: Mapping[str, int]
    ) -> None:
        """Begin with a window's worth of credit everywhere."""
        self._by_domain = {
            name: Ramp(rate, window_s, drawn_mw.get(name, 0))
            for name, rate in rates_w_s.items()
            if rate is not None
        }

    @property
    def limits(self) -> bool:
        """Whether there is a limit at all."""
        return bool(self._by_domain)

    @property
    def next_s(self) -> float | None:
        """When something that was refused may pass."""
        times = (ramp.next_s for ramp in self._by_domain.values())
        return min((one for one in times if one is not None), default=None)

    def settle(self, now_s: float, drawn_mw: Mapping[str, int]) -> None:
        """Time passes at this draw."""
        for name, ramp in self._by_domain.items():
            ramp.settle(now_s, drawn_mw.get(name, 0))

    def refusal(self, who: str, to_mw: Mapping[str, int], now_s: float) -> Refusal | None:
        """Why the draw may not rise so far in this instant; what passes counts for the next.

        What is refused keeps its turn before `who` asks later in the same instant.
        """
        found: Refusal | None = None
        ramps = [(name, self._by_domain[name]) for name in to_mw if name in self._by_domain]
        # All ramps above a job are asked before any is charged: one that lets it pass must not pay
        # for another that does not.
        for name, ramp in ramps:
            due_s = ramp.due_s(to_mw[name], who)
            if due_s > now_s and (found is None or due_s > found.due_s):
                found = Refusal(
                    name, ramp.rise_w(to_mw[name]), ramp.credit_w(), ramp.rate_w_s, due_s
                )
        for name, ramp in ramps:
            if found is None:
                ramp.take(to_mw[name])
            else:
                ramp.queue(to_mw[name], who)
        return found

"""Limits from several signals at once: opened, merged with the site's own, told as a document."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from wattherd.devices.signals.contract import LimitSignal, SignalSite, SourceContact, ToldLimits
from wattherd.devices.signals.registry import open_signal
from wattherd.devices.wire.clock import SYSTEM, Clock
from wattherd.engine.power.limit_timeline import FOREVER, LimitPeriod, LimitTimeline, merged

SCHEMA = "wattherd.limits/1"
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class SiteLimitsNow:
    """What counts at `now_s`: the merged timeline, and what every source said."""

    now_s: float
    timeline: LimitTimeline
    told: tuple[ToldLimits, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal as long as nothing that a reader would care about has changed."""
        steps = tuple((one.limit_w, one.source, one.end_s) for one in self.timeline.spans)
        return steps, tuple((one.contact, one.note, one.events) for one in self.told)


@dataclass(frozen=True, slots=True)
class LimitListener:
    """Several signals of one site."""

    site: SignalSite
    signals: Sequence[LimitSignal]
    clock: Clock = SYSTEM

    def limits(self) -> SiteLimitsNow:
        """What counts now; never waits."""
        now_s = self.clock.unix_s()
        told = tuple(signal.told() for signal in self.signals)
        base = LimitPeriod(0.0, FOREVER, self.site.base_w, "base")
        spans = [span for one in told for span in one.spans]
        return SiteLimitsNow(now_s, merged(base, spans, now_s), told)

    def first(self, patience_s: float) -> SiteLimitsNow:
        """What counts once every source has been heard, or after `patience_s`."""
        until_s = self.clock.steady_s() + patience_s
        while True:
            found = self.limits()
            waiting = any(
                one.contact is SourceContact.WAITING and not one.note for one in found.told
            )
            if not waiting or self.clock.steady_s() >= until_s:
                return found
            self.clock.sleep(LOOK_S)

    def changes(self, every_s: float, for_s: float) -> Iterator[SiteLimitsNow]:
        """What counts, once at the beginning and then whenever it changes."""
        until_s = self.clock.steady_s() + for_s
        last: tuple[Any, ...] | None = None
        while last is None or self.clock.steady_s() < until_s:
            found = self.limits()
            if found.key != last:
                last = found.key
                yield found
            self.clock.sleep(min(every_s, max(until_s - self.clock.steady_s(), 0.0)))


@contextmanager
def listening(
    uris: Sequence[str], site: SignalSite, clock: Clock = SYSTEM
) -> Iterator[LimitListener]:
    """All signals opened, and closed again at the end.

    Raises:
        UserError: one of the addresses cannot be used.
    """
    signals: list[LimitSignal] = []
    try:
        for uri in uris:
            signals.append(open_signal(uri, site, clock))  # noqa: PERF401  # closed if a later one fails
        yield LimitListener(site, signals, clock)
    finally:
        for signal in signals:
            signal.close()


def document(found: SiteLimitsNow, site: SignalSite) -> dict[str, Any]:
    """The limits as `wattherd.limits/1`."""
    return {
        "schema": SCHEMA,
        "now": _iso(found.now_s),
        "base_w": site.base_w,
        "limit_w": found.timeline.at(found.now_s).limit_w,
        "timeline": [
            {"from": _iso(one.start_s), "until": _iso(one.end_s), "limit_w": one.limit_w,
             "source": one.source}
            for one in found.timeline.spans
        ],
        "signals": [_signal(one) for one in found.told],
    }  # fmt: skip


def _signal(told: ToldLimits) -> dict[str, Any]:
    heard_s = told.heard_at_s
    return {
        "signal": told.source,
        "contact": str(told.contact),
        "heard_at": None if heard_s is None else _iso(heard_s),
        "note": told.note,
        "events": [
            {"event": key, "answer": answer, "reason": reason}
            for key, answer, reason in told.events
        ],
    }


def _iso(at_s: float) -> str | None:
    if not math.isfinite(at_s):
        return None
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

"""Caps held by a lease: whoever orders them must go on doing so, or devices fall to a safe cap.

A raised cap is a promise of watts that somebody watches over. When that somebody is silent for
longer than a lease, nobody follows a budget that falls, so every cap in force sinks to `safe_w`,
the lowest that the device allows if none is given. Each round reads back what holds and orders it
again where that is something else: drivers forget limits when they are reloaded, and devices that
were lost come back with their own. What was found stays in the journal until it is put back, so
that a successor of a process that was killed goes on where it ended. Reads no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from wattherd.devices.knobs.contract import KnobLimits, OrderOutcome
from wattherd.devices.knobs.journal import KnobJournal
from wattherd.devices.knobs.knob import Knob
from wattherd.devices.knobs.registry import open_knob
from wattherd.devices.wire.device_errors import DeviceError


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedCap:
    """A device after a round, in watts: what holds (None: unknown), and between which limits."""

    device: str
    cap_w: float | None
    lowest_w: float | None = None
    highest_w: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapBeforeRound:
    """A device before its round, in watts: what it holds, what is asked of it (None: nothing)."""

    device: str
    limits: KnobLimits | None
    cap_w: float | None
    asked_w: float | None
    problem: str = ""


Decide = Callable[[Sequence[CapBeforeRound]], Mapping[str, float]]
"""Caps in watts by device for what was found; devices that are left out are nobody's business."""


@dataclass(slots=True)
class LeasedCaps:
    """Knobs by device; those that `journal` knows were set by a predecessor.

    `until_s` is when the lease ends that is in force at the beginning, on the clock of `keep`. A
    knob may take `patience_s` until it holds what it was told: before that it is not told again.
    """

    knobs: dict[str, Knob]
    journal: KnobJournal
    until_s: float
    safe_w: float | None = None
    patience_s: float = 0.0
    _asked_w: dict[str, float] = field(default_factory=dict)
    _begun: bool = False
    _limits: dict[str, KnobLimits] = field(default_factory=dict)
    _inherited_w: dict[str, float | None] = field(default_factory=dict)
    """What each held when it was first read, if a predecessor had set that."""
    _told: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The last order of each, and when it was given."""

    def add(self, name: str, uri: str) -> None:
        """One device more, by the address of its knob.

        Raises:
            UserError: the address cannot be used.
        """
        knob = open_knob(uri, self.journal)
        if self.patience_s > 0:
            knob.settle_s = 0.0  # each round reads back: none waits for a slow one
        self.knobs[name] = knob

    def order(self, caps_w: Mapping[str, float], until_s: float) -> None:
        """Hold these caps until then; devices that are not named are put back as they were found.

        Devices that nobody knows are left out, as they may be gone for a while.
        """
        self._asked_w = {name: cap_w for name, cap_w in caps_w.items() if name in self.knobs}
        self.until_s = until_s
        self._begun = True

    def keep(self, now_s: float, decide: Decide | None = None) -> Sequence[LeasedCap]:
        """One round over all devices, in their order.

        What is asked for is what they are to hold, unless `decide` has the last word.
        """
        expired = now_s >= self.until_s
        found = [self._found(name, knob, expired=expired) for name, knob in self.knobs.items()]
        orders_w = _as_asked(found) if decide is None else decide(found)
        return [self._kept(one, orders_w.get(one.device), now_s) for one in found]

    def put_back(self) -> Sequence[OrderOutcome]:
        """All devices as they were found, for good."""
        self._asked_w, self._begun = {}, True
        return [knob.restore() for knob in self.knobs.values() if self._noted(knob)]

    def close(self) -> None:
        """Let go of the devices; caps stay."""
        for knob in self.knobs.values():
            knob.close()

    def _found(self, name: str, knob: Knob, *, expired: bool) -> CapBeforeRound:
        try:
            limits = self._known_limits(name, knob)
        except DeviceError as error:
            return CapBeforeRound(
                device=name,
                limits=None,
                cap_w=None,
                asked_w=self._asked_w.get(name),
                problem=error.problem,
            )
        reading = knob.read()
        if reading.value is None:
            self._limits.pop(name, None)  # it may come back as another device
            return CapBeforeRound(
                device=name,
                limits=limits,
                cap_w=None,
                asked_w=self._asked_w.get(name),
                problem=reading.problem,
            )
        asked_w = self._wanted_w(name, knob, limits, reading.value, expired=expired)
        return CapBeforeRound(device=name, limits=limits, cap_w=reading.value, asked_w=asked_w)

    def _kept(self, found: CapBeforeRound, order_w: float | None, now_s: float) -> LeasedCap:
        now_w, problem = found.cap_w, found.problem
        if found.limits is not None and found.cap_w is not None:
            now_w, problem = self._brought(found.device, found.limits, found.cap_w, order_w, now_s)
        return LeasedCap(
            device=found.device,
            cap_w=now_w,
            lowest_w=None if found.limits is None else found.limits.lowest,
            highest_w=None if found.limits is None else found.limits.highest,
            problem=problem,
        )

    def _brought(
        self, name: str, limits: KnobLimits, cap_w: float, order_w: float | None, now_s: float
    ) -> tuple[float | None, str]:
        """What holds once the device has been told what to hold, and what went wrong."""
        knob = self.knobs[name]
        if order_w is not None:
            if abs(_within(order_w, limits) - cap_w) <= knob.driver.step:
                return cap_w, ""
            told_w, told_s = self._told.get(name, (math.nan, -math.inf))
            fresh = order_w != told_w or now_s - told_s >= self.patience_s
            if not fresh:
                return cap_w, ""
            self._told[name] = order_w, now_s
            held_w, problem = _told(knob.set(order_w))
            waits = self.patience_s > 0 and held_w is not None and order_w != told_w
            return held_w, "" if waits else problem
        self._told.pop(name, None)
        if self._begun and self._noted(knob):
            back_w, problem = _told(knob.restore())
            return (cap_w if back_w is None else back_w), problem
        return cap_w, ""

    def _wanted_w(
        self, name: str, knob: Knob, limits: KnobLimits, now_w: float, *, expired: bool
    ) -> float | None:
        """What a device is to hold; None where nobody asks for anything."""
        asked_w = self._asked_w.get(name)
        if name not in self._inherited_w:
            self._inherited_w[name] = now_w if self._noted(knob) else None
        if asked_w is None and not self._begun:
            asked_w = self._inherited_w[name]  # a predecessor's word counts for a lease
        if asked_w is None or not expired:
            return asked_w
        safe_w = limits.lowest if self.safe_w is None else self.safe_w
        return asked_w if safe_w is None else min(asked_w, safe_w)

    def _noted(self, knob: Knob) -> bool:
        return self.journal.found(knob.source) is not None

    def _known_limits(self, name: str, knob: Knob) -> KnobLimits:
        if name not in self._limits:
            self._limits[name] = knob.limits()
        return self._limits[name]


def _as_asked(found: Sequence[CapBeforeRound]) -> Mapping[str, float]:
    return {one.device: one.asked_w for one in found if one.asked_w is not None}


def _within(value_w: float, limits: KnobLimits) -> float:
    """The nearest that the device allows."""
    lowest = -math.inf if limits.lowest is None else limits.lowest
    highest = math.inf if limits.highest is None else limits.highest
    return min(max(value_w, lowest), highest)


def _told(outcome: OrderOutcome) -> tuple[float | None, str]:
    return outcome.read_back, "" if outcome.in_force else outcome.problem or str(outcome.result)

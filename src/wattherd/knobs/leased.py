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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wattherd.knobs.contract import Limits, Outcome
from wattherd.knobs.journal import Journal
from wattherd.knobs.knob import Knob
from wattherd.wire.trouble import DeviceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A device after a round, in watts: what holds (None: unknown), and between which limits."""

    device: str
    cap_w: float | None
    lowest_w: float | None = None
    highest_w: float | None = None
    problem: str = ""


@dataclass(slots=True)
class LeasedCaps:
    """Knobs by device; those that `journal` knows were set by a predecessor.

    `until_s` is when the lease ends that is in force at the beginning, on the clock of `keep`.
    """

    knobs: Mapping[str, Knob]
    journal: Journal
    until_s: float
    safe_w: float | None = None
    _asked_w: dict[str, float] = field(default_factory=dict)
    _begun: bool = False
    _limits: dict[str, Limits] = field(default_factory=dict)

    def order(self, caps_w: Mapping[str, float], until_s: float) -> None:
        """Hold these caps until then; devices that are not named are put back as they were found.

        Devices that nobody knows are left out, as they may be gone for a while.
        """
        self._asked_w = {name: cap_w for name, cap_w in caps_w.items() if name in self.knobs}
        self.until_s = until_s
        self._begun = True

    def keep(self, now_s: float) -> Sequence[Held]:
        """One round over all devices, in their order."""
        expired = now_s >= self.until_s
        return [self._kept(name, knob, expired=expired) for name, knob in self.knobs.items()]

    def put_back(self) -> Sequence[Outcome]:
        """All devices as they were found, for good."""
        self._asked_w, self._begun = {}, True
        return [knob.restore() for knob in self.knobs.values() if self._noted(knob)]

    def close(self) -> None:
        """Let go of the devices; caps stay."""
        for knob in self.knobs.values():
            knob.close()

    def _kept(self, name: str, knob: Knob, *, expired: bool) -> Held:
        try:
            limits = self._known_limits(name, knob)
        except DeviceError as error:
            return Held(device=name, cap_w=None, problem=error.problem)
        now_w, problem = self._brought(name, knob, limits, expired=expired)
        return Held(
            device=name,
            cap_w=now_w,
            lowest_w=limits.lowest,
            highest_w=limits.highest,
            problem=problem,
        )

    def _brought(
        self, name: str, knob: Knob, limits: Limits, *, expired: bool
    ) -> tuple[float | None, str]:
        """What holds once the device has been told what to hold, and what went wrong."""
        reading = knob.read()
        if reading.value is None:
            self._limits.pop(name, None)  # it may come back as another device
            return None, reading.problem
        wanted_w = self._wanted_w(name, knob, limits, reading.value, expired=expired)
        if wanted_w is not None:
            if abs(_within(wanted_w, limits) - reading.value) <= knob.driver.step:
                return reading.value, ""
            return _told(knob.set(wanted_w))
        if self._begun and self._noted(knob):
            back_w, problem = _told(knob.restore())
            return (reading.value if back_w is None else back_w), problem
        return reading.value, ""

    def _wanted_w(
        self, name: str, knob: Knob, limits: Limits, now_w: float, *, expired: bool
    ) -> float | None:
        """What a device is to hold; None where nobody asks for anything."""
        asked_w = self._asked_w.get(name)
        if asked_w is None and not self._begun and self._noted(knob):
            asked_w = now_w  # by a predecessor, whose word counts for a lease
        if asked_w is None or not expired:
            return asked_w
        safe_w = limits.lowest if self.safe_w is None else self.safe_w
        return asked_w if safe_w is None else min(asked_w, safe_w)

    def _noted(self, knob: Knob) -> bool:
        return self.journal.found(knob.source) is not None

    def _known_limits(self, name: str, knob: Knob) -> Limits:
        if name not in self._limits:
            self._limits[name] = knob.limits()
        return self._limits[name]


def _within(value_w: float, limits: Limits) -> float:
    """The nearest that the device allows."""
    lowest = -math.inf if limits.lowest is None else limits.lowest
    highest = math.inf if limits.highest is None else limits.highest
    return min(max(value_w, lowest), highest)


def _told(outcome: Outcome) -> tuple[float | None, str]:
    return outcome.read_back, "" if outcome.in_force else outcome.problem or str(outcome.result)

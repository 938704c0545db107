"""A knob: a driver, what its address says of patience, and the memory of what was found.

Every order is read back. A device that accepts an order and keeps its old limit is as common as one
that refuses, and more dangerous: its old limit is what must be counted on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from wattherd.devices.knobs.contract import (
    KnobDriver,
    KnobLimits,
    KnobReading,
    KnobSetting,
    KnobUnit,
    OrderOutcome,
    OrderResult,
    State,
)
from wattherd.devices.knobs.journal import KnobJournal
from wattherd.devices.wire.clock import SYSTEM, Clock
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.uri import Uri

OPTIONS = frozenset({"timeout", "settle"})
SETTLE_S = 1.0
"""Drivers answer at once, controller boards within a second or two."""
LOOK_S = 0.1


@dataclass(slots=True)
class Knob:
    """Limits one device; `settle_s` is how long an order may take until it is read back.

    With a `journal`, what was found is written down before the first order, so that a successor can
    put it back where this process cannot.
    """

    source: str
    driver: KnobDriver
    settle_s: float = SETTLE_S
    journal: KnobJournal | None = None
    clock: Clock = SYSTEM
    _limits: KnobLimits | None = field(default=None)
    _found: State | None = field(default=None)

    @property
    def unit(self) -> KnobUnit:
        """What its numbers count."""
        return self.driver.unit

    def limits(self) -> KnobLimits:
        """What it can be set to and is set to now.

        Raises:
            DeviceError: it does not answer, or has no limit.
        """
        try:
            self._limits = self.driver.limits()
        except DeviceError as error:
            raise DeviceError(error.trouble, error.problem, source=self.source) from error
        return self._limits

    def read(self) -> KnobReading:
        """The limit in force, or why it is not known."""
        try:
            return KnobReading(knob=self.source, value=self.driver.read().value)
        except DeviceError as error:
            return KnobReading(
                knob=self.source, value=None, trouble=error.trouble, problem=error.problem
            )

    def set(self, value: float) -> OrderOutcome:
        """Order `value` (watts or hertz; infinity lifts the limit) and read it back.

        Values outside the device's limits are clamped, as it would refuse them.
        """
        try:
            before = self._keep_found()
            allowed = self._allowed(value)
            self.driver.write(allowed)
        except DeviceError as error:
            return self._failed(error, value)
        return self._judged(value, allowed, before.value)

    def restore(self) -> OrderOutcome:
        """Put back what was found before the first order, by this process or a predecessor."""
        state = self._noted()
        if state is None:
            return OrderOutcome(knob=self.source, result=OrderResult.TOOK_EFFECT, requested=None,
                           problem="nothing was changed")  # fmt: skip
        try:
            self.driver.put_back(state)
        except DeviceError as error:
            return self._failed(error, None)
        outcome = self._restored(state)
        if outcome.in_force:
            self._found = None
            if self.journal is not None:
                self.journal.forget(self.source)
        return outcome

    def identity(self) -> str:
        """What tells this very device from another one at its address; empty if nothing does.

        Raises:
            DeviceError: it does not answer.
        """
        tell: Callable[[], str] | None = getattr(self.driver, "identity", None)
        return "" if tell is None else tell()

    def forget(self) -> None:
        """Another device is there now: what was found belonged to the one before it."""
        self._found = self._limits = None
        if self.journal is not None:
            self.journal.forget(self.source)

    def close(self) -> None:
        """Let go of the device; its limit stays."""
        self.driver.close()

    def __enter__(self) -> Self:
        """The knob itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _noted(self) -> State | None:
        if self._found is None and self.journal is not None:
            self._found = self.journal.found(self.source)
        return self._found

    def _keep_found(self) -> KnobSetting:
        """What is in force now; noted if nothing was noted before."""
        now = self.driver.read()
        if self._noted() is None:
            if self.journal is not None:
                self.journal.note(self.source, now.state)
            self._found = now.state
        return now

    def _allowed(self, value: float) -> float:
        if math.isnan(value):
            raise DeviceError(DeviceErrorKind.GARBAGE, "no number was ordered")
        limits = self._limits or self.driver.limits()
        self._limits = limits
        if math.isinf(value):
            return value
        lowest = -math.inf if limits.lowest is None else limits.lowest
        highest = math.inf if limits.highest is None else limits.highest
        return min(max(value, lowest), highest)

    def _judged(self, value: float, allowed: float, before: float) -> OrderOutcome:
        try:
            now = self._settled(allowed)
        except DeviceError as error:
            lost = DeviceError(error.trouble, f"ordered, but not read back: {error.problem}")
            return self._failed(lost, value, OrderResult.UNREACHABLE)
        result = self._result(value, allowed, before, now)
        return OrderOutcome(knob=self.source, result=result, requested=value, read_back=now,
                       problem=_explained(result, allowed, now, self.unit))  # fmt: skip

    def _result(self, value: float, allowed: float, before: float, now: float) -> OrderResult:
        if self._same(now, value):
            return OrderResult.TOOK_EFFECT
        if self._same(now, allowed):
            return OrderResult.CLAMPED
        return OrderResult.UNCHANGED if self._same(now, before) else OrderResult.CLAMPED

    def _settled(self, allowed: float) -> float:
        """The limit in force once it is what was ordered, or when patience ends."""
        until_s = self.clock.steady_s() + self.settle_s
        while True:
            now = self.driver.read().value
            if self._same(now, allowed) or self.clock.steady_s() >= until_s:
                return now
            self.clock.sleep(LOOK_S)

    def _restored(self, state: State) -> OrderOutcome:
        until_s = self.clock.steady_s() + self.settle_s
        try:
            while True:
                now = self.driver.read()
                back = now.state == state
                if back or self.clock.steady_s() >= until_s:
                    break
                self.clock.sleep(LOOK_S)
        except DeviceError as error:
            return self._failed(error, None, OrderResult.UNREACHABLE)
        result = OrderResult.TOOK_EFFECT if back else OrderResult.UNCHANGED
        problem = "" if back else f"holds {now.state} in place of {state}"
        return OrderOutcome(knob=self.source, result=result, requested=None, read_back=now.value,
                       problem=problem)  # fmt: skip

    def _same(self, one: float, other: float) -> bool:
        if math.isinf(one) or math.isinf(other):
            # Where no limit can be told from the highest one, they are the same.
            return one == other or min(one, other) == (self._limits and self._limits.highest)
        return abs(one - other) <= self.driver.step

    def _failed(
        self, error: DeviceError, value: float | None, result: OrderResult | None = None
    ) -> OrderOutcome:
        lost = error.trouble in (DeviceErrorKind.UNREACHABLE, DeviceErrorKind.TIMEOUT)
        told = result or (OrderResult.UNREACHABLE if lost else OrderResult.REFUSED)
        return OrderOutcome(knob=self.source, result=told, requested=value, trouble=error.trouble,
                       problem=error.problem)  # fmt: skip


def turned(
    uri: Uri, driver: KnobDriver, journal: KnobJournal | None, clock: Clock = SYSTEM
) -> Knob:
    """A knob around `driver` with the options that all addresses share."""
    settle_s = uri.seconds("settle", SETTLE_S)
    return Knob(source=uri.text, driver=driver, settle_s=settle_s, journal=journal, clock=clock)


def _explained(result: OrderResult, allowed: float, now: float, unit: KnobUnit) -> str:
    match result:
        case OrderResult.CLAMPED:
            return f"the device allows {now:g} {unit}"
        case OrderResult.UNCHANGED:
            return f"ordered {allowed:g} {unit}, the device still holds {now:g} {unit}"
    return ""

"""A switch: power of a whole node on or off, read back like every other order.

Switching off is the last resort of a power budget and ends whatever runs there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from wattherd.devices.knobs.contract import OrderResult
from wattherd.devices.wire.clock import SYSTEM, Clock
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind

LOOK_S = 0.2


class Outlet(Protocol):
    """One node's power behind one protocol; every method may raise `DeviceError`."""

    def is_on(self) -> bool:
        """Whether the node has power."""
        ...

    def turn(self, *, on: bool) -> None:
        """Order power on, or off."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A switch as it was read or left: `on` is None where there was no answer."""

    switch: str
    on: bool | None
    result: OrderResult | None = None
    trouble: DeviceErrorKind | None = None
    problem: str = ""


@dataclass(slots=True)
class Switch:
    """Power of one node; `settle_s` is how long an order may take until it is read back."""

    source: str
    outlet: Outlet
    settle_s: float
    clock: Clock = SYSTEM

    def read(self) -> Position:
        """Whether there is power, or why that is not known."""
        try:
            return Position(switch=self.source, on=self.outlet.is_on())
        except DeviceError as error:
            return self._failed(error)

    def turn(self, *, on: bool) -> Position:
        """Order power on or off and read it back; what is so already is not ordered."""
        try:
            if self.outlet.is_on() == on:
                return Position(switch=self.source, on=on, result=OrderResult.TOOK_EFFECT)
            self.outlet.turn(on=on)
            now = self._settled(on=on)
        except DeviceError as error:
            return self._failed(error)
        result = OrderResult.TOOK_EFFECT if now == on else OrderResult.UNCHANGED
        return Position(switch=self.source, on=now, result=result)

    def _settled(self, *, on: bool) -> bool:
        until_s = self.clock.steady_s() + self.settle_s
        while (now := self.outlet.is_on()) != on and self.clock.steady_s() < until_s:
            self.clock.sleep(LOOK_S)
        return now

    def _failed(self, error: DeviceError) -> Position:
        lost = error.trouble in (DeviceErrorKind.UNREACHABLE, DeviceErrorKind.TIMEOUT)
        result = OrderResult.UNREACHABLE if lost else OrderResult.REFUSED
        return Position(switch=self.source, on=None, result=result, trouble=error.trouble,
                        problem=error.problem)  # fmt: skip

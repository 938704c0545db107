"""What a knob is, what every driver offers, and what became of an order: the words of this room.

A knob limits a device: its power in watts or its clock in hertz. A driver speaks one protocol and
raises `DeviceError`; `knob.Knob` makes outcomes of it and never raises. Infinity stands for "no
limit in force". Nothing here reads a clock or a socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from wattherd.devices.wire.device_errors import DeviceErrorKind

NO_LIMIT = float("inf")

State = Mapping[str, Any]
"""All that a driver needs to put a device back as it was: JSON, opaque to everybody else."""


class KnobUnit(StrEnum):
    """What a knob's numbers count."""

    WATT = "W"
    HERTZ = "Hz"


class OrderResult(StrEnum):
    """What became of an order, by what the device says afterwards."""

    TOOK_EFFECT = "took-effect"
    CLAMPED = "clamped"  # another limit took effect: the nearest that the device allows
    UNCHANGED = "accepted-but-unchanged"  # a failed actuation: the old limit still holds
    REFUSED = "refused"  # permission, credentials, or no such limit
    UNREACHABLE = "unreachable"  # nobody knows what holds now


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobLimits:
    """What a knob can be set to and is set to now, in its unit; None where it does not tell."""

    unit: KnobUnit
    lowest: float | None
    highest: float | None
    default: float | None
    now: float


@dataclass(frozen=True, slots=True)
class KnobSetting:
    """The limit in force, in the knob's unit, and what brings it back."""

    value: float
    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobReading:
    """A knob as it was read: `value` is None where there was no answer."""

    knob: str
    value: float | None
    trouble: DeviceErrorKind | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOutcome:
    """What became of an order: values in the knob's unit, None where there is none."""

    knob: str
    result: OrderResult
    requested: float | None
    read_back: float | None = None
    trouble: DeviceErrorKind | None = None
    problem: str = ""

    @property
    def in_force(self) -> bool:
        """Whether the device holds what was asked, or the nearest that it allows."""
        return self.result in (OrderResult.TOOK_EFFECT, OrderResult.CLAMPED)


class KnobDriver(Protocol):
    """One limit of one device behind one protocol; every method may raise `DeviceError`.

    A driver with `concurrent = True` waits by `devices.wire.cooperative_io` alone, so that one
    thread may ask many.
    """

    unit: KnobUnit
    step: float
    """Read-backs this close to an order are the order: devices round."""

    def limits(self) -> KnobLimits:
        """What it can be set to."""
        ...

    def read(self) -> KnobSetting:
        """What is in force."""
        ...

    def write(self, value: float) -> None:
        """Order a limit within `limits`; `NO_LIMIT` lifts it."""
        ...

    def put_back(self, state: State) -> None:
        """Order a state that was read earlier, maybe by another process."""
        ...

    def close(self) -> None:
        """Let go of connections; a later call may open them again."""
        ...

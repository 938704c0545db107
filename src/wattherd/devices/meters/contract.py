"""What a reading is, and what every driver offers: the words of this room.

A driver speaks one protocol and answers with a `MeterSample` in its own unit; `meter.Meter` makes
the `MeterReading` of it. Nothing here reads a clock or a socket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable


class Quality(StrEnum):
    """How far a reading may be trusted; a controller that sees none of these has no reading."""

    MEASURED = "measured"  # an instrument's value, as it stood when asked or when it says
    AVERAGED = "averaged"  # energy over the time since the reading before
    STALE = "stale"  # older than the URI's `max_age`
    REPLAYED = "replayed"  # of a recording: never to be mistaken for a live one


@dataclass(frozen=True, slots=True)
class MeterReading:
    """Watts drawn at the Unix time `at_s`; `source` is the meter's URI.

    Where the instrument tells no time, `at_s` is when it was asked: no reading claims to be
    fresher than it can be. `watts` is finite, and negative where a site feeds back.
    """

    watts: float
    at_s: float
    source: str
    quality: Quality


@dataclass(frozen=True, slots=True)
class MeterSample:
    """A driver's answer: `value` in the instrument's unit, `at_s` in Unix seconds if it says."""

    value: float
    at_s: float | None = None
    quality: Quality = Quality.MEASURED


class MeterDriver(Protocol):
    """One instrument behind one protocol.

    A driver with `concurrent = True` waits by `devices.wire.cooperative_io` alone, so that one
    thread may ask many; one without may block and is given a thread while it is asked. One with
    `quick = True` tells what is drawn at the moment, and may be asked ten times a second.
    """

    def sample(self) -> MeterSample:
        """Ask the instrument once.

        Raises:
            DeviceError: it did not answer, or not with a number.
        """
        ...

    def close(self) -> None:
        """Let go of connections; a later `sample` may open them again."""
        ...


@runtime_checkable
class KeepsSamples(Protocol):
    """A driver of an instrument that remembers what it measured between two questions."""

    @property
    def keeps_samples(self) -> bool:
        """Whether it does at this address."""
        ...

    def kept_since(self, at_s: float) -> Sequence[MeterSample]:
        """What it measured after a Unix time, oldest first, each with its time.

        Raises:
            DeviceError: it did not answer.
        """
        ...

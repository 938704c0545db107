"""What a reading is, what every driver offers, and what may go wrong: the words of this room.

A driver speaks one protocol and answers with a `Sample` in its own unit; `meter.Meter` makes the
`Reading` of it. Nothing here reads a clock or a socket.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from wattherd.errors import ClusterError


class Quality(StrEnum):
    """How far a reading may be trusted; a controller that sees none of these has no reading."""

    MEASURED = "measured"  # an instrument's value, as it stood when asked or when it says
    AVERAGED = "averaged"  # energy over the time since the reading before
    STALE = "stale"  # older than the URI's `max_age`
    REPLAYED = "replayed"  # of a recording: never to be mistaken for a live one


@dataclass(frozen=True, slots=True)
class Reading:
    """Watts drawn at the Unix time `at_s`; `source` is the meter's URI.

    Where the instrument tells no time, `at_s` is when it was asked: no reading claims to be
    fresher than it can be. `watts` is finite, and negative where a site feeds back.
    """

    watts: float
    at_s: float
    source: str
    quality: Quality


@dataclass(frozen=True, slots=True)
class Sample:
    """A driver's answer: `value` in the instrument's unit, `at_s` in Unix seconds if it says."""

    value: float
    at_s: float | None = None
    quality: Quality = Quality.MEASURED


class Driver(Protocol):
    """One instrument behind one protocol."""

    def sample(self) -> Sample:
        """Ask the instrument once.

        Raises:
            MeterError: it did not answer, or not with a number.
        """
        ...

    def close(self) -> None:
        """Let go of connections; a later `sample` may open them again."""
        ...


class Trouble(StrEnum):
    """Why there is no reading."""

    UNREACHABLE = "unreachable"  # nobody answers there, or the connection broke
    TIMEOUT = "timeout"  # no complete answer within the URI's `timeout`
    REFUSED = "refused"  # it answers, but not to us: permission, credentials, certificate
    ABSENT = "absent"  # it answers, but has no such sensor, register or series
    GARBAGE = "garbage"  # it answers with what is no power


class MeterError(ClusterError):
    """A meter gave no reading; asking again may help."""

    def __init__(self, trouble: Trouble, problem: str, *, source: str = "") -> None:
        """Keep the parts; `source` is added by the meter, which alone knows its URI."""
        self.trouble, self.problem, self.source = trouble, problem, source
        super().__init__(": ".join(part for part in (source, str(trouble), problem) if part))

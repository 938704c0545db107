"""What a power policy is asked and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from wattherd.estimate.power_curve import PowerCurve


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A job that will run: all its `devices` get one cap, between the curve's floor and top."""

    job_id: str
    devices: int
    curve: PowerCurve
    priority: int = 0
    weight: float = 1.0


class PowerPolicy(Protocol):
    """Shares watts among jobs."""

    @property
    def all_or_nothing(self) -> bool:
        """Whether a job either runs uncapped or does not run."""
        ...

    def share(self, asks: Sequence[Ask], watts: float) -> list[float]:
        """A cap in watts per device for each ask; `watts` covers at least all floors.

        The caps of all devices must add up to at most `watts`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Caps (W per device) of jobs that ask for the same, in their order.

    The first `full` of them get `high_w`, the next one `partial_w`, all others `low_w`.
    """

    full: int
    high_w: float
    partial_w: float
    low_w: float


@runtime_checkable
class SharesByClass(Protocol):
    """A power policy that serves jobs that ask for the same all at once: quicker where many do."""

    def levels(self, classes: Sequence[tuple[Ask, int]], watts: float) -> list[Level]:
        """For each class, an ask and how many jobs ask it, what these get.

        It must be as good as `share` of all of them one by one.
        """
        ...


def floors_w(asks: Sequence[Ask]) -> float:
    """What all devices draw at least."""
    return sum(ask.devices * ask.curve.floor_w for ask in asks)


def bisected(asks: Sequence[Ask], watts: float, cap_of: CapOf) -> list[float]:
    """Caps `cap_of(ask, level)` at the highest level in 0..1 that fits into `watts`.

    `cap_of` must not fall when the level rises; fifty halvings leave less than a microwatt.
    """
    caps = [cap_of(ask, 1.0) for ask in asks]
    if _total(asks, caps) <= watts:
        return caps
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        fits = _total(asks, [cap_of(ask, middle) for ask in asks]) <= watts
        low, high = (middle, high) if fits else (low, middle)
    return [cap_of(ask, low) for ask in asks]


def _total(asks: Sequence[Ask], caps: Sequence[float]) -> float:
    return sum(ask.devices * cap for ask, cap in zip(asks, caps, strict=True))


class CapOf(Protocol):
    """A cap as a function of one common level."""

    def __call__(self, ask: Ask, level: float) -> float:
        """Watts per device at `level`, from the floor at 0 to the top at 1."""
        ...

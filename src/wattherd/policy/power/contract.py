"""What a power policy is asked and what it answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, overload, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from wattherd.estimate.power_curve import PowerCurve


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerAsk:
    """A job that will run: all its `devices` get one cap, between the curve's floor and top."""

    job_id: str
    devices: int
    curve: PowerCurve
    priority: int = 0
    weight: float = 1.0


def ask_rows(asks: Sequence[PowerAsk]) -> NDArray[np.float64]:
    """(J, 5) devices, lowest and highest watts per device, weight, highest rate."""
    rows = [
        (one.devices, watts[0], watts[-1], one.weight, one.curve.rates[-1])
        for one in asks
        for watts in (one.curve.watts,)
    ]
    return np.array(rows, dtype=np.float64).reshape(-1, 5)


@dataclass(frozen=True, slots=True)
class CurveNumbers:
    """Which of `curves` each ask has, (J,): jobs of a kind have one curve."""

    curves: Sequence[PowerCurve]
    of: NDArray[np.int64]


class Asks(Sequence[PowerAsk]):
    """Asks that are also at hand as columns (J,)."""

    def __init__(
        self,
        asks: Sequence[PowerAsk],
        rows: NDArray[np.float64] | None = None,
        curves: CurveNumbers | None = None,
    ) -> None:
        """`rows` are their `ask_rows` and `curves` their curves, where somebody has them."""
        self._asks = asks
        table = (ask_rows(asks) if rows is None else rows).T.copy()
        self.devices, self.floor_w, self.top_w, self.weight, self.top_rate = table
        self._curves = curves

    @property
    def curves(self) -> CurveNumbers:
        """The curves of all asks, each named once."""
        if self._curves is None:
            mine = [ask.curve for ask in self._asks]
            # By identity: thousands of jobs have a few curves, and to hash one takes longer.
            curves = {id(curve): curve for curve in mine}
            numbers = {key: number for number, key in enumerate(curves)}
            of = np.array([numbers[id(curve)] for curve in mine], dtype=np.int64)
            self._curves = CurveNumbers(tuple(curves.values()), of)
        return self._curves

    @overload
    def __getitem__(self, at: int) -> PowerAsk: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[PowerAsk]: ...
    def __getitem__(self, at: int | slice) -> PowerAsk | Sequence[PowerAsk]:
        """One ask, or some."""
        return self._asks[at]

    def __iter__(self) -> Iterator[PowerAsk]:
        """All of them; that of `Sequence` would ask for each by its index, ten times as long."""
        return iter(self._asks)

    def __len__(self) -> int:
        """How many."""
        return len(self._asks)


def columns(asks: Sequence[PowerAsk]) -> Asks:
    """The same asks with columns; those that have some are not read again."""
    return asks if isinstance(asks, Asks) else Asks(asks)


class PowerPolicy(Protocol):
    """Shares watts among jobs."""

    @property
    def all_or_nothing(self) -> bool:
        """Whether a job either runs uncapped or does not run."""
        ...

    def share(self, asks: Sequence[PowerAsk], watts: float) -> list[float]:
        """A cap in watts per device for each ask; `watts` covers at least all floors.

        The caps of all devices must add up to at most `watts`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CapLevel:
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

    def levels(self, classes: Sequence[tuple[PowerAsk, int]], watts: float) -> list[CapLevel]:
        """For each class, an ask and how many jobs ask it, what these get.

        It must be as good as `share` of all of them one by one.
        """
        ...


def floors_w(asks: Sequence[PowerAsk]) -> float:
    """What all devices draw at least."""
    return sum(ask.devices * ask.curve.floor_w for ask in asks)


def bisected(asks: Sequence[PowerAsk], watts: float, cap_of: CapOf) -> list[float]:
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


def _total(asks: Sequence[PowerAsk], caps: Sequence[float]) -> float:
    return sum(ask.devices * cap for ask, cap in zip(asks, caps, strict=True))


class CapOf(Protocol):
    """A cap as a function of one common level."""

    def __call__(self, ask: PowerAsk, level: float) -> float:
        """Watts per device at `level`, from the floor at 0 to the top at 1."""
        ...

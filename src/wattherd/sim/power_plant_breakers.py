"""When breakers trip: the two edges of a standard's band, thermal and magnetic.

A standard does not say when a breaker trips but between which times it must: one that is sold under
it may lie anywhere in the band. A controller is safe if nothing trips on the early edge; a trip on
the late edge is certain. Both edges obey h' = (m^2 - carried^2) / K at m times the rating, h >= 0,
trip at 1, so that a cold breaker trips after K / (m^2 - carried^2) seconds; above the magnetic
multiple it trips at once. K and the carried multiple follow from two points of each edge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from wattherd.engine.safety.contract import Breaker, Floats


@dataclass(frozen=True, slots=True)
class TripEdge:
    """One edge of a band: the multiple carried for ever, K in seconds, the magnetic multiple."""

    carried: float
    constant_s: float
    magnetic: float = np.inf

    def heated(self, heat: Floats, multiple: Floats, seconds: float) -> Floats:
        """Thermal states (L,) after `seconds` at `multiple` (L,) of the ratings; 1 trips."""
        rate = (np.square(multiple) - self.carried**2) / self.constant_s
        warm = np.maximum(heat + rate * seconds, 0.0)
        return np.asarray(np.where(multiple >= self.magnetic, 1.0, warm))

    def seconds_to_trip(self, multiple: float) -> float:
        """How long a cold breaker carries `multiple` of its rating."""
        if multiple >= self.magnetic:
            return 0.0
        over = multiple**2 - self.carried**2
        return self.constant_s / over if over > 0 else np.inf


def _through(low: tuple[float, float], high: tuple[float, float], magnetic: float) -> TripEdge:
    """The edge through two points (multiple, seconds)."""
    (m1, t1), (m2, t2) = low, high
    carried_2 = (t1 * m1**2 - t2 * m2**2) / (t1 - t2)
    return TripEdge(float(np.sqrt(carried_2)), t2 * (m2**2 - carried_2), magnetic)


@dataclass(frozen=True, slots=True)
class TripBand:
    """Between which edges a breaker trips."""

    early: TripEdge
    late: TripEdge


def _iec(magnetic_early: float, magnetic_late: float) -> TripBand:
    # IEC 60898-1, table 7: 1.13 In is carried for an hour, 1.45 In trips within one; 2.55 In trips
    # after more than 1 s and (up to 32 A) less than 60 s.
    return TripBand(
        early=_through((1.13, 3600.0), (2.55, 1.0), magnetic_early),
        late=_through((1.45, 3600.0), (2.55, 60.0), magnetic_late),
    )


BANDS: Mapping[str, TripBand] = {
    "iec-b": _iec(3.0, 5.0),
    "iec-c": _iec(5.0, 10.0),
    "iec-d": _iec(10.0, 20.0),
    # UL 489, 51 to 100 A: 100 % is carried, 135 % trips within two hours, 200 % within six minutes.
    # The standard has no early edge; 20 s at 200 % is that of common moulded cases.
    "ul-489": TripBand(
        early=TripEdge(1.0, 60.0, 5.0), late=_through((1.35, 7200.0), (2.0, 360.0), 10.0)
    ),
}
"""Bands by the names of their standards and types."""


def band_of(breaker: Breaker) -> TripBand:
    """No band: exactly the curve that the controller is told."""
    edge = TripEdge(1.0, breaker.constant_s)
    return TripBand(early=edge, late=edge)

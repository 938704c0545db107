"""How far joules go: the part of a power curve on which a job's work costs no more than it may.

Work counts in seconds of one device at its highest draw. At a cap of p watts a second of it costs
p / (rate(p) / highest rate) joules: on a concave curve that falls to the thriftiest cap and rises
from there on, so that the caps within a price are an interval.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

from wattherd.estimate.power_curve import PowerCurve


def price_j(curve: PowerCurve, cap_w: float) -> float:
    """Joules for a second's work at full speed, done under this cap."""
    rate = curve.rate(cap_w)
    return cap_w * curve.rates[-1] / rate if rate > 0 else float("inf")


def thriftiest_w(curve: PowerCurve) -> float:
    """The cap at which work costs least; it is a corner of the curve."""
    return min(curve.watts, key=lambda watts: (price_j(curve, watts), watts))


@lru_cache(maxsize=4096)
def thrifty(curve: PowerCurve, most_j: float) -> PowerCurve:
    """The curve where a second's work costs at most `most_j`, else the thriftiest cap alone."""
    best_w = thriftiest_w(curve)
    if price_j(curve, best_w) >= most_j:
        return PowerCurve((best_w,), (curve.rate(best_w),))
    low_w = _edge(curve, most_j, best_w, curve.watts[: curve.watts.index(best_w) + 1][::-1])
    high_w = _edge(curve, most_j, best_w, curve.watts[curve.watts.index(best_w) :])
    inside = [watts for watts in curve.watts if low_w < watts < high_w]
    watts = sorted({low_w, *inside, high_w})
    return PowerCurve(tuple(watts), tuple(curve.rate(one) for one in watts))


def _edge(curve: PowerCurve, most_j: float, best_w: float, outwards: tuple[float, ...]) -> float:
    """How far from the thriftiest cap the price stays within `most_j`, along these corners."""
    edge_w = best_w
    for near_w, far_w in pairwise(outwards):
        if price_j(curve, far_w) > most_j:
            return _crossing(curve, most_j, near_w, far_w)
        edge_w = far_w
    return edge_w


def _crossing(curve: PowerCurve, most_j: float, near_w: float, far_w: float) -> float:
    """Where the price is `most_j` on a straight piece: p top = most (rate + slope (p - near))."""
    near = curve.rate(near_w)
    slope = (curve.rate(far_w) - near) / (far_w - near_w)
    top = curve.rates[-1]
    return most_j * (near - slope * near_w) / (top - most_j * slope)

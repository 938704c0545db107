"""Scores of one run of `wattherd power bench`, from what was drawn each second.

Definitions: docs/reference/bench-json.md. Everything is judged by the true draw, never by meters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wattherd.engine.safety.contract import Bools, Floats
from wattherd.experiments.power_bench.scenarios import BenchScenario
from wattherd.sim.power_plant import Trip
from wattherd.sim.power_plant_faults import PlantFault

HOLD_S = 10
RECOVERED = 0.02
SHOWN_LOW = 0.97
"""A reading below this share of the truth hides something."""
UNEXPLAINED = "unexplained: meters told the truth and knobs did as told"
BACK_SHARE, BACK_MEAN_S = 0.95, 5
ENDS = 0.02
"""Other load that falls by that share of a limit within a second has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """One row per second: `level_w` (T, F + 1), `draw_w`, `cap_w` (T, N), means of the second.

    `wall_w` (T,) is what all devices draw with the parts that no cap acts on; `peak_w` (T, F + 1)
    the highest moment of each second; `any_second_w` (T, F + 1) the highest mean over a second that
    ends within it, whenever it began; `noted` counts the seconds of each kind of alarm.
    """

    level_w: Floats
    draw_w: Floats
    cap_w: Floats
    trips: int
    caps_restored: bool
    wall_w: Floats
    peak_w: Floats
    any_second_w: Floats
    sure_trips: int = 0
    trip_log: tuple[Trip, ...] = ()
    safe_mode_s: int = 0
    noted: Mapping[str, int] = field(default_factory=dict)


def scores(scenario: BenchScenario, log: RunLog) -> dict[str, Any]:
    """All that one run tells by itself."""
    above_w = log.level_w - scenario.limit_w
    late = ~_grace(scenario)
    over: Bools = np.asarray(above_w > 0)
    over_j = np.where(over & late[:, None], above_w, 0.0).sum(axis=0)
    return {
        "over_limit_s": int((over.any(axis=1) & late).sum()),
        "over_limit_raw_s": int(over.any(axis=1).sum()),
        "over_limit_j": round(float(over_j.max()), 1),
        "levels": [
            {"level": name, "over_limit_s": int((over[:, i] & late).sum()),
             "over_limit_j": round(float(over_j[i]), 1)}
            for i, name in enumerate(scenario.level_names)
        ],
        "worst_overshoot_pct": {
            str(width): round(_worst(above_w / scenario.limit_w, width), 3) for width in (1, 10, 60)
        },
        "worst_excess_pct": round(_worst_after(above_w / scenario.limit_w, late), 3),
        "worst_second_pct": round(_worst_second(scenario, log, late), 3),
        "worst_moment_pct": round(
            _worst_after((log.peak_w - scenario.limit_w) / scenario.limit_w, late), 3
        ),
        "usable_pct": _used(scenario, log, late),
        "back_s": back_s(scenario, log),
        "sure_trips": log.sure_trips,
        "safe_mode_s": log.safe_mode_s,
        "alarms": dict(log.noted),
        "settling_s": _settling(scenario, np.asarray(over.any(axis=1))),
        "headroom_pct": _headroom(scenario, log),
        "over_shed_pct": _over_shed(scenario, log),
        "snap_back_pct": _snap_back(scenario, log),
        "cap_changes_per_min": round(_changes(log), 3),
        "caps_restored": log.caps_restored,
    }  # fmt: skip


def told_trip(scenario: BenchScenario, fault: PlantFault, trip: Trip) -> str:
    """How a trip came about, from what was true and what was shown at that moment.

    A reason is one only if it suffices: the draw would have been within the rating had the devices
    hit followed their orders, the meters showed too little, or nobody was at work.
    """
    over_w = trip.draw_w - trip.rated_w
    reasons = []
    if trip.hit_w - trip.hit_ordered_w >= over_w:
        reasons.append(
            f"devices hit drew {trip.hit_w:,.0f} W on orders for {trip.hit_ordered_w:,.0f} W"
        )
    if np.isnan(trip.shown_w):
        reasons.append("no meter showed it")
    elif trip.shown_w < SHOWN_LOW * trip.draw_w:
        reasons.append(f"meters showed {trip.shown_w:,.0f} W")
    dead = {"controller-killed", "loop-stalled"} & set(fault.kinds)
    end_s = fault.start_s + fault.stall_s if "loop-stalled" in dead else fault.end_s
    if dead and fault.start_s <= trip.at_s < end_s + HOLD_S:
        reasons.append("the loop was not at work")
    why = " and ".join(reasons) or UNEXPLAINED
    name = scenario.level_names[trip.level]
    return f"{why}; {name} at {trip.at_s:g} s, {over_w:,.0f} W above {trip.rated_w:,.0f} W"


def _falls(scenario: BenchScenario) -> list[int]:
    """Seconds at which a limit falls; the first second counts, the limit is news then."""
    lower = (np.diff(scenario.limit_w, axis=0) < 0).any(axis=1)
    return [0, *(int(at) + 1 for at in np.flatnonzero(lower))]


def _grace(scenario: BenchScenario) -> Bools:
    """Seconds in which the hardware may still be answering to a lower limit or a surprise."""
    grace = np.zeros(scenario.seconds, dtype=np.bool_)
    for at in (*_falls(scenario), *scenario.surprises_s):
        grace[at : at + int(np.ceil(scenario.response_s))] = True
    return grace


def _worst(excess: Floats, width: int) -> float:
    """The largest mean excess over `width` seconds in a row, in percent, at any level."""
    sums = np.cumsum(np.vstack((np.zeros(excess.shape[1]), excess)), axis=0)
    means = (sums[width:] - sums[:-width]) / width
    return max(100.0 * float(means.max()), 0.0)


def _worst_after(excess: Floats, late: Bools) -> float:
    """The worst excess of a second at any level once the hardware has answered, in percent."""
    return max(100.0 * float(excess[late].max(initial=0.0)), 0.0)


def _worst_second(scenario: BenchScenario, log: RunLog, late: Bools) -> float:
    """The worst excess over any second, whenever it began, in percent.

    A second that begins under one limit and ends under another is held to the higher of the two.
    """
    before_w = np.vstack((scenario.limit_w[:1], scenario.limit_w[:-1]))
    limit_w = np.maximum(scenario.limit_w, before_w)
    whole = late & np.append(False, late[:-1])
    return _worst_after(log.any_second_w / limit_w - 1.0, whole)


def _used(scenario: BenchScenario, log: RunLog, late: Bools) -> float | None:
    """What devices drew of what they could have, in percent, seconds of response left out."""
    usable_w = scenario.usable_w()[late]
    whole_w = float(usable_w.sum())
    # Draw above what is usable is an excess; it makes up for nothing.
    used_w = float(np.minimum(log.wall_w[late], usable_w).sum())
    return round(100.0 * used_w / whole_w, 2) if whole_w > 0 else None


def back_s(scenario: BenchScenario, log: RunLog, reachable: float = 1.0) -> int | None:
    """Seconds from the end of the last cut until 95 % of what is usable is drawn, over 5 s.

    Without a cut from the last end of other load, None without either; the rest of the run where
    it is over before. `reachable` is the share of the usable that caps can reach at all.
    """
    limit_w = scenario.limit_w[:, -1]
    rises = np.flatnonzero(np.diff(limit_w) > 0)
    if not len(rises):
        rises = np.flatnonzero(np.diff(scenario.other_w()[:, -1]) < -ENDS * limit_w[1:])
    if not len(rises):
        return None
    end = int(rises[-1]) + 1
    kernel = np.ones(BACK_MEAN_S) / BACK_MEAN_S
    drawn_w = np.convolve(log.wall_w[end:], kernel, mode="valid")
    usable_w = np.convolve(scenario.usable_w()[end:], kernel, mode="valid")
    there = np.flatnonzero(drawn_w >= BACK_SHARE * reachable * usable_w)
    return int(there[0]) if len(there) else scenario.seconds - end


def _settling(scenario: BenchScenario, over: Bools) -> int | None:
    """Seconds from the event (or the start) until the draw stays within all limits for 10 s."""
    start = scenario.event_s or 0
    for at in range(start, scenario.seconds - HOLD_S):
        if not over[at : at + HOLD_S].any():
            return at - start
    return None


def _headroom(scenario: BenchScenario, log: RunLog) -> float | None:
    """Unused share of the site's limit while more was asked for than it allows, in percent."""
    limit_w = scenario.limit_w[:, -1]
    wanting = (scenario.demand_w.sum(axis=1) >= limit_w) & ~_grace(scenario)
    if not wanting.any():
        return None
    unused = 1.0 - log.level_w[wanting, -1] / limit_w[wanting]
    return round(100.0 * float(unused.mean()), 3)


def _over_shed(scenario: BenchScenario, log: RunLog) -> float | None:
    """Mean draw below the lowered limit during the event, in percent of the limit before it."""
    if scenario.event_s is None:
        return None
    limit_w = scenario.limit_w[:, -1]
    lowest = np.flatnonzero(limit_w <= limit_w.min() * (1 + 1e-9))
    held = lowest[lowest >= lowest[0] + int(scenario.response_s)]
    if not len(held):
        return None
    short_w = limit_w[held] - log.level_w[held, -1]
    return round(100.0 * float(short_w.mean()) / float(limit_w.max()), 3)


def _snap_back(scenario: BenchScenario, log: RunLog) -> float | None:
    """The highest draw after the event above the limit before it, in percent; 0 is none."""
    if scenario.event_s is None:
        return None
    limit_w = scenario.limit_w[:, -1]
    last = int(np.flatnonzero(limit_w <= limit_w.min() * (1 + 1e-9))[-1])
    after_w = log.level_w[last + 1 :, -1]
    return round(max(100.0 * float(after_w.max() / limit_w.max() - 1.0), 0.0), 3)


def _changes(log: RunLog) -> float:
    """Changes of caps in force per device and minute."""
    moved = np.abs(np.diff(log.cap_w, axis=0)) > 0.5
    return float(moved.sum() / moved.shape[1] / (len(log.cap_w) / 60.0))


def progress(scenario: BenchScenario, draw_w: Floats) -> Floats:
    """Seconds' worth of full-speed work of each device (N,) at `draw_w` (T, N)."""
    idle_w = scenario.room.idle_w
    span_w = np.maximum(scenario.demand_w - idle_w, 1.0)
    exponent = scenario.exponent[scenario.job]
    return np.asarray(np.power(np.clip((draw_w - idle_w) / span_w, 0, 1), exponent).sum(axis=0))


def oracle_draw(scenario: BenchScenario) -> Floats:
    """The draws (T, N) of most progress within the limits, with no lag, floor or fault in the way.

    Limits are those that other load and the parts that no cap acts on leave.

    Equal marginal progress across devices (the condition of optimality): with rate (x / d)^a a
    device of span d gets x = (price * d^a / a)^(-1 / (1 - a)), at most d; the price is found by
    bisection at every level.
    """
    idle_w, fleet = scenario.room.idle_w, scenario.room.fleet
    given_w = np.maximum(scenario.demand_w - idle_w, 1.0)
    span_w = given_w.copy()
    # From the lowest levels up, each bounded by what those below it let through: the condition of
    # optimality holds at every one of them, because what fits into a tree is a polymatroid.
    capping = scenario.room.capping
    rest_w = np.broadcast_to(np.asarray(capping.rest_w, dtype=np.float64), (fleet.size,))
    share = float(np.mean(capping.rest_share))
    limit_w = (scenario.limit_w - scenario.other_w() - fleet.levels(rest_w)) / (1.0 + share)
    for number, rows in enumerate(fleet.rows):
        if not len(rows):
            continue
        left_w = limit_w[:, number] - idle_w[rows].sum()
        exponent = scenario.exponent[scenario.job[rows]]
        given_w[:, rows] = _priced(span_w[:, rows], given_w[:, rows], exponent, left_w)
    return np.asarray(idle_w + given_w)


def _priced(span_w: Floats, most_w: Floats, exponent: Floats, left_w: Floats) -> Floats:
    """Draw above idle (T, n), at most `most_w`, of most progress within `left_w` (T,)."""
    power = 1.0 / (1.0 - exponent)
    # Logarithms of prices: devices' prices of their first watt lie decades apart.
    weight = power * (np.log(exponent) - exponent * np.log(span_w))
    low, high = np.full(len(span_w), -60.0), np.full(len(span_w), 60.0)
    for _ in range(70):
        price = 0.5 * (low + high)
        fits = np.minimum(np.exp(weight - power * price[:, None]), most_w).sum(axis=1) <= left_w
        low, high = np.where(fits, low, price), np.where(fits, price, high)
    return np.asarray(np.minimum(np.exp(weight - power * high[:, None]), most_w))


def jain(shares: Floats) -> float:
    """Jain's fairness index of `shares` (n,): 1 when all are equal, 1 / n when one has all."""
    squares = float(np.square(shares).sum())
    return float(shares.sum()) ** 2 / (len(shares) * squares) if squares else 1.0


def recovered_s(scenario: BenchScenario, log: RunLog, calm: RunLog, end_s: float) -> int | None:
    """Seconds after the fault's end until draw stays within 2 % of the limit of the calm run's.

    Means of ten seconds are compared; None where it does not happen before the end of the run.
    """
    start = int(np.ceil(end_s))
    width_w = RECOVERED * scenario.limit_w[start:, -1]
    kernel = np.ones(HOLD_S) / HOLD_S
    gap_w = np.convolve((calm.level_w - log.level_w)[start:, -1], kernel, mode="valid")
    bad = np.flatnonzero(gap_w > width_w[: len(gap_w)])
    if not len(bad):
        return 0
    last = int(bad[-1]) + 1
    return last if last < len(gap_w) else None

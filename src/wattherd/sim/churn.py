"""Pods that arrive and leave: what a policy is worth once the cluster breathes.

The published experiments only ever add pods. Here every pod leaves after its run time, so that
holes open where the policy put them, and what counts are averages over time.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from wattherd.engine.placement.placer import Placer
from wattherd.model.allocation import Allocation
from wattherd.model.job import Request

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnRequest:
    """A request that arrives at `at_s` and, if it finds room, stays for `stay_s`."""

    request: Request
    at_s: float
    stay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnTimeline:
    """State after each of E events (arrivals and departures), and each visit's fate (V,)."""

    time_s: Floats
    used_milli: Ints
    fragment_milli: Floats
    power_w: Floats
    admitted: NDArray[np.bool_]

    def mean_after(self, start_s: float, values: NDArray[np.generic]) -> float:
        """Average over time of a step function, from `start_s` to the last event.

        Where no time passes in between, the last value.
        """
        upto = np.append(self.time_s[1:], self.time_s[-1])
        held = np.maximum(upto - np.maximum(self.time_s, start_s), 0.0)
        if not held.any():
            return float(values[-1])
        return float(np.average(values.astype(np.float64), weights=held))


def steady_visits(
    requests: Sequence[Request],
    stays_s: Floats,
    *,
    capacity_milli: int,
    load: float,
    arrivals: int,
    rng: Generator,
) -> list[ChurnRequest]:
    """A cluster in full swing, then Poisson arrivals that keep offering `load` of its GPUs.

    The visits present at the start are drawn as a random moment would find them: each kind in
    proportion to how long it stays, with a uniform share of its stay left. Without them the long
    run times of real traces (mean 48 times the median) would take months to build up. Later
    requests and their stays are drawn together, uniformly; their rate follows from Little's law:
    rate x mean(GPU milli x stay) = load x capacity.
    """
    milli = np.array([request.total_gpu_milli for request in requests], dtype=np.float64)
    present = _residents(milli, stays_s, load * capacity_milli, rng)
    left_s = stays_s[present] * rng.random(len(present))
    rate_hz = load * capacity_milli / float(np.mean(milli * stays_s))
    later_s = np.cumsum(rng.exponential(1 / rate_hz, size=arrivals))
    picks = rng.integers(len(requests), size=arrivals)
    rows = np.concatenate([present, picks]).tolist()
    at_s = np.concatenate([np.zeros(len(present)), later_s]).tolist()
    stay_s = np.concatenate([left_s, stays_s[picks]]).tolist()
    return [
        ChurnRequest(request=requests[row], at_s=at, stay_s=stay)
        for row, at, stay in zip(rows, at_s, stay_s, strict=True)
    ]


def _residents(milli: Floats, stays_s: Floats, demand_milli: float, rng: Generator) -> Ints:
    """Rows of the visits found at a random moment, together asking for `demand_milli`."""
    share = stays_s / stays_s.sum()
    expected = float(share @ milli)
    drawn = rng.choice(len(milli), size=int(2 * demand_milli / expected) + 100, p=share)
    count = int(np.searchsorted(np.cumsum(milli[drawn]), demand_milli))
    return np.asarray(drawn[:count], dtype=np.int64)


def churn(placer: Placer, visits: Sequence[ChurnRequest]) -> ChurnTimeline:
    """Admit `visits` (ascending in time) as they come; pods leave when their stay is over.

    A pod that finds no room is lost, as in the published experiments. At equal times departures
    come first.
    """
    state = placer.state
    leaving: list[tuple[float, int, Allocation]] = []
    events: list[tuple[float, int, float, float]] = []
    admitted = np.zeros(len(visits), dtype=np.bool_)

    def note(now: float) -> None:
        power_w = state.cpu_power_w + state.gpu_power_w
        events.append((now, state.used_gpu_milli, state.fragment_gpu_milli, power_w))

    for number, visit in enumerate(visits):
        while leaving and leaving[0][0] <= visit.at_s:
            now, _, gone = heapq.heappop(leaving)
            state.release(gone)
            note(now)
        allocation = placer.place_one(visit.request)
        if allocation is not None:
            admitted[number] = True
            heapq.heappush(leaving, (visit.at_s + visit.stay_s, number, allocation))
        note(visit.at_s)
    table = np.array(events)
    return ChurnTimeline(
        time_s=table[:, 0],
        used_milli=table[:, 1].astype(np.int64),
        fragment_milli=table[:, 2],
        power_w=table[:, 3],
        admitted=admitted,
    )

"""What Gavel optimises: the question put to a solver, or an answer that needs none.

Rows are jobs in order of arrival, columns worker types in alphabetical order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from wattherd.policy.schedule.gavel_lp import isolated_rates

FIFO = "fifo"


@dataclass(frozen=True, slots=True)
class GavelApplicant:
    """A job as the goals see it; `rates` are steps per second by worker type."""

    job_id: str
    rates: tuple[float, ...]
    scale: int
    weight: float
    left: int
    elapsed_s: float


@dataclass(slots=True)
class IsolatedTime:
    """How long jobs would have taken so far, each in an nth of the cluster by itself.

    n changes with every allocation, so the time is summed up stretch by stretch: steps done since
    the last one, at the rate that held then (Gavel's released finish-time fairness).
    """

    spent_s: dict[str, float] = field(default_factory=dict)
    before: dict[str, tuple[int, float]] = field(default_factory=dict)

    def total_s(self, applicants: Sequence[GavelApplicant], gpus: Sequence[int]) -> list[float]:
        """Past and future seconds of each job, now that there are so many."""
        rates = isolated_rates(
            np.array([one.rates for one in applicants]),
            np.array([one.scale for one in applicants], dtype=np.float64),
            np.array(gpus, dtype=np.float64),
        ).tolist()
        totals = []
        before, spent_s = self.before, self.spent_s
        self.before, self.spent_s = {}, {}
        for one, rate in zip(applicants, rates, strict=True):
            left, then = before.get(one.job_id, (one.left, rate))
            passed_s = spent_s.get(one.job_id, 0.0) + (left - one.left) / then
            self.spent_s[one.job_id], self.before[one.job_id] = passed_s, (one.left, rate)
            totals.append(passed_s + one.left / rate)
        return totals


class TimeAlone(Protocol):
    """Says how long jobs would take in all, each in an nth of the cluster by itself."""

    def total_s(self, applicants: Sequence[GavelApplicant], gpus: Sequence[int]) -> list[float]:
        """Past and future seconds of each job."""
        ...


def question(
    goal: str, applicants: Sequence[GavelApplicant], gpus: Sequence[int], alone: TimeAlone
) -> dict[str, Any]:
    """The payload of `gavel_lp.solve`."""
    payload: dict[str, Any] = {
        "goal": goal,
        "rates": [list(one.rates) for one in applicants],
        "scale": [one.scale for one in applicants],
        "weights": [one.weight for one in applicants],
        "gpus": list(gpus),
    }
    if goal in ("makespan", "ftf"):
        payload["steps"] = [one.left for one in applicants]
    if goal == "ftf":
        payload["elapsed_s"] = [one.elapsed_s for one in applicants]
        payload["isolated_s"] = alone.total_s(applicants, gpus)
    return payload


def fifo(applicants: Sequence[GavelApplicant], gpus: Sequence[int]) -> Mapping[str, list[float]]:
    """All of its time on the fastest type that has room, job by job, until one finds no room.

    Gavel's performance-aware FIFO: nobody overtakes, and every allocation starts from nothing.
    """
    room = list(gpus)
    shares = {one.job_id: [0.0] * len(gpus) for one in applicants}
    for one in applicants:
        fitting = [j for j, free in enumerate(room) if free >= one.scale]
        if not fitting:
            break
        fastest = max(fitting, key=lambda j: one.rates[j])
        if one.rates[fastest] > 0:
            shares[one.job_id][fastest] = 1.0
            room[fastest] -= one.scale
    return shares

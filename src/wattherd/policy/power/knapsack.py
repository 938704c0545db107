"""One choice per job within one budget, worth most: the multiple-choice knapsack problem.

The linear relaxation gives a bound and a price per watt; choices whose reduced worth cannot reach
the best known solution are dropped, and what remains is searched by Pareto sets of (watts, worth)
(after Pisinger, 1995). The search is limited by counted states, not by time: when they run out the
best solution found so far stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattherd.estimate.measured_curve import Choice
from wattherd.policy.power.pieces import SLACK_W, Floats

MOST_STATES = 4_000_000
_EPSILON = 1e-12


@dataclass(frozen=True, slots=True)
class Relaxed:
    """The bound and the price of a watt at which it is reached."""

    bound: float
    price: float


def refined(
    jobs: Sequence[Sequence[Choice]], budget_w: float, relaxed: Relaxed, known: Sequence[int]
) -> list[int]:
    """A choice per job worth at least as much as `known`, the most if states suffice."""
    least = sum(choices[at].value for choices, at in zip(jobs, known, strict=True))
    kept = [_worthwhile(choices, relaxed, least) for choices in jobs]
    fixed_w = sum(jobs[job][at[0]].watts for job, at in enumerate(kept) if len(at) == 1)
    open_jobs = [job for job, at in enumerate(kept) if len(at) > 1]
    if any(not at for at in kept) or not open_jobs:
        return list(known)
    found = _search(jobs, kept, open_jobs, budget_w - fixed_w, relaxed.price, known)
    if found is None:
        return list(known)
    chosen = [at[0] if at else 0 for at in kept]
    for job, at in zip(open_jobs, found, strict=True):
        chosen[job] = at
    better = sum(choices[at].value for choices, at in zip(jobs, chosen, strict=True))
    return chosen if better > least else list(known)


def _worthwhile(choices: Sequence[Choice], relaxed: Relaxed, least: float) -> list[int]:
    """Choices that may stand in a solution better than `least`."""
    reduced = [one.value - relaxed.price * one.watts for one in choices]
    best = max(reduced)
    return [
        at for at, worth in enumerate(reduced) if relaxed.bound - (best - worth) > least - _EPSILON
    ]


@dataclass(slots=True)
class _Layer:
    """Pareto states after one job, by watts: their worth, which came before, what the job took."""

    watts: Floats
    worth: Floats
    before: np.ndarray
    took: np.ndarray


def _search(
    jobs: Sequence[Sequence[Choice]],
    kept: Sequence[Sequence[int]],
    open_jobs: Sequence[int],
    room_w: float,
    price: float,
    known: Sequence[int],
) -> list[int] | None:
    """Choices of the open jobs worth most within `room_w`; None if states ran out."""
    least = sum(jobs[job][known[job]].value for job in open_jobs)
    rest = _rest(jobs, kept, open_jobs, price)
    layers: list[_Layer] = []
    watts, worth, states = np.zeros(1), np.zeros(1), 0
    for number, job in enumerate(open_jobs):
        layer = _extended(watts, worth, [(at, jobs[job][at]) for at in kept[job]])
        hopeful = layer.worth + price * (room_w - layer.watts) + rest[number + 1] >= least - 1e-9
        keep = np.flatnonzero(hopeful & (layer.watts <= room_w + SLACK_W))
        keep = keep[_pareto(layer.watts[keep], layer.worth[keep])]
        layer = _Layer(layer.watts[keep], layer.worth[keep], layer.before[keep], layer.took[keep])
        states += len(keep)
        if not len(keep) or states > MOST_STATES:
            return None
        layers.append(layer)
        watts, worth = layer.watts, layer.worth
    return _traced(layers, int(np.argmax(worth)))


def _rest(
    jobs: Sequence[Sequence[Choice]],
    kept: Sequence[Sequence[int]],
    open_jobs: Sequence[int],
    price: float,
) -> list[float]:
    """The most that jobs number n and later add to worth less price x watts."""
    rest = [0.0]
    for job in reversed(open_jobs):
        rest.append(
            rest[-1] + max(jobs[job][at].value - price * jobs[job][at].watts for at in kept[job])
        )
    return rest[::-1]


def _extended(watts: Floats, worth: Floats, options: Sequence[tuple[int, Choice]]) -> _Layer:
    """Every state with every choice of one more job."""
    count = len(watts)
    return _Layer(
        np.concatenate([watts + one.watts for _, one in options]),
        np.concatenate([worth + one.value for _, one in options]),
        np.tile(np.arange(count), len(options)),
        np.repeat([at for at, _ in options], count),
    )


def _pareto(watts: Floats, worth: Floats) -> np.ndarray:
    """Indices of states that no other beats, by watts."""
    order = np.lexsort((-worth, watts))
    best = np.maximum.accumulate(worth[order])
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = worth[order][1:] > best[:-1] + _EPSILON
    return order[new]


def _traced(layers: Sequence[_Layer], state: int) -> list[int]:
    taken = []
    for layer in reversed(layers):
        taken.append(int(layer.took[state]))
        state = int(layer.before[state])
    return taken[::-1]

"""Dominant resource fairness (Ghodsi et al., NSDI'11): the fair share over several resources.

A user's dominant share is the largest part that he holds of any resource, each divided by his
weight for it. Whoever has the least dominant share is served next. Where every task of a user is
alike this is strategy-proof, envy-free and Pareto-efficient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wattherd.errors import UserError

Vector = Sequence[float]
"""One number per resource, always in the same order."""


def dominant_share(held: Vector, capacity: Vector, weights: Vector | None = None) -> float:
    """Max over r of held_r / (w_r C_r); a resource that nobody has does not count (section 4)."""
    weighing = weights or [1.0] * len(capacity)
    return max(
        (
            have / (weight * whole)
            for have, whole, weight in zip(held, capacity, weighing, strict=True)
            if whole > 0
        ),
        default=0.0,
    )


@dataclass(slots=True)
class ProgressiveFilling:
    """Progressive filling: what is left, what everybody holds, and how many tasks run."""

    left: list[float]
    held: dict[str, list[float]]
    tasks: dict[str, int]
    saturated: dict[str, None] = field(default_factory=dict)


def progressive_filling(
    capacity: Vector,
    demands: Mapping[str, Vector],
    weights: Mapping[str, Vector] | None = None,
) -> dict[str, int]:
    """How many tasks of each user run, every user having any number of equal tasks (Algorithm 1).

    Among equal shares the user who comes first in `demands` is served.

    Raises:
        UserError: a task needs nothing, or a weight is not above zero.
    """
    _check(demands, weights or {})
    held = {user: [0.0] * len(capacity) for user in demands}
    state = ProgressiveFilling(list(capacity), held, dict.fromkeys(demands, 0))
    while len(state.saturated) < len(demands):
        user = min(
            (user for user in demands if user not in state.saturated),
            key=lambda user: dominant_share(state.held[user], capacity, (weights or {}).get(user)),
        )
        _offer(state, user, demands[user])
    return state.tasks


def _offer(state: ProgressiveFilling, user: str, demand: Vector) -> None:
    """Start one more task of `user`, or note that none fits."""
    if any(need > left for need, left in zip(demand, state.left, strict=True)):
        state.saturated[user] = None
        return
    for r, need in enumerate(demand):
        state.left[r] -= need
        state.held[user][r] += need
    state.tasks[user] += 1


def _check(demands: Mapping[str, Vector], weights: Mapping[str, Vector]) -> None:
    for user, demand in demands.items():
        if not any(need > 0 for need in demand) or any(need < 0 for need in demand):
            problem = f"a task that needs {list(demand)} has no share"
            raise UserError(problem, where=f"user {user}", field="demand", hint="above zero")
    for user, weighing in weights.items():
        if not all(weight > 0 for weight in weighing):
            problem = f"{list(weighing)} are no weights"
            raise UserError(problem, where=f"user {user}", field="weight", hint="above zero")

"""`power allocate`: measured curves and a budget in, a cap per job out (`wattherd.allocate/1`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wattherd.errors import UserError
from wattherd.estimate.measured_curve import Choice, Count, JobCurve
from wattherd.model.power_tree import PowerTree
from wattherd.policy.power.allocation import Limits, bound, one_budget, tree_limits
from wattherd.policy.power.rules import RULES, Chosen, Question
from wattherd.spelling import hint_for

SCHEMA = "wattherd.allocate/1"
MILP = "milp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Under which budgets, and how watts count; `paused_w` allows pausing at that draw."""

    budget_w: float | None
    tree: PowerTree | None = None
    count: Count = Count.DRAW
    paused_w: float | None = None

    def limits(self, curves: Sequence[JobCurve]) -> Limits:
        """The budgets above each job.

        Raises:
            UserError: neither a budget nor a tree, or a job on no branch of it.
        """
        if self.tree is None:
            if self.budget_w is None:
                raise UserError("no budget", field="--budget", hint="say --budget 12kW or --tree")
            return one_budget(len(curves), self.budget_w)
        root = next(one.name for one in self.tree.domains if one.parent is None)
        tree = self.tree if self.budget_w is None else _at_most(self.tree, root, self.budget_w)
        return tree_limits(tree, [curve.domain or root for curve in curves])


def _at_most(tree: PowerTree, root: str, budget_w: float) -> PowerTree:
    """The tree with no more than `budget_w` at its root."""
    from dataclasses import replace

    return PowerTree(
        tuple(
            replace(one, budget_w=budget_w if one.budget_w is None else min(one.budget_w, budget_w))
            if one.name == root
            else one
            for one in tree.domains
        )
    )


def rule(name: str) -> Any:
    """A way to choose, by name.

    Raises:
        UserError: no such name.
    """
    if name == MILP:
        from wattherd.service.allocate_milp import exact

        return exact
    if name not in RULES:
        hint = hint_for(name, [*RULES, MILP])
        raise UserError(f"unknown policy {name!r}", field="--policy", hint=hint)
    return RULES[name]


def allocation(curves: Sequence[JobCurve], terms: Terms, policy: str) -> dict[str, Any]:
    """The document of one allocation.

    Raises:
        UserError: the budget does not hold the least of all jobs, or a name is unknown.
    """
    choices = [curve.choices(terms.count, paused_w=terms.paused_w) for curve in curves]
    question = Question(curves=curves, choices=choices, limits=terms.limits(curves))
    most = bound(choices, question.limits)
    chosen: Chosen = rule(policy)(question)
    weight = sum(curve.weight for curve in curves)
    taken = [one[at] for one, at in zip(choices, chosen, strict=True)]
    return {
        "schema": SCHEMA,
        "policy": policy,
        "count": str(terms.count),
        "budget_w": terms.budget_w,
        "total_w": sum(one.watts for one in taken),
        "objective": sum(one.value for one in taken) / weight,
        "bound": most / weight,
        "jobs": [_job(curve, one) for curve, one in zip(curves, taken, strict=True)],
    }


def _job(curve: JobCurve, taken: Choice) -> dict[str, Any]:
    point = taken.point
    return {
        "job": curve.job,
        "weight": curve.weight,
        "domain": curve.domain or None,
        "cap_w": point.cap_w if point else None,
        "power_w": point.power_w if point else taken.watts,
        "rate": point.rate if point else 0.0,
        "relative_rate": taken.value / curve.weight,
        "paused": point is None,
    }

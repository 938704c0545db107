"""`power allocate`: measured curves and a budget in, a cap per job out (`wattherd.allocate/1`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from wattherd.errors import UserError
from wattherd.estimate.measured_curve import CountedWatts, CurveChoice, JobCurve
from wattherd.model.power_tree import PowerTree
from wattherd.policy.power.allocation import Allocator, DomainRoom, one_budget, tree_limits
from wattherd.policy.power.market import equilibrium
from wattherd.policy.power.rules import PAUSING, RULES, ChoiceProblem, Chosen
from wattherd.spelling import hint_for

SCHEMA = "wattherd.allocate/1"
ORACLES = ("lp", "milp")
Rule = Callable[[ChoiceProblem], Chosen]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationTerms:
    """Under which budgets, and how watts count; `paused_w` allows pausing at that draw."""

    budget_w: float | None
    tree: PowerTree | None = None
    count: CountedWatts = CountedWatts.DRAW
    paused_w: float | None = None

    def limits(self, curves: Sequence[JobCurve]) -> DomainRoom:
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
        _check_fed(tree, curves)
        return tree_limits(tree, [curve.domain or root for curve in curves])


def _check_fed(tree: PowerTree, curves: Sequence[JobCurve]) -> None:
    known = [one.name for one in tree.domains]
    for curve in curves:
        if curve.domain and curve.domain not in known:
            problem = f"the tree has no domain {curve.domain!r}"
            hint = hint_for(curve.domain, known)
            raise UserError(problem, where=f"job {curve.job}", field="domain", hint=hint)


def _at_most(tree: PowerTree, root: str, budget_w: float) -> PowerTree:
    """The tree with no more than `budget_w` at its root."""
    return PowerTree(
        tuple(
            replace(one, budget_w=budget_w if one.budget_w is None else min(one.budget_w, budget_w))
            if one.name == root
            else one
            for one in tree.domains
        )
    )


def rule(name: str) -> Rule:
    """A way to choose, by name; `rl:FILE` is a trained policy.

    Raises:
        UserError: no such name, or a file that is no policy.
    """
    if name in ORACLES:
        from wattherd.experiments.allocate.milp import exact, relaxed

        return exact if name == "milp" else relaxed
    if name.startswith("rl:"):
        from wattherd.experiments.allocate.rl import LearnedRule

        return LearnedRule(Path(name.removeprefix("rl:")))
    if name not in RULES:
        hint = hint_for(name, [*RULES, *ORACLES, "rl:FILE"])
        raise UserError(f"unknown policy {name!r}", field="--policy", hint=hint)
    return RULES[name]


def allocation(curves: Sequence[JobCurve], terms: AllocationTerms, policy: str) -> dict[str, Any]:
    """The document of one allocation.

    Raises:
        UserError: the budget does not hold the least of all jobs, or a name is unknown.
    """
    choose = rule(policy)
    question = asked(curves, terms, pausing=policy in PAUSING)
    chosen = choose(question)
    weight = sum(curve.weight for curve in curves)
    taken = [one[at] for one, at in zip(question.choices, chosen, strict=True)]
    document = {
        "schema": SCHEMA,
        "policy": policy,
        "count": str(terms.count),
        "budget_w": terms.budget_w,
        "total_w": math.fsum(one.watts for one in taken),
        "objective": math.fsum(one.value for one in taken) / weight,
        **_optimum(question, weight),
        "jobs": [_job(curve, one) for curve, one in zip(curves, taken, strict=True)],
    }
    if policy == "nash":
        document["market"] = _market(question, taken)
    return document


def asked(
    curves: Sequence[JobCurve], terms: AllocationTerms, *, pausing: bool = False
) -> ChoiceProblem:
    """What is to be allocated; `pausing` allows it at no watts where the terms do not."""
    paused_w = 0.0 if pausing and terms.paused_w is None else terms.paused_w
    choices = [curve.choices(terms.count, paused_w=paused_w) for curve in curves]
    return ChoiceProblem(curves=curves, choices=choices, limits=terms.limits(curves))


def _optimum(question: ChoiceProblem, weight: float) -> dict[str, Any]:
    """What fractions of choices could reach, and what one more watt of each budget would add."""
    allocator = Allocator(question.menu, question.limits)
    filling, room_w = allocator.filling, question.limits.room_w
    most = filling.value(filling.served(filling.room(room_w)))
    prices = allocator.prices(room_w) / weight
    return {"bound": most / weight, "prices_per_w": _by_domain(question.limits, prices)}


def _by_domain(limits: DomainRoom, prices: np.ndarray) -> dict[str, float]:
    return dict(zip(limits.names, prices.tolist(), strict=True))


def _market(question: ChoiceProblem, taken: Sequence[CurveChoice]) -> dict[str, Any]:
    """The market in which caps between measured ones are reached by spending time at both."""
    weight = question.weight
    found = equilibrium(question.menu, question.limits, weight)
    rates = np.array([one.value for one in taken]) / weight
    return {
        "geometric_mean": math.exp(float(weight @ np.log(rates)) / weight.sum()),
        "bound": math.exp(found.welfare),
        "prices_per_w": _by_domain(question.limits, found.price),
        "jobs": [
            {
                "job": curve.job,
                "power_w": watts,
                "relative_rate": rate,
                "price_per_w": price,
                "paid": price * watts,
            }
            for curve, watts, rate, price in zip(
                question.curves,
                found.watts.tolist(),
                found.rate.tolist(),
                found.job_price.tolist(),
                strict=True,
            )
        ],
    }


def _job(curve: JobCurve, taken: CurveChoice) -> dict[str, Any]:
    point = taken.point
    row = {
        "job": curve.job,
        "weight": curve.weight,
        "priority": curve.priority,
        "domain": curve.domain or None,
        "cap_w": point.cap_w if point else None,
        "power_w": point.power_w if point else taken.watts,
        "rate": point.rate if point else 0.0,
        "relative_rate": taken.value / curve.weight,
        "paused": point is None,
    }
    if curve.work is not None:
        row["energy_j"] = curve.energy_j(point) if point else None
        row["energy_budget_j"] = curve.energy_budget_j
    if point is not None and point.setting is not None:
        row["batch_size"] = point.setting.batch_size
        row["accumulation"] = point.setting.accumulation
        row["layout"] = point.setting.layout or None
    return row

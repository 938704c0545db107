"""Every way to choose caps, on random trees: budgets, floors, and what each of them maximises."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from power_questions import FEW, JOBS, best_by_trying_all, question, trees, value_of, values

from effort import times
from wattherd.errors import UserError
from wattherd.estimate.measured_curve import JobCurve
from wattherd.model.power_tree import PowerTree
from wattherd.policy.power.allocation import allocate, bound, tree_limits
from wattherd.policy.power.rules import RULES, ChoiceProblem, fits


def asked_of(jobs: list[JobCurve], tree: PowerTree, *, pause: bool = False) -> ChoiceProblem:
    return question(jobs, tree_limits(tree, [one.domain for one in jobs]), pause=pause)


def over_w(asked: ChoiceProblem, chosen: Sequence[int], tree: PowerTree) -> float:
    """Most watts above any budget, reckoned from the tree alone: losses as watts climb."""
    load_w = dict.fromkeys((one.name for one in tree.domains), 0.0)
    by_name = {one.name: one for one in tree.domains}
    for curve, choices, number in zip(asked.curves, asked.choices, chosen, strict=True):
        at: str | None = curve.domain
        watts = choices[number].watts
        while at is not None:
            watts /= 1.0 - by_name[at].loss
            load_w[at] += watts
            at = by_name[at].parent
    limited = [one for one in tree.domains if one.budget_w is not None]
    return max(load_w[one.name] - (one.budget_w or 0.0) for one in limited)


@given(JOBS, trees(), st.booleans(), st.sampled_from(sorted(RULES)))
def test_no_branch_of_a_tree_is_ever_exceeded_and_every_cap_is_within_its_range(
    jobs: list[JobCurve], tree: PowerTree, pause: bool, rule: str
) -> None:
    asked = asked_of(jobs, tree, pause=pause)
    if over_w(asked, [0] * len(jobs), tree) > 2e-6:
        with pytest.raises(UserError):
            allocate(asked.choices, asked.limits)
        return
    try:
        chosen = RULES[rule](asked)
    except UserError:
        # Nash pauses nobody: it needs more than the least.
        assert rule == "nash"
        assert pause
        return
    assert over_w(asked, chosen, tree) <= 2e-6
    for curve, choices, at in zip(asked.curves, asked.choices, chosen, strict=True):
        point = choices[at].point
        if point is None:
            assert pause
        else:
            assert curve.floor_w <= point.cap_w <= max(one.cap_w for one in curve.points)
    assert value_of(asked, chosen) <= bound(asked.choices, asked.limits) + 1e-6


def log_welfare(asked: ChoiceProblem, chosen: Sequence[int]) -> float:
    pairs = zip(asked.curves, values(asked, chosen), strict=True)
    return sum(curve.weight * math.log(value / curve.weight) for curve, value in pairs)


def ascending(asked: ChoiceProblem, chosen: Sequence[int]) -> list[float]:
    """Relative rates, the least first: what leximin compares."""
    pairs = zip(asked.curves, values(asked, chosen), strict=True)
    return sorted(value / curve.weight for curve, value in pairs)


def by_tier(asked: ChoiceProblem, chosen: Sequence[int]) -> list[float]:
    """Worth of each tier, the highest first."""
    tiers = sorted({curve.priority for curve in asked.curves}, reverse=True)
    return [
        round(
            sum(
                value
                for curve, value in zip(asked.curves, values(asked, chosen), strict=True)
                if curve.priority == tier
            ),
            9,
        )
        for tier in tiers
    ]


GOALS: dict[str, Callable[[ChoiceProblem, Sequence[int]], Any]] = {
    "water-filling": value_of,
    "nash": log_welfare,
    "max-min": ascending,
    "tiers": by_tier,
}


def nearly(one: Any) -> list[float]:
    return [round(value, 6) for value in (one if isinstance(one, list) else [one])]


def rates_differ(asked: ChoiceProblem) -> bool:
    """Whether no two jobs' points have the same relative rate, the best ones aside."""
    below = [
        round(one.value / curve.weight, 9)
        for curve, choices in zip(asked.curves, asked.choices, strict=True)
        for one in choices[:-1]
    ]
    return len(set(below)) == len(below)


@pytest.mark.parametrize("rule", GOALS)
@settings(max_examples=times(100))
@given(jobs=FEW, tree=trees())
def test_each_rule_reaches_the_most_of_what_it_is_for(
    rule: str, jobs: list[JobCurve], tree: PowerTree
) -> None:
    asked = asked_of(jobs, tree)
    assume(fits(asked, [0] * len(jobs)))
    assume(rule != "max-min" or rates_differ(asked))
    chosen = RULES[rule](asked)
    best = best_by_trying_all(asked, GOALS[rule])
    assert nearly(GOALS[rule](asked, chosen)) == pytest.approx(nearly(best), abs=2e-6)


@pytest.mark.parametrize("rule", GOALS)
@settings(max_examples=times(60))
@given(jobs=JOBS, tree=trees(), factor=st.floats(1.0, 1.5))
def test_more_budget_never_lowers_what_a_rule_is_for(
    rule: str, jobs: list[JobCurve], tree: PowerTree, factor: float
) -> None:
    less = asked_of(jobs, tree)
    assume(fits(less, [0] * len(jobs)))
    assume(rule != "max-min" or rates_differ(less))
    more = question(jobs, less.limits.with_room(factor * less.limits.room_w))
    low, high = (GOALS[rule](one, RULES[rule](one)) for one in (less, more))
    assert nearly(low) <= nearly(high) or nearly(low) == pytest.approx(nearly(high), abs=2e-6)


@pytest.mark.parametrize("rule", ["water-filling", "nash", "max-min", "tiers", "priority"])
@given(jobs=JOBS, tree=trees())
def test_nobody_can_be_raised_without_lowering_another(
    rule: str, jobs: list[JobCurve], tree: PowerTree
) -> None:
    """Pareto efficiency: whoever is no worse off in every job takes no fewer watts in any."""
    asked = asked_of(jobs, tree)
    assume(fits(asked, [0] * len(jobs)))
    chosen = RULES[rule](asked)
    limits, menu = asked.limits, asked.menu
    room_w = limits.room_w - limits.load_w(menu.watts[menu.least + chosen])
    for job, headroom_w in enumerate(limits.headroom_w(room_w).tolist()):
        higher = asked.choices[job][chosen[job] + 1 : chosen[job] + 2]
        for one in higher:
            assert one.watts - asked.choices[job][chosen[job]].watts > headroom_w - 1e-6


@given(JOBS, trees(), st.floats(1.0, 1.5))
def test_priority_serves_in_order_whatever_the_budget(
    jobs: list[JobCurve], tree: PowerTree, factor: float
) -> None:
    """Lexicographically more for the first, then the second, and so on."""
    less = asked_of(jobs, tree)
    assume(fits(less, [0] * len(jobs)))
    more = question(jobs, less.limits.with_room(factor * less.limits.room_w))
    order = sorted(range(len(jobs)), key=lambda job: (-jobs[job].priority, -jobs[job].weight, job))
    low, high = (values(one, RULES["priority"](one)) for one in (less, more))
    assert [low[job] for job in order] <= [high[job] for job in order]

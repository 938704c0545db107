"""Sharing watts among measured curves: never above a budget, as near to the best as can be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from power_questions import JOBS, best_by_trying_all, curves, question, trees, value_of

from effort import times
from wattherd.estimate.measured_curve import JobCurve
from wattherd.model.power_tree import PowerTree
from wattherd.policy.power.allocation import (
    Allocator,
    DomainRoom,
    allocate,
    bound,
    one_budget,
    tree_limits,
)
from wattherd.policy.power.rules import ChoiceProblem, fits


@settings(max_examples=times(200))
@given(st.lists(curves(), min_size=1, max_size=4), st.floats(100, 1500), st.booleans())
def test_one_budget_is_used_as_well_as_can_be(
    jobs: list[JobCurve], budget_w: float, pause: bool
) -> None:
    used_as_well_as_can_be(question(jobs, one_budget(len(jobs), budget_w), pause=pause))


@settings(max_examples=times(200))
@given(st.lists(curves(), min_size=1, max_size=4), trees(), st.booleans())
def test_a_tree_with_losses_is_used_as_well_as_can_be(
    jobs: list[JobCurve], tree: PowerTree, pause: bool
) -> None:
    limits = tree_limits(tree, [one.domain for one in jobs])
    used_as_well_as_can_be(question(jobs, limits, pause=pause))


def used_as_well_as_can_be(asked: ChoiceProblem) -> None:
    if not fits(asked, [0] * len(asked.curves)):
        return
    chosen = allocate(asked.choices, asked.limits)
    assert fits(asked, chosen)
    best = best_by_trying_all(asked, value_of)
    assert value_of(asked, chosen) == pytest.approx(best, rel=1e-6, abs=1e-9)
    assert bound(asked.choices, asked.limits) >= best - 1e-9


@given(JOBS, trees(), st.floats(1.0, 1.5))
def test_more_budget_never_lowers_bound_or_choice(
    jobs: list[JobCurve], tree: PowerTree, factor: float
) -> None:
    limits = tree_limits(tree, [one.domain for one in jobs])
    less = question(jobs, limits, pause=True)
    more = question(jobs, limits.with_room(factor * limits.room_w), pause=True)
    low, high = (allocate(one.choices, one.limits) for one in (less, more))
    assert value_of(less, low) <= value_of(more, high) + 1e-9
    assert bound(less.choices, less.limits) <= bound(more.choices, more.limits) + 1e-9


def linear_optimum(asked: ChoiceProblem) -> float:
    """By HiGHS, from a matrix written down anew."""
    optimize = pytest.importorskip("scipy.optimize", reason="the judge is HiGHS in SciPy")
    limits, sizes = asked.limits, [len(one) for one in asked.choices]
    owner = np.repeat(np.arange(len(sizes)), sizes)
    values = np.array([one.value for choices in asked.choices for one in choices])
    watts = np.array([one.watts for choices in asked.choices for one in choices])
    load = np.zeros((len(limits.room_w), len(owner)))
    for column, job in enumerate(owner):
        for domain, scale in zip(limits.path[job], limits.scale[job], strict=True):
            if domain >= 0:
                load[domain, column] = watts[column] * scale
    each = (owner == np.arange(len(sizes))[:, None]).astype(float)
    found = optimize.linprog(
        -values, A_ub=load, b_ub=limits.room_w, A_eq=each, b_eq=np.ones(len(sizes)), method="highs"
    )
    assert found.status == 0
    return float(-found.fun)


@given(JOBS, trees())
def test_the_bound_of_a_tree_is_that_of_the_linear_program(
    jobs: list[JobCurve], tree: PowerTree
) -> None:
    """Greedy is optimal on nested budgets, losses or not: HiGHS finds nothing better."""
    asked = question(jobs, tree_limits(tree, [one.domain for one in jobs]), pause=True)
    ours = bound(asked.choices, asked.limits)
    assert ours == pytest.approx(linear_optimum(asked), rel=1e-6, abs=1e-7)


@given(JOBS, trees())
def test_prices_prove_the_bound(jobs: list[JobCurve], tree: PowerTree) -> None:
    """Duality: watts at their prices, and every job's best choice at these, add up to the bound."""
    asked = question(jobs, tree_limits(tree, [one.domain for one in jobs]), pause=True)
    limits, menu = asked.limits, asked.menu
    price = Allocator(menu, limits).prices(limits.room_w)
    assert (price >= 0).all()
    per_watt = (np.append(price, 0.0)[limits.path] * limits.scale).sum(axis=1)
    surplus = menu.value - per_watt[menu.job] * menu.watts
    dual = price @ limits.room_w + np.maximum.reduceat(surplus, menu.least).sum()
    assert dual == pytest.approx(bound(asked.choices, limits), rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("jobs", [1, 40, 700])
def test_large_trees_lose_little_by_rounding(jobs: int) -> None:
    """At most a piece per saturated branch."""
    draw = np.random.default_rng(jobs)
    size = 6 * jobs
    menu = question([], one_budget(0, 0.0)).menu
    menu = replace(
        menu,
        first=np.arange(0, size + 1, 6),
        job=np.repeat(np.arange(jobs), 6),
        watts=np.cumsum(draw.uniform(10, 60, (jobs, 6)), axis=1).ravel(),
        value=np.cumsum(draw.uniform(0.01, 0.3, (jobs, 6)), axis=1).ravel(),
    )
    rack = draw.integers(0, 10, jobs)
    path = np.stack([1 + rack, np.zeros(jobs, dtype=np.int64)], axis=1)
    full_w = menu.watts[menu.most]
    rooms = np.append(0.7 * full_w.sum(), 0.75 * np.bincount(rack, full_w, 10))
    limits = DomainRoom(rooms, path, np.ones(path.shape), tuple("sabcdefghij"))
    allocator = Allocator(menu, limits)
    rows = allocator.rows(rooms)
    given_w = allocator.filling.served(allocator.filling.room(rooms))
    assert (limits.load_w(menu.watts[rows]) <= rooms + 1e-6).all()
    lost = allocator.filling.value(given_w) - menu.value[rows].sum()
    assert -1e-9 <= lost <= 11 * 5 * 0.3

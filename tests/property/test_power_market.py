"""The market for watts: prices clear every branch, and nobody would buy anything else."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from power_questions import JOBS, question, trees

from effort import times
from wattherd.estimate.measured_curve import JobCurve
from wattherd.model.power_tree import PowerTree
from wattherd.policy.power.allocation import tree_limits
from wattherd.policy.power.market import Equilibrium, equilibrium
from wattherd.policy.power.rules import RULES, ChoiceProblem, fits


def market(jobs: list[JobCurve], tree: PowerTree) -> tuple[ChoiceProblem, Equilibrium]:
    asked = question(jobs, tree_limits(tree, [one.domain for one in jobs]))
    assume(fits(asked, [0] * len(jobs)))
    return asked, equilibrium(asked.menu, asked.limits, asked.weight)


@given(JOBS, trees())
def test_no_branch_sells_more_than_it_has_and_what_is_left_over_costs_nothing(
    jobs: list[JobCurve], tree: PowerTree
) -> None:
    asked, found = market(jobs, tree)
    load_w = asked.limits.load_w(found.watts)
    assert (load_w <= asked.limits.room_w + 1e-6).all()
    assert (found.price >= 0).all()
    idle = load_w < asked.limits.room_w - 1e-5
    assert (found.price[idle] == 0).all()


@given(JOBS, trees())
def test_a_job_pays_for_every_branch_above_it(jobs: list[JobCurve], tree: PowerTree) -> None:
    asked, found = market(jobs, tree)
    for job, (domains, scales) in enumerate(
        zip(asked.limits.path, asked.limits.scale, strict=True)
    ):
        bill = sum(found.price[d] * s for d, s in zip(domains, scales, strict=True) if d >= 0)
        assert found.job_price[job] == pytest.approx(bill, rel=1e-9, abs=1e-12)


@given(JOBS, trees(), st.floats(0, 1), st.randoms())
def test_at_these_prices_nobody_would_rather_buy_something_else(
    jobs: list[JobCurve], tree: PowerTree, share: float, chance: object
) -> None:
    """Against any mix of any two of its points."""
    asked, found = market(jobs, tree)
    for job, curve in enumerate(jobs):
        points = [(one.watts, one.value / curve.weight) for one in asked.choices[job]]
        one, two = chance.choice(points), chance.choice(points)
        watts, rate = (share * a + (1 - share) * b for a, b in zip(one, two, strict=True))
        surplus = curve.weight * math.log(rate) - found.job_price[job] * watts
        own = curve.weight * math.log(found.rate[job]) - found.job_price[job] * found.watts[job]
        assert own >= surplus - 1e-7


@settings(max_examples=times(40), deadline=None)
@given(JOBS, trees())
def test_the_market_reaches_what_an_exponential_cone_program_does(
    jobs: list[JobCurve], tree: PowerTree
) -> None:
    clarabel = pytest.importorskip("clarabel", reason="the judge is Clarabel")
    asked, found = market(jobs, tree)
    judged = by_cones(clarabel, asked)
    assert found.welfare == pytest.approx(judged, abs=2e-6)


def by_cones(clarabel: object, asked: ChoiceProblem) -> float:
    """Most of sum w t / sum w with (t, 1, rate) in the exponential cone: t <= log(rate)."""
    from scipy.sparse import csc_matrix

    menu, limits, weight = asked.menu, asked.limits, asked.weight
    jobs, choices, domains = menu.jobs, len(menu.job), len(limits.room_w)
    rate = menu.value / weight[menu.job]
    each = np.zeros((jobs, choices + jobs))
    each[menu.job, np.arange(choices)] = 1.0
    load = np.zeros((domains, choices + jobs))
    for column, job in enumerate(menu.job):
        for domain, scale in zip(limits.path[job], limits.scale[job], strict=True):
            if domain >= 0:
                load[domain, column] = menu.watts[column] * scale
    part = np.hstack([-np.eye(choices), np.zeros((choices, jobs))])
    cone, side = np.zeros((3 * jobs, choices + jobs)), np.zeros(3 * jobs)
    for job in range(jobs):
        cone[3 * job, choices + job] = -1.0
        side[3 * job + 1] = 1.0
        cone[3 * job + 2, :choices] = np.where(menu.job == job, -rate, 0.0)
    rows = csc_matrix(np.vstack([each, load / 100.0, part, cone]))
    sides = np.concatenate([np.ones(jobs), limits.room_w / 100.0, np.zeros(choices), side])
    cones = [clarabel.ZeroConeT(jobs), clarabel.NonnegativeConeT(domains + choices)]
    cones += [clarabel.ExponentialConeT()] * jobs
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    nothing = csc_matrix((choices + jobs, choices + jobs))
    goal = np.concatenate([np.zeros(choices), -weight / weight.sum()])
    solution = clarabel.DefaultSolver(nothing, goal, rows, sides, cones, settings).solve()
    assert "Solved" in str(solution.status)
    return -float(solution.obj_val)


@given(JOBS, trees())
def test_no_choice_of_measured_points_beats_the_market(
    jobs: list[JobCurve], tree: PowerTree
) -> None:
    asked, found = market(jobs, tree)
    chosen = RULES["nash"](asked)
    rates = asked.menu.value[asked.menu.least + chosen] / asked.weight
    assert asked.weight @ np.log(rates) / asked.weight.sum() <= found.welfare + 1e-9

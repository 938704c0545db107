"""Sharing watts among measured curves: never above a budget, never far from the best there is."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattherd.errors import UserError
from wattherd.estimate.measured_curve import Count, JobCurve, Point
from wattherd.model.power_tree import PowerDomain, PowerTree
from wattherd.policy.power.allocation import Limits, allocate, bound, one_budget, tree_limits
from wattherd.policy.power.rules import RULES, Question, fits

NAMES = ("site", "a", "b", "a1", "a2", "b1")
PARENTS = {"a": "site", "b": "site", "a1": "a", "a2": "a", "b1": "b"}


@st.composite
def curves(draw: st.DrawFn) -> JobCurve:
    """Any measured points: not concave, not even rising."""
    caps = draw(st.lists(st.integers(50, 400), min_size=1, max_size=6, unique=True))
    points = tuple(
        Point(float(cap), draw(st.floats(20, 400)), draw(st.floats(0.1, 10))) for cap in caps
    )
    return JobCurve(
        job="j",
        points=points,
        weight=draw(st.sampled_from([1.0, 1.0, 2.5])),
        domain=draw(st.sampled_from(NAMES[1:])),
    )


@st.composite
def trees(draw: st.DrawFn) -> PowerTree:
    return PowerTree(
        tuple(
            PowerDomain(
                name=name,
                parent=PARENTS.get(name),
                budget_w=draw(st.one_of(st.none(), st.floats(200, 4000)))
                if name != "site"
                else draw(st.floats(300, 4000)),
                loss=draw(st.sampled_from([0.0, 0.0, 0.05])),
            )
            for name in NAMES
        )
    )


def question(jobs: list[JobCurve], limits: Limits, *, pause: bool = False) -> Question:
    paused_w = 0.0 if pause else None
    choices = [one.choices(Count.DRAW, paused_w=paused_w) for one in jobs]
    return Question(curves=jobs, choices=choices, limits=limits)


JOBS = st.lists(curves(), min_size=1, max_size=8)


@given(JOBS, trees(), st.booleans(), st.sampled_from(sorted(RULES)))
def test_no_branch_of_a_tree_is_ever_exceeded(
    jobs: list[JobCurve], tree: PowerTree, pause: bool, rule: str
) -> None:
    asked = question(jobs, tree_limits(tree, [one.domain for one in jobs]), pause=pause)
    least = [0] * len(jobs)
    if not fits(asked, least):
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
    assert fits(asked, chosen)
    value = sum(choices[at].value for choices, at in zip(asked.choices, chosen, strict=True))
    assert value <= bound(asked.choices, asked.limits) + 1e-6 or any(
        domain.loss for domain in tree.domains
    )


def best_by_trying_all(asked: Question) -> float:
    """The optimum, from every combination."""
    spans = [range(len(choices)) for choices in asked.choices]
    return max(
        sum(choices[at].value for choices, at in zip(asked.choices, chosen, strict=True))
        for chosen in itertools.product(*spans)
        if fits(asked, chosen)
    )


@settings(max_examples=200)
@given(st.lists(curves(), min_size=1, max_size=4), st.floats(100, 1500), st.booleans())
def test_one_budget_is_used_as_well_as_can_be(
    jobs: list[JobCurve], budget_w: float, pause: bool
) -> None:
    asked = question(jobs, one_budget(len(jobs), budget_w), pause=pause)
    if not fits(asked, [0] * len(jobs)):
        return
    chosen = allocate(asked.choices, asked.limits)
    value = sum(choices[at].value for choices, at in zip(asked.choices, chosen, strict=True))
    best = best_by_trying_all(asked)
    assert value == pytest.approx(best, rel=1e-6, abs=1e-9)
    assert bound(asked.choices, asked.limits) >= best - 1e-9


@given(JOBS, st.floats(100, 3000), st.floats(0, 500))
def test_more_budget_is_never_worse(jobs: list[JobCurve], budget_w: float, more_w: float) -> None:
    values = []
    for watts in (budget_w, budget_w + more_w):
        asked = question(jobs, one_budget(len(jobs), watts), pause=True)
        chosen = allocate(asked.choices, asked.limits)
        values.append(sum(c[at].value for c, at in zip(asked.choices, chosen, strict=True)))
    assert values[0] <= values[1] + 1e-9


@given(JOBS, trees())
def test_bounds_of_trees_without_losses_never_fall_with_more_budget(
    jobs: list[JobCurve], tree: PowerTree
) -> None:
    from dataclasses import replace

    plain = [replace(one, loss=0.0) for one in tree.domains]
    found = []
    for factor in (1.0, 1.1):
        wider = PowerTree(
            tuple(
                replace(one, budget_w=None if one.budget_w is None else one.budget_w * factor)
                for one in plain
            )
        )
        asked = question(jobs, tree_limits(wider, [one.domain for one in jobs]), pause=True)
        found.append(bound(asked.choices, asked.limits))
    assert found[0] <= found[1] + 1e-9


@given(JOBS, trees())
def test_the_bound_of_a_tree_is_that_of_the_linear_program(
    jobs: list[JobCurve], tree: PowerTree
) -> None:
    """Greedy is optimal on the nested budgets of a tree: HiGHS finds nothing better."""
    np = pytest.importorskip("numpy")
    optimize = pytest.importorskip("scipy.optimize", reason="the judge is HiGHS in SciPy")
    from dataclasses import replace

    plain = PowerTree(tuple(replace(one, loss=0.0) for one in tree.domains))
    limits = tree_limits(plain, [one.domain for one in jobs])
    asked = question(jobs, limits, pause=True)
    sizes = [len(one) for one in asked.choices]
    owner = np.repeat(np.arange(len(sizes)), sizes)
    values = np.array([one.value for choices in asked.choices for one in choices])
    watts = np.array([one.watts for choices in asked.choices for one in choices])
    each = (owner == np.arange(len(sizes))[:, None]).astype(float)
    load = np.array(
        [
            [watts[k] if domain in limits.path[owner[k]] else 0.0 for k in range(len(owner))]
            for domain in range(len(limits.room_w))
        ]
    )
    found = optimize.linprog(
        -values, A_ub=load, b_ub=limits.room_w, A_eq=each, b_eq=np.ones(len(sizes)), method="highs"
    )
    assert bound(asked.choices, limits) == pytest.approx(-found.fun, rel=1e-6, abs=1e-7)

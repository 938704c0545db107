"""Random jobs below random trees, and the best there is by trying all: for tests of allocation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from wattherd.estimate.measured_curve import CountedWatts, JobCurve, MeasuredPoint
from wattherd.model.power_tree import PowerTree, TreeDomain
from wattherd.policy.power.limits import DomainRoom
from wattherd.policy.power.rules import ChoiceProblem, fits

NAMES = ("site", "a", "b", "a1", "a2", "b1")
PARENTS = {"a": "site", "b": "site", "a1": "a", "a2": "a", "b1": "b"}


@st.composite
def curves(draw: st.DrawFn) -> JobCurve:
    """Any measured points: not concave, not even rising."""
    caps = draw(st.lists(st.integers(50, 400), min_size=1, max_size=6, unique=True))
    points = tuple(
        MeasuredPoint(float(cap), draw(st.floats(20, 400)), draw(st.floats(0.1, 10)))
        for cap in caps
    )
    return JobCurve(
        job="j",
        points=points,
        weight=draw(st.sampled_from([1.0, 1.0, 2.5])),
        domain=draw(st.sampled_from(NAMES[1:])),
        priority=draw(st.integers(0, 2)),
        floor_w=float(draw(st.sampled_from([0, 0, max(caps), min(caps)]))),
    )


JOBS = st.lists(curves(), min_size=1, max_size=8)
FEW = st.lists(curves(), min_size=1, max_size=4)


@st.composite
def trees(draw: st.DrawFn) -> PowerTree:
    return PowerTree(
        tuple(
            TreeDomain(
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


def question(jobs: Sequence[JobCurve], limits: DomainRoom, *, pause: bool = False) -> ChoiceProblem:
    paused_w = 0.0 if pause else None
    choices = [one.choices(CountedWatts.DRAW, paused_w=paused_w) for one in jobs]
    return ChoiceProblem(curves=jobs, choices=choices, limits=limits)


def values(asked: ChoiceProblem, chosen: Sequence[int]) -> list[float]:
    return [choices[at].value for choices, at in zip(asked.choices, chosen, strict=True)]


def value_of(asked: ChoiceProblem, chosen: Sequence[int]) -> float:
    return sum(values(asked, chosen))


def best_by_trying_all(
    asked: ChoiceProblem, worth: Callable[[ChoiceProblem, Sequence[int]], Any]
) -> Any:
    """The most of `worth`, from every combination that fits."""
    spans = [range(len(choices)) for choices in asked.choices]
    return max(worth(asked, one) for one in itertools.product(*spans) if fits(asked, one))

"""What is undone is as if it had never been proposed: on every account, and for what comes next.

Hypothesis proposes whatever it likes to two drafts of equal clusters. One of them also tries things
between marks, nested up to three deep, refused proposals among them, and takes each trial back. All
accounts of the two must be equal then, and so must be what both answer to the proposals that follow
and the caps that the power policy gives at the end.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_draft_books import (
    CLUSTER,
    LIMITS,
    LOST,
    POLICIES,
    PROPOSALS,
    SPECS,
    Desk,
    whole_gang,
)

from effort import times
from wattherd.engine.power.account import PowerAccount
from wattherd.engine.power.demand import DemandClasses
from wattherd.errors import Bug
from wattherd.estimate.power_curve import prior
from wattherd.model.power_tree import PowerTree, TreeDomain
from wattherd.model.reason import Reason, ReasonCode, StopReason
from wattherd.policy.power.water_filling import WaterFilling

TREE = PowerTree(
    (
        TreeDomain(name="site", budget_w=700.0, loss=0.02),
        TreeDomain(name="a", parent="site", budget_w=300.0, nodes=("n0",)),
        TreeDomain(name="b", parent="site", nodes=("n1", "n2", "n3")),
    )
)
TRIALS = st.lists(st.tuples(st.booleans(), PROPOSALS, PROPOSALS), min_size=1, max_size=3)


def a_desk(budget_w: float | None, policy: Any, lost: set[int], limits: dict[str, int]) -> Desk:
    """Flat with a budget or without; a tree where the budget is negative."""
    if budget_w is not None and budget_w < 0:
        return Desk(PowerAccount(CLUSTER, policy, prior, TREE), lost, limits, quota=True)
    watts = PowerAccount(CLUSTER, policy, prior)
    watts.set_budget(budget_w, [])
    return Desk(watts, lost, limits, quota=True)


def propose(desk: Desk, proposals: list[Any]) -> list[str]:
    """What the guard answers to each."""
    answers, draft = [], desk.draft
    for what, number, shares, milli in proposals:
        job = desk.jobs[SPECS[number].id]
        answer: Reason | None = None
        if what == "stop":
            draft.stop(job, StopReason.RECLAIMED)
        elif what == "end":
            answer = draft.end(job, StopReason.TRIAL_ENDED)
            draft.wake_at(float(number))
            draft.compute("lp", number)
        else:
            answer = start(desk, job, what, shares, milli)
        if not job.wanted and number % 2:
            draft.wait(job, Reason(code=ReasonCode.FRAGMENTED, since_s=0.0))
        answers.append("" if answer is None else answer.text())
    return answers


def start(desk: Desk, job: Any, what: str, shares: Any, milli: int) -> Reason | None:
    """Of nonsense the guard says that it cannot look at it, with whatever Python calls that."""
    if what == "nonsense":
        try:
            return desk.draft.start(job, shares)
        except (AttributeError, IndexError, TypeError, ValueError):
            return Reason(code=ReasonCode.INVALID_SPEC, since_s=0.0)
    fits = whole_gang(job.spec, shares, milli) if what == "fit" else shares
    return desk.draft.start(job, [one for one in fits if one.role < len(job.spec.roles)])


def accounts(desk: Desk) -> dict[str, Any]:
    """All that a later proposal could see."""
    draft, sharing, demand = desk.draft, desk.watts._plan.shared, desk.watts._demand
    return {
        **desk.books(),
        "classes in order": demand.order() if isinstance(demand, DemandClasses) else (),
        "touched": list(draft.touched),
        "stops in order": list(draft.stops.items()),
        "reasons": dict(draft.reasons),
        "orders": list(draft.orders),
        "asked": draft._questions.saved(),
        "owners": {device: list(jobs.items()) for device, jobs in sharing._jobs_mw.items()},
    }


@settings(max_examples=times(120), deadline=None)
@given(
    budget_w=st.sampled_from([None, 400.0, 700.0, 2000.0, -1.0]),
    policy=POLICIES,
    lost=LOST,
    limits=LIMITS,
    before=PROPOSALS,
    trials=TRIALS,
    after=PROPOSALS,
)
def test_undone_is_as_never_proposed(
    budget_w: float | None,
    policy: Any,
    lost: set[int],
    limits: dict[str, int],
    before: list[Any],
    trials: list[tuple[bool, list[Any], list[Any]]],
    after: list[Any],
) -> None:
    tried, plain = (a_desk(budget_w, policy, lost, limits) for _ in range(2))
    assert propose(tried, before) == propose(plain, before)
    marks, seen = [], []
    for inner, first, second in trials:
        marks.append(tried.draft.mark())
        seen.append(accounts(tried))
        propose(tried, first)
        if inner:
            there, mark = accounts(tried), tried.draft.mark()
            propose(tried, second)
            tried.draft.undo(mark)
            assert accounts(tried) == there
    for mark, then in zip(reversed(marks), reversed(seen), strict=True):
        tried.draft.undo(mark)
        assert accounts(tried) == then
    assert accounts(tried) == accounts(plain)
    assert propose(tried, after) == propose(plain, after)
    for desk in (tried, plain):
        desk.watts.share(desk.jobs.values())
    caps_w = [[job.wanted_cap_w for job in desk.jobs.values()] for desk in (tried, plain)]
    assert caps_w[0] == caps_w[1]
    tried.recount()


def test_a_mark_that_was_never_set_is_refused() -> None:
    desk = a_desk(None, WaterFilling(), set(), {})
    with pytest.raises(Bug, match="no mark 0"):
        desk.draft.undo(0)
    mark = desk.draft.mark()
    desk.draft.undo(mark)
    with pytest.raises(Bug, match="no mark 1"):
        desk.draft.undo(mark + 1)

"""The guard behind proposals: whatever is proposed, what comes out keeps every budget."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from power_questions import JOBS, question, trees

from wattherd.errors import UserError
from wattherd.estimate.measured_curve import JobCurve
from wattherd.model.power_tree import PowerTree
from wattherd.policy.power.allocation import tree_limits
from wattherd.policy.power.bidder import guarded
from wattherd.policy.power.rules import ChoiceProblem, fits
from wattherd.sim.power_episodes import JOBS as PER_EPISODE
from wattherd.sim.power_episodes import Episodes, drawn_jobs

ANYTHING = st.floats(allow_nan=True, allow_infinity=True)


def asked_of(jobs: list[JobCurve], tree: PowerTree) -> ChoiceProblem:
    return question(jobs, tree_limits(tree, [one.domain for one in jobs]))


@given(JOBS, trees(), st.lists(ANYTHING, min_size=8, max_size=8))
def test_any_proposal_ends_within_every_budget_and_range(
    jobs: list[JobCurve], tree: PowerTree, proposed: list[float]
) -> None:
    asked = asked_of(jobs, tree)
    proposed_w = np.array(proposed[: len(jobs)])
    if not fits(asked, [0] * len(jobs)):
        with pytest.raises(UserError):
            guarded(asked.menu, asked.limits, proposed_w)
        return
    rows = guarded(asked.menu, asked.limits, proposed_w)
    assert (asked.menu.job[rows] == np.arange(len(jobs))).all()
    assert fits(asked, asked.chosen(rows))


@given(JOBS, trees(), st.data())
def test_what_fits_is_left_as_proposed(
    jobs: list[JobCurve], tree: PowerTree, data: st.DataObject
) -> None:
    asked = asked_of(jobs, tree)
    chosen = [data.draw(st.integers(0, len(one) - 1)) for one in asked.choices]
    assume(fits(asked, chosen))
    rows = asked.menu.least + np.array(chosen)
    proposed_w = asked.menu.watts[rows]
    # Choices may lie closer together than sums of watts are rounded.
    given_w = asked.menu.watts[guarded(asked.menu, asked.limits, proposed_w)]
    assert given_w == pytest.approx(proposed_w, abs=1e-5)


@given(st.integers(0, 50), st.lists(ANYTHING, min_size=PER_EPISODE, max_size=PER_EPISODE))
def test_episodes_never_exceed_their_budget(seed: int, proposed: list[float]) -> None:
    episodes = Episodes(drawn_jobs(1, np.random.default_rng(seed)))
    for _ in range(20):
        running, budget_w = episodes.running.copy(), episodes.budget_w[0]
        cap_w = episodes.caps(np.array([proposed]))
        assert cap_w.sum() <= budget_w + 1e-6
        assert (cap_w[running] >= episodes.jobs.floor_w[running] - 1e-9).all()
        assert (cap_w[running] <= episodes.jobs.max_w[running] + 1e-9).all()
        episodes.step(np.array([proposed]))
    assert episodes.over_w <= 1e-6

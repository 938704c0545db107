"""Of gangs that wait alike one is looked at; orders and reasons are those of a look at everyone."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from wattherd.engine.core.draft import GuardedDraft
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.event import BudgetChanged, JobEdited, NodeLost, NodeReturned
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.reason import Reason
from wattherd.policy.contract import Draft, View
from wattherd.policy.schedule import gang
from wattherd.policy.schedule.gang import STOPS_NOBODY, Gang
from wattherd.testing.timed_world import Story, timed

SECONDS = st.integers(0, 200).map(float)


class Noting:
    """Notes what each plan says of whom."""

    def __init__(self) -> None:
        self.gang, self.told = Gang(patience_s=20.0), list[dict[str, Reason]]()

    def plan(self, view: View, draft: Draft) -> None:
        self.gang.plan(view, draft)
        self.told.append(dict(cast("GuardedDraft", draft).reasons))


def each_on_its_own(self: Any) -> None:
    self.line.kinds = None
    self._each(self.line.waiting.values())


@st.composite
def jobs(draw: st.DrawFn) -> list[JobSpec]:
    found = []
    for at in range(draw(st.integers(2, 25))):
        count, each = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (3, 2), (6, 1), (12, 1)]))
        models = draw(st.sampled_from([(), (), ("T4",), ("A100",)]))
        labels = draw(st.sampled_from([(), (), (STOPS_NOBODY,)]))
        joules = draw(st.sampled_from([None, None, None, 500.0, 1e6]))
        found.append(
            timed(
                f"j{at}", at_s=draw(SECONDS), lasts_s=5.0 + draw(SECONDS),
                roles=(TaskRole(count=count, gpu_count=each),), gpu_models=models, labels=labels,
                priority=draw(st.sampled_from([0, 0, 0, 5, 9])), user=draw(st.sampled_from("xy")),
                energy_budget_j=joules, queue=draw(st.sampled_from("pq")),
            )
        )  # fmt: skip
    return found


def cluster(sizes: list[tuple[int, str]]) -> ClusterSpec:
    return ClusterSpec(
        tuple(
            NodeSpec(
                name=f"n{at}", cpu_milli=64_000, memory_mib=65_536, gpu_count=gpus, gpu_model=model
            )
            for at, (gpus, model) in enumerate(sizes)
        )
    )  # fmt: skip


@settings(max_examples=times(60), deadline=None)
@given(
    given_jobs=jobs(),
    sizes=st.lists(
        st.tuples(st.sampled_from([2, 4, 8]), st.sampled_from(["T4", "T4", "A100"])),
        min_size=2, max_size=4,
    ),
    cut_s=SECONDS, edited=st.integers(0, 24), edit_s=SECONDS, watts_each=st.sampled_from([60, 200]),
    round_s=st.sampled_from([None, 0.0, 10.0]),
)  # fmt: skip
def test_orders_and_reasons_are_those_of_a_look_at_everyone(
    given_jobs: list[JobSpec], sizes: list[tuple[int, str]], cut_s: float, edited: int,
    edit_s: float, watts_each: int, round_s: float | None,
) -> None:  # fmt: skip
    total = sum(gpus for gpus, _ in sizes)
    events = [
        BudgetChanged(at_s=0.0, budget_w=400.0 * total),
        BudgetChanged(at_s=cut_s + 1.0, budget_w=float(watts_each * total)),
        JobEdited(at_s=edit_s, job_id=f"j{edited}", priority=5),
        NodeLost(at_s=60.0, node="n0"),
        NodeReturned(at_s=120.0, node="n0"),
    ]
    planners = Noting(), Noting()
    stories = []
    with pytest.MonkeyPatch.context() as patched:
        for planner in planners:
            story = Story(
                planner, cluster(sizes), given_jobs, events=events, until_s=700.0, round_s=round_s
            )
            stories.append(story)
            patched.setattr(gang._Round, "_walk", each_on_its_own)
    walked, each = stories
    assert walked.commands == each.commands
    assert planners[0].told == planners[1].told

"""Gandiva looks within a slice only at nodes where something happened, and decides the same.

Orders and reasons are compared with those of a Gandiva that looks at all nodes in every plan.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_hopeless_jobs import Told

from effort import times
from wattherd.model.event import BudgetChanged, Event, JobCancelled, NodeLost, NodeReturned
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.schedule import gandiva
from wattherd.policy.schedule.gandiva import Gandiva
from wattherd.policy.schedule.gandiva_nodes import GandivaNodes
from wattherd.testing.timed_world import t4_nodes, timed

JOBS = st.lists(
    st.tuples(
        st.sampled_from([1, 1, 1, 2, 3, 4, 6, 9]),
        st.integers(0, 400),
        st.sampled_from([5.0, 20.0, 90.0, 300.0]),
        st.sampled_from([1_000, 1_000, 3_000]),
        st.booleans(),
    ),
    min_size=2,
    max_size=30,
)


def spec_of(number: int, asked: tuple[int, int, float, int, bool]) -> JobSpec:
    gpus, at_s, lasts_s, cpu_milli, elastic = asked
    role = TaskRole(count=gpus, cpu_milli=cpu_milli)
    return timed(
        f"j{number:02}", at_s=float(at_s), lasts_s=lasts_s, roles=(role,),
        min_width=1 if elastic else None, max_width=2 * gpus if elastic else None,
    )  # fmt: skip


@settings(
    max_examples=times(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    jobs=JOBS,
    lost_s=st.sampled_from([15.0, 70.0, 5_000.0]),
    cancelled=st.integers(0, 29),
    budget_w=st.sampled_from([None, 250.0, 400.0]),
    height=st.sampled_from([1.0, 2.0, 8.0]),
)
def test_turns_are_those_of_a_look_at_all_nodes(
    jobs: list[tuple[int, int, float, int, bool]],
    lost_s: float,
    cancelled: int,
    budget_w: float | None,
    height: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    specs = [spec_of(number, asked) for number, asked in enumerate(jobs)]
    events: list[Event] = [
        NodeLost(at_s=lost_s, node="n0"),
        BudgetChanged(at_s=95.0, budget_w=budget_w),
        JobCancelled(at_s=140.0, job_id=f"j{cancelled:02}"),
        NodeReturned(at_s=lost_s + 80.0, node="n0"),
    ]

    def lived() -> Told:
        planner = Gandiva(patience_s=100.0, height=height)
        return Told(planner, t4_nodes(4, 4, 2), specs, events=events, until_s=1500.0, round_s=0.0)

    told = lived()
    with monkeypatch.context() as patched:
        always: Any = property(lambda _: True, lambda one, value: None)
        patched.setattr(GandivaNodes, "resized", always, raising=False)
        patched.setattr(gandiva._Memory, "up_to", lambda self, _: self.residents.values())
        everywhere = lived()
    assert told.commands == everywhere.commands
    assert told.reasons == everywhere.reasons

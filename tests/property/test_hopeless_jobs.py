"""Jobs that ask for what another one has just not found are not tried again, and fare the same.

Every plan is compared, orders and reasons, with that of a planner to which no two jobs are alike.
Since when a reason holds may differ: who is not tried again was told so earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from effort import times
from wattherd.model.command import Command
from wattherd.model.event import BudgetChanged, Event, JobCancelled, NodeLost, NodeReturned
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.reason import Reason
from wattherd.policy.contract import Planner, Quota, Share
from wattherd.policy.queue.gang import FreeRoom, GangShape, GangShapes
from wattherd.policy.queue.tree import CapacityQueue, QueueTree
from wattherd.policy.schedule import gandiva
from wattherd.policy.schedule.capacity import CapacityScheduler
from wattherd.policy.schedule.drf import Drf
from wattherd.policy.schedule.gandiva import Gandiva
from wattherd.policy.schedule.gandiva_nodes import GandivaJob, GandivaNodes
from wattherd.testing.timed_world import Story, t4_nodes, timed

TREE = QueueTree(
    CapacityQueue(
        name="root",
        children=(
            CapacityQueue(name="a", guaranteed_pct=60, user_limit_factor=2, order="fair"),
            CapacityQueue(name="b", guaranteed_pct=40, maximum_pct=80, user_limit_factor=2),
        ),
    )
)
MAKES: dict[str, Callable[[], tuple[Planner, Quota | None]]] = {
    "drf": lambda: (Drf(), None),
    "capacity": lambda: (CapacityScheduler(tree=TREE), TREE),
    "gandiva": lambda: (Gandiva(patience_s=100.0, height=2.0), None),
}
JOBS = st.lists(
    st.tuples(
        st.sampled_from(["ann", "bob", "cid"]),
        st.sampled_from(["a", "b"]),
        st.sampled_from([1, 1, 2, 3, 6, 9]),  # the last of them fits only while nothing is lost
        st.sampled_from([0.0, 0.0, 10.0, 25.0, 60.0]),
        st.sampled_from([20.0, 90.0, 300.0]),
        st.sampled_from([-10, 0, 0, 10]),
        st.booleans(),
    ),
    min_size=1,
    max_size=30,
)


def spec_of(number: int, asked: tuple[Any, ...]) -> JobSpec:
    user, queue, gpus, at_s, lasts_s, priority, elastic = asked
    least = max(1, gpus // 2) if elastic else None
    role = TaskRole(count=gpus, cpu_milli=1000 * (1 + number % 2))
    return timed(
        f"j{number:02}", at_s=at_s, lasts_s=lasts_s, roles=(role,), min_width=least,
        max_width=gpus if elastic else None, user=user, queue=queue, priority=priority,
    )  # fmt: skip


def timeless(reason: Reason | None) -> Reason | None:
    return None if reason is None else replace(reason, since_s=0.0)


class Told(Story):
    """Also every job's reason after every event."""

    def __init__(self, *given: Any, **more: Any) -> None:
        self.reasons: list[list[tuple[str, Reason | None]]] = []
        super().__init__(*given, **more)

    def after(self, event: Event, commands: Sequence[Command]) -> None:
        super().after(event, commands)
        self.reasons.append([(job.id, timeless(job.reason)) for job in self.core.jobs.values()])


def lived(policy: str, jobs: Sequence[JobSpec], events: Sequence[Event]) -> Told:
    planner, quota = MAKES[policy]()
    return Told(planner, t4_nodes(4, 4, 2), jobs, quota=quota, events=events, until_s=1500.0)


@pytest.fixture
def nobody_is_like_another(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """A context in which every job has to be tried."""

    @contextmanager
    def context() -> Iterator[None]:
        asks = property(lambda one: one.job.id, lambda one, value: None)
        forgotten = property(lambda _: set[Any](), lambda one, value: None)
        with monkeypatch.context() as patched:
            patched.setattr(GangShapes, "needs", lambda _, job: job.id)
            patched.setattr(GangShapes, "kin", lambda _, job, now_s: None)
            patched.setattr(GandivaJob, "asks", asks)
            for known in ("hopeless", "nowhere_whole"):
                patched.setattr(GandivaNodes, known, forgotten, raising=False)
            yield

    return context


@pytest.mark.parametrize("policy", MAKES)
@settings(
    max_examples=times(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    jobs=JOBS,
    lost_s=st.sampled_from([15.0, 70.0, 5_000.0]),
    cancelled=st.integers(0, 29),
    budget_w=st.sampled_from([None, 250.0, 400.0]),
)
@example(
    # Four of one GPU that power holds back, then one of the same user beyond his limit.
    jobs=[
        *[("ann", "a", 1, 0.0, 20.0, -10, False)] * 3,
        ("cid", "b", 1, 0.0, 20.0, -10, False),
        ("cid", "b", 3, 0.0, 20.0, -10, False),
        ("cid", "b", 6, 0.0, 20.0, 0, False),
    ],
    lost_s=15.0, cancelled=0, budget_w=400.0,
)  # fmt: skip
def test_jobs_that_are_not_tried_again_fare_as_if_they_were(
    policy: str,
    jobs: list[tuple[Any, ...]],
    lost_s: float,
    cancelled: int,
    budget_w: float | None,
    nobody_is_like_another: Callable[[], Any],
) -> None:
    specs = [spec_of(number, asked) for number, asked in enumerate(jobs)]
    events: list[Event] = [
        NodeLost(at_s=lost_s, node="n0"),
        BudgetChanged(at_s=8.0, budget_w=budget_w),
        JobCancelled(at_s=40.0, job_id=f"j{cancelled:02}"),
        NodeReturned(at_s=lost_s + 80.0, node="n0"),
    ]
    told = lived(policy, specs, events)
    with nobody_is_like_another():
        tried = lived(policy, specs, events)
    assert told.commands == tried.commands
    assert told.reasons == tried.reasons


@pytest.mark.long
@pytest.mark.parametrize("policy", MAKES)
def test_of_many_that_are_alike_one_is_tried(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan for a thousand jobs that find no room looks for it a few times."""
    looks: list[object] = []
    whole = timed("whole", 10, queue="a", user="ann", lasts_s=1e4)
    many = [timed(f"m{n}", 3, at_s=5.0, queue="a", user="ann") for n in range(1000)]
    place, spread = FreeRoom.place, gandiva.spread_home

    def placed(self: FreeRoom, shape: GangShape) -> list[Share] | None:
        looks.append(shape)
        return place(self, shape)

    def spread_out(homes: GandivaNodes, resident: GandivaJob, height: float = 1.0) -> Any:
        looks.append(resident)
        return spread(homes, resident, height)

    monkeypatch.setattr(FreeRoom, "place", placed)
    monkeypatch.setattr(gandiva, "spread_home", spread_out)
    planner, quota = MAKES[policy]()
    Story(planner, t4_nodes(4, 4, 2), [whole, *many], quota=quota, until_s=5.0, round_s=0.0)
    assert 1 <= len(looks) <= 20

"""Optimus on jobs that report for themselves."""

from __future__ import annotations

import math
import pickle

import pytest

from wattherd.model.event import BudgetChanged, Event, QueueStopped
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.schedule.live_forecast import LiveForecast
from wattherd.policy.schedule.optimus_estimated import OptimusEstimated
from wattherd.testing.reporting_world import ReportingWorld, Told, Training
from wattherd.testing.timed_world import t4_nodes


def training(name: str, steps: float, *, at_s: float = 0.0, flat: bool = False, **more: object) -> (
    Training
):  # fmt: skip
    spec = JobSpec(
        id=name, submit_s=at_s, roles=(TaskRole(count=4, command=("train", name)),), min_width=1,
        max_width=4, queue=str(more.pop("queue", "default")),
    )  # fmt: skip
    return Training(spec=spec, steps=steps, per_s=lambda width: 1.0 if flat else width, **more)  # type: ignore[arg-type]


def world(*trainings: Training, events: tuple[Event, ...] = ()) -> ReportingWorld:
    planner = OptimusEstimated(foresight=LiveForecast())
    return ReportingWorld(planner, t4_nodes(4), trainings, events)


def test_a_job_alone_gets_all_and_gives_back_what_others_need() -> None:
    lived = world(training("long", 2000.0), training("late", 200.0, at_s=200.0)).run(190)
    assert lived.gpus() == {"long": 4}
    lived.run(300)
    assert lived.gpus()["long"] < 4
    assert "resized from 4 to" in " ".join(lived.stories["long"])
    lived.run(2000)
    assert set(lived.ended_s) == {"long", "late"}


def test_a_job_that_does_not_scale_leaves_the_others_their_gpus() -> None:
    lived = world(training("flat", 900.0, flat=True), training("good", 900.0)).run(400)
    assert lived.gpus()["good"] == 3, lived.starts
    assert lived.gpus()["flat"] == 1


@pytest.mark.parametrize("told", [None, Told(progress=99.0, total=100.0), Told(progress=math.nan)])
def test_a_liar_leaves_others_what_they_need(told: Told | None) -> None:
    liar = training("liar", 900.0, tells=lambda _: told)
    lived = world(liar, *(training(f"j{n}", 200.0, at_s=20.0 + n) for n in range(3))).run(2500)
    assert len(lived.ended_s) == 4
    assert max(lived.ended_s[f"j{n}"] for n in range(3)) < 700.0


def test_what_is_refused_for_watts_stops_nobody() -> None:
    budget = BudgetChanged(at_s=0.0, budget_w=4 * 10.0 + 2 * 50.0)
    lived = world(training("a", 300.0), training("b", 300.0, at_s=10.0), events=(budget,)).run(1500)
    assert set(lived.ended_s) == {"a", "b"}
    assert sum(map(len, lived.starts.values())) <= 6, lived.starts


def test_a_closed_queue_and_a_job_of_many_roles_harm_nobody() -> None:
    roles = tuple(TaskRole(name=f"r{n}", command=("x",)) for n in range(3))
    gang = Training(
        spec=JobSpec(id="gang", submit_s=5.0, roles=roles), steps=50.0, per_s=lambda _: 1.0
    )
    lived = world(
        training("a", 300.0), gang, training("kept", 50.0, at_s=1.0, queue="closed"),
        events=(QueueStopped(at_s=0.0, queue="closed"),),
    ).run(900)  # fmt: skip
    assert {"a", "gang"} <= set(lived.ended_s)
    assert pickle.loads(pickle.dumps(lived.core._memory))

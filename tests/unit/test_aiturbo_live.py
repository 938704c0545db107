"""AITurbo on jobs that report for themselves: what it learns, and whom the unkind ones harm."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from functools import cache

import pytest

from wattherd.model.event import BudgetChanged, QueueStopped
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.schedule.aiturbo import AITurbo
from wattherd.policy.schedule.live_forecast import LiveForecast
from wattherd.testing.reporting_world import ReportingWorld, Told, Training
from wattherd.testing.timed_world import t4_nodes


def live() -> AITurbo:
    return AITurbo(foresight=LiveForecast())


def scales(width: int) -> float:
    return width / (1 + 0.05 * (width - 1))


def stays(width: int) -> float:
    """More GPUs bring nothing."""
    del width
    return 1.0


def training(
    name: str,
    steps: float,
    *,
    most: int = 4,
    least: int = 1,
    at_s: float = 0.0,
    per_s: Callable[[int], float] = scales,
    tells: Callable[[float], Told | None] | None = None,
    queue: str = "default",
    command: str = "train",
) -> Training:
    role = TaskRole(count=most, command=(command,))
    spec = JobSpec(
        id=name, submit_s=at_s, roles=(role,), min_width=least, max_width=most, queue=queue
    )
    return Training(spec=spec, steps=steps, per_s=per_s, tells=tells)


def rigid(name: str, steps: float, gpus: int = 1, **more: object) -> Training:
    return training(name, steps, most=gpus, least=gpus, **more)  # type: ignore[arg-type]


def world(*trainings: Training, gpus: int = 4, events: tuple[object, ...] = ()) -> ReportingWorld:
    return ReportingWorld(live(), t4_nodes(gpus), trainings, events)  # type: ignore[arg-type]


def test_jobs_of_fixed_width_run_and_end() -> None:
    lived = world(*(rigid(f"j{n}", 60.0, gpus=1 + n % 3) for n in range(6))).run(2000)
    assert len(lived.ended_s) == 6
    assert all(len(starts) == 1 for starts in lived.starts.values()), "nobody is moved for nothing"


def test_a_newcomer_starts_at_once_where_there_is_room_and_when_a_job_ends() -> None:
    came = [rigid(f"j{n}", 40.0, gpus=2, at_s=5.0 * n) for n in range(4)]
    lived = world(*came).run(400)
    assert lived.starts["j1"][0][0] == 5.0
    assert lived.starts["j2"][0][0] <= lived.ended_s["j0"] + 1.0


def test_watts_that_come_back_are_used_at_once() -> None:
    cut, back = BudgetChanged(at_s=0.0, budget_w=100.0), BudgetChanged(at_s=20.0, budget_w=None)
    lived = world(rigid("a", 90.0), rigid("b", 90.0), rigid("c", 90.0), events=(cut, back)).run(60)
    assert len(lived.starts) == 3
    assert max(starts[0][0] for starts in lived.starts.values()) <= 31.0


def test_a_job_alone_is_given_what_is_free_and_gives_it_back_when_others_come() -> None:
    lived = world(training("long", 3000.0), training("late", 300.0, at_s=300.0)).run(290)
    assert lived.gpus() == {"long": 4}
    lived.run(500)
    assert set(lived.gpus()) == {"long", "late"}
    assert lived.gpus()["long"] < 4
    assert "resized from 4 to" in " ".join(lived.stories["long"])
    assert "steps left by the total that it reports" in " ".join(lived.stories["long"])
    lived.run(5000)
    assert set(lived.ended_s) == {"long", "late"}


def test_a_job_that_does_not_scale_is_not_resized_for_ever() -> None:
    lived = world(
        training("flat", 1200.0, per_s=stays), training("other", 1200.0, per_s=stays)
    ).run(1500)
    assert set(lived.ended_s) == {"flat", "other"}
    assert sum(map(len, lived.starts.values())) <= 12, lived.starts


LIES: dict[str, Callable[[float], Told | None]] = {
    "silence": lambda _: None,
    "no number": lambda _: Told(progress=math.nan, total=math.nan, loss=math.nan),
    "always nearly done": lambda _: Told(progress=99.0, total=100.0),
    "a total that runs away": lambda done: Told(progress=done, total=done + 1),
    "a speed of zero": lambda done: Told(progress=done, total=900.0, rate_per_s=0.0),
    "a count that swings": lambda done: Told(progress=done % 7, total=8.0),
    "losses that rise": lambda done: Told(progress=done, loss=1.0 + done),
    "steps in millions": lambda done: Told(progress=1e6 * done, total=9e8),
    "a burst, then nothing": lambda done: Told(progress=done, total=60.0) if done < 50 else None,
    "below zero": lambda done: Told(progress=-done, total=-1.0),
}


def beside(liar: Training) -> ReportingWorld:
    others = [rigid(f"j{n}", 60.0 + 30 * n, at_s=5.0 * n) for n in range(6)]
    return world(*others, liar).run(2000)


@cache
def beside_an_honest_one() -> ReportingWorld:
    return beside(rigid("liar", 400.0))


@pytest.mark.parametrize("lie", LIES)
def test_a_liar_does_no_harm_beyond_its_own_place(lie: str) -> None:
    honest, lied = beside_an_honest_one(), beside(rigid("liar", 400.0, tells=LIES[lie]))
    assert len(lied.ended_s) == 7
    # It may have another's place for a while, and no more than that.
    for n in range(6):
        assert lied.ended_s[f"j{n}"] <= honest.ended_s[f"j{n}"] + 150.0, lie
    assert sum(map(len, lied.starts.values())) <= 20


@pytest.mark.parametrize("lie", LIES)
def test_an_elastic_liar_leaves_others_what_they_need(lie: str) -> None:
    lived = world(
        training("liar", 1200.0, tells=LIES[lie]),
        *(training(f"j{n}", 120.0, most=2, at_s=20.0 + n) for n in range(3)),
    ).run(2500)
    assert len(lived.ended_s) == 4
    assert max(lived.ended_s[f"j{n}"] for n in range(3)) < 700.0, (lie, lived.starts)


def test_what_the_guard_refuses_stops_nobody() -> None:
    """Watts for two GPUs of four: a job that could grow stays as it is, and runs."""
    two_w = 4 * 10.0 + 2 * 60.0
    lived = world(
        training("a", 400.0), training("b", 400.0, at_s=10.0),
        events=(BudgetChanged(at_s=0.0, budget_w=two_w),),
    ).run(3000)  # fmt: skip
    assert set(lived.ended_s) == {"a", "b"}
    assert sum(map(len, lived.starts.values())) <= 16, lived.starts


def test_a_budget_that_is_cut_makes_jobs_narrower_and_they_go_on() -> None:
    lived = world(
        training("a", 900.0), training("b", 900.0),
        events=(
            BudgetChanged(at_s=120.0, budget_w=170.0), BudgetChanged(at_s=400.0, budget_w=None),
        ),
    ).run(4000)  # fmt: skip
    assert set(lived.ended_s) == {"a", "b"}


def test_nobody_is_stopped_for_a_job_of_a_stopped_queue() -> None:
    running = [rigid(f"r{n}", 500.0) for n in range(4)]
    lived = world(
        *running, rigid("kept", 50.0, at_s=400.0, queue="closed"),
        events=(QueueStopped(at_s=0.0, queue="closed"),),
    ).run(600)  # fmt: skip
    assert all(len(lived.starts[f"r{n}"]) == 1 for n in range(4)), lived.starts


def test_a_job_of_many_roles_runs_as_it_was_asked_for() -> None:
    roles = tuple(TaskRole(name=f"r{n}", command=("x",)) for n in range(3))
    gang = Training(spec=JobSpec(id="gang", submit_s=0.0, roles=roles), steps=50.0, per_s=scales)
    lived = world(gang, training("b", 200.0, at_s=5.0)).run(1500)
    assert set(lived.ended_s) == {"gang", "b"}
    assert lived.starts["gang"] == [(0.0, 3)]


def test_a_job_without_gpus_runs() -> None:
    role = TaskRole(gpu_count=0, command=("x",))
    lived = world(
        Training(
            spec=JobSpec(id="cpu", submit_s=0.0, roles=(role,)), steps=50.0, per_s=lambda _: 1.0
        )
    ).run(500)
    assert set(lived.ended_s) == {"cpu"}


def test_memory_of_the_planner_can_be_kept() -> None:
    lived = world(training("a", 900.0), training("b", 900.0, at_s=30.0)).run(200)
    kept = pickle.loads(pickle.dumps(lived.core._memory))
    assert kept["aiturbo"].shapes == lived.core._memory["aiturbo"].shapes


def test_the_same_events_give_the_same_orders() -> None:
    def lived() -> dict[str, list[tuple[float, int]]]:
        return (
            world(*(training(f"j{n}", 200.0 + 90 * n, at_s=7.0 * n) for n in range(6)))
            .run(3000)
            .starts
        )

    assert lived() == lived()

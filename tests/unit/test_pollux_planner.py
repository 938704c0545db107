"""Pollux as a planner: when it asks, what becomes of answers, what jobs are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.core.invariants import validate
from wattherd.errors import ClusterError, UserError
from wattherd.model.command import Command, Compute, StartJob, StopJob
from wattherd.model.event import BudgetChanged, Event, JobSubmitted
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.schedule.pollux import Pollux
from wattherd.policy.schedule.pollux_search import KINDS, searchers
from wattherd.sim.world import SimWorld
from wattherd.testing.timed_world import TimedPlant, t4_nodes, timed

SEARCH = searchers(np.random.default_rng)[KINDS["genetic"]]


class Play:
    """One run of timed jobs under Pollux, with every question asked."""

    def __init__(
        self,
        jobs: Sequence[JobSpec],
        *gpus: int,
        until_s: float = float("inf"),
        round_s: float | None = 60.0,
        events: Sequence[Event] = (),
        fail: Sequence[int] = (),
        answer: Any = None,
        first: Any = None,
        wider: bool = False,
    ) -> None:
        planner = Pollux(
            interval_s=None if round_s else 60.0, population=30, generations=20, seed=3
        )
        config = CoreConfig(cluster=t4_nodes(*gpus), planner=planner, round_s=round_s)
        self.core = Core(config)
        self.asked: list[tuple[float, Any]] = []
        self.commands: list[tuple[float, Command]] = []
        self.fail, self.answer, self.first, self.wider = fail, answer, first, wider
        given = [*events, *(JobSubmitted(at_s=job.submit_s, job=job) for job in jobs)]
        world = SimWorld(
            self.core,
            TimedPlant(),
            given,
            watchers=[self],
            computers={KINDS["genetic"]: self.compute},
        )
        world.run(until_s)

    def compute(self, payload: Any) -> Any:
        self.asked.append((self.core.now_s, payload))
        if len(self.asked) - 1 in self.fail:
            raise ClusterError("the search was interrupted")
        if self.answer is not None:
            plan = self.first if self.first and len(self.asked) == 1 else self.answer
            return {"plan": plan, "states": [], "fitness": 1.0}
        if self.wider:
            have = sum(tasks for _, tasks in payload["jobs"][0]["held"])
            want = max(2 * have, 1)
            plan = [[0, min(want, 4)]] + ([[1, want - 4]] if want > 4 else [])
            return {"plan": [plan], "states": [], "fitness": 1.0}
        return SEARCH(payload)

    def after(self, event: Event, commands: Sequence[Command]) -> None:
        validate(self.core)
        self.commands.extend((event.at_s, command) for command in commands)

    def of(self, kind: type[Any], job_id: str) -> list[float]:
        return [at for at, one in self.commands if isinstance(one, kind) and one.job_id == job_id]

    def starts(self, job_id: str) -> list[StartJob]:
        found = [one for _, one in self.commands if isinstance(one, StartJob)]
        return [one for one in found if one.job_id == job_id]

    @staticmethod
    def gpus(order: StartJob) -> int:
        return sum(len(part.gpus) for part in order.allocations)

    def why(self, job_id: str) -> str:
        reason = self.core.jobs[job_id].reason
        return reason.text() if reason else ""


def elastic(name: str, most: int = 8, **more: Any) -> JobSpec:
    return timed(name, 2, min_width=1, max_width=most, **more)


def test_a_search_every_round_and_jobs_start_when_its_answer_is_there() -> None:
    play = Play([elastic("a", at_s=10.0, lasts_s=200.0)], 4, 4)
    assert [at for at, _ in play.asked] == [60.0, 120.0, 180.0, 240.0]
    assert play.of(StartJob, "a")[0] == 60.0
    assert not play.core.jobs


def test_without_rounds_it_keeps_its_own() -> None:
    jobs = [elastic("a", lasts_s=100.0), elastic("b", at_s=30.0, lasts_s=100.0)]
    play = Play(jobs, 4, round_s=None)
    assert [at for at, _ in play.asked][:3] == [0.0, 60.0, 120.0]
    assert play.of(StartJob, "b") == [60.0]
    assert not play.core.jobs


def test_a_job_that_reported_nothing_gets_one_replica() -> None:
    play = Play([elastic("a", lasts_s=500.0)], 4, 4)
    starts = [one for _, one in play.commands if isinstance(one, StartJob)]
    assert [sum(len(part.gpus) for part in one.allocations) for one in starts] == [1]


def test_an_answer_that_never_came_is_asked_for_again() -> None:
    play = Play([elastic("a", lasts_s=50.0)], 4, fail=[0])
    assert [at for at, _ in play.asked][:2] == [60.0, 120.0]
    assert play.of(StartJob, "a") == [120.0]


@pytest.mark.long
def test_equal_runs_ask_equal_questions() -> None:
    jobs = [elastic(name, at_s=20.0 * at, lasts_s=300.0) for at, name in enumerate("abcdef")]
    assert Play(jobs, 2, 2).asked == Play(jobs, 2, 2).asked


def test_what_was_found_last_time_goes_into_the_next_search_under_new_numbers() -> None:
    jobs = [elastic("a", lasts_s=70.0), elastic("b", lasts_s=500.0)]
    play = Play(jobs, 4, until_s=200.0)
    first, later = play.asked[0][1], play.asked[-1][1]
    assert first["states"] == []
    assert len(later["jobs"]) == 1
    assert later["states"] == [[0, node, 1] for node, _ in later["jobs"][0]["held"]]


def test_restarts_make_the_next_one_dearer() -> None:
    play = Play([elastic("a", lasts_s=500.0)], 4, until_s=400.0)
    factors = [payload["jobs"][0]["factor"] for _, payload in play.asked]
    assert factors == [pytest.approx(at / (at + 30)) for at, _ in play.asked]


def test_the_guard_has_the_last_word_and_its_reason_stays() -> None:
    low = BudgetChanged(at_s=0.0, budget_w=100.0)
    play = Play([elastic("a"), elastic("b")], 4, until_s=130.0, events=[low])
    running = [job.id for job in play.core.jobs.values() if job.active]
    waiting = next(job for job in play.core.jobs if job not in running)
    assert len(running) == 1
    assert "WaitingForPower" in play.why(waiting)


def test_a_job_that_the_budget_cannot_widen_stays_as_it_is() -> None:
    """The search would have it twice as wide each round; 250 W power three of eight T4."""
    low = BudgetChanged(at_s=0.0, budget_w=250.0)
    play = Play([elastic("a", lasts_s=900.0)], 4, 4, events=[low], wider=True)
    assert [play.gpus(one) for one in play.starts("a")] == [1, 2]
    assert not play.core.jobs


def test_a_first_start_that_is_too_wide_is_halved() -> None:
    low = BudgetChanged(at_s=0.0, budget_w=250.0)
    job = timed("a", 8, min_width=2, max_width=8, lasts_s=100.0)
    play = Play([job], 4, 4, events=[low], answer=[[[0, 4], [1, 4]]])
    assert [play.gpus(one) for one in play.starts("a")] == [2]


def test_a_job_grows_as_far_as_the_budget_goes() -> None:
    """From one GPU to four, half of the eight that the search wants, and no further restart."""
    low = BudgetChanged(at_s=0.0, budget_w=310.0)
    first = [[[0, 1]]]
    job = elastic("a", lasts_s=600.0)
    play = Play([job], 4, 4, events=[low], answer=[[[0, 4], [1, 4]]], first=first)
    assert [play.gpus(one) for one in play.starts("a")] == [1, 4]


def test_where_no_watts_are_left_the_world_ends_and_with_them_the_job_runs() -> None:
    off = BudgetChanged(at_s=0.0, budget_w=50.0)
    assert Play([elastic("a")], 4, events=[off]).core.jobs
    on = BudgetChanged(at_s=1000.0, budget_w=None)
    play = Play([elastic("a")], 4, events=[off, on])
    assert play.of(StartJob, "a") == [1020.0]


def test_jobs_of_several_roles_are_told() -> None:
    roles = (TaskRole(count=1), TaskRole(name="ps", count=1, gpu_count=0))
    play = Play([timed("a", roles=roles), timed("b", at_s=200.0)], 4, until_s=100.0)
    assert "one role" in play.why("a")
    assert play.asked == []


def test_gangs_wait_for_as_many_gpus_as_they_need() -> None:
    jobs = [timed("wide", 6, lasts_s=100.0), timed("wider", 8, lasts_s=100.0)]
    play = Play(jobs, 4, 4)
    assert not play.core.jobs
    assert play.of(StopJob, "wide") == play.of(StopJob, "wider") == []


def test_jobs_stay_off_other_gpu_models() -> None:
    job = timed("a", gpu_models=("A100",))
    play = Play([elastic("b", lasts_s=100.0), job], 4, until_s=60.0)
    assert all(one["barred"] == [] for _, payload in play.asked for one in payload["jobs"])
    questions = [one for _, one in play.commands if isinstance(one, Compute)]
    assert len(questions) == 1


def test_a_search_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UserError, match="no search"):
        Pollux(search="simplex")

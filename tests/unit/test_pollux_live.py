"""Pollux on jobs that report for themselves: goodput, noise, and whom unkind ones harm."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from live_trainings import job, site
from live_trainings import world as world_of

from wattherd.engine.core.core import Core
from wattherd.errors import UserError
from wattherd.model.event import BudgetChanged, TenantLimited
from wattherd.model.job import TaskRole
from wattherd.policy.schedule.pollux_live import LivePollux
from wattherd.server.journal.replay_state import ReplayState
from wattherd.server.journal.snapshot_codec import FrozenState, freeze, thaw
from wattherd.testing.reporting_world import Told, Training

world = partial(world_of, name="pollux-climb")


def flat(width: int) -> float:
    del width
    return 1.0


@pytest.mark.parametrize("name", ["pollux-climb", "pollux"])
def test_a_job_alone_grows_by_twice_at_most_and_gives_back_what_others_need(name: str) -> None:
    lived = world(job("long", 3000.0), job("late", 300.0, at_s=150.0), name=name).run(140)
    widths = [gpus for _, gpus in lived.starts["long"]]
    assert widths[0] == 1, widths
    assert widths[-1] == 4, widths
    assert all(after <= 2 * before for before, after in pairwise(widths))
    lived.run(3000)
    assert set(lived.ended_s) == {"long", "late"}
    assert lived.starts["long"][-1][1] >= 2


def test_a_job_that_does_not_scale_leaves_the_others_their_gpus() -> None:
    flat_one, good = job("flat", 900.0, speed=flat, kind="f"), job("good", 1500.0, kind="g")
    lived = world(flat_one, good).run(400)
    held = lived.gpus()
    assert (held["flat"], held["good"]) == (1, 3), lived.starts
    assert "times the goodput (speed at this width:" in " ".join(lived.stories["good"])


def noisy(phi: float) -> Callable[[int], Told]:
    """Weak scaling: a step takes as long at any width, and its batch grows with the width."""
    return lambda width: Told(progress=0.0, noise_scale=phi, batch=64.0 * width)


def test_wider_steps_count_for_more_where_the_gradient_is_noisy_and_only_there() -> None:
    """Without their noise both would be taken for jobs that do not scale."""
    loud = job("loud", 1500.0, speed=flat, kind="l", by_width=noisy(1e5))
    still = job("still", 1500.0, speed=flat, kind="s", by_width=noisy(1.0))
    # A width is tried before anything is known of it: afterwards the noise decides.
    lived = world(loud, still).run(600)
    assert lived.gpus() == {"loud": 3, "still": 1}, lived.starts
    assert "gradient noise 100,000 samples" in " ".join(lived.stories["loud"])
    silent = job("loud", 1500.0, speed=flat, kind="l")
    assert world(silent, still).run(600).gpus()["loud"] <= 2


def test_a_job_stays_on_one_model_of_gpus() -> None:
    cluster = site(2, 2, models=("T4", "A100-SXM4-40GB"))
    lived = world(*(job(f"j{n}", 900.0) for n in range(2)), cluster=cluster).run(200)
    for one in lived.core.jobs.values():
        models = {cluster.nodes[part.node].gpu_model for part in one.wanted}
        assert len(models) == 1, one.wanted
    assert {len(one.wanted) for one in lived.core.jobs.values()} == {1}


LIES: dict[str, Callable[[float], Told | None]] = {
    "silence": lambda _: None,
    "no number": lambda _: Told(progress=math.nan, total=math.nan, loss=math.nan),
    "below zero": lambda done: Told(progress=-done, total=-1.0),
    "steps in millions": lambda done: Told(progress=1e9 * done, total=9e15),
    "a count that swings": lambda done: Told(progress=done % 7, total=8.0),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_liar_leaves_others_what_they_need(lie: str) -> None:
    told = noisy(1e300)
    liar = job("liar", 900.0, tells=LIES[lie], kind="lies", by_width=told)
    lived = world(liar, *(job(f"j{n}", 200.0, at_s=20.0 + n) for n in range(3))).run(2500)
    assert len(lived.ended_s) == 4, (lie, lived.starts)
    assert max(lived.ended_s[f"j{n}"] for n in range(3)) < 700.0, lived.ended_s


def test_a_newcomer_starts_at_once_and_all_get_through_though_nobody_answers() -> None:
    jobs = [job(f"j{n}", 200.0, at_s=7.0 * n) for n in range(6)]
    lived = world(*jobs, answers=False).run(2500)
    assert [lived.starts[f"j{n}"][0][0] for n in range(4)] == [0.0, 7.0, 14.0, 21.0]
    assert len(lived.ended_s) == 6
    asked = [one for _, said in lived.lived for one in said if type(one).__name__ == "Compute"]
    assert len(asked) > 1, "who answers may be gone: it is asked again"


def test_nobody_is_stopped_for_what_the_guard_refuses() -> None:
    kept = job("kept", 50.0, at_s=40.0, tenant="none")
    closed = TenantLimited(at_s=0.0, tenant="none", most_gpus=0)
    running = [job(f"j{n}", 3000.0, most=1) for n in range(4)]
    lived = world(*running, kept, events=(closed,)).run(250)
    assert {name: len(starts) for name, starts in lived.starts.items()} == {
        f"j{n}": 1 for n in range(4)
    }


def test_under_a_budget_jobs_grow_as_far_as_watts_go_and_no_restart_is_for_nothing() -> None:
    three = BudgetChanged(at_s=0.0, budget_w=4 * 10.0 + 2 * 50.0)
    lived = world(job("a", 900.0, most=4), events=(three,)).run(2500)
    assert set(lived.ended_s) == {"a"}
    assert len(lived.starts["a"]) <= 4, lived.starts


def test_a_budget_cut_in_the_middle_and_back() -> None:
    cut = BudgetChanged(at_s=100.0, budget_w=4 * 10.0 + 70.0)
    back = BudgetChanged(at_s=300.0, budget_w=None)
    jobs = [job(f"j{n}", 500.0, at_s=5.0 * n) for n in range(4)]
    lived = world(*jobs, events=(cut, back)).run(4000)
    assert len(lived.ended_s) == 4, lived.starts


def test_jobs_of_several_roles_and_without_gpus_run_as_they_are() -> None:
    roles = tuple(TaskRole(name=f"r{n}", command=("x",)) for n in range(2))
    gang = job("gang", 100.0, at_s=5.0, roles=roles, speed=flat)
    plain = job("cpu", 100.0, roles=(TaskRole(gpu_count=0, command=("x",)),), most=1, speed=flat)
    lived = world(job("a", 900.0), job("b", 900.0), gang, plain).run(3000)
    assert set(lived.ended_s) == {"a", "b", "gang", "cpu"}
    assert len(lived.starts["gang"]) == len(lived.starts["cpu"]) == 1


def test_an_unknown_search_is_refused() -> None:
    with pytest.raises(UserError, match="no search"):
        LivePollux(search="luck")


def test_the_journal_replayed_gives_the_same_decisions_also_from_a_snapshot_within() -> None:
    lived = world(*(job(f"j{n}", 400.0, at_s=30.0 * n, by_width=noisy(900.0)) for n in range(4)))
    lived.run(500)
    said = [commands for _, commands in lived.lived]
    config = replace(lived.core.config, planner=LivePollux(search="climb", seed=1))
    again = Core(config)
    assert [again.handle(event) for event, _ in lived.lived] == said
    half = len(said) // 2
    begun = Core(config)
    assert [begun.handle(event) for event, _ in lived.lived[:half]] == said[:half]
    thawed = thaw(freeze(FrozenState(begun, ReplayState(), {}, 0)), config).core
    assert [thawed.handle(event) for event, _ in lived.lived[half:]] == said[half:]


def test_elastic_jobs_are_through_sooner_than_under_fifo() -> None:
    """Jobs of mixed length that scale to differing degrees; the comparison of the guide."""
    mean_s = {}
    for name in ("fifo", "pollux-climb"):
        lived = world(*mixed(), name=name).run(9000)
        assert len(lived.ended_s) == 10, name
        mean_s[name] = lived.mean_s()
    assert mean_s["pollux-climb"] < 0.75 * mean_s["fifo"], mean_s


def mixed() -> list[Training]:
    """Restarts take 3 s; work is in seconds of one GPU."""
    lengths = (900, 120, 600, 90, 400, 150, 60, 300, 80, 200)
    powers = (0.9, 0.6, 0.8)
    return [
        job(f"j{n}", steps, at_s=10.0 * n, speed=partial(pow_of, powers[n % 3]), kind=f"k{n % 3}")
        for n, steps in enumerate(lengths)
    ]


def pow_of(power: float, width: int) -> float:
    return float(width**power)

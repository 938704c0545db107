"""The environment for schedulers: every start goes through the guard, whoever chose it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium", reason="extra rl")

import gymnasium
from gymnasium.utils.env_checker import check_env

from wattherd.experiments.schedule.run import simulate
from wattherd.experiments.schedule.schedule_env import (
    NOBODY,
    Ground,
    ScheduleEnv,
    action_mask,
    judged,
    mean_time_s,
    run_by,
)
from wattherd.policy.schedule.turn_by_turn import JOB_FEATURES, TURNS, TurnQuestion

SMALL = Ground(gpus=8, jobs=20, longest_s=3_600.0, load=2.0)
TIGHT = Ground(gpus=8, jobs=20, longest_s=3_600.0, load=2.0, budget="0:1200W,1h:700W")
GPUS, DURATION = JOB_FEATURES.index("gpus"), JOB_FEATURES.index("duration")


def first(turn: TurnQuestion) -> int | None:
    return 0


def shortest(turn: TurnQuestion) -> int | None:
    fits = action_mask(turn)[:TURNS].nonzero()[0]
    return int(min(fits, key=lambda row: turn.jobs[row, DURATION])) if fits.size else None


def played(env: ScheduleEnv, choose: Any, seed: int) -> tuple[float, dict[str, Any], int]:
    """The rewards of an episode, its last `info`, and how many steps it took."""
    seen, info = env.reset(seed=seed)
    rewards, steps, over = 0.0, 0, False
    while not over:
        assert env.observation_space.contains(seen)
        seen, reward, over, truncated, info = env.step(choose(seen, info))
        assert not truncated
        assert reward <= 1e-9
        rewards, steps = rewards + reward, steps + 1
    return rewards, info, steps


def any_that_fits(seen: Any, info: dict[str, Any]) -> int:
    return int(info["action_mask"].argmax())


def test_gymnasium_accepts_the_environment() -> None:
    check_env(ScheduleEnv(SMALL), skip_render_check=True)


def test_an_episode_needs_a_reset_before_and_after() -> None:
    env = ScheduleEnv(SMALL)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)
    played(env, any_that_fits, 1)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)


def test_rewards_add_up_to_the_mean_completion_time() -> None:
    for seed in (1, 2):
        env = ScheduleEnv(TIGHT)
        rewards, info, _ = played(env, any_that_fits, seed)
        durations = [spec.duration_s for spec in env._setup.given.jobs.specs]
        assert -rewards == pytest.approx(info["mean_time_s"] / np.mean(durations))


def test_the_same_seed_is_the_same_episode_and_another_another() -> None:
    env = ScheduleEnv(TIGHT)
    one, again, other = (played(env, any_that_fits, seed) for seed in (3, 3, 4))
    assert one[0] == again[0]
    assert one[0] != other[0]


def test_whoever_chooses_at_random_breaks_no_budget_and_parts_no_gang() -> None:
    """Also rows that are empty, and jobs for which there is no room."""
    draws = np.random.default_rng(1)
    setup = TIGHT.setup(5)
    run = run_by(lambda _: int(draws.integers(TURNS + 1)), setup)
    assert run.row["over_budget_j"] == 0
    widths = {spec.id: spec.gpus for spec in setup.given.jobs.specs}
    assert {one.job_id: one.gpus for one in run.outcomes} == widths


def test_whoever_starts_nobody_ends_and_is_told_what_that_costs() -> None:
    env = ScheduleEnv(SMALL)
    worst, info, steps = played(env, lambda *_: NOBODY, 1)
    best, _, _ = played(env, any_that_fits, 1)
    assert steps < 1_000
    assert worst < best
    assert info["mean_time_s"] > 0


def test_an_episode_that_is_left_leaves_nothing_behind() -> None:
    env = ScheduleEnv(SMALL)
    env.reset(seed=1)
    env.step(0)
    env.close()
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)
    played(env, any_that_fits, 1)


def test_the_first_in_line_is_strict_fifo_but_for_who_passes() -> None:
    """A rule in place of a learner is a scheduler like any other, under the same plant."""
    setup = SMALL.setup(7)
    ours, built_in = run_by(first, setup), simulate(setup, "fifo-first-fit")
    assert mean_time_s(ours, setup) == pytest.approx(mean_time_s(built_in, setup), rel=0.05)


def test_what_was_learned_is_judged_on_workloads_that_it_never_saw() -> None:
    told = judged(shortest, SMALL, seeds=range(100, 104), beside=("fifo", "sjf"))
    assert told.keys() == {"learned", "fifo", "sjf"}
    assert told["learned"] < told["fifo"]


@pytest.mark.long
def test_the_example_learns_more_than_first_come_first_served() -> None:
    example = Path(__file__).parents[2] / "examples" / "learn" / "scheduler.py"
    command = [sys.executable, str(example), "2"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=500).stdout
    times = {one.split()[0]: float(one.split()[1]) for one in told.splitlines() if " min" in one}
    assert times.keys() == {"learned", "fifo", "fifo-first-fit", "sjf"}
    assert times["learned"] < 0.9 * times["fifo"]

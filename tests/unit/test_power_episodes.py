"""The training ground of power policies: time, slowdown, learning of hidden curves."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from wattherd.sim.power_episodes import (
    JOBS,
    PRIOR,
    STEP_S,
    STEPS,
    EpisodeJobs,
    Episodes,
    drawn_jobs,
    run,
)


def most(episodes: Episodes) -> np.ndarray:
    return episodes.jobs.max_w


def least(episodes: Episodes) -> np.ndarray:
    return episodes.jobs.floor_w


def ample(seed: int = 1, episodes: int = 2) -> EpisodeJobs:
    jobs = drawn_jobs(episodes, np.random.default_rng(seed))
    return replace(jobs, budget_w=np.full((episodes, STEPS), 1e9), arrival_s=0 * jobs.arrival_s)


def test_with_watts_for_all_nobody_is_slowed_down() -> None:
    ended = run(ample(), most)
    assert (ended.left_s == 0).all()
    assert ended.slowdown() == pytest.approx(1.0)
    assert ended.worked_s == pytest.approx(ended.jobs.length_s)


def test_a_capped_job_takes_as_long_as_its_power_law_says() -> None:
    jobs = ample(episodes=1)
    ended = run(jobs, least)
    part = (jobs.floor_w - 0.12 * jobs.max_w) / (0.88 * jobs.max_w)
    slower = part**-jobs.exponent
    through = jobs.length_s * slower < STEP_S * STEPS
    assert ended.delay[through] == pytest.approx(slower[through])
    assert not (ended.left_s[~through] == 0).any()


def test_rewards_add_up_to_the_slowdown() -> None:
    episodes = Episodes(drawn_jobs(3, np.random.default_rng(5)))
    total = np.zeros(3)
    while not episodes.ended():
        total += episodes.step(most(episodes))
    jobs = episodes.jobs
    rest = (episodes.left_s / jobs.length_s * jobs.weight).sum(axis=1) / jobs.weight.sum(axis=1)
    assert -total + rest == pytest.approx(episodes.slowdown())


def test_hidden_curves_become_known_to_whoever_runs_under_a_cap() -> None:
    jobs = ample(episodes=8)
    episodes = Episodes(replace(jobs, length_s=np.full_like(jobs.length_s, 1e9)))
    before = np.abs(episodes.known().exponent - jobs.exponent).mean()
    for _ in range(20):
        episodes.step(least(episodes))
    known = episodes.known()
    assert before == pytest.approx(np.abs(PRIOR - jobs.exponent).mean())
    assert np.abs(known.exponent - jobs.exponent).mean() < 0.05 * before / 0.2
    assert (known.doubt < 0.02).all()


def test_nothing_is_learned_at_full_power() -> None:
    episodes = Episodes(ample())
    episodes.step(most(episodes))
    assert episodes.known().exponent == pytest.approx(PRIOR)


def test_jobs_whose_floors_do_not_fit_wait_in_order_of_arrival() -> None:
    jobs = ample(episodes=1)
    two_w = jobs.floor_w[:, :2].sum()
    episodes = Episodes(replace(jobs, budget_w=np.full((1, STEPS), two_w)))
    assert episodes.running[0].nonzero()[0].tolist() == [0, 1]
    episodes.step(most(episodes))
    assert episodes.delay[0, 5] > 0
    assert episodes.left_s[0, 5] == jobs.length_s[0, 5]


def test_the_same_seed_draws_the_same_episodes() -> None:
    one, two = (drawn_jobs(2, np.random.default_rng(3)) for _ in range(2))
    for name in EpisodeJobs.__slots__:
        assert (getattr(one, name) == getattr(two, name)).all()


def test_gymnasium_accepts_the_environment() -> None:
    pytest.importorskip("gymnasium", reason="extra rl")
    from gymnasium.utils.env_checker import check_env

    from wattherd.sim.power_env import PowerEnv

    with warnings.catch_warnings():
        # It advises spaces of -1..1; parts of a range are 0..1 and mean what they say.
        warnings.simplefilter("ignore", UserWarning)
        check_env(PowerEnv(), skip_render_check=True)


def test_an_episode_of_the_environment_keeps_its_budget_and_ends_with_its_slowdown() -> None:
    gymnasium = pytest.importorskip("gymnasium", reason="extra rl")
    from wattherd.sim.power_env import PowerEnv

    env = PowerEnv()
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.ones(JOBS, dtype=np.float32))
    seen, _ = env.reset(seed=4)
    assert env.observation_space.contains(seen)
    rewards, terminated, info = 0.0, False, {}
    while not terminated:
        seen, reward, terminated, truncated, info = env.step(np.ones(JOBS, dtype=np.float32))
        assert info["given_w"] <= info["budget_w"] + 1e-6
        assert env.observation_space.contains(seen)
        assert not truncated
        rewards += reward
    assert info["slowdown"] >= 1.0
    assert -rewards <= info["slowdown"] + 1e-9

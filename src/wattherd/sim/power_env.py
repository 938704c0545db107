"""The training ground of power policies as a Gymnasium environment (extra `rl`).

    env = PowerEnv()
    observation, info = env.reset(seed=1)
    observation, reward, terminated, truncated, info = env.step(env.action_space.sample())

For learners from elsewhere; `wattherd power train-rl` runs many episodes at once without it. The
dynamics are those of `sim.power_episodes`, the guard included: no action exceeds a budget.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from wattherd.policy.power.bidder import FEATURES, features
from wattherd.sim.power_episodes import JOBS, Episodes, drawn_jobs

Observation = NDArray[np.float32]
FAR = 20.0
"""No feature lies beyond."""


class PowerEnv(gymnasium.Env[Observation, NDArray[np.float32]]):
    """One episode of eight hours: who gets how many watts, every two minutes.

    An observation has a row per job, `policy.power.bidder.FEATURES` and whether it runs, all 0 for
    jobs that do not. An action is the part of each job's range from floor to maximum that it shall
    have; the guard cuts what is too much. The reward is minus what the step adds to the weighted
    mean slowdown.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(self) -> None:
        """Spaces only; `reset` draws the jobs."""
        shape = (JOBS, len(FEATURES) + 1)
        self.observation_space = spaces.Box(-FAR, FAR, shape, np.float32)
        self.action_space = spaces.Box(0.0, 1.0, (JOBS,), np.float32)
        self._episodes: Episodes | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """New jobs and budgets, the same for the same seed."""
        super().reset(seed=seed, options=options)
        self._episodes = Episodes(drawn_jobs(1, self.np_random))
        return self._seen(self._episodes), {}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Two minutes; `info` has the watts given and, at the end, the slowdown.

        Raises:
            gymnasium.error.ResetNeeded: before the first `reset`, or after the end.
        """
        episodes = self._episodes
        if episodes is None or episodes.ended():
            raise gymnasium.error.ResetNeeded("call reset first")
        jobs = episodes.jobs
        proposed_w = jobs.floor_w + np.asarray(action, dtype=np.float64) * (
            jobs.max_w - jobs.floor_w
        )
        info: dict[str, Any] = {
            "budget_w": float(episodes.budget_w[0]),
            "given_w": float(episodes.caps(proposed_w).sum()),
        }
        reward = float(episodes.step(proposed_w)[0])
        if episodes.ended():
            info["slowdown"] = float(episodes.slowdown()[0])
        return self._seen(episodes), reward, episodes.ended(), False, info

    @staticmethod
    def _seen(episodes: Episodes) -> Observation:
        running = episodes.running
        rows = features(episodes.known(), running, np.maximum(episodes.room_w, 0.0))[0]
        rows = np.column_stack([rows, np.ones(JOBS)]) * running[0][:, None]
        return np.asarray(np.clip(rows, -FAR, FAR), dtype=np.float32)

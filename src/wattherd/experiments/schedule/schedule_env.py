"""A training ground for schedulers as a Gymnasium environment (extra `rl`).

    env = ScheduleEnv(gpus=32, budget="0:5kW,6h:3.5kW")
    observation, info = env.reset(seed=1)
    action = info["action_mask"].argmax()  # the first that waits and fits
    observation, reward, terminated, truncated, info = env.step(action)

An episode is one whole run of the simulator behind `wattherd sim run`, core and guard included: no
action exceeds a budget or parts a gang. `judged` runs what was learned on other workloads, beside
schedulers that are built in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
from greenlet import getcurrent, greenlet
from gymnasium import spaces
from numpy.typing import NDArray

from wattherd.catalog.gpus import GPUS
from wattherd.experiments.schedule.run import ComparedRun, ComparisonSetup, simulate
from wattherd.experiments.schedule.scheduler_context import BuiltScheduler, SchedulerContext
from wattherd.experiments.schedule.setup import parse_budget
from wattherd.experiments.schedule.simulators import PRESETS
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.policy.schedule.turn_by_turn import (
    JOB_FEATURES,
    MOST,
    SITE_FEATURES,
    TURNS,
    TurnByTurn,
    TurnQuestion,
)
from wattherd.workload.cluster_text import parse_cluster
from wattherd.workload.generate_jobs import JobMix, generate_jobs

Observation = NDArray[np.float32]
Choice = Callable[[TurnQuestion], int | None]
LEARNED = "learned"
NOBODY = TURNS
"""The action that starts nobody more."""
NOT_ENDED = 10.0
"""A job that was never run counts as one that took so many times the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What workloads are drawn from: as `wattherd traces generate-jobs` draws them."""

    gpus: int = 32
    jobs: int = 60
    load: float = 1.4
    longest_s: float = 14_400.0
    model: str = "V100M16"
    budget: str | None = None

    def setup(self, seed: int) -> ComparisonSetup:
        """One workload; the same for the same seed.

        Raises:
            UserError: a number that makes no sense, or no such GPU model.
        """
        mix = JobMix(
            jobs=self.jobs, gpus=self.gpus, load=self.load, longest_s=self.longest_s,
            widest=min(8, self.gpus),
        )  # fmt: skip
        cluster = parse_cluster(f"{self.model}={self.gpus}", known=GPUS)
        jobs = ReadJobs(specs=generate_jobs(mix, seed))
        return ComparisonSetup(
            preset=PRESETS["none"],
            given=SchedulerContext(jobs=jobs, cluster=cluster, seed=seed),
            budget=parse_budget(self.budget),
        )


def run_by(choose: Choice, setup: ComparisonSetup) -> ComparedRun:
    """One run in which `choose` says whose turn it is."""

    def built(_: SchedulerContext) -> BuiltScheduler:
        return BuiltScheduler(planner=TurnByTurn(choose))

    preset = replace(setup.preset, schedulers={LEARNED: built})
    return simulate(replace(setup, preset=preset), LEARNED)


def observed(turn: TurnQuestion) -> Observation:
    """A turn as one row of numbers: jobs first, then the site."""
    return np.concatenate([turn.jobs.ravel(), turn.site])


def action_mask(turn: TurnQuestion) -> NDArray[np.int8]:
    """1 for jobs that are offered and whose GPUs are free, and for starting nobody more."""
    fits = turn.jobs[:, JOB_FEATURES.index("fits")] > 0
    return np.append(fits, [True]).astype(np.int8)


def mean_time_s(run: ComparedRun, setup: ComparisonSetup) -> float:
    """Mean completion time; a job that never ended counts as `NOT_ENDED` mean durations."""
    known = [one.jct_s for one in run.outcomes if one.jct_s is not None]
    jobs = setup.given.jobs.specs
    missing = len(jobs) - len(known)
    return (sum(known) + missing * NOT_ENDED * _mean_s(setup)) / len(jobs)


def _mean_s(setup: ComparisonSetup) -> float:
    return float(np.mean([spec.duration_s or 0.0 for spec in setup.given.jobs.specs]))


def judged(
    choose: Choice, ground: Ground, seeds: Iterable[int], beside: Iterable[str] = ("fifo", "sjf")
) -> Mapping[str, float]:
    """Mean completion time (s) over the workloads of `seeds`, of what was learned and of others."""
    times: dict[str, list[float]] = {}
    for seed in seeds:
        setup = ground.setup(seed)
        runs = {LEARNED: run_by(choose, setup)} | {one: simulate(setup, one) for one in beside}
        for name, run in runs.items():
            times.setdefault(name, []).append(mean_time_s(run, setup))
    return {name: float(np.mean(told)) for name, told in times.items()}


class ScheduleEnv(gymnasium.Env[Observation, np.int64]):
    """One workload per episode, one step per job that starts.

    An observation is `observed` of a `TurnQuestion`. An action is the row of the job to start next,
    or `NOBODY`. `info["action_mask"]` says which ones can do anything. The reward is minus the time
    that jobs have been there since the last step, over the jobs' number and mean duration: an
    episode's rewards add up to minus its mean completion time in mean durations.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(self, ground: Ground | None = None) -> None:
        """Spaces only; `reset` draws the jobs."""
        self._ground = ground or Ground()
        size = TURNS * len(JOB_FEATURES) + len(SITE_FEATURES)
        self.observation_space = spaces.Box(-MOST, MOST, (size,), np.float32)
        self.action_space = spaces.Discrete(TURNS + 1)
        self._run: greenlet | None = None
        self._turn: TurnQuestion | None = None
        self._told = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """New jobs, the same for the same seed; the first question."""
        super().reset(seed=seed, options=options)
        self.close()
        self._setup = self._ground.setup(int(self.np_random.integers(1 << 31)))
        self._told = 0.0
        self._run = greenlet(lambda: run_by(_ask, self._setup))
        self._turn = self._run.switch()
        return observed(self._turn), self._info(self._turn)

    def step(self, action: np.int64 | int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Start a job, or nobody more; on to the next question, or to the end.

        Raises:
            gymnasium.error.ResetNeeded: before the first `reset`, or after the end.
        """
        if self._run is None or self._turn is None:
            raise gymnasium.error.ResetNeeded("call reset first")
        told = self._run.switch(None if int(action) == NOBODY else int(action))
        if isinstance(told, TurnQuestion):
            self._turn = told
            return observed(told), self._reward(told.lived_s), False, False, self._info(told)
        mean_s = mean_time_s(told, self._setup)
        reward = self._reward(mean_s * len(self._setup.given.jobs.specs))
        info = {"mean_time_s": mean_s, "action_mask": np.zeros(TURNS + 1, dtype=np.int8)}
        last, self._run, self._turn = self._turn, None, None
        return observed(last), reward, True, False, info

    def close(self) -> None:
        """Let a run that was not played to its end go."""
        if self._run is not None:
            self._run.throw()  # GreenletExit: the run unwinds where it waits for an action
            self._run = self._turn = None

    def _reward(self, lived_s: float) -> float:
        jobs = len(self._setup.given.jobs.specs)
        before, self._told = self._told, -lived_s / (jobs * _mean_s(self._setup))
        return self._told - before

    @staticmethod
    def _info(turn: TurnQuestion) -> dict[str, Any]:
        return {"action_mask": action_mask(turn), "offered": turn.offered, "now_s": turn.now_s}


def _ask(turn: TurnQuestion) -> int | None:
    """Within a run: hand the question to whoever steps, and wait for the answer."""
    stepping = getcurrent().parent
    if stepping is None:
        raise RuntimeError("asked outside of an environment")
    answer: int | None = stepping.switch(turn)
    return answer

"""Jobs that come, work and leave under a budget that steps: where power policies are trained.

Many episodes run side by side as arrays (E, N), each with its own jobs. Of a job its floor,
maximum, weight and length are known; how its rate falls with its cap is hidden, rate = ((cap -
idle) / (max - idle)) ** exponent, and must be learned from noisy rates as it runs (Bayes, conjugate
normal). What is proposed is cut to the budget like any proposal. An episode's score is the weighted
mean slowdown of its jobs: time from arrival to end over the time it would have taken uncapped and
at once.

Exponents and noise are those of the Zeus measurements (median 0.37 on V100, up to 0.95 on A40),
caps those of GPUs from 250 to 700 W in jobs of one to eight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from wattherd.policy.power.bidder import IDLE_PART, BidderInputs, kept_part
from wattherd.policy.power.choices import Bools, Floats

STEP_S = 120.0
STEPS = 240
JOBS = 32
PRIOR, PRIOR_SD, NOISE_SD = 0.5, 0.2, 0.05
Proposer = Callable[["Episodes"], Floats]
"""Proposed caps (E, N) in watts; those of jobs that do not run are not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeJobs:
    """All that is drawn beforehand: jobs (E, N), budgets (E, T), noise of rates (E, T, N)."""

    arrival_s: Floats
    length_s: Floats
    exponent: Floats
    floor_w: Floats
    max_w: Floats
    weight: Floats
    budget_w: Floats
    noise: Floats

    def repeated(self, times: int) -> EpisodeJobs:
        """The same episodes `times` over, one block after the other."""
        copies = {
            name: np.tile(getattr(self, name), (times, *(1,) * (getattr(self, name).ndim - 1)))
            for name in self.__slots__
        }
        return EpisodeJobs(**copies)


def drawn_jobs(episodes: int, chance: np.random.Generator) -> EpisodeJobs:
    """Episodes of eight hours with 32 jobs each; the budget changes about every hour."""
    shape = (episodes, JOBS)
    span_s = 0.7 * STEP_S * STEPS
    device_w = chance.choice([250.0, 300.0, 400.0, 700.0], shape)
    devices = chance.choice([1.0, 2.0, 4.0, 8.0], shape, p=[0.4, 0.3, 0.2, 0.1])
    max_w = device_w * devices
    length_s = np.clip(1800.0 * np.exp(chance.normal(0.0, 1.1, shape)), 300.0, 4 * 3600.0)
    busy_w = (max_w * length_s).sum(axis=1) / span_s
    change = chance.random((episodes, STEPS)) < STEP_S / 3600.0
    parts = chance.uniform(0.45, 1.1, (episodes, STEPS))
    last = np.maximum.accumulate(np.where(change, np.arange(STEPS), 0), axis=1)
    return EpisodeJobs(
        arrival_s=np.sort(chance.uniform(0.0, span_s, shape), axis=1),
        length_s=length_s,
        exponent=chance.uniform(0.15, 0.95, shape),
        floor_w=max_w * chance.uniform(0.3, 0.5, shape),
        max_w=max_w,
        weight=chance.choice([1.0, 2.0, 4.0], shape, p=[0.6, 0.3, 0.1]),
        budget_w=np.take_along_axis(parts, last, axis=1) * busy_w[:, None],
        noise=chance.normal(0.0, NOISE_SD, (episodes, STEPS, JOBS)),
    )


@dataclass(slots=True)
class Episodes:
    """The state of E episodes, `at` steps in; jobs start in order of arrival as floors fit."""

    jobs: EpisodeJobs
    at: int = 0
    left_s: Floats = field(init=False)
    running: Bools = field(init=False)
    delay: Floats = field(init=False)
    worked_s: Floats = field(init=False)
    over_w: float = 0.0
    _evidence: Floats = field(init=False)
    _mass: Floats = field(init=False)

    def __post_init__(self) -> None:
        """Nobody has come yet, and nothing is known."""
        shape = self.jobs.length_s.shape
        self.left_s = self.jobs.length_s.copy()
        self.delay, self.worked_s = np.zeros(shape), np.zeros(shape)
        self._evidence = np.full(shape, PRIOR / PRIOR_SD**2)
        self._mass = np.full(shape, 1.0 / PRIOR_SD**2)
        self._admit()

    @property
    def present(self) -> Bools:
        """Jobs that have come and not ended."""
        return (self.jobs.arrival_s <= self.at * STEP_S) & (self.left_s > 0)

    def ended(self) -> bool:
        """Whether time is up."""
        return self.at >= STEPS

    @property
    def budget_w(self) -> Floats:
        """Watts of each episode (E,)."""
        return np.asarray(self.jobs.budget_w[:, min(self.at, STEPS - 1)])

    @property
    def room_w(self) -> Floats:
        """Watts above the floors of those that run (E,)."""
        floors_w = (self.jobs.floor_w * self.running).sum(axis=1)
        return np.asarray(self.budget_w - floors_w)

    def known(self) -> BidderInputs:
        """What a policy may know."""
        jobs = self.jobs
        return BidderInputs(
            exponent=np.clip(self._evidence / self._mass, 0.05, 0.95),
            doubt=1.0 / np.sqrt(self._mass),
            remaining_s=self.left_s,
            length_s=jobs.length_s,
            floor_w=jobs.floor_w,
            max_w=jobs.max_w,
            weight=jobs.weight,
        )

    def _admit(self) -> None:
        present = self.present
        floors_w = np.cumsum(self.jobs.floor_w * present, axis=1)
        self.running = present & (floors_w <= self.budget_w[:, None])

    def caps(self, proposed_w: Floats) -> Floats:
        """The guard: proposals (E, N) within ranges and budgets."""
        jobs, run = self.jobs, self.running
        wanted = np.where(np.isnan(proposed_w), jobs.floor_w, proposed_w)
        above_w = (np.clip(wanted, jobs.floor_w, jobs.max_w) - jobs.floor_w) * run
        part = kept_part(above_w.sum(axis=1), np.maximum(self.room_w, 0.0))
        return np.asarray((jobs.floor_w + above_w * part[:, None]) * run)

    def step(self, proposed_w: Floats) -> Floats:
        """Two minutes under what the guard leaves of the proposals; returns rewards (E,).

        A reward is minus what the step adds to the weighted mean slowdown.
        """
        jobs, present, run = self.jobs, self.present, self.running
        cap_w = self.caps(proposed_w)
        self.over_w = max(self.over_w, float((cap_w.sum(axis=1) - self.budget_w).max()))
        idle_w = IDLE_PART * jobs.max_w
        part = np.where(run, (cap_w - idle_w) / (jobs.max_w - idle_w), 1.0)
        rate = np.where(run, part**jobs.exponent, 0.0)
        self._learn(np.log(part), jobs.exponent * np.log(part) + jobs.noise[:, self.at])
        spent_s = np.where(present, STEP_S, 0.0)
        ends = run & (self.left_s <= rate * STEP_S)
        spent_s = np.where(ends, self.left_s / np.maximum(rate, 1e-9), spent_s)
        self.left_s = np.where(ends, 0.0, self.left_s - rate * STEP_S)
        self.worked_s += np.where(run, rate * spent_s, 0.0)
        added = spent_s / jobs.length_s
        self.delay += added
        self.at += 1
        self._admit()
        return -np.asarray((added * jobs.weight).sum(axis=1) / jobs.weight.sum(axis=1))

    def _learn(self, log_part: Floats, seen: Floats) -> None:
        """One noisy rate of everyone that runs under a cap."""
        self._mass += np.where(self.running, np.square(log_part), 0.0) / NOISE_SD**2
        self._evidence += np.where(self.running, log_part * seen, 0.0) / NOISE_SD**2

    def slowdown(self) -> Floats:
        """Weighted mean slowdown (E,); jobs still there count as if uncapped from now on."""
        jobs = self.jobs
        rest = np.where(self.left_s > 0, self.left_s / jobs.length_s, 0.0)
        total = (self.delay + rest) * jobs.weight
        return np.asarray(total.sum(axis=1) / jobs.weight.sum(axis=1))


def run(jobs: EpisodeJobs, propose: Proposer) -> Episodes:
    """Whole episodes under one policy."""
    episodes = Episodes(jobs)
    while not episodes.ended():
        episodes.step(propose(episodes))
    return episodes

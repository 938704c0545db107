"""A learned power policy beside the known rules, on the same unseen episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from wattherd.experiments.power_rl.train import learned
from wattherd.policy.power.bidder import IDLE_PART, Bidder, levelled_parts
from wattherd.policy.power.choices import Floats
from wattherd.sim.power_episodes import Episodes, Proposer, drawn_jobs, run
from wattherd.workload.random_streams import stream

LEVELS = 40.0
"""Common levels are searched from minus this to this."""


def _by_level(part_of: Callable[[Episodes, Floats], Floats]) -> Proposer:
    """A rule that gives everybody a part of its range by one common level."""

    def propose(episodes: Episodes) -> Floats:
        known = episodes.known()
        range_w = known.range_w * episodes.running
        room_w = np.maximum(episodes.room_w, 0.0)
        parts = levelled_parts(lambda level: part_of(episodes, level), range_w, room_w)
        return known.floor_w + parts * known.range_w

    return propose


def _up(level: Floats) -> Floats:
    """From 0 at the lowest level to 1 at the highest."""
    return (level + LEVELS) / (2 * LEVELS)


def _uniform(episodes: Episodes, level: Floats) -> Floats:
    """One part of the maximum for all: jobs differ in width and GPU type."""
    return _part(episodes, episodes.jobs.max_w * _up(level))


def _proportional(episodes: Episodes, level: Floats) -> Floats:
    return np.broadcast_to(_up(level), episodes.jobs.max_w.shape)


def _market(
    exponent: Floats, weight: Floats, episodes: Episodes, level: Floats, *, logs: bool
) -> Floats:
    """Where the last watt of x ** exponent (or of its logarithm) is worth exp(-level)."""
    jobs = episodes.jobs
    idle_w = IDLE_PART * jobs.max_w
    span_w = jobs.max_w - idle_w
    worth = np.log(weight * exponent / span_w) + level
    x = np.exp(np.clip(worth if logs else worth / (1.0 - exponent), -50.0, 50.0))
    return _part(episodes, idle_w + x * span_w)


def _part(episodes: Episodes, cap_w: Floats) -> Floats:
    """Caps as parts of the jobs' ranges."""
    jobs = episodes.jobs
    return np.asarray(np.clip((cap_w - jobs.floor_w) / (jobs.max_w - jobs.floor_w), 0.0, 1.0))


def _filling(exponent_of: Callable[[Episodes], Floats], *, short: bool) -> Proposer:
    """Water-filling on power laws; with `short` a job weighs by weight over what remains of it."""

    def part(episodes: Episodes, level: Floats) -> Floats:
        jobs = episodes.jobs
        weight = jobs.weight / np.maximum(episodes.left_s, 60.0) * 1800.0 if short else jobs.weight
        return _market(exponent_of(episodes), weight, episodes, level, logs=False)

    return _by_level(part)


def _believed(episodes: Episodes) -> Floats:
    return episodes.known().exponent


def _true(episodes: Episodes) -> Floats:
    return episodes.jobs.exponent


def _nash(episodes: Episodes, level: Floats) -> Floats:
    return _market(_believed(episodes), episodes.jobs.weight, episodes, level, logs=True)


BASELINES: Mapping[str, Proposer] = {
    "uniform": _by_level(_uniform),
    "proportional": _by_level(_proportional),
    "nash": _by_level(_nash),
    "water-filling": _filling(_believed, short=False),
    "water-filling, curves known": _filling(_true, short=False),
    "water-filling by weight / remaining": _filling(_believed, short=True),
}
"""Rules beside which a learned policy is judged. They learn curves as it does, but for one."""


def judge(policy: Bidder, seed: int, episodes: int) -> list[dict[str, Any]]:
    """Every rule and the policy on the same unseen episodes, the best mean slowdown first."""
    jobs = drawn_jobs(episodes, stream(seed, "power policy judged"))
    ended = {name: run(jobs, rule) for name, rule in {**BASELINES, "rl": learned(policy)}.items()}
    mine = ended["rl"].slowdown()
    rows = [_row(name, one, mine) for name, one in ended.items()]
    return sorted(rows, key=lambda row: float(row["slowdown"]))


def _row(name: str, ended: Episodes, mine: Floats) -> dict[str, Any]:
    """Figures of one policy; `mine` (E,) are the slowdowns of the learned one."""
    slowdown = ended.slowdown()
    worse = slowdown - mine
    error = worse.std(ddof=1) / np.sqrt(len(worse)) if len(worse) > 1 else np.nan
    finished = ended.left_s <= 0
    return {
        "policy": name,
        "slowdown": float(slowdown.mean()),
        "above_rl": float(worse.mean()),
        "above_rl_error": float(error),
        "rl_ahead": float((worse > 0).mean()),
        "finished": float(finished.mean()),
        "work_h": float(ended.worked_s.sum(axis=1).mean() / 3600.0),
        "over_budget_w": max(ended.over_w, 0.0),
    }

"""A learned power policy: trained by the cross-entropy method, kept in a file.

Cross-entropy method (Rubinstein, 1999; for policies Szita and Lorincz, 2006): draw parameters from
a normal distribution, keep those that did best on episodes drawn anew, fit the distribution to
them, with some noise added that fades. No gradients, nothing but NumPy; one seed, one result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wattherd.errors import UserError
from wattherd.policy.power.bidder import (
    FEATURES,
    SIZE,
    Bidder,
    features,
    levelled_parts,
    sigmoid_parts,
)
from wattherd.policy.power.choices import Floats
from wattherd.sim.power_episodes import EpisodeJobs, Episodes, Proposer, drawn_jobs, run
from wattherd.workload.random_streams import stream

SCHEMA = "wattherd.power-policy/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBudget:
    """How long and how widely to search; the defaults take some two minutes of one core."""

    generations: int = 40
    population: int = 48
    elites: int = 10
    episodes: int = 8
    spread: float = 0.6
    noise: float = 0.15


def learned(policy: Bidder) -> Proposer:
    """Proposals of a network, or of one network per episode."""

    def propose(episodes: Episodes) -> Floats:
        known, running = episodes.known(), episodes.running
        room_w = np.maximum(episodes.room_w, 0.0)
        bids = policy.bids(features(known, running, room_w))
        parts = levelled_parts(sigmoid_parts(bids), np.where(running, known.range_w, 0.0), room_w)
        return known.floor_w + parts * known.range_w

    return propose


def train(
    seed: int, training: TrainingBudget, told: Callable[[int, float], None] = lambda *_: None
) -> dict[str, Any]:
    """The document of a trained policy; `told` hears each generation's number and mean slowdown."""
    chance = stream(seed, "power policy")
    mean, deviation = np.zeros(SIZE), np.full(SIZE, training.spread)
    for generation in range(training.generations):
        tried = chance.normal(mean, deviation, (training.population, SIZE))
        tried[0] = mean
        score = scores(tried, drawn_jobs(training.episodes, chance))
        best = tried[np.argsort(score, kind="stable")[: training.elites]]
        fading = training.noise * max(1.0 - 1.5 * generation / training.generations, 0.0)
        mean, deviation = best.mean(axis=0), best.std(axis=0) + fading
        told(generation + 1, float(score[0]))
    return {
        "schema": SCHEMA,
        "seed": seed,
        "features": list(FEATURES),
        "training": {name: getattr(training, name) for name in TrainingBudget.__slots__},
        "parameters": [round(value, 6) for value in mean.tolist()],
    }


def scores(parameters: Floats, jobs: EpisodeJobs) -> Floats:
    """Mean slowdown of each of P parameter sets (P, SIZE), all on the same episodes."""
    count = len(jobs.arrival_s)
    policy = Bidder(np.repeat(parameters, count, axis=0))
    ended = run(jobs.repeated(len(parameters)), learned(policy))
    return np.asarray(ended.slowdown().reshape(-1, count).mean(axis=1))


def save(document: Mapping[str, Any], path: Path) -> None:
    """Write a policy.

    Raises:
        UserError: it cannot be written.
    """
    try:
        path.write_text(json.dumps(document, indent=1) + "\n")
    except OSError as problem:
        raise UserError(str(problem.strerror), where=str(path), field="--out") from None


def load(path: Path) -> Bidder:
    """A trained policy from a file.

    Raises:
        UserError: unreadable, or not of this form.
    """
    hint = "train one: wattherd power train-rl --seed 1 --out FILE"
    try:
        document = json.loads(path.read_text())
    except OSError as problem:
        said = f"cannot be read: {problem.strerror}"
        raise UserError(said, where=str(path), hint=hint) from None
    except (ValueError, RecursionError):
        raise UserError("is no policy", where=str(path), hint=hint) from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise UserError(f"is no {SCHEMA}", where=str(path), field="schema", hint=hint)
    if document.get("features") != list(FEATURES):
        other = "was trained on other features"
        raise UserError(other, where=str(path), field="features", hint=hint)
    try:
        parameters = np.array(document["parameters"], dtype=np.float64)
    except (KeyError, TypeError, ValueError):
        parameters = np.zeros((0, 0))
    if parameters.ndim != 1:
        raise UserError("are no list of numbers", where=str(path), field="parameters", hint=hint)
    return Bidder(parameters)

"""A trained power policy: it learns something, can be kept, and only proposes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wattherd.errors import UserError
from wattherd.estimate.measured_curve import JobCurve, MeasuredPoint
from wattherd.experiments.allocate.run import AllocationTerms, allocation
from wattherd.experiments.power_rl.judge import BASELINES, judge
from wattherd.experiments.power_rl.train import TrainingBudget, learned, load, save, scores, train
from wattherd.policy.power.bidder import SIZE, Bidder, levelled_parts, sigmoid_parts
from wattherd.sim.power_episodes import drawn_jobs, run

SHORT = TrainingBudget(generations=8, population=24, elites=6, episodes=4)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return train(1, SHORT)


@pytest.mark.long
def test_training_beats_not_being_trained_on_unseen_episodes(document: dict[str, Any]) -> None:
    untrained = np.zeros(SIZE)
    both = np.array([document["parameters"], untrained])
    trained, plain = scores(both, drawn_jobs(40, np.random.default_rng(77)))
    assert trained < 0.97 * plain


@pytest.mark.long
def test_one_seed_gives_one_policy(document: dict[str, Any]) -> None:
    brief = replace(SHORT, generations=2, population=8, elites=3, episodes=2)
    assert train(3, brief) == train(3, brief) != train(4, brief)


@pytest.mark.long
def test_the_best_of_the_rules_is_told_like_the_others(document: dict[str, Any]) -> None:
    rows = judge(Bidder(np.array(document["parameters"])), 5, 12)
    assert {row["policy"] for row in rows} == {*BASELINES, "rl"}
    assert [row["slowdown"] for row in rows] == sorted(row["slowdown"] for row in rows)
    assert max(row["over_budget_w"] for row in rows) <= 1e-6


def test_water_filling_with_known_curves_does_most_for_the_sum_of_rates() -> None:
    """A step from the same state: the judge's own rules do what they are called after."""
    jobs = drawn_jobs(20, np.random.default_rng(2))
    halfway = run(replace(jobs, arrival_s=0 * jobs.arrival_s), BASELINES["uniform"])
    halfway.at, halfway.left_s = 0, jobs.length_s.copy()
    halfway.running[:] = True
    halfway.jobs.budget_w[:, 0] = jobs.floor_w.sum(axis=1) * 1.5
    idle_w = 0.12 * jobs.max_w

    def worth(name: str) -> np.ndarray:
        part = (halfway.caps(BASELINES[name](halfway)) - idle_w) / (jobs.max_w - idle_w)
        return (jobs.weight * part**jobs.exponent).sum(axis=1)

    best = worth("water-filling, curves known")
    for name in BASELINES:
        assert (worth(name) <= best + 1e-6).all()


def test_common_levels_use_up_the_room_and_no_more() -> None:
    draw = np.random.default_rng(1)
    bids, range_w = draw.normal(0, 2, (5, 9)), draw.uniform(10, 300, (5, 9))
    room_w = draw.uniform(0.1, 0.9, 5) * range_w.sum(axis=1)
    parts = levelled_parts(sigmoid_parts(bids), range_w, room_w)
    assert (parts * range_w).sum(axis=1) == pytest.approx(room_w, rel=1e-5)
    assert ((parts * range_w).sum(axis=1) <= room_w + 1e-6).all()


def test_a_policy_file_is_read_as_it_was_written(document: dict[str, Any], tmp_path: Path) -> None:
    save(document, tmp_path / "policy.json")
    assert load(tmp_path / "policy.json").parameters.tolist() == document["parameters"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"schema": "else"}, "schema"),
        ({"features": ["one"]}, "features"),
        ({"parameters": [1.0]}, "parameters"),
        ({"parameters": "many"}, "parameters"),
        ({"parameters": [float("nan")] * SIZE}, "parameters"),
    ],
)
def test_a_file_that_is_no_policy_is_refused(
    document: dict[str, Any], change: dict[str, Any], field: str, tmp_path: Path
) -> None:
    (tmp_path / "policy.json").write_text(json.dumps({**document, **change}))
    with pytest.raises(UserError) as caught:
        load(tmp_path / "policy.json")
    assert caught.value.field == field


def test_allocate_takes_its_proposals_within_the_budget(
    document: dict[str, Any], tmp_path: Path
) -> None:
    save(document, tmp_path / "policy.json")
    caps = (100.0, 150.0, 200.0, 250.0)
    curves = [
        JobCurve(
            job=f"j{number}",
            points=tuple(
                MeasuredPoint(cap, cap, (cap / 250) ** (0.2 + 0.1 * number)) for cap in caps
            ),
            work=600.0 * (1 + number**2),
        )
        for number in range(6)
    ]
    for budget_w in (600.0, 800.0, 1100.0, 1500.0):
        answer = allocation(
            curves, AllocationTerms(budget_w=budget_w), f"rl:{tmp_path / 'policy.json'}"
        )
        assert answer["total_w"] <= budget_w
        assert answer["objective"] <= answer["bound"] + 1e-9
        assert all(job["cap_w"] in caps for job in answer["jobs"])
    assert answer["total_w"] == 1500.0


def test_networks_side_by_side_bid_as_each_alone() -> None:
    draw = np.random.default_rng(1)
    parameters, jobs = draw.normal(0, 1, (3, SIZE)), drawn_jobs(2, draw)
    alone = [run(jobs, learned(Bidder(one))).slowdown().mean() for one in parameters]
    assert scores(parameters, jobs) == pytest.approx(alone)

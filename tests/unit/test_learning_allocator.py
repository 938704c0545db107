"""Curves of a fleet learned together, and the allocator that keeps a budget while it learns."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from wattherd.errors import UserError
from wattherd.estimate.fleet_curves import FleetCurves, FleetTerms, SurpriseSums
from wattherd.estimate.learned_curve import CurveSample
from wattherd.estimate.measured_curve import JobCurve, MeasuredPoint
from wattherd.experiments.power_models.curves import LearningScenario, lesson
from wattherd.policy.power.learning import (
    ExplorationTerms,
    FeedbackReading,
    LearningAllocator,
    MeterFeedback,
)

CAPS = (100.0, 150.0, 200.0, 250.0)


def draw_w(demand_w: float, cap_w: float) -> float:
    return min(demand_w, 0.97 * cap_w)


def rate(demand_w: float, cap_w: float) -> float:
    return (draw_w(demand_w, cap_w) / demand_w) ** 0.6


def a_fleet(jobs: int = 24, seed: int = 3) -> list[JobCurve]:
    """Jobs that differ in what they would draw uncapped."""
    demands = np.random.default_rng(seed).uniform(90, 240, jobs)
    return [
        JobCurve(
            job=f"j{number}",
            points=tuple(
                MeasuredPoint(cap, draw_w(one, cap), number * rate(one, cap)) for cap in CAPS
            ),
        )
        for number, one in enumerate(demands.tolist(), start=1)
    ]


def started(jobs: int = 3, noise_sd: float = 0.05) -> FleetCurves:
    return FleetCurves.start([CAPS] * jobs, [1] * jobs, FleetTerms(noise_sd=noise_sd))


def a_round(curves: FleetCurves, demands: list[float], cap: float, seed: int) -> FleetCurves:
    noise = np.exp(np.random.default_rng(seed).normal(0, curves.terms.noise_sd, (len(demands), 2)))
    return curves.told(
        [
            CurveSample(cap, draw_w(one, cap) * float(a), rate(one, cap) * float(b))
            for one, (a, b) in zip(demands, noise, strict=True)
        ]
    )


def test_a_job_never_sampled_is_believed_to_be_like_the_rest_of_its_fleet() -> None:
    curves = started(jobs=21)
    before = curves.beliefs().watts_sd[20]
    for turn in range(8):
        cap = CAPS[turn % 4]
        curves = curves.told(
            [*[CurveSample(cap, draw_w(140.0, cap), rate(140.0, cap)) for _ in range(20)], None]
        )
    beliefs = curves.beliefs()
    expected = [draw_w(140.0, cap) for cap in CAPS]
    assert beliefs.watts[20] == pytest.approx(expected, rel=0.12)
    assert (beliefs.watts_sd[20] < before).all()
    assert (beliefs.watts_sd[:20].max(axis=0) < beliefs.watts_sd[20]).all()


def test_beliefs_come_to_the_truth_and_doubt_goes_down() -> None:
    demands = [100.0, 160.0, 230.0]
    curves = started()
    for turn in range(40):
        curves = a_round(curves, demands, CAPS[turn % 4], seed=turn)
    beliefs = curves.beliefs()
    for job, one in enumerate(demands):
        assert beliefs.watts[job] == pytest.approx([draw_w(one, c) for c in CAPS], rel=0.06)
        assert beliefs.relative_rate()[job] == pytest.approx([rate(one, c) for c in CAPS], abs=0.06)
    assert (beliefs.watts_sd / beliefs.watts < 0.03).all()
    assert curves.alarms.restarts.tolist() == [0, 0, 0]


def test_a_changed_job_starts_anew_and_the_others_do_not() -> None:
    curves = started()
    for turn in range(24):
        curves = a_round(curves, [120.0, 160.0, 230.0], CAPS[turn % 4], seed=turn)
    for turn in range(24):
        curves = a_round(curves, [120.0, 160.0, 105.0], CAPS[turn % 4], seed=100 + turn)
    assert curves.alarms.restarts[2] >= 1
    assert curves.alarms.restarts[:2].tolist() == [0, 0]
    expected = [draw_w(105.0, cap) for cap in CAPS]
    assert curves.beliefs().watts[2] == pytest.approx(expected, rel=0.08)


def test_old_samples_fade() -> None:
    terms = FleetTerms(memory=0.9)
    curves = FleetCurves.start([CAPS], [1], terms)
    for _ in range(200):
        curves = curves.told([CurveSample(250.0, 150.0, 1.0)])
    assert curves.samples[0] == pytest.approx(10.0, rel=1e-6)


def test_one_wild_sample_hardly_moves_a_belief() -> None:
    curves = started()
    for turn in range(24):
        curves = a_round(curves, [120.0, 160.0, 230.0], CAPS[turn % 4], seed=turn)
    wild = curves.told([CurveSample(200.0, 2000.0, 9.0), None, None])
    assert wild.beliefs().watts[0] == pytest.approx(curves.beliefs().watts[0], rel=0.1)


def test_surprises_of_both_signs_are_no_change() -> None:
    alarms, jobs = SurpriseSums.quiet(1), np.array([0])
    for turn in range(400):
        sign = 1.0 if turn % 2 else -1.0
        alarms, changed = alarms.told(jobs, np.full((1, 2), 1.2 * sign))
        assert not len(changed)
    for _ in range(4):
        alarms, changed = alarms.told(jobs, np.full((1, 2), 3.0))
    assert changed.tolist() == [0]


@pytest.mark.parametrize(
    "sample", [CurveSample(120, 90, 1), CurveSample(100, 0, 1), CurveSample(100, 90, float("nan"))]
)
def test_what_is_no_sample_is_refused(sample: CurveSample) -> None:
    with pytest.raises(UserError):
        started(1).told([sample])


def test_a_meter_corrects_the_sum_and_narrows_its_bound() -> None:
    curves = started()
    for turn in range(8):
        curves = a_round(curves, [120.0, 160.0, 230.0], CAPS[turn % 4], seed=turn)
    beliefs, picked = curves.beliefs(), (1, 2, 3)
    alone = MeterFeedback.of(beliefs, [], 0.002, 0.0)
    expected, doubt = alone.draw(picked)
    read = MeterFeedback.of(beliefs, [FeedbackReading(picked, expected * 1.05)] * 3, 0.002, 0.0)
    corrected, narrowed = read.draw(picked)
    assert corrected == pytest.approx(expected * 1.05, rel=0.01)
    assert narrowed < doubt
    other, _ = read.draw((0, 0, 0))
    assert abs(other / alone.draw((0, 0, 0))[0] - 1) < 0.05


@pytest.mark.long
@pytest.mark.parametrize("share", [0.72, 0.85])
def test_a_learning_fleet_stays_within_its_budget_and_finds_the_optimum(share: float) -> None:
    terms = LearningScenario(
        shares=(share,), samples=20, noise_sd=0.03, meter_sd=0.002, seeds=(1, 2, 3)
    )
    document = lesson(a_fleet(), terms)
    (found,) = document["budgets"]
    assert found["worst_of_optimum"] >= 0.97
    # The bound is one of 2.5 standard deviations, not of certainty.
    assert found["most_drawn_of_budget"] <= 1.001
    assert found["most_drawn_while_learning"] <= 1.01


def test_a_budget_that_nothing_fits_pauses_or_takes_the_lowest_caps() -> None:
    plain = LearningAllocator(curves=started(), weights=(1.0, 1.0, 1.0), budget_w=10.0)
    assert plain.planned().caps_w == (100.0, 100.0, 100.0)
    assert replace(plain, paused_w=0.0).planned().caps_w == (None, None, None)


def test_more_weight_earns_more_watts() -> None:
    demands = [200.0] * 8
    weights = (5.0,) * 4 + (1.0,) * 4
    learner = LearningAllocator(
        curves=started(8), weights=weights, budget_w=1100.0, exploration=ExplorationTerms(rounds=12)
    )
    chance = np.random.default_rng(1)
    for _ in range(12):
        plan = learner.planned()
        samples = [
            CurveSample(cap, draw_w(d, cap) * math.exp(a), rate(d, cap) * math.exp(b))
            for d, cap, a, b in zip(
                demands, plan.caps_w, *chance.normal(0, 0.02, (2, 8)), strict=True
            )
            if cap
        ]
        learner = learner.told(plan, samples)
    caps = [cap or 0.0 for cap in learner.planned().caps_w]
    assert sum(caps[:4]) > sum(caps[4:])


def test_terms_of_exploration_that_protect_nothing_are_refused() -> None:
    with pytest.raises(UserError, match="below 0"):
        ExplorationTerms(final_sd=-1)
    with pytest.raises(UserError, match="round"):
        ExplorationTerms(rounds=0)
    with pytest.raises(UserError, match="noise"):
        FleetTerms(noise_sd=0)
    with pytest.raises(UserError, match="cap"):
        FleetCurves.start([], [], FleetTerms())

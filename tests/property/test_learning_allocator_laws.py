"""Laws of the learning allocator under arbitrary samples, budgets and meters."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from wattherd.estimate.fleet_curves import FleetCurves, FleetTerms
from wattherd.estimate.learned_curve import CurveSample
from wattherd.policy.power.learning import ExplorationTerms, LearningAllocator

CAPS = ((100.0, 175.0, 250.0), (100.0, 250.0), (150.0, 200.0, 250.0, 300.0))
DEVICES = (1, 4, 2)
NUMBERS = st.tuples(st.floats(1, 1e4), st.floats(1e-6, 1e6))
ROUNDS = st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, st.none() | st.floats(1, 1e4)), max_size=12)


def a_learner(budget_w: float, paused_w: float | None) -> LearningAllocator:
    return LearningAllocator(
        curves=FleetCurves.start(CAPS, DEVICES, FleetTerms()), weights=(1.0, 2.0, 0.5),
        budget_w=budget_w, paused_w=paused_w, meter_sd=0.01,
        exploration=ExplorationTerms(rounds=8, settle=2),
    )  # fmt: skip


@settings(max_examples=times(60), deadline=None)
@given(ROUNDS, st.floats(10, 3000), st.none() | st.floats(0, 50))
def test_plans_hold_their_bound_or_are_the_least_there_is(rounds, budget_w, paused_w) -> None:  # type: ignore[no-untyped-def]
    learner = a_learner(budget_w, paused_w)
    least = tuple(None if paused_w is not None else caps[0] for caps in CAPS)
    for *numbers, metered in rounds:
        plan = learner.planned()
        for cap, caps in zip(plan.caps_w, CAPS, strict=True):
            assert cap in caps or (cap is None and paused_w is not None)
        surest = min(learner.exploration.using_sd, learner.exploration.final_sd)
        bound_w = plan.watts + surest * plan.watts_sd
        assert bound_w <= budget_w * (1 + 1e-9) or plan.caps_w == least or learner.round == 0
        samples = [
            None if cap is None else CurveSample(cap, watts, rate)
            for cap, (watts, rate) in zip(plan.caps_w, numbers, strict=True)
        ]
        learner = learner.told(plan, samples, metered)


@settings(max_examples=times(60), deadline=None)
@given(ROUNDS)
def test_beliefs_stay_finite_and_covariances_sound(rounds) -> None:  # type: ignore[no-untyped-def]
    curves = FleetCurves.start(CAPS, DEVICES, FleetTerms())
    for number, (*numbers, _) in enumerate(rounds):
        curves = curves.told(
            [
                CurveSample(caps[number % len(caps)], watts, rate)
                for caps, (watts, rate) in zip(CAPS, numbers, strict=True)
            ]
        )
    beliefs = curves.beliefs()
    assert np.isfinite(beliefs.watts).all()
    assert (beliefs.watts > 0).all()
    assert np.linalg.eigvalsh(curves.population.spread).min() > -1e-9
    for covariance in (beliefs.log_rate_cov, beliefs.log_watts_cov):
        assert np.linalg.eigvalsh(covariance).min() > -1e-6
    relative = beliefs.relative_rate()
    assert (relative[~beliefs.able] == 0).all()
    assert np.allclose(relative.max(axis=1), 1.0)

"""The step-time model: bounded, close to what made its samples, and silent elsewhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from wattherd.errors import UserError
from wattherd.estimate.speed import (
    CoreCurve,
    CoreCurves,
    FittedRanges,
    JobShape,
    SpeedModel,
    fit_speed,
)

CURVES = CoreCurves(worker=CoreCurve(a=-0.9, b=0.5, d=1.1), server=CoreCurve(a=-0.8, b=0.7, d=1.2))
SHAPES = [
    JobShape(workers=w, servers=p, worker_cores=cw, server_cores=cp, gpus=w)
    for w, p in ((1, 1), (1, 3), (2, 1), (2, 2), (3, 1), (4, 1), (4, 2), (4, 4), (2, 4))
    for cw, cp in ((1, 2), (4, 4))
]


def by_hand(theta: tuple[float, ...], shape: JobShape, batch: int) -> float:
    """The five phases written out, independently of the module's terms."""
    eff_w = -0.9 * math.exp(-0.5 * shape.worker_cores) + 1.1
    eff_p = -0.8 * math.exp(-0.7 * shape.server_cores) + 1.2
    compute = (theta[0] * batch / shape.workers + theta[1]) / eff_w
    traffic = theta[2] * shape.workers / shape.servers
    update = theta[3] * shape.workers / shape.servers / eff_p
    return (
        compute
        + traffic
        + update
        + theta[4] * shape.workers
        + theta[5] * shape.servers
        + (theta[6] * shape.gpus)
    )


THETA = (0.01, 0.05, 0.2, 0.1, 0.02, 0.01, 0.005)


def test_step_time_is_the_sum_of_its_phases() -> None:
    model = SpeedModel(
        theta=THETA, batch=64, sampled=FittedRanges(workers=(1, 4), servers=(1, 4)), curves=CURVES
    )
    for shape in SHAPES:
        assert model.step_s(shape) == pytest.approx(by_hand(THETA, shape, 64))


@settings(max_examples=times(40))
@given(st.tuples(*[st.floats(0.001, 0.5)] * 7))
def test_a_fit_returns_the_step_times_that_made_it(theta: tuple[float, ...]) -> None:
    pytest.importorskip("scipy")
    model = fit_speed([(shape, by_hand(theta, shape, 64)) for shape in SHAPES], 64, CURVES)
    assert min(model.theta) >= 0
    unseen = JobShape(workers=3, servers=3, worker_cores=2, server_cores=3, gpus=3)
    assert model.step_s(unseen) == pytest.approx(by_hand(theta, unseen, 64), rel=0.05)


def test_noisy_samples_never_give_a_negative_phase() -> None:
    pytest.importorskip("scipy")
    chance = np.random.default_rng(5)
    for _ in range(20):
        samples = [
            (shape, by_hand(THETA, shape, 64) * math.exp(0.3 * chance.standard_normal()))
            for shape in SHAPES[:8]
        ]
        model = fit_speed(samples, 64, CURVES)
        assert min(model.theta) >= 0
        assert all(model.step_s(shape) > 0 for shape, _ in samples)


def test_shapes_that_were_not_sampled_are_refused() -> None:
    pytest.importorskip("scipy")
    model = fit_speed([(shape, by_hand(THETA, shape, 64)) for shape in SHAPES], 64, CURVES)
    with pytest.raises(UserError, match="5 workers and 1 servers were not sampled"):
        model.step_s(JobShape(workers=5, servers=1))
    with pytest.raises(UserError, match="not sampled"):
        model.step_s(JobShape(workers=1, servers=5))


def test_jobs_without_servers_have_no_server_phases() -> None:
    model = SpeedModel(theta=THETA, batch=64, sampled=FittedRanges(workers=(1, 4), servers=(0, 0)))
    # th0 64/2 + th1 + 2 th4 + 2 th6
    expected = 0.01 * 32 + 0.05 + 0.04 + 0.01
    assert model.step_s(JobShape(workers=2, servers=0, gpus=2)) == pytest.approx(expected)


def test_seven_samples_are_too_few_and_zero_seconds_are_no_sample() -> None:
    with pytest.raises(UserError, match="7 samples"):
        fit_speed([(shape, 1.0) for shape in SHAPES[:7]], 64)
    with pytest.raises(UserError, match="not a positive number"):
        fit_speed([(shape, 0.0) for shape in SHAPES], 64)


def test_a_core_curve_below_zero_is_refused() -> None:
    with pytest.raises(UserError, match="no speed with 1 cores"):
        CoreCurve(a=-10.0, b=0.5, d=2.0).speed(1)

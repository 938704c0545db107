"""The step time fit: parameters found again, optimism about the unseen, no worse than L-BFGS-B."""

from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from wattherd.errors import UserError
from wattherd.estimate.goodput import pass_s, step_s
from wattherd.estimate.goodput_agent import Configuration, _bounds, _error, fit
from wattherd.model.training import StepTime

TRUE = StepTime(
    pass_s=0.05,
    sample_s=0.002,
    network_sync_s=0.3,
    network_ring_s=0.01,
    node_sync_s=0.08,
    node_ring_s=0.004,
    overlap=2.0,
)
PLACES = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (2, 4), (2, 8), (4, 12), (4, 16)]
Steps = dict[Configuration, tuple[float, float]]


def measured(model: StepTime, places: list[tuple[int, int]], batches: tuple[int, ...]) -> Steps:
    """(step, sync) seconds as the model has them; sync is what a pass alone does not explain."""
    found: Steps = {}
    for nodes, replicas in places:
        for local in batches:
            step = float(step_s(model, nodes, replicas, local))
            found[nodes, replicas, local] = step, step - float(pass_s(model, local))
    return found


def blurred(steps: Steps, spread: float, draws: np.random.Generator) -> Steps:
    factors = np.exp(draws.normal(0, spread, len(steps)))
    return {
        key: (float(step * factor), float(sync * factor))
        for (key, (step, sync)), factor in zip(steps.items(), factors, strict=True)
    }


def test_the_fit_predicts_what_was_measured() -> None:
    steps = measured(TRUE, PLACES, (16, 32, 64, 128))
    model = fit(steps)
    for (nodes, replicas, local), (seconds, _) in steps.items():
        assert float(step_s(model, nodes, replicas, local)) == pytest.approx(seconds, rel=0.02)
    assert model.pass_s == pytest.approx(TRUE.pass_s, rel=0.05)
    assert model.sample_s == pytest.approx(TRUE.sample_s, rel=0.05)
    assert model.overlap == pytest.approx(TRUE.overlap, rel=0.25)


def test_noise_does_not_mislead_it() -> None:
    exact = measured(TRUE, PLACES, (16, 32, 64, 128))
    model = fit(blurred(exact, 0.03, np.random.default_rng(7)))
    for (nodes, replicas, local), (seconds, _) in exact.items():
        assert float(step_s(model, nodes, replicas, local)) == pytest.approx(seconds, rel=0.1)


def test_one_replica_promises_perfect_scaling() -> None:
    model = fit(measured(TRUE, [(1, 1)], (16, 64)))
    assert model.node_sync_s == pytest.approx(1e-8)
    assert float(step_s(model, 4, 16, 32)) == pytest.approx(float(pass_s(model, 32)), rel=1e-3)


def test_one_batch_size_counts_half_as_constant() -> None:
    steps = measured(TRUE, [(1, 1)], (32,))
    model = fit(steps)
    assert model.pass_s == pytest.approx(float(pass_s(TRUE, 32)) / 2)
    assert model.sample_s * 32 == pytest.approx(float(pass_s(TRUE, 32)) / 2, rel=1e-3)


def test_several_nodes_are_at_least_a_tenth_slower_than_one_until_tried() -> None:
    model = fit(measured(TRUE, [(1, 1), (1, 2), (1, 4)], (16, 32, 64)))
    assert model.network_sync_s == pytest.approx(model.node_sync_s * 1.1)
    assert model.network_ring_s >= model.node_ring_s * 1.1


def test_two_replicas_say_nothing_of_more() -> None:
    model = fit(measured(TRUE, [(1, 1), (1, 2), (2, 2)], (16, 32)))
    assert model.node_ring_s == model.network_ring_s == pytest.approx(1e-8)


def test_nothing_measured_is_refused() -> None:
    with pytest.raises(UserError, match="longer"):
        fit({})
    with pytest.raises(UserError, match="longer"):
        fit({(1, 2, 8): (1.0, 1.0)})


def columns(steps: Steps) -> tuple[NDArray[np.float64], ...]:
    nodes, replicas, local = np.array(list(steps), dtype=np.float64).T
    times = np.array(list(steps.values()))
    link = np.where(nodes > 1, 2, np.where(replicas > 1, 4, -1))
    logs = np.log(times[:, 0] - times[:, 1]), np.log(times[:, 0])
    return nodes, replicas, np.stack([local, np.maximum(replicas - 2, 1e-8), link, *logs], axis=1)


def test_the_gradient_is_that_of_the_objective() -> None:
    *_, rows = columns(measured(TRUE, PLACES, (16, 64)))
    at = np.array([0.1, 0.01, 0.2, 0.02, 0.1, 0.01, 2.5])
    slope = np.zeros(7)
    _error(at, rows, slope)
    for number, step in enumerate(np.eye(7) * 1e-6):
        ahead, back = (_error(at + sign * step, rows, np.zeros(7)) for sign in (1, -1))
        assert slope[number] == pytest.approx((ahead - back) / 2e-6, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("seed", range(6))
def test_no_worse_than_l_bfgs_b(seed: int) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    draws = np.random.default_rng(seed)
    values = np.array(astuple(TRUE)) * np.exp(draws.normal(0, 1, 7))
    model = replace(TRUE, **dict(zip(TRUE.__slots__, values, strict=True)))
    model = replace(model, overlap=float(draws.uniform(1, 5)))
    chosen = [PLACES[i] for i in sorted({0, *draws.integers(0, len(PLACES), 4).tolist()})]
    steps = measured(model, chosen, tuple(draws.integers(8, 256, 3).tolist()))
    steps = blurred(steps, 0.1, draws)
    nodes, replicas, rows = columns(steps)

    def objective(at: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        slope = np.zeros(7)
        return _error(at, rows, slope), slope

    start, least, most = (np.append(np.exp(one[:6]), one[6]) for one in
                          _bounds(nodes, replicas, rows))  # fmt: skip
    theirs = optimize.minimize(
        objective, start, jac=True, bounds=list(zip(least, most, strict=True)), method="L-BFGS-B"
    )
    found = np.array(astuple(fit(steps)))
    if not (nodes > 1).any():
        found[2:4] = 1e-8  # the prior on links not yet tried comes after the fit
    assert objective(found)[0] <= theirs.fun * 1.02 + 1e-4

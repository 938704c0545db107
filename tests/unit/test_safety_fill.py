"""Heights of groups: the sums of clipped devices meet their budgets, all groups at once."""

from __future__ import annotations

import numpy as np
import pytest

from wattherd.engine.safety.fill import heights


def bisected(budget_w: float, low_w: np.ndarray, high_w: np.ndarray) -> float:
    """The same of one group, by halving alone."""
    if high_w.sum() <= budget_w:
        return np.inf
    if low_w.sum() > budget_w:
        return 0.0
    least, most = 0.0, float(high_w.max())
    for _ in range(200):
        middle = 0.5 * (least + most)
        fits = np.clip(middle, low_w, high_w).sum() <= budget_w
        least, most = (middle, most) if fits else (least, middle)
    return least


@pytest.mark.parametrize("seed", range(30))
def test_every_group_has_the_height_that_it_would_have_alone(seed: int) -> None:
    """Whatever the others need: groups that are full, hopeless or nobody's stand beside it."""
    draw = np.random.default_rng(seed)
    devices, groups = int(draw.integers(1, 60)), int(draw.integers(1, 9))
    group = draw.integers(0, groups + 1, devices)
    low_w = draw.uniform(0, 100, devices) * draw.integers(0, 2, devices)
    high_w = low_w + draw.uniform(0, 100, devices) * draw.integers(0, 2, devices)
    least_w, most_w = (np.bincount(group, one, groups + 1)[:groups] for one in (low_w, high_w))
    budget_w = least_w + (most_w - least_w) * draw.uniform(-0.3, 1.2, groups)
    found_w = heights(budget_w, group, low_w, high_w)
    assert found_w[groups] == np.inf
    for number in range(groups):
        own = group == number
        alone_w = bisected(budget_w[number], low_w[own], high_w[own])
        given_w = np.minimum(np.maximum(found_w[number], low_w[own]), high_w[own]).sum()
        wanted_w = np.minimum(np.maximum(alone_w, low_w[own]), high_w[own]).sum()
        assert given_w == pytest.approx(wanted_w, abs=1e-6)


def test_a_group_that_no_height_helps_costs_the_others_no_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It used to be sought for in all of eighty steps, and everybody with it."""
    monkeypatch.setattr("wattherd.engine.safety.fill.STEPS", 4)
    low_w, high_w = np.array([50.0, 50.0, 10.0, 10.0]), np.array([90.0, 90.0, 90.0, 40.0])
    found_w = heights(np.array([60.0, 100.0]), np.array([0, 0, 1, 1]), low_w, high_w)
    assert found_w[0] == 0.0
    assert found_w[1] == pytest.approx(60.0)

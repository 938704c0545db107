"""The gradient noise scale, held against gradients of which the truth is known."""

from __future__ import annotations

import math
import random

import pytest

from train_runs import RunDir
from wattherd_train import GradientNoise, current

DIMENSIONS, PART, PARTS = 40, 8, 8


def told(scale: float, steps: int, seed: int = 0) -> GradientNoise:
    """Steps with gradients of length 1 in every direction, and per-sample noise for that scale."""
    random_ = random.Random(seed)
    each = math.sqrt(scale)  # tr / |G|^2 = DIMENSIONS each^2 / DIMENSIONS
    noise = GradientNoise(kept=0.99)
    for _ in range(steps):
        parts = [
            [1 + random_.gauss(0, each / math.sqrt(PART)) for _ in range(DIMENSIONS)]
            for _ in range(PARTS)
        ]
        whole = [sum(column) / PARTS for column in zip(*parts, strict=True)]
        squares = [sum(one * one for one in part) for part in parts]
        square = sum(one * one for one in whole)
        noise.step(sum(squares) / PARTS, PART, square, PART * PARTS)
    return noise


@pytest.mark.parametrize("scale", [4.0, 100.0, 1000.0])
def test_it_finds_the_scale_of_gradients_made_with_it(scale: float) -> None:
    found = told(scale, 400).scale
    assert found is not None
    assert 0.7 * scale < found < 1.4 * scale


def test_too_few_steps_say_nothing() -> None:
    assert told(100.0, 5).scale is None


@pytest.mark.parametrize(
    "step",
    [(1.0, 8, 0.5, 8), (1.0, 0, 0.5, 8), (math.nan, 4, 0.5, 8), (1.0, 4, math.inf, 8)],
)
def test_what_tells_nothing_is_passed_over(step: tuple[float, float, float, float]) -> None:
    noise = told(100.0, 400)
    before = noise.scale
    noise.step(*step)
    assert noise.scale == before


def test_gradients_that_contradict_each_other_have_no_scale() -> None:
    noise = GradientNoise()
    for _ in range(50):
        noise.step(1.0, 4, 2.0, 16)  # the whole has more noise than its parts: no such gradient
    assert noise.scale is None


def test_it_is_reported_with_the_batch(run: RunDir) -> None:
    with current(run.environ()) as job:
        job.step(1, samples=64, noise_scale=120.0)
        job.step(2, samples=64, noise_scale=None)
    first, last = run.lines()
    assert (first["batch"], first["noise_scale"]) == (64, 120)
    assert "noise_scale" not in last

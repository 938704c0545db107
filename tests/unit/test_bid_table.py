"""Columns of bids: sorting again what is nearly sorted, and filling in turn."""

from __future__ import annotations

import random

import numpy as np
import pytest

from wattherd.policy.schedule.bid_table import filled, sorted_again


@pytest.mark.parametrize("seed", range(30))
def test_what_is_sorted_again_is_sorted_by_keys_and_then_by_ties(seed: int) -> None:
    chance = random.Random(seed)
    keys = np.array([float(chance.randint(0, 6)) for _ in range(25)])
    ties = np.array(chance.sample(range(100), 25))
    order = np.array(chance.sample(range(25), 18))
    for _ in range(4):
        order = sorted_again(order, keys, ties)
        assert order.tolist() == sorted(order.tolist(), key=lambda row: (keys[row], ties[row]))
        keys[chance.randrange(25)] = float(chance.randint(0, 6))


@pytest.mark.parametrize("seed", range(30))
def test_each_in_turn_gets_its_width_or_nothing(seed: int) -> None:
    chance = random.Random(seed)
    widths = [chance.choice([1, 2, 4, 8, 16]) for _ in range(chance.randint(0, 40))]
    free = left = chance.randint(0, 60)
    expected = []
    for width in widths:
        expected.append(width <= left)
        left -= width if width <= left else 0
    assert filled(np.array(widths, dtype=np.int64), free).tolist() == expected

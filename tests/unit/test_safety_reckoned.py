"""Watts that are reckoned anew only when what they are made of was replaced; streaks."""

from __future__ import annotations

import numpy as np
import pytest

from wattherd.engine.safety.contract import Reckoned, no_streak


def test_watts_are_reckoned_once_and_anew_when_an_array_was_replaced() -> None:
    kept, asked = Reckoned(), []
    low_w, high_w = np.array([1.0, 2.0]), np.array([3.0, 4.0])

    def of(*arrays: np.ndarray) -> list[float]:
        def reckon() -> np.ndarray:
            asked.append(arrays)
            return np.asarray(sum(arrays))

        return kept.of(arrays, reckon).tolist()

    assert of(low_w, high_w) == of(low_w, high_w) == [4.0, 6.0]
    assert len(asked) == 1
    # Of equal values, but another: it may have been written to before it took its place.
    assert of(low_w.copy(), high_w) == [4.0, 6.0]
    assert len(asked) == 2
    assert of(low_w) == [1.0, 2.0]


def test_nobody_writes_to_what_was_reckoned() -> None:
    watts = Reckoned().of((np.zeros(3),), lambda: np.zeros(3))
    with pytest.raises(ValueError, match="read-only"):
        watts[0] = 1.0


def test_a_condition_has_held_since_it_began_and_a_break_begins_anew() -> None:
    """Also one that nobody met in between, and after a step that is longer than a second."""
    streak = no_streak(2)
    held = [[True, False], [True, False], [False, False], [True, True], [True, False]]
    found = [streak.note(np.array(one), 10.0 * at).tolist() for at, one in enumerate(held)]
    assert found == [[0.0, 0.0], [10.0, 0.0], [0.0, 0.0], [0.0, 0.0], [10.0, 0.0]]
    assert streak.seconds[1] < 0

"""Medians by comparisons alone: the very numbers that a sort gives."""

from __future__ import annotations

import numpy as np
import pytest

from wattherd.engine.safety.medians import median, median_of_known, nine_tenths, second_highest

RNG = np.random.default_rng(3)


def looks(rows: int, missing: float = 0.0) -> np.ndarray:
    """Readings with ties, zeros, infinities and holes."""
    found = np.round(RNG.uniform(-3, 3, (rows, 500)), 0)
    found[RNG.random(found.shape) < 0.05] = np.inf
    found[RNG.random(found.shape) < missing] = np.nan
    return found


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_a_median_is_the_one_of_numpy_to_the_bit(rows: int, missing: float) -> None:
    past = looks(rows, missing)
    np.testing.assert_array_equal(median(past), np.median(past, axis=0))


def test_of_looks_with_holes_those_count_that_are_known() -> None:
    past = looks(3, 0.4)
    known = [column[~np.isnan(column)] for column in past.T]
    wanted = [np.median(some) if len(some) else np.nan for some in known]
    assert any(np.isnan(wanted))
    np.testing.assert_array_equal(median_of_known(past), wanted)


@pytest.mark.parametrize("rows", [2, 4, 5])
def test_the_second_highest_was_reached_twice(rows: int) -> None:
    past = looks(rows)
    np.testing.assert_array_equal(second_highest(past), np.sort(past, axis=0)[-2])


@pytest.mark.parametrize("count", [1, 2, 3, 10, 11, 997])
def test_nine_tenths_are_a_quantile_to_the_bit(count: int) -> None:
    values = np.round(RNG.uniform(0, 40, count), 1)
    assert nine_tenths(values) == float(np.quantile(values, 0.9))


def test_nine_tenths_of_nothing_are_none() -> None:
    assert nine_tenths(np.zeros(0)) == 0.0

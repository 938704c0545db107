"""Storage beside a load: ramps held while it lasts, and never counted on for longer."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.engine.safety.storage import Smoothing, Storage, StorageSize
from wattherd.errors import UserError

SIZE = StorageSize(power_w=1000.0, energy_j=20e3, efficiency=0.81)


def through(smoothing: Smoothing, loads_w: list[float], step_s: float = 1.0) -> list[float]:
    return [smoothing.grid_w(load_w, step_s) for load_w in loads_w]


def test_a_step_of_the_load_is_a_ramp_of_the_grid() -> None:
    smoothing = Smoothing(Storage(SIZE), 100.0, 100.0)
    grid_w = through(smoothing, [500.0] * 5 + [1300.0] * 60)
    assert max(after - before for before, after in pairwise(grid_w)) <= 100.001
    assert smoothing.missed_s == 0.0
    assert grid_w[-1] > 1300.0  # it is charged again


def test_what_it_gave_comes_back_with_losses() -> None:
    storage = Storage(SIZE, charge=1.0)
    given_j = sum(storage.give(500.0, 1.0) for _ in range(10))
    assert storage.charge_j == pytest.approx(20e3 - given_j / 0.9)
    taken_j = -sum(storage.give(-500.0, 1.0) for _ in range(10))
    assert storage.charge_j == pytest.approx(20e3 - given_j / 0.9 + taken_j * 0.9)
    assert storage.lost_j == pytest.approx(given_j * (1 / 0.9 - 1) + taken_j * 0.1)


def test_empty_storage_holds_nothing_and_says_so() -> None:
    smoothing = Smoothing(Storage(SIZE, charge=0.0), 100.0, 100.0)
    grid_w = through(smoothing, [500.0, 1300.0])
    assert grid_w[1] > 1200.0  # but for what it took in the second before
    assert smoothing.missed_s > 0.0


def test_it_is_never_counted_on_for_longer_than_its_charge_lasts() -> None:
    storage = Storage(SIZE, charge=0.5)
    assert storage.lasts_s(900.0) == pytest.approx(10.0)
    assert storage.most_w(90.0) == pytest.approx(100.0)
    assert storage.lasts_s(1001.0) == 0.0
    assert storage.lasts_s(0.0) == math.inf


def test_storage_that_says_it_is_fuller_than_it_can_be_is_not_believed() -> None:
    storage = Storage(SIZE, charge=0.5)
    storage.give(1000.0, 5.0)
    counted_j = storage.charge_j
    storage.told(1.0)
    storage.told(math.nan)
    assert storage.charge_j == counted_j
    storage.told(0.1)
    assert storage.charge_j == pytest.approx(2e3)


@pytest.mark.parametrize("step_s", [0.0, -3600.0])
def test_a_clock_that_stands_or_goes_back_moves_nothing(step_s: float) -> None:
    storage = Storage(SIZE)
    assert storage.give(500.0, step_s) == 0.0
    assert storage.charge_j == 10e3


@given(
    loads_w=st.lists(st.floats(0.0, 5000.0), min_size=1, max_size=60),
    charge=st.floats(0.0, 1.0),
    up_w_s=st.sampled_from([10.0, 500.0, math.inf]),
)
def test_energy_is_conserved_whatever_happens(
    loads_w: list[float], charge: float, up_w_s: float
) -> None:
    storage = Storage(SIZE, charge)
    before_j = storage.charge_j
    grid_w = through(Smoothing(storage, up_w_s, up_w_s), loads_w)
    assert 0.0 <= storage.charge_j <= SIZE.energy_j
    moved_j = sum(grid_w) - sum(loads_w)
    assert moved_j == pytest.approx(storage.charge_j - before_j + storage.lost_j, abs=1e-3)


@pytest.mark.parametrize(
    "wrong", [{"power_w": 0.0}, {"energy_j": -1.0}, {"efficiency": 0.0}, {"efficiency": 1.1}]
)
def test_what_is_no_storage_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError) as caught:
        StorageSize(**{"power_w": 1.0, "energy_j": 1.0, **wrong})
    assert caught.value.hint

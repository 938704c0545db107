"""Curves: how steps fall into percent bins, and how they are read at equal load."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.engine.placement.placer import Placer
from wattherd.sim.curve import binned, gridded
from wattherd.sim.pack import PackingSteps, pack, ready_placer
from wattherd.testing.builders import (
    a_cluster,
    a_node,
    a_placer,
    a_state,
    cpu_only,
    exclusive,
    sharing,
)

CAPACITY = 10_000


def steps(
    arrived: Sequence[int],
    used: Sequence[int] | None = None,
    *,
    fragment: Sequence[float] | None = None,
    cpu_w: Sequence[float] | None = None,
    gpu_w: Sequence[float] | None = None,
) -> PackingSteps:
    count = len(arrived)
    return PackingSteps(
        arrived_milli=np.array(arrived, dtype=np.int64),
        used_milli=np.array(arrived if used is None else used, dtype=np.int64),
        fragment_milli=np.array(fragment or [0.0] * count, dtype=np.float64),
        cpu_w=np.array(cpu_w or [0.0] * count, dtype=np.float64),
        gpu_w=np.array(gpu_w or [0.0] * count, dtype=np.float64),
    )


# --- bins ------------------------------------------------------------------------------------


def test_a_bin_is_the_mean_of_its_steps() -> None:
    curve = binned(steps([960, 1000, 1040, 1100], cpu_w=[1, 2, 6, 7]), CAPACITY, load=0.11)
    assert curve.arrived_pct.tolist() == list(range(12))
    assert curve.allocated_pct[10] == pytest.approx((9.6 + 10 + 10.4) / 3)
    assert curve.power_w[10] == 3.0
    assert curve.power_w[11] == 7.0


@pytest.mark.parametrize(
    ("arrived", "at"),
    [(0, 0), (49, 0), (50, 0), (51, 1), (149, 1), (150, 2), (249, 2), (250, 2), (251, 3), (350, 4)],
)
def test_a_step_belongs_to_its_nearest_percent_half_to_even(arrived: int, at: int) -> None:
    curve = binned(steps([arrived], cpu_w=[5.0]), CAPACITY, load=0.2)
    expected = [math.nan] * 21
    for near in (at - 1, at, at + 1):
        if near >= 0:
            expected[near] = 5.0
    assert curve.power_w.tolist() == pytest.approx(expected, nan_ok=True)


def test_percentages_are_rounded_to_two_decimals_before_the_mean() -> None:
    """0.333.. % and 0.666.. %: published files carry 0.33 and 0.67, whose mean is 0.5."""
    curve = binned(steps([2, 4], [1, 2]), 300, load=0.01)
    assert curve.allocated_pct[1] == pytest.approx((0.33 + 0.67) / 2, abs=1e-12)
    ratios = binned(steps([10, 10], [3, 3], fragment=[1.0, 0.5]), 30, load=1.0)
    assert ratios.frag_ratio_pct[33] == pytest.approx((3.70 + 1.85) / 2, abs=1e-12)
    assert ratios.frag_amount_pct[33] == pytest.approx((3.33 + 1.67) / 2, abs=1e-12)


def test_the_ratio_is_over_idle_and_the_amount_over_all_gpu() -> None:
    curve = binned(steps([5_000], [4_000], fragment=[1_500.0]), CAPACITY, load=1.0)
    assert curve.frag_ratio_pct[50] == 25.0
    assert curve.frag_amount_pct[50] == 15.0


def test_a_full_cluster_has_no_fragment_ratio_to_divide_by() -> None:
    curve = binned(steps([CAPACITY], fragment=[0.0]), CAPACITY, load=1.0)
    assert curve.frag_ratio_pct[100] == 0.0


def test_an_empty_bin_takes_the_mean_of_the_neighbours_that_have_steps() -> None:
    curve = binned(steps([100, 300, 600], cpu_w=[2.0, 4.0, 9.0]), CAPACITY, load=0.08)
    # bins:                      0    1    2    3    4    5    6    7    8
    assert curve.power_w.tolist() == pytest.approx(
        [2.0, 2.0, 3.0, 4.0, 4.0, 9.0, 9.0, 9.0, math.nan], nan_ok=True
    )


def test_filling_does_not_spread_further_than_one_bin() -> None:
    curve = binned(steps([500], cpu_w=[1.0]), CAPACITY, load=0.1)
    assert [at for at, value in enumerate(curve.power_w) if not math.isnan(value)] == [4, 5, 6]


@pytest.mark.parametrize(("load", "bins"), [(1.3, 131), (1.0, 101), (0.29, 30), (0.001, 1)])
def test_there_is_a_bin_for_every_percent_of_the_load(load: float, bins: int) -> None:
    curve = binned(steps([0]), CAPACITY, load=load)
    assert {len(curve.arrived_pct), len(curve.allocated_pct), len(curve.power_w)} == {bins}


def test_steps_beyond_the_load_are_left_out() -> None:
    curve = binned(steps([9_960, 10_040, 10_060], cpu_w=[1.0, 3.0, 99.0]), CAPACITY, load=1.0)
    assert curve.power_w[100] == 2.0


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 50)), min_size=1, max_size=30),
    st.integers(1, 900),
)
def test_bins_equal_a_plain_restatement(pairs: list[tuple[int, int]], capacity: int) -> None:
    arrived = np.cumsum([more for more, _ in pairs]).tolist()
    watts = [float(value) for _, value in pairs]
    curve = binned(steps(arrived, cpu_w=watts), capacity, load=1.3)
    inside: dict[int, list[float]] = {}
    for milli, value in zip(arrived, watts, strict=True):
        inside.setdefault(round(milli / capacity * 100), []).append(value)
    for at in range(131):
        near = [inside[at]] if at in inside else [inside.get(at - 1), inside.get(at + 1)]
        means = [sum(group) / len(group) for group in near if group and at <= 130]
        if at == 130 and at not in inside:  # its right neighbour is no bin
            means = [sum(group) / len(group) for group in near[:1] if group]
        expected = sum(means) / len(means) if means else math.nan
        assert curve.power_w[at] == pytest.approx(expected, nan_ok=True)


# --- grid ------------------------------------------------------------------------------------


def test_the_grid_has_a_point_every_half_percent() -> None:
    grid = gridded(steps([0, 10_000]), CAPACITY)
    assert grid.x.tolist() == pytest.approx([n / 200 for n in range(201)])
    assert gridded(steps([0, 600]), CAPACITY, until=0.06).x.tolist() == pytest.approx(
        [n / 200 for n in range(13)]
    )


def test_values_between_steps_are_interpolated() -> None:
    grid = gridded(steps([0, 1_000, 2_000], cpu_w=[10.0, 20.0, 60.0]), CAPACITY, until=0.2)
    assert grid.power_w[[0, 10, 20, 30, 40]].tolist() == pytest.approx([10, 15, 20, 40, 60])


def test_grar_is_allocated_over_arrived() -> None:
    grid = gridded(steps([1_000, 2_000], [1_000, 1_500]), CAPACITY, until=0.2)
    assert grid.grar[[20, 30, 40]].tolist() == pytest.approx([1.0, 0.875, 0.75])


def test_before_any_demand_nothing_is_missing() -> None:
    grid = gridded(steps([0, 1_000], [0, 0]), CAPACITY, until=0.1)
    assert grid.grar[0] == 1.0
    assert grid.grar[-1] == 0.0


def test_before_the_first_and_after_the_last_step_values_are_held() -> None:
    grid = gridded(steps([500, 700], cpu_w=[3.0, 4.0]), CAPACITY, until=0.1)
    assert (grid.power_w[0], grid.power_w[-1]) == (3.0, 4.0)


def test_of_steps_without_new_demand_the_first_counts() -> None:
    walk = steps([0, 0, 1_000, 1_000, 2_000], cpu_w=[1.0, 9.0, 2.0, 8.0, 3.0])
    grid = gridded(walk, CAPACITY, until=0.2)
    assert grid.power_w[[0, 20, 40]].tolist() == pytest.approx([1.0, 2.0, 3.0])


def test_watts_of_cpus_and_gpus_add_up() -> None:
    grid = gridded(steps([0, 100], cpu_w=[1.0, 2.0], gpu_w=[4.0, 8.0]), CAPACITY, until=0.01)
    assert (grid.cpu_w + grid.gpu_w).tolist() == pytest.approx(grid.power_w.tolist())
    assert grid.gpu_w.tolist() == pytest.approx([4.0, 6.0, 8.0])


# --- the steps themselves --------------------------------------------------------------------


def a_small_placer(policy: str = "first-fit") -> Placer:
    cluster = a_cluster(a_node(cpu_milli=4_000, gpus=2, model="T4"))
    return a_placer(a_state(cluster, [exclusive(1_000, 1)]), policy)


def test_packing_measures_after_every_arrival() -> None:
    wanted = [sharing(1_000, 500), cpu_only(1_000), exclusive(1_000, 1), exclusive(1_000, 1)]
    result = pack(a_small_placer(), wanted)
    assert [None if one is None else one.gpus for one in result.decisions] == [
        (0,),
        (),
        (1,),
        None,
    ]
    assert result.placed == 3
    assert result.steps.arrived_milli.tolist() == [500, 500, 1500, 2500]
    assert result.steps.used_milli.tolist() == [500, 500, 1500, 1500]
    assert result.steps.fragment_milli.tolist() == pytest.approx([500.0] * 4, abs=1e-8)
    assert result.steps.cpu_w.tolist() == [120.0] * 4
    assert result.steps.gpu_w.tolist() == [80.0, 80.0, 140.0, 140.0]
    assert result.steps.power_w.tolist() == [200.0, 200.0, 260.0, 260.0]


def test_packing_nothing_measures_nothing() -> None:
    result = pack(a_small_placer(), [])
    assert (result.decisions, result.placed, len(result.steps.arrived_milli)) == ([], 0, 0)


def test_getting_ready_changes_no_decision() -> None:
    wanted = [sharing(10 + n, 1 + n) for n in range(100)]
    plain = pack(a_small_placer("fgd"), wanted)
    ready = pack(ready_placer(a_small_placer("fgd"), wanted), wanted)
    assert ready.decisions == plain.decisions

"""DVFS: the closed form against brute force, fits on measured kernels, bounds kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.errors import UserError
from wattherd.estimate.dvfs import (
    FASTEST,
    ClockSetting,
    DvfsModel,
    MeasuredKernel,
    at,
    cheapest,
    fit_dvfs,
    voltage_of,
)
from wattherd.workload.hkbu import CARDS, read_kernels

models = st.builds(
    DvfsModel,
    t0_s=st.floats(1, 50),
    d_s=st.floats(10, 300),
    delta=st.floats(0.05, 0.95),
    p0_w=st.floats(20, 100),
    gamma_w=st.floats(5, 60),
    c_w=st.floats(20, 150),
)


def brute_force(model: DvfsModel, limit_s: float) -> float:
    """Least energy on the voltage grid and a fine memory grid, written out."""
    best = np.inf
    for voltage in [0.5 + 0.05 * k for k in range(16)]:
        core = ((voltage - 0.5) / 2) ** 0.5 + 0.5
        for memory in np.linspace(0.5, 1.2, 701):
            seconds = model.t0_s + model.d_s * (model.delta / core + (1 - model.delta) / memory)
            watts = model.p0_w + model.gamma_w * memory + model.c_w * voltage**2 * core
            if seconds <= limit_s:
                best = min(best, seconds * watts)
    return float(best)


@given(models, st.floats(0.7, 3.0))
def test_the_closed_form_is_as_cheap_as_brute_force(model: DvfsModel, slack: float) -> None:
    limit_s = slack * at(model, ClockSetting()).time_s
    found = cheapest(model, limit_s)
    expected = brute_force(model, limit_s)
    if found is None:
        assert expected == np.inf
        return
    assert found.time_s <= limit_s * (1 + 1e-9)
    assert found.energy_j <= expected * (1 + 1e-6)
    assert expected == np.inf or found.energy_j == pytest.approx(expected, rel=1e-2)


@given(models)
def test_a_free_choice_costs_no_more_than_the_base_clocks(model: DvfsModel) -> None:
    found = cheapest(model)
    assert found is not None
    assert found.energy_j <= at(model, ClockSetting()).energy_j * (1 + 1e-9)
    assert 0.5 <= found.setting.memory <= 1.2
    assert 0.5 <= found.setting.voltage <= 1.25


def test_base_clocks_take_base_time_and_power() -> None:
    model = DvfsModel(t0_s=10, d_s=90, delta=0.6, p0_w=60, gamma_w=30, c_w=100)
    base = at(model, ClockSetting())
    assert (base.time_s, base.power_w, base.energy_j) == pytest.approx((100, 190, 19000))
    # voltage 1.25 gives core sqrt(0.375) + 0.5 = 1.1124
    assert model.fastest_s == pytest.approx(10 + 90 * (0.6 / 1.1123724 + 0.4 / 1.2))
    assert FASTEST.core == pytest.approx(1.1123724)


def test_nothing_is_faster_than_the_fastest() -> None:
    model = DvfsModel(t0_s=10, d_s=90, delta=0.6, p0_w=60, gamma_w=30, c_w=100)
    assert cheapest(model, model.fastest_s * 0.999) is None
    assert cheapest(model, model.fastest_s * 1.000001) is not None


def test_voltage_and_core_clock_are_inverse() -> None:
    assert voltage_of(np.array([0.5, 1.0])) == pytest.approx([0.5, 1.0])


@given(models)
def test_a_fit_finds_the_model_that_was_measured(model: DvfsModel) -> None:
    pytest.importorskip("scipy")
    core, memory = (grid.ravel() for grid in np.meshgrid([0.9, 1.0, 1.1], [0.8, 1.0, 1.1]))
    volts = 2 * (core - 0.5) ** 2 + 0.5
    measured = MeasuredKernel(
        core=core,
        memory=memory,
        time_s=model.t0_s + model.d_s * (model.delta / core + (1 - model.delta) / memory),
        power_w=model.p0_w + model.gamma_w * memory + model.c_w * volts**2 * core,
    )
    fit = fit_dvfs(measured)
    assert fit.time_error < 1e-6
    assert fit.power_error < 1e-6
    assert fit.model.d_s == pytest.approx(model.d_s, rel=1e-3)
    assert fit.model.c_w == pytest.approx(model.c_w, rel=1e-3)


def test_three_points_are_no_fit() -> None:
    ones = np.ones(3)
    with pytest.raises(UserError, match="3 points"):
        fit_dvfs(MeasuredKernel(core=ones, memory=ones, time_s=ones, power_w=ones))


@pytest.mark.data
def test_measured_kernels_are_fitted_within_a_percent_on_average(traces: Path) -> None:
    pytest.importorskip("scipy")
    files = {
        "gtx2070s": ("gtx2070s-dvfs-real-Performance-Power.csv", 20),
        "gtx1080ti": ("gtx1080ti-dvfs-real-Performance-Power.csv.gz", 30),
    }
    for card, (name, count) in files.items():
        kernels = read_kernels(traces / "hkbu_dvfs" / name, CARDS[card])
        fits = [fit_dvfs(kernel) for kernel in kernels.values()]
        assert len(fits) == count
        assert np.mean([fit.time_error for fit in fits]) < 0.0133
        assert np.mean([fit.power_error for fit in fits]) < 0.0100

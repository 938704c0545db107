"""Time and power of a GPU task against core voltage and clocks, and the cheapest setting.

After Mei et al., "Energy-aware non-preemptive task scheduling with deadline constraint in
DVFS-enabled heterogeneous clusters" (TPDS'21). Voltage and clocks are relative to the card's base;
a voltage fixes the highest stable core clock, fc = sqrt((V - 0.5) / 2) + 0.5.

    time   t = D (delta / fc + (1 - delta) / fm) + t0
    power  P = p0 + gamma fm + c V^2 fc

For a given voltage the energy t P is least at a memory clock known in closed form; the voltage is
searched on the published grid of sixteen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattherd.errors import UserError
from wattherd.estimate.speed import Floats, non_negative

LEAST_VOLTAGE, MOST_VOLTAGE = 0.5, 1.25
LEAST_MEMORY, MOST_MEMORY = 0.5, 1.2
VOLTAGES = np.linspace(LEAST_VOLTAGE, MOST_VOLTAGE, 16)
CORES = np.sqrt((VOLTAGES - 0.5) / 2) + 0.5


def voltage_of(core: Floats) -> Floats:
    """The least voltage at which a core clock is stable."""
    needed: Floats = 2 * (core - 0.5) ** 2 + 0.5
    return needed


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSetting:
    """Relative core voltage, core clock and memory clock."""

    voltage: float = 1.0
    core: float = 1.0
    memory: float = 1.0


FASTEST = ClockSetting(voltage=MOST_VOLTAGE, core=float(CORES[-1]), memory=MOST_MEMORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class DvfsModel:
    """One task: seconds `t0` that no clock changes, `d` that clocks do, `delta` of it the core's.

    `p0_w`, `gamma_w` and `c_w` are watts: constant, at memory clock 1, at core voltage and clock 1.
    """

    t0_s: float
    d_s: float
    delta: float
    p0_w: float
    gamma_w: float
    c_w: float

    def time_s(self, setting: ClockSetting) -> float:
        """How long the task runs."""
        return self.t0_s + self.d_s * (
            self.delta / setting.core + (1 - self.delta) / setting.memory
        )

    def power_w(self, setting: ClockSetting) -> float:
        """What it draws meanwhile."""
        return (
            self.p0_w + self.gamma_w * setting.memory + self.c_w * setting.voltage**2 * setting.core
        )

    @property
    def fastest_s(self) -> float:
        """Its time with everything at the highest clock."""
        return self.time_s(FASTEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """A task at a setting."""

    setting: ClockSetting
    time_s: float
    power_w: float

    @property
    def energy_j(self) -> float:
        """Over the whole task."""
        return self.time_s * self.power_w


def at(model: DvfsModel, setting: ClockSetting) -> OperatingPoint:
    """The task at this setting."""
    return OperatingPoint(
        setting=setting, time_s=model.time_s(setting), power_w=model.power_w(setting)
    )


def cheapest(model: DvfsModel, limit_s: float = np.inf) -> OperatingPoint | None:
    """The setting of least energy among those that take at most `limit_s`; None if none does.

    Energy over the memory clock falls to its only minimum and then rises, so that a time limit
    moves the optimum no further than to the clock that just keeps it.
    """
    core_w = model.p0_w + model.c_w * VOLTAGES**2 * CORES
    fixed_s = model.t0_s + model.d_s * model.delta / CORES
    memory_s = model.d_s * (1 - model.delta)
    with np.errstate(divide="ignore", invalid="ignore"):
        free = np.sqrt(core_w * memory_s / (model.gamma_w * fixed_s))
        needed = np.where(limit_s > fixed_s, memory_s / (limit_s - fixed_s), np.inf)
    clock = np.maximum(np.clip(free, LEAST_MEMORY, MOST_MEMORY), needed)
    energy = (fixed_s + memory_s / clock) * (core_w + model.gamma_w * clock)
    energy[clock > MOST_MEMORY] = np.inf
    best = int(np.argmin(energy))
    if not np.isfinite(energy[best]):
        return None
    setting = ClockSetting(
        voltage=float(VOLTAGES[best]), core=float(CORES[best]), memory=float(clock[best])
    )
    return at(model, setting)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredKernel:
    """A kernel on a grid of clocks relative to base: columns of equal length."""

    core: Floats
    memory: Floats
    time_s: Floats
    power_w: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class DvfsFit:
    """A model and the mean absolute relative error of its times and powers."""

    model: DvfsModel
    time_error: float
    power_error: float


def fit_dvfs(measured: MeasuredKernel) -> DvfsFit:
    """Non-negative least squares of relative error.

    Raises:
        UserError: fewer points than the three coefficients of each model, or no SciPy.
    """
    if len(measured.core) <= 3:
        raise UserError(f"{len(measured.core)} points cannot fit time and power", hint="4 or more")
    ones = np.ones(len(measured.core))
    time_rows = np.column_stack([ones, 1 / measured.core, 1 / measured.memory])
    switched = voltage_of(measured.core) ** 2 * measured.core
    power_rows = np.column_stack([ones, measured.memory, switched])
    t0, by_core, by_memory = _relative(time_rows, measured.time_s)
    p0, gamma, c = _relative(power_rows, measured.power_w)
    d = by_core + by_memory
    model = DvfsModel(
        t0_s=t0, d_s=d, delta=by_core / d if d else 0.0, p0_w=p0, gamma_w=gamma, c_w=c
    )
    return DvfsFit(
        model=model,
        time_error=_error(time_rows @ [t0, by_core, by_memory], measured.time_s),
        power_error=_error(power_rows @ [p0, gamma, c], measured.power_w),
    )


def _relative(rows: Floats, wanted: Floats) -> tuple[float, float, float]:
    first, second, third = non_negative(rows / wanted[:, None], np.ones(len(wanted))).tolist()
    return first, second, third


def _error(fitted: Floats, measured: Floats) -> float:
    return float(np.mean(np.abs(fitted / measured - 1)))

"""A meter of another package: its failures are those of a device that answers with nonsense."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import cast

from wattherd.devices.meters.contract import KeepsSamples, MeterDriver, MeterSample
from wattherd.devices.wire.plugin_calls import PluginCalls


class PluggedMeter:
    """A driver of somebody else's."""

    def __init__(self, name: str, driver: MeterDriver) -> None:
        """`name` is the protocol that it speaks."""
        self.driver = driver
        self.concurrent = bool(getattr(driver, "concurrent", False))
        self.quick = bool(getattr(driver, "quick", False))
        self._calls = PluginCalls(name)

    def sample(self) -> MeterSample:
        """What it reads.

        Raises:
            DeviceError: the instrument did not answer, or the driver failed.
        """
        found = self._calls.answer(self.driver.sample, MeterSample)
        for number in (found.value, 0.0 if found.at_s is None else found.at_s):
            self._calls.check(number, Real)
        return found

    def close(self) -> None:
        """Let go of the instrument, whatever the driver makes of it."""
        self._calls.close(self.driver.close)


class PluggedKeepingMeter(PluggedMeter):
    """One whose instrument remembers what it measured between two questions."""

    @property
    def keeps_samples(self) -> bool:
        """Whether it does at this address."""
        return bool(cast("KeepsSamples", self.driver).keeps_samples)

    def kept_since(self, at_s: float) -> Sequence[MeterSample]:
        """What it measured after a Unix time, oldest first.

        Raises:
            DeviceError: the instrument did not answer, or the driver failed.
        """
        driver = cast("KeepsSamples", self.driver)
        kept = self._calls.answer(lambda: list(driver.kept_since(at_s)), list)
        for one in kept:
            self._calls.check(one, MeterSample)
        return kept


def plugged(name: str, driver: MeterDriver) -> MeterDriver:
    """The driver, guarded."""
    keeps = isinstance(driver, KeepsSamples)
    return PluggedKeepingMeter(name, driver) if keeps else PluggedMeter(name, driver)

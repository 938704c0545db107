"""A meter of another package: its failures are those of a device that answers with nonsense."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import cast

from wattherd.devices.meters.contract import KeepsSamples, MeterDriver, MeterSample, Quality
from wattherd.devices.wire.plugin_calls import MOST, PluginCalls, require_methods


class PluggedMeter:
    """A driver of somebody else's."""

    def __init__(self, name: str, driver: MeterDriver) -> None:
        """`name` is the protocol that it speaks.

        Raises:
            TypeError: it is no driver.
        """
        require_methods(driver, "sample", "close")
        self.driver = driver
        self.concurrent = bool(getattr(driver, "concurrent", False))
        self.quick = bool(getattr(driver, "quick", False))
        self._calls = PluginCalls(name)

    def sample(self) -> MeterSample:
        """What it reads.

        Raises:
            DeviceError: the instrument did not answer, or the driver failed.
        """
        return self._checked(self._calls.answer(self.driver.sample, MeterSample))

    def close(self) -> None:
        """Let go of the instrument, whatever the driver makes of it."""
        self._calls.close(self.driver.close)

    def _checked(self, found: object) -> MeterSample:
        """A sample of numbers. Which of them are no power says `Meter`, who knows the unit."""
        self._calls.check(found, MeterSample)
        sample = cast("MeterSample", found)
        self._calls.check(sample.value, Real)
        self._calls.check(sample.quality, Quality)
        if sample.at_s is not None:  # a time that is no number would never be too old
            self._calls.number(sample.at_s, least=-MOST)
        return sample


class PluggedKeepingMeter(PluggedMeter):
    """One whose instrument remembers what it measured between two questions."""

    def __init__(self, name: str, driver: MeterDriver) -> None:
        """Whether it does at this address is asked once."""
        super().__init__(name, driver)
        self._keeps = bool(cast("KeepsSamples", driver).keeps_samples)

    @property
    def keeps_samples(self) -> bool:
        """Whether it does at this address."""
        return self._keeps

    def kept_since(self, at_s: float) -> Sequence[MeterSample]:
        """What it measured after a Unix time, oldest first.

        Raises:
            DeviceError: the instrument did not answer, or the driver failed.
        """
        driver = cast("KeepsSamples", self.driver)
        kept = self._calls.answer(lambda: list(driver.kept_since(at_s)), list)
        return [self._checked(one) for one in kept]


def plugged(name: str, driver: MeterDriver) -> MeterDriver:
    """The driver, guarded."""
    keeps = isinstance(driver, KeepsSamples)
    return PluggedKeepingMeter(name, driver) if keeps else PluggedMeter(name, driver)

"""A knob of another package: its failures are those of a device that answers with nonsense."""

from __future__ import annotations

from wattherd.devices.knobs.contract import KnobDriver, KnobLimits, KnobSetting, State
from wattherd.devices.wire.plugin_calls import PluginCalls


class PluggedKnob:
    """A driver of somebody else's."""

    def __init__(self, name: str, driver: KnobDriver) -> None:
        """`name` is the protocol that it speaks."""
        self.driver = driver
        self.unit = driver.unit
        self.step = driver.step
        self.concurrent = bool(getattr(driver, "concurrent", False))
        self._calls = PluginCalls(name)

    def limits(self) -> KnobLimits:
        """What it can be set to.

        Raises:
            DeviceError: the device did not answer, or the driver failed; so of all that follows.
        """
        return self._calls.answer(self.driver.limits, KnobLimits)

    def read(self) -> KnobSetting:
        """What is in force."""
        return self._calls.answer(self.driver.read, KnobSetting)

    def write(self, value: float) -> None:
        """Order a limit."""
        self._calls.answer(lambda: self.driver.write(value), object)

    def put_back(self, state: State) -> None:
        """Order a state that was read earlier."""
        self._calls.answer(lambda: self.driver.put_back(state), object)

    def identity(self) -> str:
        """What tells this very device from another one; empty where the driver does not say."""
        tell = getattr(self.driver, "identity", None)
        return "" if tell is None else self._calls.answer(tell, str)

    def close(self) -> None:
        """Let go of the device, whatever the driver makes of it."""
        self._calls.close(self.driver.close)

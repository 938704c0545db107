"""A knob of another package: its failures are those of a device that answers with nonsense."""

from __future__ import annotations

import json
from collections.abc import Mapping

from wattherd.devices.knobs.contract import (
    NO_LIMIT,
    KnobDriver,
    KnobLimits,
    KnobSetting,
    KnobUnit,
    State,
)
from wattherd.devices.wire.plugin_calls import PluginCalls, require_methods


class PluggedKnob:
    """A driver of somebody else's."""

    def __init__(self, name: str, driver: KnobDriver) -> None:
        """`name` is the protocol that it speaks.

        Raises:
            TypeError: it is no driver.
            ValueError: its unit or step is none.
        """
        require_methods(driver, "limits", "read", "write", "put_back", "close")
        self.driver = driver
        self.unit = KnobUnit(driver.unit)
        self.step = float(driver.step)
        if not 0.0 <= self.step < NO_LIMIT:
            raise ValueError(f"a step of {driver.step!r}")
        self.concurrent = bool(getattr(driver, "concurrent", False))
        self._calls = PluginCalls(name)

    def limits(self) -> KnobLimits:
        """What it can be set to.

        Raises:
            DeviceError: the device did not answer, or the driver failed; so of all that follows.
        """
        found = self._calls.answer(self.driver.limits, KnobLimits)
        for value in (found.lowest, found.highest, found.default):
            if value is not None:
                self._calls.number(value, most=NO_LIMIT)
        self._calls.number(found.now, most=NO_LIMIT)
        if found.lowest is not None and found.highest is not None:
            self._calls.number(found.highest, least=found.lowest, most=NO_LIMIT)
        return found

    def read(self) -> KnobSetting:
        """What is in force."""
        found = self._calls.answer(self.driver.read, KnobSetting)
        # A cap below nothing would be counted as watts that are free for others.
        self._calls.number(found.value, most=NO_LIMIT)
        self._calls.check(found.state, Mapping)
        self._calls.answer(lambda: json.dumps(dict(found.state)), str)  # it is written down
        return found

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

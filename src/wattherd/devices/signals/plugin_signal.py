"""A source of limits of another package: one that fails is lost, and its last word counts."""

from __future__ import annotations

from dataclasses import replace

from wattherd.devices.signals.contract import LimitSignal, SourceContact, ToldLimits
from wattherd.devices.wire.device_errors import DeviceError
from wattherd.devices.wire.plugin_calls import PluginCalls
from wattherd.engine.power.limit_timeline import LimitPeriod


class PluggedSignal:
    """A signal of somebody else's at the address `source`; `name` is the scheme that it speaks."""

    def __init__(self, name: str, source: str, signal: LimitSignal) -> None:
        """It has said nothing yet."""
        self.signal = signal
        self._calls = PluginCalls(name)
        self._last = ToldLimits(source=source, contact=SourceContact.WAITING)

    def told(self) -> ToldLimits:
        """What it says; where it raises, or says what is none, what it said last, as of one lost.

        No limit ends with a failure: a signal that has said 8 kW and then fails says so still.
        """
        try:
            found = self._calls.answer(self.signal.told, ToldLimits)
            self._calls.check(found.spans, tuple)
            for span in found.spans:
                self._calls.check(span, LimitPeriod)
        except DeviceError as error:
            return replace(self._last, contact=SourceContact.LOST, note=str(error))
        self._last = found
        return found

    def close(self) -> None:
        """Stop listening, whatever the signal makes of it."""
        self._calls.close(self.signal.close)

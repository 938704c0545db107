"""A source of limits of another package: one that fails is lost, and its last word counts."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from wattherd.devices.signals.contract import LimitSignal, SourceContact, ToldLimits
from wattherd.devices.wire.device_errors import DeviceError
from wattherd.devices.wire.plugin_calls import PluginCalls, require_methods
from wattherd.devices.wire.timeouts import TimedCalls
from wattherd.engine.power.limit_timeline import LimitPeriod

PATIENCE_S = 2.0
"""For a source that ought to answer at once: other limits wait for it meanwhile."""


class PluggedSignal:
    """A signal of somebody else's at the address `source`; `name` is the scheme that it speaks."""

    def __init__(
        self, name: str, source: str, signal: LimitSignal, patience_s: float = PATIENCE_S
    ) -> None:
        """It has said nothing yet.

        Raises:
            TypeError: it is no signal.
        """
        require_methods(signal, "told", "close")
        self.signal = signal
        self._calls = PluginCalls(name)
        self._timed = TimedCalls(patience_s)
        self._last = ToldLimits(source=source, contact=SourceContact.WAITING)

    def told(self) -> ToldLimits:
        """What it says; where it raises, does not return, or says what is none, its last word.

        No limit ends with a failure: a signal that has said 8 kW and then fails says so still.
        """
        try:
            found = self._timed.ask(lambda: self._calls.answer(self.signal.told, ToldLimits))
            self._check(found)
        except DeviceError as error:
            return replace(self._last, contact=SourceContact.LOST, note=str(error))
        self._last = found
        return found

    def close(self) -> None:
        """Stop listening, whatever the signal makes of it."""
        with suppress(DeviceError):  # one that does not come back is left behind
            self._timed.ask(lambda: self._calls.close(self.signal.close))

    def _check(self, found: ToldLimits) -> None:
        check, number = self._calls.check, self._calls.number
        check(found.contact, SourceContact)
        for text in (found.source, found.note):
            check(text, str)
        if found.heard_at_s is not None:
            number(found.heard_at_s)
        check(found.spans, tuple)
        for span in found.spans:
            check(span, LimitPeriod)
            check(span.source, str)
            for value in (span.start_s, span.end_s, span.limit_w):
                number(value, least=-float("inf"), most=float("inf"))
        check(found.events, tuple)
        for event in found.events:
            check(event, tuple)
            number(len(event), least=3, most=3)
            for text in event:
                check(text, str)

"""The site's instruments as the safety loop sees them: readings in, orders out, notes to a journal.

What a device was like is noted before its first order; an order goes out when it changes or when
the device holds something else, as after a restart.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wattherd.engine.safety import Fleet, Orders, Readings
from wattherd.knobs.contract import NO_LIMIT, Outcome, Reading, State
from wattherd.knobs.journal import Journal
from wattherd.knobs.registry import open_knob
from wattherd.knobs.switch import Position
from wattherd.meters.contract import Quality
from wattherd.meters.contract import Reading as Watts
from wattherd.meters.meter import Meter
from wattherd.service.hold_fleet import START_S
from wattherd.service.hold_lines import Line, ask_all, is_concurrent, poll_all, wait_for
from wattherd.service.hold_site import Device, Site
from wattherd.wire.trouble import DeviceError

GATHER = 0.5
"""Share of the period after which the loop decides with what it has."""
FIRST_S = 3.0
BEAT = 0.25
"""Of a lease: the longest time without news for the watchdog."""
RESTORE_LEASES = 2.0
"""For so many leases it is tried to put everything back."""
OLD_S = 60.0
"""The loop judges how old a reading may be; beyond that it does not even hear of it."""
UNREAD = Watts(math.nan, math.nan, "", Quality.STALE)

Tell = Callable[[Device, Outcome | Position], None]


@dataclass(slots=True)
class Devices:
    """All instruments of a site; `tell` hears what became of orders that did not take effect."""

    site: Site
    journal: Journal
    tell: Tell
    fleet: Fleet
    switched_off: frozenset[str] = frozenset()
    """Devices whose outlets a predecessor switched off."""
    _meters: Sequence[Line[Watts] | None] = ()
    _knobs: Sequence[Line[Reading]] = ()
    _outlets: Sequence[Line[Position] | None] = ()
    _sent_w: list[float] = field(default_factory=list)
    _sent_at_s: list[float] = field(default_factory=list)
    _stopped: set[int] = field(default_factory=set)
    _asked: bool = False

    def __post_init__(self) -> None:
        """A line to every instrument; orders of knobs are noted in the journal first."""
        levels = [*(feed.meter for feed in self.site.feeds), self.site.meter]
        meters = [*(device.meter for device in self.site.devices), *levels]
        self._meters = [
            None if meter is None else Line(_reader(meter), is_concurrent(meter.driver))
            for meter in meters
        ]
        self._knobs = [
            Line(device.knob.read, is_concurrent(device.knob.driver))
            for device in self.site.devices
        ]
        self._outlets = [
            None if outlet is None else Line(outlet.read, is_concurrent(outlet.outlet))
            for outlet in (device.outlet for device in self.site.devices)
        ]
        self._sent_w = [math.nan] * len(self.site.devices)
        self._sent_at_s = [-math.inf] * len(self.site.devices)
        for number, device in enumerate(self.site.devices):
            device.knob.journal = self.journal
            if device.name in self.switched_off:
                self._stopped.add(number)

    @property
    def stopped(self) -> frozenset[str]:
        """Names of the devices whose outlets were switched off, by this loop or before it."""
        return frozenset(self.site.devices[number].name for number in self._stopped)

    def readings(self) -> Readings:
        """What all instruments answer within half a period; later answers count the next time.

        The first time they get longer: connections are made, and nobody is cut for want of news.
        """
        asked_s = time.monotonic()
        first_s = max(self.site.config.lease_s * BEAT, GATHER * self.site.period_s)
        patience_s = GATHER * self.site.period_s if self._asked else min(FIRST_S, first_s)
        self._asked = True
        all_lines: list[Line[Any] | None] = [*self._meters, *self._knobs, *self._outlets]
        lines = [line for line in all_lines if line is not None]
        poll_all(lines)
        wait_for(lines, asked_s + patience_s)
        return self._collected(time.monotonic())

    def send(self, orders: Orders, readings: Readings) -> None:
        """Carry out what is new, in each device's own time."""
        for number, device in enumerate(self.site.devices):
            cap_w = round(float(orders.cap_w[number]))  # boards take whole watts
            if self._is_due(number, cap_w, float(readings.cap_w[number])):
                self._sent_w[number], self._sent_at_s[number] = cap_w, time.monotonic()
                self._knobs[number].order(self._setter(device, cap_w))
            self._switch(number, off=bool(orders.switch_off[number]),
                         on=bool(orders.switch_on[number]))  # fmt: skip

    def note_found(self) -> None:
        """Write down what all devices are like, at once, before any order."""
        asks = ((one.knob.driver, _state_of(one)) for one in self.site.devices)
        states = ask_all(asks, START_S)
        self.journal.note_all(
            (device.knob.source, state)
            for device, state in zip(self.site.devices, states, strict=True)
            if state is not None
        )

    def restore(self, alive: Callable[[], None]) -> list[str]:
        """Put everything back as it was found; names of the devices where that failed.

        `alive` is called all the while: a watchdog that heard nothing would lower what was raised.
        """
        for number in sorted(self._stopped):
            self._order_outlet(number, on=True)
        failed = dict(enumerate(self.site.devices))
        until_s = time.monotonic() + RESTORE_LEASES * self.site.config.lease_s
        while failed and time.monotonic() < until_s:
            alive()
            with self.journal.together():
                lines = [self._put_back(number, failed) for number in list(failed)]
                wait_for(lines, time.monotonic() + self.site.config.lease_s * BEAT)
        return sorted(device.name for device in failed.values())

    def restore_strangers(self) -> Iterator[Outcome]:
        """Put back what a predecessor changed and this site no longer names."""
        mine = {device.knob.source for device in self.site.devices}
        for uri in self.journal.entries:
            if uri not in mine:
                with open_knob(uri, self.journal) as knob:
                    yield knob.restore()

    def _collected(self, now_s: float) -> Readings:
        period_s, size = self.site.period_s, len(self.site.devices)
        watts = [
            UNREAD if line is None else line.fresh(now_s, OLD_S) or UNREAD for line in self._meters
        ]
        caps = [line.fresh(now_s, 1.5 * period_s) for line in self._knobs]
        value_w = np.array([one.watts for one in watts])
        at_s = np.array([one.at_s for one in watts])
        return Readings(
            now_s=time.time(),
            draw_w=value_w[:size], draw_at_s=at_s[:size],
            feed_w=value_w[size:-1], feed_at_s=at_s[size:-1],
            site_w=float(value_w[-1]), site_at_s=float(at_s[-1]),
            cap_w=np.array([self._cap_w(n, cap) for n, cap in enumerate(caps)]),
            off=np.array([self._is_off(line) for line in self._outlets], dtype=np.bool_),
        )  # fmt: skip

    def _cap_w(self, number: int, reading: Reading | None) -> float:
        """The cap in force; without one, what the device may draw."""
        if reading is None or reading.value is None:
            return math.nan
        most_w = float(self.fleet.max_w[number])
        return most_w if reading.value == NO_LIMIT else reading.value

    @staticmethod
    def _is_off(line: Line[Position] | None) -> bool:
        return line is not None and line.answer is not None and line.answer.value.on is False

    def _is_due(self, number: int, cap_w: float, holds_w: float) -> bool:
        """New, or not in force though the device has had its time."""
        held = abs(holds_w - cap_w) <= max(float(self.fleet.steps_w[number]), 1.0)
        if math.isnan(self._sent_w[number]) and held:
            self._sent_w[number] = cap_w  # a predecessor's order
        if self._sent_w[number] != cap_w:
            return True
        waited_s = time.monotonic() - self._sent_at_s[number]
        return not held and not math.isnan(holds_w) and waited_s >= self.site.config.settle_s

    def _setter(self, device: Device, cap_w: float) -> Callable[[], None]:
        def order() -> None:
            outcome = device.knob.set(cap_w)
            if not outcome.in_force:
                self.tell(device, outcome)

        return order

    def _switch(self, number: int, *, off: bool, on: bool) -> None:
        if off and self._outlets[number] is not None:
            self._stopped.add(number)
            self._order_outlet(number, on=False)
        elif on and number in self._stopped:
            self._stopped.discard(number)
            self._order_outlet(number, on=True)

    def _order_outlet(self, number: int, *, on: bool) -> None:
        device, line = self.site.devices[number], self._outlets[number]
        outlet = device.outlet
        if line is None or outlet is None:
            return
        line.order(lambda: self.tell(device, outlet.turn(on=on)))

    def _put_back(self, number: int, failed: dict[int, Device]) -> Line[Reading]:
        device = self.site.devices[number]

        def order() -> None:
            outcome = device.knob.restore()
            if outcome.in_force:
                failed.pop(number, None)
            else:
                self.tell(device, outcome)

        line = self._knobs[number]
        line.order(order)
        return line


def _state_of(device: Device) -> Callable[[], State | None]:
    def ask() -> State | None:
        try:
            return device.knob.driver.read().state
        except DeviceError:
            return None

    return ask


def _reader(meter: Meter) -> Callable[[], Watts]:
    def read() -> Watts:
        try:
            return meter.read()
        except DeviceError:
            return UNREAD

    return read

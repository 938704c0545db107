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

from wattherd.devices.knobs.contract import NO_LIMIT, KnobReading, OrderOutcome
from wattherd.devices.knobs.journal import KnobJournal
from wattherd.devices.knobs.registry import open_knob
from wattherd.devices.knobs.switch import Position
from wattherd.devices.meters.contract import MeterReading as Watts
from wattherd.devices.meters.contract import Quality
from wattherd.devices.meters.meter import Meter
from wattherd.devices.wire.device_errors import DeviceError
from wattherd.engine.safety.contract import Bools, Floats
from wattherd.engine.safety.loop import Fleet, Orders, Readings
from wattherd.hold.lines import (
    InstrumentAnswer,
    InstrumentLine,
    is_concurrent,
    is_quick,
    poll_all,
    wait_for,
)
from wattherd.hold.site_file import HeldDevice, HeldSite
from wattherd.hold.site_storage import StorageLines

GATHER = 0.5
"""Share of the period after which the loop decides with what it has."""
FIRST_S = 3.0
BEAT = 0.25
"""Of a lease: the longest time without news for the watchdog."""
RESTORE_LEASES = 2.0
"""For so many leases it is tried to put everything back."""
LEAVE_S = 2.0
"""How long a device that leaves may take to be put back."""
GONE_S = 5.0
"""After so long without an answer, another device may have taken its place."""
OLD_S = 60.0
"""The loop judges how old a reading may be; beyond that it does not even hear of it."""
LOOK_S = 0.1
"""Between two looks at a meter that may be asked at any time."""
LEAST_LOOKS = 5
"""So many looks make a mean of the period; fewer are but the last of them."""
MOST_QUICK = 64
"""Meters that are looked at within a period, at most: beyond that it would cost a processor."""
LAST_S = 1.2
"""A mean of no longer than that is one of the last second; cycles come a little late at times."""
UNREAD = Watts(math.nan, math.nan, "", Quality.STALE)

Tell = Callable[[HeldDevice | str, OrderOutcome | Position], None]
"""Of a device, or of storage by its name."""


@dataclass(slots=True)
class Devices:
    """All instruments of a site; `tell` hears what became of orders that did not take effect."""

    site: HeldSite
    journal: KnobJournal
    tell: Tell
    fleet: Fleet
    switched_off: frozenset[str] = frozenset()
    """Devices whose outlets a predecessor switched off."""
    before: Devices | None = None
    """What there was until the site's file was read again: lines to the same instruments stay."""
    returned: bool = False
    """Whether a knob answers again that was silent for a while: another device may be there."""
    _meters: Sequence[InstrumentLine[Watts] | None] = ()
    _knobs: Sequence[InstrumentLine[KnobReading]] = ()
    _outlets: Sequence[InstrumentLine[Position] | None] = ()
    _sent_w: list[float] = field(default_factory=list)
    _sent_at_s: list[float] = field(default_factory=list)
    _stopped: set[int] = field(default_factory=set)
    _unverified: set[int] = field(default_factory=set)
    """Devices that may be others: nothing is ordered before what was found is known."""
    _left: set[int] = field(default_factory=set)
    """Devices that were put back and are about to be dropped."""
    _answered_s: list[float] = field(default_factory=list)
    _asked: bool = False
    _looks: dict[int, list[InstrumentAnswer[Watts]]] = field(default_factory=dict)
    """What meters that are looked at within a period have told since the last cycle."""
    _collected_s: float = -math.inf
    _storage: StorageLines = field(init=False)

    def __post_init__(self) -> None:
        """A line to every instrument; orders of knobs are noted in the journal first."""
        levels = [*(feed.meter for feed in self.site.feeds), self.site.meter]
        meters = [*(device.meter for device in self.site.devices), *levels]
        known = {} if self.before is None else self.before.lines()
        self._meters = [
            None
            if meter is None
            else known.get(id(meter)) or InstrumentLine(_reader(meter), is_concurrent(meter.driver))
            for meter in meters
        ]
        self._knobs = [
            known.get(id(knob)) or InstrumentLine(knob.read, is_concurrent(knob.driver))
            for knob in (device.knob for device in self.site.devices)
        ]
        self._outlets = [
            None
            if outlet is None
            else known.get(id(outlet)) or InstrumentLine(outlet.read, is_concurrent(outlet.outlet))
            for outlet in (device.outlet for device in self.site.devices)
        ]
        self._storage = StorageLines(self.site.storages, self.journal, self._tell_storage, known)
        sent = {} if self.before is None else self.before.sent()
        nothing = math.nan, -math.inf
        last = [sent.get(id(device.knob), nothing) for device in self.site.devices]
        self._sent_w = [sent_w for sent_w, _ in last]
        self._sent_at_s = [at_s for _, at_s in last]
        self._answered_s = [time.monotonic()] * len(self.site.devices)
        self._asked, self.before = self.before is not None, None
        # All or none: of means, and of what others tell late or not at all, no difference says
        # anything. The site's own meter may be missing, since feeds add up to it.
        quick = [meter is not None and is_quick(meter.driver) for meter in meters]
        if (
            all(quick[:-1]) and (quick[-1] or meters[-1] is None)
            and sum(quick) <= MOST_QUICK and self.site.period_s >= LEAST_LOOKS * LOOK_S
        ):  # fmt: skip
            self._looks = {number: [] for number in np.flatnonzero(quick).tolist()}
        for number, device in enumerate(self.site.devices):
            device.knob.journal = self.journal
            if device.name in self.switched_off:
                self._stopped.add(number)

    @property
    def stopped(self) -> frozenset[str]:
        """Names of the devices whose outlets were switched off, by this loop or before it."""
        return frozenset(self.site.devices[number].name for number in self._stopped)

    def lines(self) -> dict[int, InstrumentLine[Any]]:
        """The line of every instrument, by the identity of its object."""
        site = self.site
        objects: list[object] = [
            *(device.meter for device in site.devices), *(feed.meter for feed in site.feeds),
            site.meter, *(device.knob for device in site.devices),
            *(device.outlet for device in site.devices),
        ]  # fmt: skip
        lines = [*self._meters, *self._knobs, *self._outlets]
        pairs = zip(objects, lines, strict=True)
        devices = {id(one): line for one, line in pairs if line is not None}
        return devices | self._storage.by_identity()

    def sent(self) -> dict[int, tuple[float, float]]:
        """The last order of every knob, and when it was sent."""
        knobs = (device.knob for device in self.site.devices)
        orders = zip(self._sent_w, self._sent_at_s, strict=True)
        return {id(knob): order for knob, order in zip(knobs, orders, strict=True)}

    def put_back_one(self, device: HeldDevice) -> bool:
        """Put a device back that leaves, and order nothing more; whether it is as it was found."""
        number = self.site.devices.index(device)
        failed = {number: device}
        self._left.add(number)
        self._put_back(number, failed).wait(time.monotonic() + LEAVE_S)
        return not failed

    def readings(self) -> Readings:
        """What all instruments answer within half a period; later answers count the next time.

        The first time they get longer: connections are made, and nobody is cut for want of news.
        """
        asked_s = time.monotonic()
        first_s = max(self.site.config.lease_s * BEAT, GATHER * self.site.period_s)
        patience_s = GATHER * self.site.period_s if self._asked else min(FIRST_S, first_s)
        self._asked = True
        all_lines: list[InstrumentLine[Any] | None] = [*self._meters, *self._knobs, *self._outlets]
        lines = [line for line in all_lines if line is not None] + self._storage.asked
        poll_all(lines)
        wait_for(lines, asked_s + patience_s)
        return self._collected(time.monotonic())

    @property
    def looks(self) -> bool:
        """Whether there are meters to look at between two cycles."""
        return bool(self._looks)

    # Limits hold for means of a second. Of one moment in a second nobody can tell whether it met
    # the peak of a swing, its foot, or the same flank as all the ones before.
    def look(self) -> None:
        """Ask meters that may be asked at any time, and wait for none of them."""
        poll_all(self._quick_lines())

    def _quick_lines(self) -> list[InstrumentLine[Watts]]:
        """Their lines, once what they told last is noted."""
        lines = []
        for number, looks in self._looks.items():
            if (line := self._meters[number]) is not None:
                lines.append(line)
                answer = line.answer
                if answer is not None and (not looks or looks[-1].at_s < answer.at_s):
                    looks.append(answer)
        return lines

    def send(self, orders: Orders, readings: Readings) -> None:
        """Carry out what is new, in each device's own time."""
        self._storage.send(orders.storage_w)
        for number, device in enumerate(self.site.devices):
            cap_w = round(float(orders.cap_w[number]))  # boards take whole watts
            if number in self._unverified or number in self._left:
                continue
            if self._is_due(number, cap_w, float(readings.cap_w[number])):
                self._sent_w[number], self._sent_at_s[number] = cap_w, time.monotonic()
                self._knobs[number].order(self._setter(device, cap_w))
            self._switch(number, off=bool(orders.switch_off[number]),
                         on=bool(orders.switch_on[number]))  # fmt: skip

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
        # Storage last: as long as caps are low it costs nobody anything.
        left = self._storage.restore()
        return sorted([*(device.name for device in failed.values()), *left])

    @property
    def strangers(self) -> list[str]:
        """Knobs that a predecessor changed and this site does not name."""
        mine = {device.knob.source for device in self.site.devices}
        mine |= {one.setpoint.source for one in self.site.storages}
        return [uri for uri in self.journal.entries if uri not in mine]

    def restore_strangers(self) -> Iterator[OrderOutcome]:
        """Put back what a predecessor changed and this site does not name."""
        for uri in self.strangers:
            with open_knob(uri, self.journal) as knob:
                yield knob.restore()

    def _collected(self, now_s: float) -> Readings:
        period_s, size = self.site.period_s, len(self.site.devices)
        watts = [
            UNREAD if line is None else line.fresh(now_s, OLD_S) or UNREAD for line in self._meters
        ]
        caps = [line.fresh(now_s, 1.5 * period_s) for line in self._knobs]
        self._note_returns(caps, now_s)
        value_w, of_second = self._means(watts, now_s)
        at_s = np.array([one.at_s for one in watts])
        storage_w, storage_charge, storage_at_s = self._storage.read(now_s)
        return Readings(
            now_s=time.time(),
            draw_w=value_w[:size], draw_at_s=at_s[:size],
            feed_w=value_w[size:-1], feed_at_s=at_s[size:-1],
            site_w=float(value_w[-1]), site_at_s=float(at_s[-1]),
            cap_w=np.array([self._cap_w(n, cap) for n, cap in enumerate(caps)]),
            off=np.array([self._is_off(line) for line in self._outlets], dtype=np.bool_),
            storage_w=storage_w, storage_charge=storage_charge, storage_at_s=storage_at_s,
            of_second=of_second,
        )  # fmt: skip

    def _means(self, told: Sequence[Watts], now_s: float) -> tuple[Floats, Bools]:
        """Watts of all meters, as means of their looks where there are; which are of a second."""
        value_w = np.array([one.watts for one in told])
        of_second = np.zeros(len(told), dtype=np.bool_)
        self._quick_lines()
        for number, looks in self._looks.items():
            known = [one.value.watts for one in looks if not math.isnan(one.value.watts)]
            looks.clear()
            if len(known) >= LEAST_LOOKS and not math.isnan(value_w[number]):
                value_w[number] = math.fsum(known) / len(known)
                of_second[number] = True
        # Of longer ones a second within may have been higher, and nobody would know.
        passed_s, self._collected_s = now_s - self._collected_s, now_s
        return value_w, of_second & (passed_s <= LAST_S)

    def _tell_storage(self, name: str, outcome: OrderOutcome) -> None:
        self.tell(name, outcome)

    def _note_returns(self, caps: Sequence[KnobReading | None], now_s: float) -> None:
        for number, cap in enumerate(caps):
            if cap is not None and cap.value is not None:
                if now_s - self._answered_s[number] > GONE_S:
                    self.returned = True
                    self._unverified.add(number)
                self._answered_s[number] = now_s

    def verified(self) -> None:
        """Those that were silent for a while are known again."""
        self._unverified.clear()

    def _cap_w(self, number: int, reading: KnobReading | None) -> float:
        """The cap in force; without one, what the device may draw."""
        if reading is None or reading.value is None:
            return math.nan
        most_w = float(self.fleet.max_w[number])
        return most_w if reading.value == NO_LIMIT else reading.value

    @staticmethod
    def _is_off(line: InstrumentLine[Position] | None) -> bool:
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

    def _setter(self, device: HeldDevice, cap_w: float) -> Callable[[], None]:
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

    def _put_back(self, number: int, failed: dict[int, HeldDevice]) -> InstrumentLine[KnobReading]:
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


def _reader(meter: Meter) -> Callable[[], Watts]:
    def read() -> Watts:
        try:
            return meter.read()
        except DeviceError:
            return UNREAD

    return read

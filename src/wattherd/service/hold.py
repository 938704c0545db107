"""`wattherd power hold`: the safety loop on real meters and knobs.

Each period: ask all meters and knobs at once, let `engine.safety` decide with what was answered in
time, send what is new, tell the watchdog. What every device was like is on disk before the first
order, until it is put back; what the loop has learned is kept beside it, so that a successor goes
on where this one ended, however it ended. Every cycle is one JSON line (`wattherd.hold/1`).
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wattherd.engine.safety import Fleet, Note, Orders, Readings, SafetyLoop
from wattherd.engine.safety_terms import Bools, Floats
from wattherd.errors import UserError
from wattherd.knobs.contract import Outcome, Result
from wattherd.knobs.journal import Journal, owned
from wattherd.knobs.switch import Position
from wattherd.service.hold_devices import Devices
from wattherd.service.hold_fleet import fleet_of, unranged
from wattherd.service.hold_site import UNLIMITED_W, Device, Site
from wattherd.service.hold_state import Keeper, Memory, claim, forget, memory_of, remembered
from wattherd.service.hold_watchdog import Guard
from wattherd.service.power_signal import Listener, listening
from wattherd.signals import contract as signals
from wattherd.signals.contract import Contact

SCHEMA = "wattherd.hold/1"
SUCCEED_S = 30.0
"""How long a successor waits for a watchdog that is lowering devices."""

Emit = Callable[[Mapping[str, Any]], None]


@dataclass(slots=True)
class Hold:
    """One life of the loop; ends when `ended` is set or `duration_s` have passed.

    At its end caps stay as they are for a successor, until their lease ends; with `release`
    everything is put back as it was found.
    """

    site: Site
    emit: Emit
    ended: threading.Event
    duration_s: float = math.inf
    dry_run: bool = False
    release: bool = False
    _told_w: Floats | None = field(default=None)
    _contacts: dict[str, str] = field(default_factory=dict)
    _signal_w: float = math.inf
    """The limit of the site from outside, of a predecessor until sources have been heard."""
    _since_s: float = 0.0

    def run(self) -> bool:
        """Hold the site; whether every device was put back or handed over in the end.

        Raises:
            UserError: another loop holds this site, or a device's range is not known.
        """
        if self.dry_run:
            journal = Journal(self.site.journal)
            devices = Devices(self.site, journal, self._tell, fleet_of(self.site))
            self._since_s = time.time() if self.site.since_s is None else self.site.since_s
            self._cycles(devices, SafetyLoop(devices.fleet, self.site.config), None)
            return True
        with self._alone():
            return self._held(Journal(self.site.journal))

    def restore(self) -> bool:
        """Only put back what an earlier loop left changed; whether that worked.

        Raises:
            UserError: a loop holds this site.
        """
        with self._alone():
            journal = Journal(self.site.journal)
            memory, _ = remembered(self.site)
            off = frozenset[str]() if memory is None else memory.switched_off
            devices = Devices(self.site, journal, self._tell, unranged(self.site), off)
            return self._put_back(devices, _nobody)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """As the only process that holds the site, and known as such."""
        with owned(self.site.journal, SUCCEED_S) as mine:
            if not mine:
                raise UserError("is held by another process", where=str(self.site.path))
            claim(self.site.journal)
            yield

    def _held(self, journal: Journal) -> bool:
        memory = self._remembered()
        fleet = fleet_of(self.site, memory)
        off = frozenset[str]() if memory is None else memory.switched_off
        devices = Devices(self.site, journal, self._tell, fleet, off)
        guard = self._guard(fleet)
        found = len(journal.entries)
        devices.note_found()
        self._say("start", devices=fleet.size, feeds=fleet.feeds, from_predecessor=found,
                  levels=[*(feed.name for feed in self.site.feeds), "site"],
                  taken_over=memory is not None)  # fmt: skip
        for outcome in devices.restore_strangers():
            self._say("stranger", knob=outcome.knob, result=outcome.result)
        guard.beat()
        state = None if memory is None else memory.of(self.site, time.time())
        loop = SafetyLoop(fleet, self.site.config, state=state)
        self._cycles(devices, loop, guard)
        if self.release:
            restored = self._put_back(devices, guard.beat)
            guard.leave()
            return restored
        self._keep(devices, loop, sync=True)
        guard.keep()
        self._say("handed-over", keeps_s=max(self.site.handover_s, self.site.config.lease_s))
        return True

    def _remembered(self) -> Memory | None:
        memory, trouble = remembered(self.site)
        if trouble:
            self._say("forgotten", problem=trouble)
        since_s = None if memory is None else memory.since_s
        signal_w = None if memory is None else memory.signal_w
        self._since_s = self.site.since_s or since_s or time.time()
        self._signal_w = math.inf if signal_w is None else signal_w
        return memory

    def _guard(self, fleet: Fleet) -> Guard:
        floors = zip(self.site.devices, fleet.floor_w, strict=True)
        return Guard(
            floor_w={device.knob.source: float(floor_w) for device, floor_w in floors},
            lease_s=self.site.config.lease_s,
            journal=self.site.journal,
            handover_s=self.site.handover_s,
        )

    def _cycles(self, devices: Devices, loop: SafetyLoop, guard: Guard | None) -> None:
        site = signals.Site(
            base_w=max(level_w for _, level_w in self.site.limit),
            least_w=float(devices.fleet.floor_w.sum()),
        )
        with listening(self.site.signals, site) as listener:
            self._listening_cycles(devices, loop, guard, listener)

    def _listening_cycles(
        self, devices: Devices, loop: SafetyLoop, guard: Guard | None, listener: Listener
    ) -> None:
        keeper = Keeper(self.site)
        began_s = due_s = time.monotonic()
        while not self.ended.is_set() and time.monotonic() - began_s < self.duration_s:
            asked_s = time.monotonic()
            readings = devices.readings()
            limit_w = self._limit_w(readings.now_s, listener)
            orders = loop.cycle(readings, limit_w)
            if guard is not None:
                if keeper.due:
                    # Before the orders: a successor must not know of less than was ordered.
                    self._keep(devices, loop, keeper=keeper)
                devices.send(orders, readings)
                guard.beat()
            self._report(loop, readings, orders, limit_w, time.monotonic() - asked_s)
            # A cycle that takes too long is followed at once by the next; none is made up for.
            due_s = max(due_s + self.site.period_s, time.monotonic())
            left_s = min(due_s, began_s + self.duration_s) - time.monotonic()
            self.ended.wait(max(left_s, 0.0))

    def _keep(
        self, devices: Devices, loop: SafetyLoop, *, keeper: Keeper | None = None,
        sync: bool = False,
    ) -> None:  # fmt: skip
        memory = memory_of(
            self.site, devices.fleet, loop.state(),
            switched_off=devices.stopped,
            identities=[""] * devices.fleet.size,
            signal_w=self._signal_w if self._signal_w < UNLIMITED_W else None,
            since_s=self._since_s,
        )  # fmt: skip
        try:
            (keeper or Keeper(self.site)).keep(memory, sync=sync)
        except OSError as error:
            self._say("not-kept", problem=str(error))

    def _limit_w(self, now_s: float, listener: Listener) -> Floats:
        """The limits of the file, for the site also those from outside; falls count early.

        Until all sources have been heard, what a predecessor heard of them counts, too.
        """
        limit_w = self.site.limit_w(now_s - self._since_s)
        found = listener.limits()
        until_s = found.now_s + self.site.lead_s
        signal_w = found.timeline.lowest_w(found.now_s, until_s)
        if any(one.contact is Contact.WAITING for one in found.told):
            signal_w = min(signal_w, self._signal_w)
        self._signal_w = signal_w if found.told else math.inf
        limit_w[-1] = min(limit_w[-1], signal_w)
        contacts = {one.source: str(one.contact) for one in found.told}
        if contacts != self._contacts:
            self._contacts = contacts
            self._say("signals", contacts=contacts, notes=[one.note for one in found.told])
        return limit_w

    def _put_back(self, devices: Devices, alive: Callable[[], None]) -> bool:
        failed = devices.restore(alive)
        forget(self.site)
        self._say("restored", failed=failed)
        return not failed

    def _report(
        self, loop: SafetyLoop, readings: Readings, orders: Orders, limit_w: Floats, took_s: float
    ) -> None:
        caps = loop.caps
        told = self._told_w if self._told_w is not None else np.full(loop.fleet.size, np.nan)
        changed = ~(np.abs(orders.cap_w - told) < 1.0)
        self._told_w = orders.cap_w
        self._say(
            "cycle",
            took_s=round(took_s, 4),
            limit_w=[None if one >= UNLIMITED_W else one for one in limit_w],
            feed_w=[_number(one) for one in readings.feed_w],
            site_w=_number(readings.site_w),
            draw_w=_number(float(np.nansum(readings.draw_w))),
            counted_w=_number(float(caps.counted_w.sum())),
            safe_mode=loop.safe_mode,
            orders={name: round(float(orders.cap_w[n]))
                    for n, name in enumerate(self._names()) if changed[n]},
            unread=self._those(_unread(loop)),
            silent=self._those(caps.silent),
            late=self._those(caps.late),
            defiant=self._those(caps.defiant),
            off=self._those(readings.off),
            switch_off=self._those(orders.switch_off),
            notes=[self._note(one) for one in loop.notes()],
        )  # fmt: skip

    def _note(self, note: Note) -> dict[str, Any]:
        levels = [*(feed.name for feed in self.site.feeds), "site"]
        return {
            "kind": note.kind,
            "level": levels[note.level] if note.level >= 0 else None,
            "device": self.site.devices[note.device].name if note.device >= 0 else None,
            "watts": _number(note.watts),
            "since_s": round(note.since_s, 3),
        }

    def _names(self) -> list[str]:
        return [device.name for device in self.site.devices]

    def _those(self, which: Bools) -> list[str]:
        return [name for name, is_one in zip(self._names(), which, strict=True) if is_one]

    def _tell(self, device: Device, outcome: Outcome | Position) -> None:
        read_back = outcome.read_back if isinstance(outcome, Outcome) else outcome.on
        unlimited = read_back == math.inf
        self._say("outcome", device=device.name, result=outcome.result or Result.TOOK_EFFECT,
                  read_back=None if unlimited else read_back, trouble=outcome.trouble,
                  problem=outcome.problem or None)  # fmt: skip

    def _say(self, event: str, **more: Any) -> None:
        self.emit({"schema": SCHEMA, "event": event, "at_s": round(time.time(), 3), **more})


def to_stream(write: Callable[[str], object]) -> Emit:
    """Lines of JSON by `write`; a reader that has gone away does not end the loop."""
    writing = threading.Lock()

    def emit(line: Mapping[str, Any]) -> None:
        with writing:
            try:
                write(json.dumps(line) + "\n")
            except OSError:
                return

    return emit


def _nobody() -> None:
    """No watchdog is there to be told."""


def _unread(loop: SafetyLoop) -> Bools:
    """Devices (N,) whose meters the loop has no use for: missing, old, frozen, senseless."""
    if loop.seen is None:
        return np.ones(loop.fleet.size, dtype=np.bool_)
    return np.asarray(np.isnan(loop.seen.draw_w))


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(float(value), 1)

"""`wattherd power hold`: the safety loop on real meters and knobs.

Each period: ask all meters and knobs at once, let `engine.safety.loop` decide with what was
answered in time, send what is new, tell the watchdog. What every device was like is on disk before
the first order, until it is put back; what the loop has learned is kept beside it, so that a
successor goes on where this one ended, however it ended. Every cycle is one JSON line
(`wattherd.hold/1`).
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from wattherd.devices.knobs.contract import OrderOutcome, OrderResult
from wattherd.devices.knobs.journal import KnobJournal, owned
from wattherd.devices.knobs.switch import Position
from wattherd.devices.signals import contract as signals
from wattherd.devices.signals.contract import SourceContact
from wattherd.devices.signals.limit_sources import LimitListener, listening
from wattherd.engine.safety.aims import CapWishes
from wattherd.engine.safety.contract import Bools, Floats
from wattherd.engine.safety.loop import Fleet, Orders, Readings, SafetyLoop, SafetyNote
from wattherd.errors import UserError
from wattherd.hold.changes import Prepared, prepare, without
from wattherd.hold.devices import LOOK_S, Devices
from wattherd.hold.fleet import fleet_of, unranged
from wattherd.hold.saved_state import SavedSite, StateKeeper, claim, forget, memory_of, remembered
from wattherd.hold.site_file import UNLIMITED_W, HeldDevice, HeldSite, approached, read_site
from wattherd.hold.watchdog import Guard

# --- Devices that leave a site: room is made for what each was found with, then it is put back.
#
# A limit that was lifted before the others are lowered would lift the sum. So the loop is told
# lower limits, by what the next device that leaves may draw more; once all that is counted fits
# below them, the device is put back. What it may draw is kept free for a while longer: until meters
# have shown it as other load.

PATIENCE_S = 60.0
"""How long room is made for; then the device's limit stays as it is."""
AFTER_S = 15.0
"""How long its watts are kept free after it has been put back."""
FITS = 1.001
"""Sums this close to a limit are within it: caps are rounded."""


@dataclass(slots=True)
class HandOver:
    """All of them; outlives changes of the site. Limits are by knob, in watts."""

    limits: Mapping[str, float] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    """Knobs of those that are to be dropped now."""
    _since_s: dict[str, float] = field(default_factory=dict)
    _free: list[tuple[str, float, float]] = field(default_factory=list)
    """Feed, watts and until when: what has just been put back."""

    def begin(self, limits: Mapping[str, float]) -> None:
        """These leave from now on."""
        now_s = time.monotonic()
        self.limits, self.gone = limits, set()
        self._since_s = {knob: self._since_s.get(knob, now_s) for knob in limits}

    def limits_beside(self, ready: Prepared, loop: SafetyLoop, limit_w: Floats) -> Floats:
        """Limits (F + 1,) less what the next to leave may draw more, and the last ones drew."""
        numbers = {feed.name: number for number, feed in enumerate(ready.site.feeds)}
        own_w = np.zeros(ready.fleet.feeds + 1)
        self._free = [one for one in self._free if one[2] > time.monotonic()]
        for name, watts, _ in self._free:
            own_w[numbers.get(name, -1)] += watts
        number = self._next(ready)
        if number is not None:
            device = ready.site.devices[number]
            more_w = self.limits[device.knob.source] - float(loop.caps.counted_w[number])
            own_w[device.feed] += max(more_w, 0.0)
        return np.asarray(limit_w - ready.fleet.tree.sums(own_w))

    def fitting(
        self, ready: Prepared, loop: SafetyLoop, left_w: Floats, readings: Readings
    ) -> HeldDevice | None:
        """The next to leave, if all that is counted and read is within what is left (F + 1,)."""
        number = self._next(ready)
        if number is None:
            return None
        fleet = ready.fleet
        base_w = np.nan_to_num(loop.state().base_w)
        counted_w = fleet.levels(loop.caps.counted_w) + fleet.tree.sums(base_w)
        read_w = np.append(readings.feed_w, readings.site_w)
        over = (counted_w > FITS * left_w) | (read_w > FITS * left_w)
        return None if over.any() else ready.site.devices[number]

    def overdue(self, ready: Prepared) -> list[HeldDevice]:
        """Those for which there was no room in all the time."""
        now_s = time.monotonic()
        late = {knob for knob, since_s in self._since_s.items() if now_s - since_s > PATIENCE_S}
        late -= self.gone
        return [one for one in ready.site.devices if one.knob.source in late]

    def let_go(self, ready: Prepared, device: HeldDevice, *, put_back: bool = True) -> None:
        """It is to be dropped; what it may draw now stays free for a while."""
        self.gone.add(device.knob.source)
        if put_back:
            feed = ready.site.feeds[device.feed].name
            until_s = time.monotonic() + AFTER_S
            self._free.append((feed, self.limits[device.knob.source], until_s))

    def _next(self, ready: Prepared) -> int | None:
        for number, device in enumerate(ready.site.devices):
            if device.knob.source in self.limits and device.knob.source not in self.gone:
                return number
        return None


SCHEMA = "wattherd.hold/1"
SUCCEED_S = 30.0
"""How long a successor waits for a watchdog that is lowering devices."""

Emit = Callable[[Mapping[str, Any]], None]


class Liaison(Protocol):
    """Who speaks for a scheduler whose jobs run on the site's devices; it must never wait."""

    def limits_w(self, site: HeldSite, limit_w: Floats) -> Floats:
        """The limits (F + 1,) in force, where the scheduler has some of its own."""
        ...

    def wishes(self, site: HeldSite, loop: SafetyLoop, *, found_known: bool) -> CapWishes:
        """What it wants now; `found_known` says whether limits found are the operator's."""
        ...

    def heard(self, shift: Shift, readings: Readings, orders: Orders, limit_w: Floats) -> None:
        """A cycle is over and its orders have been sent."""
        ...

    def told(self, device: HeldDevice, outcome: OrderOutcome | Position) -> None:
        """An order did not take effect."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """The site as it is held for a time: replaced as a whole when it changes."""

    ready: Prepared
    devices: Devices
    loop: SafetyLoop
    guard: Guard

    @property
    def site(self) -> HeldSite:
        """Feeds and devices, those that leave too."""
        return self.ready.site

    @property
    def fleet(self) -> Fleet:
        """Their ranges."""
        return self.ready.fleet


@dataclass(slots=True, kw_only=True)
class Preparing:
    """A change on its way; `done` is set last."""

    by_file: bool
    ready: Prepared | None = None
    problem: UserError | None = None
    done: bool = False


@dataclass(slots=True)
class HoldLoop:
    """One life of the loop; ends when `ended` is set or `duration_s` have passed.

    At its end caps stay as they are for a successor, until their lease ends; with `release`
    everything is put back as it was found.
    """

    site: HeldSite
    emit: Emit
    ended: threading.Event
    duration_s: float = math.inf
    dry_run: bool = False
    release: bool = False
    reload: threading.Event = field(default_factory=threading.Event)
    """Set from outside: read the site's file again."""
    liaison: Liaison | None = None
    guarded: bool = True
    """Whether a watchdog stands for the leases of caps: where others rely on the limits."""
    poke: threading.Event = field(default_factory=threading.Event)
    """Set from outside, and at the end with `ended`: there is news, do not wait for the period."""
    _found_known: bool = True
    _preparing: Preparing | None = None
    _leaving: HandOver = field(default_factory=HandOver)
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
            self._since_s = time.time() if self.site.since_s is None else self.site.since_s
            fleet = fleet_of(self.site)
            ready = Prepared(site=self.site, fleet=fleet, identities=("",) * fleet.size)
            self._cycles(self._shift(ready, KnobJournal(self.site.journal), None))
            return True
        with self._alone():
            return self._held(KnobJournal(self.site.journal))

    def restore(self) -> bool:
        """Only put back what an earlier loop left changed; whether that worked.

        Raises:
            UserError: a loop holds this site.
        """
        with self._alone():
            journal = KnobJournal(self.site.journal)
            memory, _ = remembered(self.site)
            off = frozenset[str]() if memory is None else memory.switched_off
            devices = Devices(self.site, journal, self._tell, unranged(self.site), off)
            return self._put_back(devices, _nobody)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """As the only process that holds the site, and known as such."""
        with owned(self.site.journal, SUCCEED_S) as mine:
            if not mine:
                hint = "end that one first, or have it read the file again with --reload"
                raise UserError("is held by another process", where=str(self.site.path), hint=hint)
            claim(self.site.journal)
            yield

    def _held(self, journal: KnobJournal) -> bool:
        memory = self._remembered()
        found = len(journal.entries)
        self._found_known = memory is not None or not found
        ready = prepare(self.site, journal, memory)
        off = frozenset[str]() if memory is None else memory.switched_off
        shift = self._shift(ready, journal, memory, off=off)
        self._say("start", devices=ready.fleet.size, feeds=ready.fleet.feeds,
                  from_predecessor=found, levels=self._levels(), taken_over=memory is not None,
                  leaving=_names(ready, ready.leaving))  # fmt: skip
        for knob in shift.devices.strangers:
            self._say("stranger", knob=knob, result="kept")
        shift.guard.beat()
        shift = self._cycles(shift)
        self._await_change(shift)
        if self.release:
            restored = self._put_back(shift.devices, shift.guard.beat)
            shift.guard.leave()
            return restored
        self._keep(shift, sync=True)
        shift.guard.keep()
        self._say("handed-over", keeps_s=max(self.site.handover_s, self.site.config.lease_s))
        return True

    def _shift(
        self, ready: Prepared, journal: KnobJournal, memory: SavedSite | None, *,
        before: Shift | None = None, off: frozenset[str] = frozenset(),
    ) -> Shift:  # fmt: skip
        """What holds the site from now on; it knows what is known of its devices."""
        self.site = ready.site
        self._told_w = None
        self._leaving.begin(ready.leaving)
        state = None
        if memory is not None:
            state = memory.of(ready.site, time.time(), replaced=ready.replaced)
        devices = Devices(ready.site, journal, self._tell, ready.fleet, off,
                          before=None if before is None else before.devices)  # fmt: skip
        return Shift(
            ready=ready,
            devices=devices,
            loop=SafetyLoop(
                ready.fleet,
                ready.site.config,
                state=state,
                ramps=ready.site.ramps,
                storages=[one.where for one in ready.site.storages],
            ),
            guard=self._guard(ready),
        )

    def _remembered(self) -> SavedSite | None:
        memory, trouble = remembered(self.site)
        if trouble:
            self._say("forgotten", problem=trouble)
        since_s = None if memory is None else memory.since_s
        signal_w = None if memory is None else memory.signal_w
        self._since_s = self.site.since_s or since_s or time.time()
        self._signal_w = math.inf if signal_w is None else signal_w
        return memory

    def _guard(self, ready: Prepared) -> Guard:
        """A watchdog that knows the floors."""
        devices = ready.site.devices if self.guarded else ()
        floors = zip(devices, ready.fleet.floor_w[: len(devices)], strict=True)
        floor_w = {device.knob.source: float(floor_w) for device, floor_w in floors}
        if self.guarded:  # storage that nobody watches is not to run empty
            floor_w |= {one.setpoint.source: 0.0 for one in ready.site.storages}
        return Guard(
            floor_w=floor_w,
            lease_s=self.site.config.lease_s,
            journal=self.site.journal,
            handover_s=self.site.handover_s,
        )

    def _cycles(self, shift: Shift) -> Shift:
        """Hold the site until the end, one shift after the other; the last one is returned."""
        began_s = time.monotonic()
        until_s = began_s + self.duration_s
        while True:
            site = signals.SignalSite(
                base_w=max(level_w for _, level_w in self.site.limit),
                least_w=float(shift.fleet.floor_w.sum()),
            )
            with listening(self.site.signals, site) as listener:
                following = self._shift_cycles(shift, listener, until_s)
            if following is None:
                return shift
            shift = following

    def _shift_cycles(self, shift: Shift, listener: LimitListener, until_s: float) -> Shift | None:
        """Cycle after cycle; the next shift once it is ready, None at the end."""
        keeper = StateKeeper(self.site)
        due_s = time.monotonic()
        while not self.ended.is_set() and time.monotonic() < until_s:
            asked_s = time.monotonic()
            readings = shift.devices.readings()
            limit_w = self._limit_w(readings.now_s, listener)
            orders = self._decided(shift, readings, limit_w)
            if not self.dry_run:
                if keeper.due:
                    # Before the orders: a successor must not know of less than was ordered.
                    self._keep(shift, keeper=keeper)
                shift.devices.send(orders, readings)
                shift.guard.beat()
            if self.liaison is not None:
                self.liaison.heard(shift, readings, orders, limit_w)
            self._report(shift.loop, readings, orders, limit_w, time.monotonic() - asked_s)
            if not self.dry_run and (following := self._following(shift)) is not None:
                return following
            # A cycle that takes too long is followed at once by the next; none is made up for.
            # News brings one forward, and does not put the next ones off.
            now_s, period_s = time.monotonic(), self.site.period_s
            due_s = min(max(due_s + period_s, now_s), now_s + period_s)
            self._rest(min(due_s, until_s), shift.devices)
        return None

    def _rest(self, until_s: float, devices: Devices) -> None:
        """Wait for the next cycle, or for news of a scheduler; look at quick meters meanwhile."""
        left_s = max(until_s - time.monotonic(), 0.0)
        while devices.looks and left_s > LOOK_S:
            if self._woken(LOOK_S):
                return
            devices.look()
            left_s = max(until_s - time.monotonic(), 0.0)
        self._woken(left_s)

    def _woken(self, seconds: float) -> bool:
        """Wait for so long; whether there was news before that, or the end."""
        if self.liaison is None:
            return self.ended.wait(seconds)
        if not self.poke.wait(seconds):
            return False
        self.poke.clear()
        return True

    def _decided(self, shift: Shift, readings: Readings, limit_w: Floats) -> Orders:
        """What the loop orders, with a scheduler's wishes where there is one."""
        left_w = self._make_room(shift, limit_w, readings)
        if self.liaison is None:
            return shift.loop.cycle(readings, left_w)
        wishes = self.liaison.wishes(shift.site, shift.loop, found_known=self._found_known)
        return shift.loop.cycle(readings, left_w, wishes=wishes)

    def _following(self, shift: Shift) -> Shift | None:
        """The shift that takes over, if the site has changed and all is ready for it."""
        if self._preparing is None:
            self._look_for_changes(shift)
            return None
        if not self._preparing.done:
            return None
        preparing, self._preparing = self._preparing, None
        if preparing.problem is not None:
            self._say("reload", taken=False, problem=preparing.problem.line())
            return None
        ready = preparing.ready
        shift.devices.verified()
        if ready is None:
            return None
        memory = self._memory(shift)
        changed = preparing.by_file or ready.replaced
        if not changed and len(ready.site.devices) == shift.fleet.size:
            return None  # it was the same device that had been silent
        following = self._shift(ready, shift.devices.journal, memory, before=shift,
                                off=shift.devices.stopped)  # fmt: skip
        following.guard.beat()  # the new watchdog watches before the old one goes
        shift.guard.leave()
        self._let_storage_go(shift.site, ready.site)
        before = {device.knob.source for device in shift.site.devices}
        now = {device.knob.source for device in ready.site.devices}
        self._say("reload", taken=True, levels=self._levels(), devices=ready.fleet.size,
                  added=_names(ready, now - before), replaced=_names(ready, ready.replaced),
                  leaving=_names(ready, ready.leaving))  # fmt: skip
        return following

    def _let_storage_go(self, before: HeldSite, now: HeldSite) -> None:
        """Put setpoints back of storage that is no longer named, in a thread: it may not answer."""
        stay = {one.setpoint.source for one in now.storages}
        for one in before.storages:
            if one.setpoint.source not in stay:
                put_back = one.setpoint.restore
                work = partial(lambda name, act: self._tell(name, act()), one.name, put_back)
                threading.Thread(target=work, name="storage leaves", daemon=True).start()

    def _look_for_changes(self, shift: Shift) -> None:
        """Begin to prepare what has become of the site: by its file, or by what devices do."""
        if self.reload.is_set():
            self.reload.clear()
            self._prepare(shift, by_file=True)
        elif shift.devices.returned:
            shift.devices.returned = False
            self._prepare(shift, shift.site)
        elif self._leaving.gone:
            self._prepare(shift, without(shift.site, self._leaving.gone))

    def _await_change(self, shift: Shift) -> None:
        """Let a change that is still being prepared end: it writes to the journal."""
        until_s = time.monotonic() + self.site.config.lease_s
        while self._preparing is not None and time.monotonic() < until_s:
            shift.guard.beat()
            if self._preparing.done:
                self._preparing = None
            else:
                time.sleep(0.05)

    def _make_room(self, shift: Shift, limit_w: Floats, readings: Readings) -> Floats:
        """What is left of the limits beside devices that leave; one that fits is put back."""
        leaving = self._leaving
        left_w = leaving.limits_beside(shift.ready, shift.loop, limit_w)
        device = leaving.fitting(shift.ready, shift.loop, left_w, readings)
        if device is not None:
            put_back = shift.devices.put_back_one(device)
            leaving.let_go(shift.ready, device)
            self._say("left", device=device.name, put_back=put_back)
        for device in leaving.overdue(shift.ready):
            leaving.let_go(shift.ready, device, put_back=False)
            self._say("left", device=device.name, put_back=False)
        return left_w

    def _prepare(
        self, shift: Shift, site: HeldSite | None = None, *, by_file: bool = False
    ) -> None:
        """Begin to prepare a change, in a thread: by the file, or to `site`, a part of this one."""
        memory, journal, before = self._memory(shift), shift.devices.journal, shift.site
        preparing = Preparing(by_file=by_file)
        still: dict[str, float] = {}
        if site is not None:
            stay = {one.knob.source for one in site.devices}
            memory = memory.but({one.knob for one in memory.devices} - stay)
            leaving = shift.ready.leaving.items()
            still = {knob: limit_w for knob, limit_w in leaving if knob in stay}

        def work() -> None:
            try:
                fresh = self._read_again() if site is None else site
                preparing.ready = prepare(fresh, journal, memory, before, still)
            except UserError as error:
                preparing.problem = error
            preparing.done = True

        self._preparing = preparing
        threading.Thread(target=work, name="reload", daemon=True).start()

    def _read_again(self) -> HeldSite:
        """The site's file as it is now.

        Raises:
            UserError: it cannot be used, or names another journal.
        """
        site = read_site(self.site.path)
        if site.journal != self.site.journal:
            raise UserError("cannot change while the site is held", where=str(site.path),
                            field="journal", hint="end the loop with --release first")  # fmt: skip
        return site

    def _memory(self, shift: Shift) -> SavedSite:
        return memory_of(
            shift.site, shift.fleet, shift.loop.state(),
            switched_off=shift.devices.stopped,
            identities=shift.ready.identities,
            signal_w=self._signal_w if self._signal_w < UNLIMITED_W else None,
            since_s=self._since_s,
        )  # fmt: skip

    def _keep(self, shift: Shift, *, keeper: StateKeeper | None = None, sync: bool = False) -> None:
        try:
            (keeper or StateKeeper(self.site)).keep(self._memory(shift), sync=sync)
        except OSError as error:
            self._say("not-kept", problem=str(error))

    def _limit_w(self, now_s: float, listener: LimitListener) -> Floats:
        """The limits of the file, for the site also those from outside; falls count early.

        Until all sources have been heard, what a predecessor heard of them counts, too.
        """
        limit_w = self.site.limit_w(now_s - self._since_s)
        found = listener.limits()
        until_s = found.now_s + self.site.lead_s
        signal_w = found.timeline.lowest_w(found.now_s, until_s)
        for span in found.timeline.spans:
            left_s = span.start_s - until_s
            signal_w = min(signal_w, approached(span.limit_w, left_s, self.site.moves.down_w_s))
        if any(one.contact is SourceContact.WAITING for one in found.told):
            signal_w = min(signal_w, self._signal_w)
        self._signal_w = signal_w if found.told else math.inf
        limit_w[-1] = min(limit_w[-1], signal_w)
        if self.liaison is not None:
            limit_w = self.liaison.limits_w(self.site, limit_w)
        contacts = {one.source: str(one.contact) for one in found.told}
        if contacts != self._contacts:
            self._contacts = contacts
            self._say("signals", contacts=contacts, notes=[one.note for one in found.told])
        return limit_w

    def _put_back(self, devices: Devices, alive: Callable[[], None]) -> bool:
        failed = devices.restore(alive)
        for outcome in devices.restore_strangers():
            self._say("stranger", knob=outcome.knob, result=outcome.result)
            failed += [] if outcome.in_force else [outcome.knob]
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
            **self._of_storage(loop, readings, orders),
        )  # fmt: skip

    def _of_storage(
        self, loop: SafetyLoop, readings: Readings, orders: Orders
    ) -> dict[str, dict[str, Any]]:
        """By name: what it gives, is ordered to give, and how full it counts; nothing of none."""
        if readings.storage_w is None or orders.storage_w is None:
            return {}
        rows = zip(self.site.storages, readings.storage_w, orders.storage_w, loop.stored.charge,
                   strict=True)  # fmt: skip
        return {"storages": {
            one.name: {"gives_w": _number(gives_w), "ordered_w": _number(ordered_w),
                       "charge": round(float(charge), 3)}
            for one, gives_w, ordered_w, charge in rows
        }}  # fmt: skip

    def _levels(self) -> list[str]:
        return [*(feed.name for feed in self.site.feeds), "site"]

    def _note(self, note: SafetyNote) -> dict[str, Any]:
        levels = self._levels()
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

    def _tell(self, device: HeldDevice | str, outcome: OrderOutcome | Position) -> None:
        name = device if isinstance(device, str) else device.name
        if self.liaison is not None and not isinstance(device, str):
            self.liaison.told(device, outcome)
        read_back = outcome.read_back if isinstance(outcome, OrderOutcome) else outcome.on
        unlimited = read_back == math.inf
        self._say("outcome", device=name, result=outcome.result or OrderResult.TOOK_EFFECT,
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


def _names(ready: Prepared, knobs: Collection[str]) -> list[str]:
    return [device.name for device in ready.site.devices if device.knob.source in knobs]


def _nobody() -> None:
    """No watchdog is there to be told."""


def _unread(loop: SafetyLoop) -> Bools:
    """Devices (N,) whose meters the loop has no use for: missing, old, frozen, senseless."""
    if loop.seen is None:
        return np.ones(loop.fleet.size, dtype=np.bool_)
    return np.asarray(np.isnan(loop.seen.draw_w))


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(float(value), 1)

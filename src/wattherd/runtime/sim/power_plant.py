"""A machine room for power controllers: devices, knobs, meters, breakers, and what fails in them.

Each device follows min(demand, cap) as a first-order lag (docs/concepts/power-control.md), orders
arrive after the knob's delay and in order, leases lapse to the floor, a reboot resets the cap to
its maximum, a tripped breaker darkens its feed. It knows no controller.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from wattherd.engine.safety_terms import Bools, Breaker, Fleet, Floats, Ints, Orders, Readings
from wattherd.runtime.sim.power_plant_faults import Fault, no_fault

STEP_S = 0.2
JOB_STOP_S = 4.0
"""What a job takes to save its state and end."""
OUTLET_S = 5.0
"""What switching an outlet takes."""
BOOT_S = 20.0
RECLOSE_S = 60.0
"""A tripped breaker is closed again after that."""
METER_NOISE = 0.003
DRAW_NOISE = 0.004


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What stands in the room; all arrays (N,), times in seconds, `heat` (F + 1,)."""

    fleet: Fleet
    found_w: Floats
    idle_w: Floats
    lag_s: Floats
    delay_s: float
    heat: Floats
    job: Ints
    """Whose node each device is: all of a job's stop together."""


@dataclass(slots=True)
class _Order:
    due_s: Floats
    orders: Orders
    waiting: Bools


class PowerPlant:
    """The room from step to step; `rng` draws noise, the same for every controller."""

    def __init__(self, room: Room, rng: np.random.Generator, fault: Fault | None = None) -> None:
        """Everything runs at its found cap and idles."""
        size = room.fleet.size
        self.room, self._rng = room, rng
        self.fault = fault or no_fault(size, room.fleet.feeds)
        self.now_s = 0.0
        self.draw_w: Floats = room.idle_w.copy()
        self.cap_w: Floats = room.found_w.copy()
        self.off_until_s: Floats = np.full(size, -1.0)
        """When a device is up again; infinite while its outlet is off."""
        self.outlet_off: Bools = np.zeros(size, dtype=np.bool_)
        self.heat: Floats = room.heat.copy()
        self.trips = 0
        self._claimed_w: Floats = room.found_w.copy()
        """What a knob says is set, whatever is in force."""
        self._lease_until_s: Floats = np.full(size, np.inf)
        self._last_due_s: Floats = np.zeros(size)
        self._under_way: deque[_Order] = deque()
        self._outlets: deque[tuple[float, Bools, bool]] = deque()
        self.jobless: Bools = np.zeros(size, dtype=np.bool_)
        self._stops: deque[tuple[float, Bools]] = deque()
        self._open_until_s: Floats = np.zeros(room.fleet.feeds + 1)
        self._rebooted = False
        self._history: deque[tuple[float, Floats, Floats]] = deque(maxlen=1_000)
        self._steps = 0

    @property
    def breaker(self) -> Breaker:
        """The breakers of feeds and site."""
        return self.room.fleet.breaker

    @property
    def dark(self) -> Bools:
        """Devices (N,) without power or still booting."""
        return np.asarray(self.now_s < self.off_until_s)

    def levels_w(self) -> Floats:
        """True draw (F + 1,) of feeds and site."""
        return self.room.fleet.levels(self.draw_w)

    def order(self, orders: Orders) -> None:
        """Send orders off; they take effect after the knob's and the outlets' delays."""
        fleet, fault = self.room.fleet, self.fault
        hit = fault.hits & fault.acting(self.now_s)
        delay_s = np.where(hit & fault.slow, fault.delay_s, self.room.delay_s)
        due_s = np.maximum(self.now_s + delay_s, self._last_due_s)
        heard = ~(hit & fault.silent)
        self._last_due_s = np.where(heard, due_s, self._last_due_s)
        if fleet.size:
            self._under_way.append(_Order(due_s, orders, heard))
        for which, on in ((orders.switch_off, False), (orders.switch_on, True)):
            if which.any():
                self._outlets.append((self.now_s + OUTLET_S, which, on))
        stops = orders.stop_job if orders.stop_job is not None else np.zeros_like(heard)
        self._stops.append((self.now_s + JOB_STOP_S, stops & heard))

    def step(self, demand_w: Floats) -> None:
        """Move on by `STEP_S` at `demand_w` (N,)."""
        self._steps += 1
        self.now_s = self._steps * STEP_S
        self._reboots()
        self._arrivals()
        self._leases()
        self._switching()
        self._stopping()
        self._respond(demand_w)
        self._breakers()

    def _arrivals(self) -> None:
        """Orders whose time has come; a dark device hears nothing."""
        while self._under_way and not self._under_way[0].waiting.any():
            self._under_way.popleft()
        for one in self._under_way:
            ready = one.waiting & (one.due_s <= self.now_s + 1e-9)
            if ready.any():
                one.waiting = one.waiting & ~ready
                self._apply(ready & ~self.dark, one.orders)

    def _apply(self, ready: Bools, orders: Orders) -> None:
        fault = self.fault
        stuck = fault.hits & fault.ignores & fault.acting(self.now_s)
        fleet = self.room.fleet
        cap_w = np.clip(orders.cap_w, fleet.floor_w, fleet.max_w)
        works = ready & ~stuck
        self.cap_w = np.where(works, cap_w, self.cap_w)
        # Half of the knobs that ignore orders still claim to have followed them.
        self._claimed_w = np.where(works | (ready & fault.boasts), cap_w, self._claimed_w)
        self._lease_until_s = np.where(works, self.now_s + orders.lease_s, self._lease_until_s)
        self._lease_until_s = np.where(ready & stuck, np.inf, self._lease_until_s)

    def _leases(self) -> None:
        lapsed = self._lease_until_s < self.now_s
        if lapsed.any():
            floor_w = self.room.fleet.floor_w
            self.cap_w = np.where(lapsed, np.minimum(self.cap_w, floor_w), self.cap_w)
            self._claimed_w = np.where(lapsed, self.cap_w, self._claimed_w)

    def _reboots(self) -> None:
        fault = self.fault
        if fault.reboots and not self._rebooted and fault.acting(self.now_s):
            self._rebooted = True
            self._boot(fault.hits, self.now_s + BOOT_S)

    def _boot(self, which: Bools, up_at_s: float) -> None:
        """Power off until then; a fresh device has no cap and no lease."""
        self.off_until_s = np.where(which, up_at_s, self.off_until_s)
        self.cap_w = np.where(which, self.room.fleet.max_w, self.cap_w)
        self._claimed_w = np.where(which, self.room.fleet.max_w, self._claimed_w)
        self._lease_until_s = np.where(which, np.inf, self._lease_until_s)

    def _switching(self) -> None:
        while self._outlets and self._outlets[0][0] <= self.now_s:
            _, which, on = self._outlets.popleft()
            which = which & (self.outlet_off == on)
            self.outlet_off = np.where(which, not on, self.outlet_off)
            self._boot(which, self.now_s + BOOT_S if on else np.inf)

    def _stopping(self) -> None:
        """Jobs end, and begin again where nobody wants them stopped."""
        while self._stops and self._stops[0][0] <= self.now_s:
            _, which = self._stops.popleft()
            self.jobless = np.isin(self.room.job, self.room.job[which])

    def _respond(self, demand_w: Floats) -> None:
        """First-order lag towards min(demand, cap), with a little noise on what is drawn."""
        noise = 1.0 + DRAW_NOISE * self._rng.standard_normal(len(demand_w))
        demand_w = np.where(self.jobless, self.room.idle_w, demand_w)
        aim_w = np.where(self.dark, 0.0, np.minimum(demand_w, self.cap_w) * noise)
        gain = 1.0 - np.exp(-STEP_S / self.room.lag_s)
        self.draw_w = np.maximum(self.draw_w + gain * (aim_w - self.draw_w), 0.0)

    def _breakers(self) -> None:
        self.heat = self.breaker.heated(self.heat, self.levels_w(), STEP_S)
        for number in np.flatnonzero(self.heat >= 1.0):
            self.trips += 1
            self.heat[number] = 0.0
            below = self.room.fleet.below(int(number))
            self._boot(below & ~self.outlet_off, self.now_s + RECLOSE_S)
            self._open_until_s[number] = self.now_s + RECLOSE_S - BOOT_S

    def read(self) -> Readings:
        """What meters and knobs answer now, faults included; call once per cycle."""
        fleet, fault, now_s = self.room.fleet, self.fault, self.now_s
        noise = 1.0 + METER_NOISE * self._rng.standard_normal(fleet.size + fleet.feeds)
        draw_w = self.draw_w * noise[: fleet.size]
        feed_w = self.levels_w()[:-1] * noise[fleet.size :]
        self._history.append((now_s, draw_w, feed_w))
        shown = fault.meters(now_s, self._history, self._rng.random(fleet.size + fleet.feeds))
        cap_w = self._claimed_w.copy()
        silent = (fault.hits & fault.silent & fault.acting(now_s)) | self.dark
        return Readings(
            now_s=now_s,
            draw_w=np.where(silent, np.nan, shown.draw_w),
            draw_at_s=shown.draw_at_s,
            cap_w=np.where(silent, np.nan, cap_w),
            feed_w=shown.feed_w,
            feed_at_s=shown.feed_at_s,
            off=self.outlet_off | self._unfed(),
        )

    def _unfed(self) -> Bools:
        """Devices (N,) below an open breaker."""
        return self.room.fleet.any_above(self.now_s < self._open_until_s)

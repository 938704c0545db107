"""A machine room for power controllers, as unkind as data sheets and field data say.

Devices follow their load; a cap holds the mean of its window, not each moment, at a multiple of
what it says and not below what the device can reach; parts that no cap acts on draw beside it.
Other load hangs on every level. Orders take their time, are rounded and clamped; leases lapse to
the floor, a reboot resets the cap to its maximum, a tripped breaker darkens all below it. The room
knows no controller; docs/concepts/power-control.md has its equations and their sources.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from wattherd.engine.safety.contract import Bools, Fleet, Floats, Ints, Orders, Readings
from wattherd.sim.power_plant_breakers import TripBand, band_of
from wattherd.sim.power_plant_faults import LOST_SHARE, PlantFault, no_fault
from wattherd.sim.power_plant_meters import PLAIN_METERS, MeterBank, PlantMeters

STEP_S = 0.1
JOB_STOP_S = 4.0
"""What a job takes to save its state and end."""
OUTLET_S = 5.0
"""What switching an outlet takes."""
BOOT_S = 20.0
RECLOSE_S = 60.0
"""A tripped breaker is closed again after that."""
DRAW_NOISE = 0.004
RESEND_S = 4.0
"""An order that was not read back for so long is sent again by whoever carries orders out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capping:
    """How devices keep caps; each number is one for all or an array (N,)."""

    window_s: Floats | float = 0.0
    """The cap holds the mean over this (0.1 to 1 s); 0 cuts off every moment."""
    regulates_at: Floats | float = 1.0
    """The draw that a cap leads to, as a multiple of the cap (A100: up to 1.045)."""
    reachable_w: Floats | float = 0.0
    """Below this no cap presses a busy device (A40: 120.7 W at a cap of 100 W)."""
    rest_w: Floats | float = 0.0
    rest_share: Floats | float = 0.0
    """Parts that no cap acts on, steady and in proportion: an 8-GPU H100 node draws 1.82 of its
    GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """How orders become caps; each number is one for all or an array (N,)."""

    step_w: Floats | float = 0.0
    lowest_w: Floats | float = 0.0
    highest_w: Floats | float = np.inf
    """Orders outside are clamped without a word."""
    spread: float = 0.0
    """Sigma of the lognormal delay whose median is the room's `delay_s`."""
    readback_s: float = 0.0
    """How old the cap is that a knob tells."""
    leases_at_devices: bool = True
    """Whether each device falls to its floor by itself when its lease lapses; else a watchdog
    orders all there once the loop is dead, and who hears nothing keeps the cap."""


EXACT_CAPS, PLAIN_KNOBS = Capping(), Knobs()


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherLoad:
    """What is drawn beside the devices on each level itself: rows of `STEP_S`, (T, F + 1) watts.

    `cooling` (F + 1,) watts per watt of all devices follow these with a lag.
    """

    watts: Floats
    cooling: Floats
    cooling_lag_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantRoom:
    """What stands in the room; all arrays (N,), times in seconds, `heat` (F + 1,).

    `fleet` is what a controller is told; `rated_w` (F + 1,) the true ratings where that differs.
    """

    fleet: Fleet
    found_w: Floats
    idle_w: Floats
    lag_s: Floats
    delay_s: float
    heat: Floats
    job: Ints
    """Whose node each device is: all of a job's stop together."""
    capping: Capping = EXACT_CAPS
    knobs: Knobs = PLAIN_KNOBS
    instruments: PlantMeters = PLAIN_METERS
    other: OtherLoad | None = None
    band: TripBand | None = None
    """None: breakers trip exactly as the controller is told."""
    rated_w: Floats | None = None
    looks: bool = False
    """Whether whoever reads the meters does so ten times a second and takes means of the second,
    if devices and feeds all have one, and all tell moments at any time."""

    @property
    def true_rated_w(self) -> Floats:
        """Ratings (F + 1,) of the breakers that there are."""
        return self.fleet.breaker.rated_w if self.rated_w is None else self.rated_w


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """What was so when a breaker tripped.

    `hit_*` are of the devices below it that a fault has hit by then: what they drew, and what that
    should have been by the orders that were sent.
    """

    at_s: float
    level: int
    draw_w: float
    rated_w: float
    shown_w: float
    """What the level's meter had shown last, or those below it; NaN where any says nothing."""
    hit_w: float
    hit_ordered_w: float


@dataclass(slots=True)
class _Orders:
    """Orders on their way, one for each device (N,) and the newest that waits behind it."""

    flying_w: Floats
    due_s: Floats
    waiting_w: Floats
    sent_w: Floats
    sent_s: Floats
    outlets: deque[tuple[float, Bools, bool]] = field(default_factory=deque)
    stops: deque[tuple[float, Bools]] = field(default_factory=deque)


class PowerPlant:
    """The room from step to step; `rng` draws noise, the same for every controller."""

    def __init__(
        self, room: PlantRoom, rng: np.random.Generator, fault: PlantFault | None = None
    ) -> None:
        """Everything runs at its found cap and idles."""
        fleet = room.fleet
        size, levels = fleet.size, fleet.feeds + 1
        self.room, self._rng = room, rng
        self.fault = fault or no_fault(size, fleet.feeds)
        self.now_s = 0.0
        self.draw_w: Floats = room.idle_w.copy()
        """Of the parts that caps act on."""
        self.cap_w: Floats = room.found_w.copy()
        self.off_until_s: Floats = np.full(size, -1.0)
        """When a device is up again; infinite while its outlet is off."""
        self.outlet_off: Bools = np.zeros(size, dtype=np.bool_)
        self.heat: Floats = room.heat.copy()
        self.late_heat: Floats = room.heat.copy()
        self.trips = 0
        self.trip_log: list[Trip] = []
        self.sure_trips = 0
        """Trips that no breaker of the band would have spared the room."""
        self.jobless: Bools = np.zeros(size, dtype=np.bool_)
        self.other_w: Floats = np.zeros(levels)
        self._band = room.band or band_of(fleet.breaker)
        self._upper = _ancestors(fleet)
        self._claimed_w: Floats = room.found_w.copy()
        """What a knob says is set, whatever is in force."""
        self._claims: deque[tuple[float, Floats]] = deque(maxlen=1_000)
        self._mean_w = self.draw_w.copy()
        self._lease_until_s: Floats = np.full(size, np.inf)
        nothing = np.full(size, np.nan)
        self._orders = _Orders(
            flying_w=nothing.copy(), due_s=np.full(size, np.inf), waiting_w=nothing.copy(),
            sent_w=nothing.copy(), sent_s=np.full(size, -np.inf),
        )  # fmt: skip
        self._open_until_s: Floats = np.zeros(levels)
        self._rebooted = False
        self._shown_w: Floats = np.full(size + levels, np.nan)
        self._history: deque[tuple[float, Floats, Floats]] = deque(maxlen=1_000)
        self._steps = 0
        self._wall_w = self.draw_w.copy()
        self._cooled_w = float(self._wall_w.sum())
        self._add_up()
        meters = [room.instruments.device] * size + room.instruments.feeds(fleet.feeds)
        meters.append(room.instruments.site)
        below, site = meters[:-1], meters[-1]
        quick = room.looks and all(one is not None and one.quick for one in below)
        quick = quick and (site is None or site.quick)
        self._of_second = np.array([quick and one is not None for one in meters], dtype=np.bool_)
        if quick:
            meters = [one and one.of_second() for one in meters]
        self._meters = MeterBank(meters, self._metered_w(), STEP_S, rng)
        self._gain = 1.0 - np.exp(-STEP_S / room.lag_s)
        window_s = np.broadcast_to(np.asarray(room.capping.window_s, dtype=np.float64), (size,))
        averages = window_s > 0
        # An exponential mean forgets as fast as a sliding one of twice its time constant.
        decay = np.exp(-2.0 * STEP_S / np.where(averages, window_s, 1.0))
        self._share = np.where(averages, 1.0 - decay, 1.0)

    @property
    def dark(self) -> Bools:
        """Devices (N,) without power or still booting."""
        return np.asarray(self.now_s < self.off_until_s)

    def wall_w(self) -> Floats:
        """True draw (N,) of the devices with all their parts."""
        return self._wall_w

    def levels_w(self) -> Floats:
        """True draw (F + 1,) of feeds and site, other load and all."""
        return self._levels_w

    def order(self, orders: Orders) -> None:
        """Send orders off; they take effect after the knob's and the outlets' delays."""
        fault = self.fault
        hit = fault.hits & fault.acting(self.now_s)
        heard = ~(hit & (fault.silent | fault.deaf))
        if fault.loses:
            heard &= ~(hit & (self._rng.random(len(hit)) < LOST_SHARE))
        stuck = fault.hits & fault.ignores & fault.acting(self.now_s)
        until_s = np.where(stuck, np.inf, self.now_s + orders.lease_s)
        self._lease_until_s = np.where(heard & ~self.dark, until_s, self._lease_until_s)
        if not self.room.knobs.leases_at_devices:
            self._lease_until_s = until_s
        self._send(orders.cap_w, heard)
        for which, on in ((orders.switch_off, False), (orders.switch_on, True)):
            if which.any():
                self._orders.outlets.append((self.now_s + OUTLET_S, which, on))
        stops = orders.stop_job if orders.stop_job is not None else np.zeros_like(heard)
        self._orders.stops.append((self.now_s + JOB_STOP_S, stops & heard))

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
        self._add_up()
        self._meters.note(self._metered_w())
        self._breakers()

    def _send(self, cap_w: Floats, heard: Bools) -> None:
        """What is new or was not read back; an order that is overtaken is never carried out."""
        orders, now_s = self._orders, self.now_s
        told_w = np.abs(self._read_back() - self._set_to(cap_w))
        unanswered = ~(told_w <= 1.0) & (now_s - orders.sent_s >= RESEND_S)
        due = (orders.sent_w != cap_w) | unanswered
        orders.sent_w = np.where(due, cap_w, orders.sent_w)
        orders.sent_s = np.where(due, now_s, orders.sent_s)
        due &= heard
        idle = np.isnan(orders.flying_w)
        orders.waiting_w = np.where(due & ~idle, cap_w, orders.waiting_w)
        self._fly(due & idle, cap_w)

    def _fly(self, which: Bools, cap_w: Floats) -> None:
        orders, fault = self._orders, self.fault
        slow = fault.hits & fault.slow & fault.acting(self.now_s)
        delay_s = np.where(slow, fault.delay_s, self.room.delay_s)
        if self.room.knobs.spread:
            delay_s = delay_s * self._rng.lognormal(0.0, self.room.knobs.spread, len(delay_s))
        orders.flying_w = np.where(which, cap_w, orders.flying_w)
        orders.due_s = np.where(which, self.now_s + delay_s, orders.due_s)

    def _set_to(self, cap_w: Floats) -> Floats:
        """What knobs make of an order."""
        knobs, fleet = self.room.knobs, self.room.fleet
        step_w = np.asarray(knobs.step_w, dtype=np.float64)
        if step_w.any():
            cap_w = np.where(step_w > 0, np.rint(cap_w / np.maximum(step_w, 1e-9)) * step_w, cap_w)
        lowest_w = np.maximum(fleet.floor_w, knobs.lowest_w)
        return np.clip(cap_w, lowest_w, np.minimum(fleet.max_w, knobs.highest_w))

    def _arrivals(self) -> None:
        """Orders whose time has come; a dark device hears nothing."""
        orders = self._orders
        ready = orders.due_s <= self.now_s + 1e-9
        if not ready.any():
            return
        self._apply(ready & ~self.dark, orders.flying_w)
        orders.flying_w = np.where(ready, np.nan, orders.flying_w)
        orders.due_s = np.where(ready, np.inf, orders.due_s)
        following = ready & ~np.isnan(orders.waiting_w)
        if following.any():
            next_w = orders.waiting_w
            orders.waiting_w = np.where(following, np.nan, next_w)
            self._fly(following, next_w)

    def _apply(self, ready: Bools, ordered_w: Floats) -> None:
        fault = self.fault
        acting = fault.hits & fault.acting(self.now_s)
        stuck = acting & (fault.ignores | fault.deaf)
        cap_w = self._set_to(ordered_w)
        works = ready & ~stuck
        self.cap_w = np.where(works, cap_w, self.cap_w)
        # Half of the knobs that ignore orders still claim to have followed them.
        boasts = ready & fault.boasts & (acting & fault.ignores)
        self._claimed_w = np.where(works | boasts, cap_w, self._claimed_w)

    def _leases(self) -> None:
        lapsed = self._lease_until_s < self.now_s
        if not lapsed.any():
            return
        floor_w = self.room.fleet.floor_w
        self._lease_until_s = np.where(lapsed, np.inf, self._lease_until_s)
        if not self.room.knobs.leases_at_devices:
            fault = self.fault
            silent = fault.hits & (fault.silent | fault.deaf) & fault.acting(self.now_s)
            self._send(floor_w, ~silent)
            return
        self.cap_w = np.where(lapsed, np.minimum(self.cap_w, floor_w), self.cap_w)
        self._claimed_w = np.where(lapsed, self.cap_w, self._claimed_w)

    def _reboots(self) -> None:
        fault = self.fault
        if fault.reboots and not self._rebooted and fault.acting(self.now_s):
            self._rebooted = True
            self._boot(fault.hits, self.now_s + BOOT_S)

    def _boot(self, which: Bools, up_at_s: float) -> None:
        """Power off until then; a fresh device has no cap, no lease and no order under way."""
        self.off_until_s = np.where(which, up_at_s, self.off_until_s)
        self.cap_w = np.where(which, self.room.fleet.max_w, self.cap_w)
        self._claimed_w = np.where(which, self.room.fleet.max_w, self._claimed_w)
        self._lease_until_s = np.where(which, np.inf, self._lease_until_s)

    def _switching(self) -> None:
        outlets = self._orders.outlets
        while outlets and outlets[0][0] <= self.now_s:
            _, which, on = outlets.popleft()
            which = which & (self.outlet_off == on)
            self.outlet_off = np.where(which, not on, self.outlet_off)
            self._boot(which, self.now_s + BOOT_S if on else np.inf)

    def _stopping(self) -> None:
        """Jobs end, and begin again where nobody wants them stopped."""
        stops = self._orders.stops
        while stops and stops[0][0] <= self.now_s:
            _, which = stops.popleft()
            self.jobless = np.isin(self.room.job, self.room.job[which])

    def _respond(self, demand_w: Floats) -> None:
        """A lag towards what the load asks for, as far as the mean of the window stays within."""
        capping, dark = self.room.capping, self.dark
        noise = 1.0 + DRAW_NOISE * self._rng.standard_normal(len(demand_w))
        demand_w = np.where(self.jobless, self.room.idle_w, demand_w)
        held_w = self.cap_w * capping.regulates_at
        # Whoever drew less than its cap for a while may draw more until the mean has caught up.
        spare_w = np.maximum(held_w - self._mean_w, 0.0) * (1.0 / self._share - 1.0)
        most_w = np.maximum(held_w + spare_w, capping.reachable_w)
        aim_w = np.where(dark, 0.0, np.minimum(demand_w, most_w) * noise)
        self.draw_w = np.maximum(self.draw_w + self._gain * (aim_w - self.draw_w), 0.0)
        self._mean_w = self._mean_w + self._share * (self.draw_w - self._mean_w)

    def _add_up(self) -> None:
        """What devices draw with all their parts, other load, and the sums of both."""
        capping = self.room.capping
        whole_w = self.draw_w * (1.0 + capping.rest_share) + capping.rest_w
        self._wall_w = np.where(self.dark, self.draw_w, whole_w)
        self._draws_beside()
        feed = self.room.fleet.feed
        own_w = np.bincount(feed, weights=self._wall_w, minlength=len(self.other_w))
        self._levels_w: Floats = self._upper @ (own_w + self.other_w)

    def _draws_beside(self) -> None:
        """Other load of now; none below an open breaker."""
        other = self.room.other
        if other is None:
            return
        row = min(self._steps, len(other.watts) - 1)
        gain = 1.0 - np.exp(-STEP_S / other.cooling_lag_s)
        self._cooled_w += gain * (float(self._wall_w.sum()) - self._cooled_w)
        shut = (self.now_s < self._open_until_s) @ self._upper > 0
        self.other_w = np.where(shut, 0.0, other.watts[row] + other.cooling * self._cooled_w)

    def _metered_w(self) -> Floats:
        """The truth (N + F + 1,) that meters measure."""
        device_w = self.wall_w() if self.room.instruments.sees_rest else self.draw_w
        return np.concatenate((device_w, self.levels_w()))

    def _breakers(self) -> None:
        multiple = self.levels_w() / self.room.true_rated_w
        self.heat = self._band.early.heated(self.heat, multiple, STEP_S)
        self.late_heat = self._band.late.heated(self.late_heat, multiple, STEP_S)
        for number in np.flatnonzero(self.late_heat >= 1.0):
            self.sure_trips += 1
            self.late_heat[number] = 0.0
        for number in np.flatnonzero(self.heat >= 1.0):
            self.trips += 1
            self.heat[number] = 0.0
            below = self.room.fleet.below(int(number))
            self.trip_log.append(self._trip(int(number), below))
            self._boot(below & ~self.outlet_off, self.now_s + RECLOSE_S)
            self._open_until_s[number] = self.now_s + RECLOSE_S - BOOT_S

    def _trip(self, level: int, below: Bools) -> Trip:
        fault = self.fault
        hit = below & fault.hits & bool(fault.kinds and self.now_s >= fault.start_s)
        ordered_w = np.where(np.isnan(self._orders.sent_w), self.cap_w, self._orders.sent_w)
        capping = self.room.capping
        parts = np.broadcast_to(np.asarray(1.0 + capping.rest_share), hit.shape)
        return Trip(
            at_s=round(self.now_s, 1),
            level=level,
            draw_w=float(self._levels_w[level]),
            rated_w=float(self.room.true_rated_w[level]),
            shown_w=self._told_w(level),
            hit_w=float((self.draw_w * parts)[hit].sum()),
            hit_ordered_w=float((ordered_w * capping.regulates_at * parts)[hit].sum()),
        )

    def _told_w(self, level: int) -> float:
        """What a level's meter showed last, or, where it has none, those below it together."""
        size, fleet = self.room.fleet.size, self.room.fleet
        if self._meters.present[size + level]:
            return float(self._shown_w[size + level])
        below = (self._told_w(int(feed)) for feed in np.flatnonzero(fleet.tree.above == level))
        return sum(below, start=float(self._shown_w[:size][fleet.feed == level].sum()))

    def _read_back(self) -> Floats:
        """The caps (N,) that knobs tell, as old as theirs are."""
        late_s = self.room.knobs.readback_s
        if not late_s:
            return self._claimed_w
        told_w = self._claimed_w
        for at_s, claimed_w in reversed(self._claims):
            told_w = claimed_w
            if at_s <= self.now_s - late_s + 1e-9:
                break
        return told_w

    def read(self) -> Readings:
        """What meters and knobs answer now, faults included; call once per cycle."""
        fleet, fault, now_s = self.room.fleet, self.fault, self.now_s
        size = fleet.size
        self._claims.append((now_s, self._claimed_w))
        self._history.append((now_s, *self._meters.read()))
        watts, at_s = fault.on_meters(
            now_s, self._history, self._rng.random(size + fleet.feeds + 1)
        )
        self._shown_w = watts
        acting = fault.hits & fault.acting(now_s)
        silent = (acting & fault.silent) | self.dark
        deaf = silent | (acting & fault.deaf)
        return Readings(
            now_s=now_s,
            draw_w=np.where(silent, np.nan, watts[:size]),
            draw_at_s=at_s[:size],
            cap_w=np.where(deaf, np.nan, self._read_back()),
            feed_w=watts[size:-1],
            feed_at_s=at_s[size:-1],
            site_w=float(watts[-1]),
            site_at_s=float(at_s[-1]),
            off=self.outlet_off | self._unfed(),
            of_second=self._of_second if self.room.looks else None,
        )

    def _unfed(self) -> Bools:
        """Devices (N,) below an open breaker."""
        return self.room.fleet.any_above(self.now_s < self._open_until_s)


def _ancestors(fleet: Fleet) -> Floats:
    """A matrix (F + 1, F + 1): one where the column's level is the row's, or hangs below it."""
    count = fleet.feeds + 1
    above = fleet.above if fleet.above is not None else np.full(fleet.feeds, fleet.feeds)
    upper = np.eye(count)
    for number in range(count - 2, -1, -1):
        # Levels above come later in the numbering, so that their own column is complete.
        upper[:, number] += upper[:, int(above[number])]
    return upper

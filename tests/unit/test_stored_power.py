"""Storage in the tree that the safety loop holds: what it is used for, and never counted for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from safety_room import CALM, Room, a_fleet, limits
from wattherd.engine.safety.loop import Fleet, Orders, Readings, SafetyLoop
from wattherd.engine.safety.storage import LevelStorage, Storage, StorageSize, StoredPower
from wattherd.errors import UserError

SIZE = StorageSize(power_w=1500.0, energy_j=300e3, efficiency=0.9)


@dataclass
class Battery:
    """What stands in the room, whatever the loop believes of it; power follows a second later."""

    size: StorageSize = SIZE
    charge: float = 1.0
    level: int = 1
    says_charge: Callable[[float], float] = lambda charge: charge
    silent: bool = False
    stuck_w: float | None = None
    boasts: bool = False
    gives_w: float = 0.0
    ordered_w: float = 0.0

    def __post_init__(self) -> None:
        self.store = Storage(self.size, self.charge)

    def step(self) -> None:
        wanted_w = self.ordered_w if self.stuck_w is None else self.stuck_w
        self.gives_w = self.store.give(wanted_w, 1.0)

    @property
    def full(self) -> float:
        return self.store.charge_j / self.size.energy_j


@dataclass
class StorageRoom(Room):
    """A room whose levels' meters show the draw less what the battery gives."""

    battery: Battery = field(default_factory=Battery)

    def net_w(self) -> np.ndarray:
        own_w = np.zeros(self.fleet.feeds + 1)
        own_w[self.battery.level] = self.battery.gives_w
        return self.levels_w() - self.fleet.tree.sums(own_w)

    def read(self) -> Readings:
        found, battery = super().read(), self.battery
        helped_w = self.levels_w() - self.net_w()
        told_w = battery.ordered_w if battery.boasts else battery.gives_w
        told_w, charge = (
            (np.nan, np.nan) if battery.silent else (told_w, battery.says_charge(battery.full))
        )
        return replace(
            found, feed_w=found.feed_w - helped_w[:-1], site_w=found.site_w - float(helped_w[-1]),
            storage_w=np.array([told_w]), storage_charge=np.array([charge]),
            storage_at_s=np.array([float(self.at_s)]),
        )  # fmt: skip

    def follow(self, orders: Orders) -> None:
        self.battery.step()
        if orders.storage_w is not None:
            self.battery.ordered_w = float(orders.storage_w[0])
        super().follow(orders)

    def live(self, loop: SafetyLoop, limit_w: np.ndarray, seconds: int) -> np.ndarray:
        """What the site's breaker carries, second by second."""
        net_w = []
        for _ in range(seconds):
            self.follow(loop.cycle(self.read(), limit_w))
            net_w.append(self.net_w()[-1])
        return np.array(net_w)


def a_site(**more: object) -> Fleet:
    return a_fleet(site_metered=True, **more)


def a_stored_loop(fleet: Fleet, reserve: float = 0.5, level: int = 1) -> SafetyLoop:
    return SafetyLoop(fleet, CALM, storages=[LevelStorage(size=SIZE, level=level, reserve=reserve)])


def seconds_above(net_w: np.ndarray, limit_w: float) -> int:
    return int((net_w > limit_w * 1.002).sum())


def test_a_cut_that_nobody_announced_is_bridged_while_slow_caps_come_down() -> None:
    """Knobs take eight seconds; without storage the site is above for all of them."""
    above = []
    for storages in (False, True):
        fleet = a_site()
        room = StorageRoom(fleet, delay=8)
        loop = a_stored_loop(fleet, reserve=0.9) if storages else SafetyLoop(fleet, CALM)
        room.live(loop, limits(fleet, 3200.0), 60)
        net_w = room.live(loop, limits(fleet, 2200.0), 40)
        above.append(seconds_above(net_w, 2200.0))
        assert net_w[-1] <= 2200.0 * 1.002
    assert above[0] >= 8
    assert above[1] <= 2


def test_what_storage_gives_is_shaved_off_and_ends_without_a_second_above() -> None:
    fleet = a_site()
    room = StorageRoom(fleet)
    loop = a_stored_loop(fleet, reserve=0.3)
    room.live(loop, limits(fleet, 2400.0), 5)
    drawn, net = [], []
    for _ in range(500):
        net.append(float(room.live(loop, limits(fleet, 2400.0), 1)[0]))
        drawn.append(float(room.levels_w()[-1]))
    assert max(drawn) > 2600.0  # more than the limit leaves
    assert seconds_above(np.array(net), 2400.0) == 0
    assert room.battery.full == pytest.approx(0.3, abs=0.03)  # the reserve is not shaved away
    assert drawn[-1] > 0.95 * 2400.0


def test_empty_storage_adds_nothing_and_is_asked_for_nothing() -> None:
    fleet = a_site()
    room = StorageRoom(fleet, battery=Battery(charge=0.0))
    loop = a_stored_loop(fleet, reserve=0.0)
    net_w = room.live(loop, limits(fleet, 2400.0), 120)
    assert loop.stored.counted_w.max() <= 0.0
    assert room.battery.gives_w <= 0.0
    assert seconds_above(net_w[10:], 2400.0) == 0


def test_storage_that_falls_silent_counts_for_nothing_at_once() -> None:
    """It fails as it falls silent: what it gave is back on the breaker a second later."""
    fleet = a_site()
    room = StorageRoom(fleet)
    loop = a_stored_loop(fleet, reserve=0.0)
    room.live(loop, limits(fleet, 2400.0), 60)
    assert loop.stored.counted_w[-1] > 100.0
    room.battery.silent, room.battery.stuck_w = True, 0.0
    net_w = room.live(loop, limits(fleet, 2400.0), 60)
    assert loop.stored.counted_w[-1] == 0.0
    assert seconds_above(net_w[8:], 2400.0) == 0


@pytest.mark.parametrize("boasts", [False, True])
def test_storage_that_gives_nothing_frees_no_watt(*, boasts: bool) -> None:
    """Whether it says so or says that it does as it is told: the meter shows what is carried."""
    fleet = a_site()
    room = StorageRoom(fleet, battery=Battery(stuck_w=0.0, boasts=boasts))
    loop = a_stored_loop(fleet, reserve=0.0)
    net_w = room.live(loop, limits(fleet, 2400.0), 200)
    assert seconds_above(net_w[10:], 2400.0) == 0
    # The lie costs what it claims, and for a while what it made other load seem to move by.
    assert net_w[-1] > 0.89 * 2400.0


def test_storage_that_says_full_while_it_is_empty_is_found_out() -> None:
    fleet = a_site()
    room = StorageRoom(fleet, battery=Battery(charge=0.02, says_charge=lambda _: 1.0))
    loop = a_stored_loop(fleet, reserve=0.0)
    net_w = room.live(loop, limits(fleet, 2400.0), 150)
    assert seconds_above(net_w[10:], 2400.0) <= 3  # the seconds in which it ends


def test_recharging_keeps_below_the_limit_and_takes_no_devices_watts() -> None:
    fleet = a_site()
    room = StorageRoom(fleet, demand_w=250.0, battery=Battery(charge=0.5))
    loop = a_stored_loop(fleet)
    limit_w = limits(fleet, 2400.0)
    net_w = room.live(loop, limit_w, 400)
    assert room.battery.full > 0.62  # 400 W are free, of which 150 W nobody wants
    assert seconds_above(net_w, 2400.0) == 0
    assert room.levels_w()[-1] > 1990.0  # they draw all that they want
    room.demand_w = 400.0  # and want more from one second to the next
    net_w = room.live(loop, limit_w, 60)
    assert seconds_above(net_w, 2400.0) == 0


def test_a_reserve_that_was_used_up_is_charged_though_devices_want_it_all() -> None:
    fleet = a_site()
    room = StorageRoom(fleet, battery=Battery(charge=0.1))
    loop = a_stored_loop(fleet, reserve=0.5)
    net_w = room.live(loop, limits(fleet, 2400.0), 400)
    assert room.battery.full > 0.22
    assert seconds_above(net_w[10:], 2400.0) == 0


def test_storage_that_charges_on_though_it_was_told_to_stop_is_paid_for() -> None:
    fleet = a_site()
    room = StorageRoom(fleet, demand_w=250.0, battery=Battery(charge=0.2))
    loop = a_stored_loop(fleet, reserve=0.0)
    room.live(loop, limits(fleet, 2400.0), 30)
    room.battery.stuck_w, room.demand_w = -400.0, 400.0
    net_w = room.live(loop, limits(fleet, 2400.0), 60)
    assert seconds_above(net_w[6:], 2400.0) == 0


def test_storage_below_a_feed_relieves_that_feed_and_the_site_only() -> None:
    fleet = a_fleet(8, 2, site_metered=True)
    room = StorageRoom(fleet, battery=Battery(level=0))
    loop = a_stored_loop(fleet, reserve=0.0, level=0)
    room.live(loop, limits(fleet, 3200.0, 1200.0), 60)
    assert loop.stored.counted_w[0] > 50.0
    assert loop.stored.counted_w[1] == 0.0
    assert loop.stored.counted_w[2] == loop.stored.counted_w[0]
    assert room.levels_w()[0] > 1230.0
    assert room.levels_w()[1] <= 1200.0 * 1.002


def test_other_load_is_not_mistaken_where_storage_comes_and_goes() -> None:
    """The feed's other load is 600 W all the time, whatever the battery does beside it."""
    fleet = a_site()
    room = StorageRoom(fleet, base=lambda _: 600.0)
    loop = a_stored_loop(fleet, reserve=0.2)
    for limit_w in (3400.0, 2600.0, 3400.0, 2400.0, 3800.0):
        room.live(loop, limits(fleet, limit_w), 60)
    assert loop.base.highest_w[-1] == pytest.approx(600.0, rel=0.25)


def test_a_breaker_carries_what_storage_leaves() -> None:
    fleet = a_site()
    stored = StoredPower(fleet, [LevelStorage(size=SIZE, level=1)])
    nothing = np.zeros(2)
    told = {"storage_w": 500.0, "storage_charge": 1.0, "storage_at_s": 0.0}
    found = replace(Room(fleet).read(), **{name: np.array([one]) for name, one in told.items()})
    readings, limit_w = stored.take(found, nothing + 2400.0)
    assert readings.site_w > 500.0
    assert stored.given_w.tolist() == [0.0, 500.0]
    assert limit_w.tolist() == [2400.0, 2400.0 + 500.0]


def test_nonsense_is_refused() -> None:
    with pytest.raises(UserError, match="outside 0 to 1"):
        LevelStorage(size=SIZE, level=0, reserve=1.5)
    with pytest.raises(UserError, match="unknown level"):
        StoredPower(a_site(), [LevelStorage(size=SIZE, level=7)])

"""The safety loop on trees of limits: site, feeds, racks, devices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from wattherd.engine.safety.contract import Breaker, FeedLevels, Fleet, Readings, SafetyConfig
from wattherd.engine.safety.fill import fill
from wattherd.engine.safety.loop import SafetyLoop
from wattherd.errors import UserError

RACKS = [0, 0, 1, 1, 2, 2, 3, 3]
ABOVE = [4, 4, 5, 5, 6, 6]
"""Four racks of two devices, two on each feed."""


def a_tree(rated_w: float = 1e9, metered: list[bool] | None = None) -> Fleet:
    return Fleet(
        feed=np.array(RACKS),
        floor_w=np.full(8, 100.0),
        max_w=np.full(8, 400.0),
        breaker=Breaker(rated_w=np.full(7, rated_w)),
        above=np.array(ABOVE),
        metered=None if metered is None else np.array(metered),
    )


def limits(*watts: float) -> np.ndarray:
    return np.array(watts)


class Room:
    """Devices that draw all they may and follow at once, except the `deaf`."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.at_s = fleet, 0.0
        self.cap_w = np.full(fleet.size, 400.0)
        self.deaf = np.zeros(fleet.size, dtype=bool)
        self.idle = np.zeros(fleet.size, dtype=bool)

    def run(self, limit_w: np.ndarray, cycles: int, loop: SafetyLoop | None = None) -> SafetyLoop:
        loop = loop or SafetyLoop(
            self.fleet, SafetyConfig(start_heat=0.0, unproven=0.0, stops_jobs=True)
        )
        for _ in range(cycles):
            orders = loop.cycle(self.read(), limit_w)
            self.cap_w = np.where(self.deaf, self.cap_w, orders.cap_w)
            self.orders = orders
        return loop

    def read(self) -> Readings:
        self.at_s += 1.0
        draw_w = np.where(self.idle, 40.0, self.cap_w) * (1 - 1e-6 * self.at_s)
        feed_w = np.where(self.fleet.read, self.fleet.levels(draw_w)[:-1], np.nan)
        return Readings(
            now_s=self.at_s, draw_w=draw_w, draw_at_s=np.full(self.fleet.size, self.at_s),
            cap_w=self.cap_w.copy(), feed_w=feed_w,
            feed_at_s=np.full(self.fleet.feeds, self.at_s),
            off=np.zeros(self.fleet.size, dtype=bool),
        )  # fmt: skip


def test_sums_and_least_follow_the_paths_to_the_site() -> None:
    tree = FeedLevels(np.array(ABOVE))
    assert tree.sums(limits(1, 2, 4, 8, 0, 0, 0)).tolist() == [1, 2, 4, 8, 3, 12, 15]
    assert tree.least(limits(9, 1, 9, 9, 5, 7, 8)).tolist() == [5, 1, 7, 7, 5, 7, 8]
    known = limits(np.nan, 20, np.nan, np.nan, np.nan, 50, np.nan)
    assert tree.filled_in(known, limits(1, 2, 4, 8, 0, 0, 0)).tolist() == [1, 20, 4, 8, 21, 50, 71]


@pytest.mark.parametrize("above", [[0, 2], [3, 2], [1, 1], [2, 1]])
def test_levels_out_of_order_are_refused(above: list[int]) -> None:
    with pytest.raises(UserError, match="above"):
        FeedLevels(np.array(above))


def test_a_fall_of_one_racks_limit_costs_only_that_rack() -> None:
    room = Room(a_tree())
    wide = limits(800, 800, 800, 800, 1600, 1600, 3200)
    loop = room.run(wide, 3)
    narrow = wide * limits(0.5, 1, 1, 1, 1, 1, 1)
    room.run(narrow, 1, loop)
    levels_w = room.fleet.levels(room.cap_w)
    assert levels_w[0] <= 400
    assert levels_w[1:4].min() > 0.99 * 780


def test_every_level_of_three_is_kept_at_once() -> None:
    room = Room(a_tree())
    limit_w = limits(500, 700, 700, 700, 1000, 1300, 2000)
    room.run(limit_w, 40)
    levels_w = room.fleet.levels(room.cap_w)
    assert (levels_w <= limit_w).all()
    assert levels_w[-1] >= 0.98 * 2000


def test_racks_without_meters_are_governed_by_their_devices_meters() -> None:
    room = Room(a_tree(metered=[False] * 4 + [True] * 2))
    limit_w = limits(500, 700, 700, 700, 1000, 1300, 2000)
    loop = room.run(limit_w, 40)
    assert (room.fleet.levels(room.cap_w) <= limit_w).all()
    assert not loop.safe_mode


RACK_0 = [True, True] + [False] * 6
TIGHT = limits(300, 800, 800, 800, 1600, 1600, 3200)


def test_jobs_are_stopped_only_below_the_level_that_is_exceeded_and_outlets_after_them() -> None:
    room = Room(a_tree())
    room.deaf[:4] = True
    loop, jobs, outlets = None, [], []
    for _ in range(40):
        loop = room.run(TIGHT, 1, loop)
        jobs.append(room.orders.stop_job)
        outlets.append(room.orders.switch_off)
    assert np.any(jobs, axis=0).tolist() == RACK_0
    assert np.any(outlets, axis=0).tolist() == RACK_0  # their jobs went on all the same
    first_stop = int(np.argmax(np.any(jobs, axis=1)))
    assert int(np.argmax(np.any(outlets, axis=1))) - first_stop >= 10


def test_where_stopping_jobs_helps_no_outlet_is_switched_and_they_run_again_once_they_fit() -> None:
    room = Room(a_tree())
    room.deaf[:2] = True
    loop, outlets = None, np.zeros(8, dtype=bool)
    for _ in range(60):
        loop = room.run(TIGHT, 1, loop)
        room.idle = room.orders.stop_job
        outlets |= room.orders.switch_off
    assert not outlets.any()
    assert room.idle.tolist() == RACK_0
    for _ in range(150):
        loop = room.run(TIGHT * limits(3, 1, 1, 1, 1, 1, 1), 1, loop)
        room.idle = room.orders.stop_job
    assert not room.idle.any()


def stops_at_once(room: Room, limit_w: np.ndarray, start_heat: float = 0.0) -> tuple[int, int]:
    """Jobs and outlets that are stopped in the first cycle in which any is."""
    config = SafetyConfig(start_heat=start_heat, unproven=0.0, stops_jobs=True)
    loop = SafetyLoop(room.fleet, config)
    for _ in range(60):
        room.run(limit_w, 1, loop)
        jobs, outlets = room.orders.stop_job, room.orders.switch_off
        if jobs.any() or outlets.any():
            return int(jobs.sum()), int(outlets.sum())
    return 0, 0


# Every rack draws 2 x 400 W whatever is ordered. By limits: what has to be stopped, at least.
NESTED = [
    # A rack, its feed and the site are all over by the watts of one device.
    (limits(500, 800, 800, 800, 1300, 1600, 2900), 1),
    # The feed is over by more than its rack: one more is enough, and not one more for each level.
    (limits(500, 800, 800, 800, 1000, 1600, 2600), 2),
    # What two racks save is enough for the site.
    (limits(500, 800, 500, 800, 1600, 1600, 2500), 2),
]


@pytest.mark.parametrize(("limit_w", "enough"), NESTED)
def test_what_is_stopped_below_counts_for_the_levels_above(
    limit_w: np.ndarray, enough: int
) -> None:
    room = Room(a_tree())
    room.deaf[:] = True
    assert stops_at_once(room, limit_w) == (enough, 0)


@pytest.mark.parametrize(("limit_w", "enough"), NESTED)
def test_outlets_below_count_for_the_levels_above(limit_w: np.ndarray, enough: int) -> None:
    room = Room(a_tree())
    room.deaf[:] = True
    assert stops_at_once(room, limit_w, start_heat=0.7) == (0, enough)


def test_a_warm_breaker_leaves_no_time_for_jobs_to_end() -> None:
    room = Room(a_tree())
    room.deaf[:2] = True
    loop = SafetyLoop(room.fleet, SafetyConfig(start_heat=0.9, unproven=0.0, stops_jobs=True))
    outlets = np.zeros(8, dtype=bool)
    for _ in range(14):
        room.run(TIGHT, 1, loop)
        outlets |= room.orders.switch_off
    assert outlets.tolist() == RACK_0


@settings(max_examples=times(150), deadline=None)
@given(data=st.data())
def test_watts_are_shared_max_min_fair_within_any_tree(data: st.DataObject) -> None:
    """Bottleneck condition: who is below its wish has a full level above, and is a largest there.

    That characterises the one max-min fair sharing (Bertsekas and Gallager, Data Networks, 6.5.2).
    """
    size, feeds = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 6))
    above = [data.draw(st.integers(one + 1, feeds)) for one in range(feeds)]
    feed = data.draw(st.lists(st.integers(0, feeds - 1), min_size=size, max_size=size))
    low = np.array(data.draw(st.lists(st.floats(0, 50), min_size=size, max_size=size)))
    more = np.array(data.draw(st.lists(st.floats(0, 300), min_size=size, max_size=size)))
    fleet = Fleet(
        feed=np.array(feed), floor_w=low, max_w=low + more, above=np.array(above),
        breaker=Breaker(rated_w=np.ones(feeds + 1)),
    )  # fmt: skip
    slack = st.lists(st.floats(0, 500), min_size=feeds + 1, max_size=feeds + 1)
    budget_w = fleet.levels(low) + np.array(data.draw(slack))
    given_w = fill(fleet, budget_w, low, low + more)
    used_w = fleet.levels(given_w)
    assert (used_w <= budget_w + 1e-6).all()
    assert ((given_w >= low - 1e-9) & (given_w <= low + more + 1e-9)).all()
    free = given_w > low + 1e-6
    for device in np.flatnonzero(given_w < low + more - 1e-6):
        full = [
            rows
            for number, rows in enumerate(fleet.rows)
            if device in rows and used_w[number] >= budget_w[number] - 1e-6
        ]
        assert any(
            given_w[rows][free[rows]].max(initial=0.0) <= given_w[device] + 1e-6 for rows in full
        )

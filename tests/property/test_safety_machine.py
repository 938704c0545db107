"""The safety loop against arbitrary limits, demands, slow knobs and reboots, meters truthful."""

from __future__ import annotations

from collections import deque

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from wattherd.engine.safety.contract import Breaker, Fleet, Readings, SafetyConfig
from wattherd.engine.safety.loop import SafetyLoop

SIZE = 6


def a_fleet(feed: list[int], above: list[int]) -> Fleet:
    return Fleet(
        feed=np.array(feed),
        floor_w=np.full(SIZE, 100.0),
        max_w=np.full(SIZE, 400.0),
        breaker=Breaker(rated_w=np.full(len(above) + 1, 1e9)),
        above=np.array(above, dtype=np.int64),
    )


FLAT = a_fleet([0, 1, 0, 1, 0, 1], [2, 2])
DEEP = a_fleet([0, 0, 1, 1, 2, 3], [2, 2, 4, 4])
"""Two racks and a device on a feed, one device on another feed, below the site."""
FLEETS = st.sampled_from([FLAT, DEEP])
LIMIT = st.floats(1.0, 4.2)
LIMITS = st.tuples(LIMIT, LIMIT, LIMIT, LIMIT, LIMIT)
"""By level, in multiples of a little more than the floors below it: caps move in steps of 2 W."""


def watts(fleet: Fleet, limits: tuple[float, ...]) -> np.ndarray:
    least_w = fleet.levels(fleet.floor_w)
    return 1.07 * least_w * np.array(limits)[-len(least_w) :]


SECOND = st.tuples(
    st.one_of(st.none(), LIMITS),
    st.lists(st.floats(60, 400), min_size=SIZE, max_size=SIZE),
)


class Knobs:
    """Orders arrive in order, each device after a delay of its own."""

    def __init__(self, delays: list[int], caps: list[float]) -> None:
        self.delays = np.array(delays)
        self.cap_w = np.array(caps)
        self.under_way: deque[np.ndarray] = deque(maxlen=8)

    def order(self, cap_w: np.ndarray) -> None:
        self.under_way.append(cap_w)

    def arrive(self) -> None:
        for row, delay in enumerate(self.delays):
            if delay < len(self.under_way):
                self.cap_w[row] = self.under_way[-1 - delay][row]

    @property
    def worst_w(self) -> np.ndarray:
        """The highest cap in force now or still on its way, by device."""
        coming = [
            [one[row] for one in list(self.under_way)[-1 - delay :]]
            for row, delay in enumerate(self.delays)
        ]
        return np.array([max([cap, *more]) for cap, more in zip(self.cap_w, coming, strict=True)])


@settings(max_examples=times(60), deadline=None)
@given(
    fleet=FLEETS,
    delays=st.lists(st.integers(0, 6), min_size=SIZE, max_size=SIZE),
    caps=st.lists(st.floats(100, 400), min_size=SIZE, max_size=SIZE),
    story=st.lists(SECOND, min_size=5, max_size=60),
)
def test_what_may_be_in_force_never_grows_beyond_the_limits(
    fleet: Fleet,
    delays: list[int],
    caps: list[float],
    story: list[tuple[tuple[float, ...] | None, list[float]]],
) -> None:
    """Whatever is in force or under way fits, or is on its way down: no raise ever breaks a limit.

    That is "lower, read back, only then raise": caps that were only ordered lower are still in
    `worst_w`, so a raise on the strength of them would show.
    """
    knobs = Knobs(delays, caps)
    loop = SafetyLoop(fleet, SafetyConfig(start_heat=0.0))
    limit_w = watts(fleet, (4.0,) * 5)
    chance = np.random.default_rng(5)
    for second, (limits, demand) in enumerate(story):
        limit_w = limit_w if limits is None else watts(fleet, limits)
        draw_w = np.minimum(knobs.cap_w, demand) * (1 - 1e-4 * chance.random(SIZE))
        before_w = fleet.levels(knobs.worst_w)
        readings = Readings(
            now_s=float(second),
            draw_w=draw_w,
            draw_at_s=np.full(SIZE, float(second)),
            cap_w=knobs.cap_w.copy(),
            feed_w=fleet.levels(draw_w)[:-1],
            feed_at_s=np.full(fleet.feeds, float(second)),
            off=np.zeros(SIZE, dtype=bool),
        )
        orders = loop.cycle(readings, limit_w)
        knobs.order(orders.cap_w)
        after_w = fleet.levels(knobs.worst_w)
        assert (after_w <= np.maximum(limit_w, before_w) + 1e-6).all()
        assert (loop.caps.counted_w >= knobs.worst_w - 0.5 - 1e-9).all()
        assert (orders.cap_w >= fleet.floor_w - 1e-9).all()
        assert (orders.cap_w <= fleet.max_w + 1e-9).all()
        knobs.arrive()


@settings(max_examples=times(40), deadline=None)
@given(
    fleet=FLEETS,
    caps=st.lists(st.floats(100, 400), min_size=SIZE, max_size=SIZE),
    limits=LIMITS,
    demand=st.lists(st.floats(60, 400), min_size=SIZE, max_size=SIZE),
)
def test_any_limit_that_floors_allow_is_met_within_two_cycles(
    fleet: Fleet, caps: list[float], limits: tuple[float, ...], demand: list[float]
) -> None:
    knobs = Knobs([0] * SIZE, caps)
    loop = SafetyLoop(fleet, SafetyConfig(start_heat=0.0))
    limit_w = watts(fleet, limits)
    for second in range(3):
        draw_w = np.minimum(knobs.cap_w, demand)
        at_s = float(second)
        readings = Readings(
            now_s=at_s, draw_w=draw_w, draw_at_s=np.full(SIZE, at_s), cap_w=knobs.cap_w.copy(),
            feed_w=fleet.levels(draw_w)[:-1], feed_at_s=np.full(fleet.feeds, at_s),
            off=np.zeros(SIZE, dtype=bool),
        )  # fmt: skip
        knobs.order(loop.cycle(readings, limit_w).cap_w)
        knobs.arrive()
    assert (fleet.levels(knobs.cap_w) <= limit_w + 1e-6).all()

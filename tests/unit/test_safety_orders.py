"""Orders from outside: what each device may draw at most, beside what the limits leave."""

from __future__ import annotations

import numpy as np
import pytest

from wattherd.engine.safety.loop import Breaker, Fleet, Readings, SafetyConfig, SafetyLoop

WIDE, NONE = 1e9, float("nan")


class Shelf:
    """Four devices of 100 to 400 W on one feed; they draw all they may, times `high`."""

    def __init__(self, high: float = 1.0) -> None:
        self.fleet = Fleet(
            feed=np.zeros(4, dtype=np.int64),
            floor_w=np.full(4, 100.0),
            max_w=np.full(4, 400.0),
            breaker=Breaker(rated_w=np.full(2, 1e12)),
            metered=np.array([False]),
        )
        self.loop = SafetyLoop(self.fleet, SafetyConfig(start_heat=0.0))
        self.cap_w, self.high, self.at_s = np.full(4, 400.0), high, 0.0

    @property
    def draw_w(self) -> np.ndarray:
        return self.high * self.cap_w

    def run(self, cycles: int, most_w: list[float] | None, limit_w: float = WIDE) -> None:
        for _ in range(cycles):
            self.at_s += 1.0
            wobble = 1 - 1e-5 * (self.at_s % 7)
            readings = Readings(
                now_s=self.at_s, draw_w=self.draw_w * wobble, draw_at_s=np.full(4, self.at_s),
                cap_w=self.cap_w.copy(), feed_w=np.array([NONE]), feed_at_s=np.array([NONE]),
                off=np.zeros(4, dtype=bool),
            )  # fmt: skip
            most = None if most_w is None else np.array(most_w)
            orders = self.loop.cycle(readings, np.array([limit_w, limit_w]), most)
            self.cap_w = np.asarray(orders.cap_w)


def test_an_order_is_met_at_once_and_to_the_watt_and_costs_nobody_else() -> None:
    shelf = Shelf()
    shelf.run(5, None)
    shelf.run(1, [250.0, NONE, NONE, 380.0])
    assert shelf.cap_w.tolist() == [250.0, 400.0, 400.0, 380.0]
    shelf.run(8, [251.0, NONE, NONE, NONE])
    assert shelf.cap_w.tolist() == [251.0, 400.0, 400.0, 400.0]


@pytest.mark.parametrize(("asked_w", "held_w"), [(20.0, 100.0), (900.0, 400.0), (NONE, 400.0)])
def test_orders_stay_within_what_the_device_can_be_held_to(asked_w: float, held_w: float) -> None:
    shelf = Shelf()
    shelf.run(8, [asked_w] * 4)
    assert shelf.cap_w.tolist() == [held_w] * 4


def test_a_limit_goes_below_orders_and_orders_below_a_limit() -> None:
    shelf = Shelf()
    shelf.run(30, [150.0, 350.0, 350.0, 350.0], limit_w=1000.0)
    assert shelf.cap_w[0] == pytest.approx(150.0, abs=1.0)
    assert shelf.draw_w.sum() <= 1000.0
    assert shelf.draw_w.sum() > 980.0


def test_what_is_ordered_is_what_is_drawn_where_caps_regulate_high() -> None:
    shelf = Shelf(high=1.045)
    shelf.run(90, [250.0] * 4)
    assert (shelf.draw_w <= 250.5).all()
    assert (shelf.draw_w > 245.0).all()


def test_one_that_ignores_its_cap_is_not_given_what_it_takes() -> None:
    shelf = Shelf()
    shelf.run(5, [250.0] * 4)
    for _ in range(60):
        shelf.run(1, [250.0, 250.0, 250.0, 250.0])
        shelf.high = 400.0 / float(shelf.cap_w[0])  # it draws 400 W, whatever is ordered
        assert (shelf.cap_w <= 250.5).all()

"""A small room for the safety loop that flatters nobody: other load, own parts, steps, floors.

One step a second. Draw follows caps as far as the device can; meters round, knobs round and clamp,
orders take their time. It shares nothing with the plant of `wattherd power bench`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from wattherd.engine.safety.loop import Breaker, Fleet, Orders, Readings, SafetyConfig, SafetyLoop

CALM = SafetyConfig(start_heat=0.0)


def a_fleet(size: int = 8, feeds: int = 1, **more: object) -> Fleet:
    return Fleet(
        feed=np.arange(size) % feeds,
        floor_w=np.full(size, 100.0),
        max_w=np.full(size, 400.0),
        breaker=Breaker(rated_w=np.full(feeds + 1, 1e9)),
        **more,  # type: ignore[arg-type]
    )


@dataclass
class Room:
    """All arrays over devices or levels, scalars for all; times in whole seconds."""

    fleet: Fleet
    demand_w: np.ndarray | float = 400.0
    base: Callable[[int], float] = lambda _: 0.0
    base_at: int = 0
    regulates_at: float = 1.0
    reachable_w: float = 0.0
    rest_share: float = 0.0
    sees_rest: bool = True
    device_step_w: float = 0.0
    level_step_w: float = 0.0
    knob_step_w: float = 0.0
    lowest_w: float = 0.0
    delay: int = 0
    cap_w: np.ndarray = field(init=False)
    told_w: np.ndarray = field(init=False)
    deaf: np.ndarray = field(init=False)
    boasts: bool = True
    at_s: int = 0
    seed: int = 1

    def __post_init__(self) -> None:
        size = self.fleet.size
        self.cap_w, self.told_w = np.full(size, 400.0), np.full(size, 400.0)
        self.deaf = np.zeros(size, dtype=bool)
        self.draw_w = np.zeros(size)
        self._coming: deque[np.ndarray] = deque()
        self._rng = np.random.default_rng(self.seed)
        self._respond()

    def _respond(self) -> None:
        may_w = np.maximum(self.cap_w * self.regulates_at, self.reachable_w)
        aim_w = np.minimum(self.demand_w, may_w)
        self.draw_w = self.draw_w + 0.9 * (aim_w - self.draw_w)

    @property
    def wall_w(self) -> np.ndarray:
        return self.draw_w * (1.0 + self.rest_share)

    def levels_w(self) -> np.ndarray:
        own_w = self.fleet.own(self.wall_w)
        own_w[self.base_at] += self.base(self.at_s)
        return self.fleet.tree.sums(own_w)

    def read(self) -> Readings:
        size, fleet = self.fleet.size, self.fleet
        flicker = 1.0 + 5e-4 * self._rng.standard_normal(size + fleet.feeds + 1)
        shown_w = (self.wall_w if self.sees_rest else self.draw_w) * flicker[:size]
        level_w = self.levels_w() * flicker[size:]
        level_w = np.where(fleet.level_read, _rounded(level_w, self.level_step_w), np.nan)
        shown_w = np.where(fleet.device_read, _rounded(shown_w, self.device_step_w), np.nan)
        at_s = float(self.at_s)
        return Readings(
            now_s=at_s, draw_w=shown_w, draw_at_s=np.full(size, at_s), cap_w=self.told_w.copy(),
            feed_w=level_w[:-1], feed_at_s=np.full(fleet.feeds, at_s),
            site_w=float(level_w[-1]), site_at_s=at_s, off=np.zeros(size, dtype=bool),
        )  # fmt: skip

    def follow(self, orders: Orders) -> None:
        self._coming.append(_rounded(orders.cap_w, self.knob_step_w))
        if len(self._coming) > self.delay:
            cap_w = np.clip(self._coming.popleft(), max(self.lowest_w, 100.0), 400.0)
            self.cap_w = np.where(self.deaf, self.cap_w, cap_w)
            self.told_w = np.where(self.deaf & (not self.boasts), self.told_w, cap_w)
        self.at_s += 1
        self._respond()

    def run(self, loop: SafetyLoop, limit_w: np.ndarray, seconds: int) -> np.ndarray:
        """Draw of all levels (T, F + 1), second by second."""
        drawn = []
        for _ in range(seconds):
            self.follow(loop.cycle(self.read(), limit_w))
            drawn.append(self.levels_w())
        return np.array(drawn)


def a_loop(fleet: Fleet) -> SafetyLoop:
    return SafetyLoop(fleet, CALM)


def limits(fleet: Fleet, site_w: float, feed_w: float = 1e9) -> np.ndarray:
    return np.append(np.full(fleet.feeds, feed_w), site_w)


def _rounded(watts: np.ndarray, step_w: float) -> np.ndarray:
    return np.round(watts / step_w) * step_w if step_w else watts

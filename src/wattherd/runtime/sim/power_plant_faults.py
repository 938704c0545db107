"""Faults of a machine room: which devices they hit, when, and what meters show meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattherd.engine.safety_terms import Bools, Floats

STALE_S = 30.0
SKEW_S = 30.0
FASTEST_S, SLOWEST_S = 0.2, 40.0
"""Out-of-band capping takes up to 40 s (POLCA, ASPLOS'24), in-band 0.2 s."""
SPIKE_SHARE = 0.1
SPIKE = 3.0
METER_FAULTS = ("meter-lost", "meter-stale", "meter-frozen", "meter-spiking", "meter-half")
KINDS = (
    *METER_FAULTS,
    "cap-ignored",
    "cap-reset",
    "controller-killed",
    "actuator-delay",
    "clock-skew",
    "nodes-silent",
)
"""Every single fault, in the order of the tables."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What meters show, with their own timestamps."""

    draw_w: Floats
    draw_at_s: Floats
    feed_w: Floats
    feed_at_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One or more kinds at once, on the same window of time.

    `hits` (N,) are the devices and `hit_feeds` (F,) the feed meters concerned; `boasts` (N,) the
    knobs that claim what they ignored; `delay_s` (N,) what slow orders take.
    """

    kinds: tuple[str, ...] = ()
    start_s: float = np.inf
    end_s: float = np.inf
    hits: Bools
    hit_feeds: Bools
    boasts: Bools
    delay_s: Floats

    def acting(self, now_s: float) -> bool:
        """Whether the fault is there now."""
        return bool(self.kinds) and self.start_s <= now_s < self.end_s

    @property
    def slow(self) -> bool:
        """Orders to hit devices take `delay_s`."""
        return "actuator-delay" in self.kinds

    @property
    def silent(self) -> bool:
        """Hit devices neither answer nor hear."""
        return "nodes-silent" in self.kinds

    @property
    def ignores(self) -> bool:
        """Hit devices keep the cap they have."""
        return "cap-ignored" in self.kinds

    @property
    def reboots(self) -> bool:
        """Hit devices reboot when the fault begins."""
        return "cap-reset" in self.kinds

    def kills(self, now_s: float) -> bool:
        """Whether the controller is dead now."""
        return "controller-killed" in self.kinds and self.acting(now_s)

    def meters(
        self, now_s: float, history: Sequence[tuple[float, Floats, Floats]], chance: Floats
    ) -> Shown:
        """What the meters show; `history` ends with the truth of now, `chance` is uniform."""
        _, draw_w, feed_w = history[-1]
        value = np.concatenate((draw_w, feed_w))
        at_s = np.full(len(value), now_s)
        if self.acting(now_s):
            hit = np.concatenate((self.hits, self.hit_feeds))
            value, at_s = self._spoilt(value, at_s, hit, history, chance)
        size = len(draw_w)
        return Shown(value[:size], at_s[:size], value[size:], at_s[size:])

    def _spoilt(
        self,
        value: Floats,
        at_s: Floats,
        hit: Bools,
        history: Sequence[tuple[float, Floats, Floats]],
        chance: Floats,
    ) -> tuple[Floats, Floats]:
        now_s = float(at_s[0])
        for kind in self.kinds:
            if kind == "meter-lost":
                value = np.where(hit, np.nan, value)
            elif kind == "meter-stale":
                then_s, old = _at(history, now_s - STALE_S)
                value, at_s = np.where(hit, old, value), np.where(hit, then_s, at_s)
            elif kind == "meter-frozen":
                value = np.where(hit, _at(history, self.start_s)[1], value)
            elif kind == "meter-spiking":
                value = np.where(hit & (chance < SPIKE_SHARE), SPIKE * value, value)
            elif kind == "meter-half":
                value = np.where(hit, 0.5 * value, value)
            elif kind == "clock-skew":
                at_s = np.where(hit, at_s - SKEW_S, at_s)
        return value, at_s


def _at(history: Sequence[tuple[float, Floats, Floats]], when_s: float) -> tuple[float, Floats]:
    """The last readings up to `when_s`, or the first kept."""
    then_s, draw_w, feed_w = history[0]
    for at_s, draw, feed in history:
        if at_s > when_s:
            break
        then_s, draw_w, feed_w = at_s, draw, feed
    return then_s, np.concatenate((draw_w, feed_w))


def no_fault(devices: int, feeds: int) -> Fault:
    """Nothing fails."""
    none = np.zeros(devices, dtype=np.bool_)
    return Fault(
        hits=none,
        hit_feeds=np.zeros(feeds, dtype=np.bool_),
        boasts=none,
        delay_s=np.zeros(devices),
    )


def drawn_fault(
    kinds: tuple[str, ...],
    rng: np.random.Generator,
    feed: Sequence[int],
    *,
    hit_feeds: Bools,
    share: float,
    window_s: tuple[float, float],
) -> Fault:
    """A fault on a random `share` of devices; meter faults also hit those of `hit_feeds` (F,).

    Silent nodes are a fifth, whatever the share; slow knobs take from `FASTEST_S` to `SLOWEST_S`.
    """
    size = len(feed)
    count = round((0.2 if "nodes-silent" in kinds else share) * size)
    hits = np.zeros(size, dtype=np.bool_)
    hits[rng.permutation(size)[:count]] = True
    boasts = hits & (rng.random(size) < 0.5)
    delay_s = np.full(size, SLOWEST_S)
    delay_s[hits] = rng.permutation(np.geomspace(FASTEST_S, SLOWEST_S, max(count, 1))[:count])
    on_meters = bool({*METER_FAULTS, "clock-skew"} & set(kinds))
    return replace(
        no_fault(size, len(hit_feeds)),
        kinds=kinds,
        start_s=window_s[0],
        end_s=window_s[1],
        hits=hits,
        boasts=boasts,
        hit_feeds=hit_feeds & on_meters,
        delay_s=delay_s,
    )

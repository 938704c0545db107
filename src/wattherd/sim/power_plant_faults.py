"""Faults of a machine room: which devices they hit, when, and what meters show meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattherd.engine.safety.contract import Bools, Floats

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
    "knob-lost",
    "orders-lost",
    "loop-stalled",
)
"""Every single fault, in the order of the tables; new ones go to the end: streams are by number."""
LOST_SHARE = 0.5
"""Of the orders to hit devices."""
STALL_S = (10.0, 30.0)
"""How long the loop's process may hang: a full disk, a page-in, a frozen container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantFault:
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
    stall_s: float = 0.0
    """How long the loop hangs from the start of the fault on."""
    hit_site: bool = False
    """Whether the site's meter is hit, too."""

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

    @property
    def deaf(self) -> bool:
        """Knobs of hit devices neither answer nor obey; their meters do."""
        return "knob-lost" in self.kinds

    @property
    def loses(self) -> bool:
        """Of orders to hit devices a share is lost."""
        return "orders-lost" in self.kinds

    def stalls(self, now_s: float) -> bool:
        """Whether the loop hangs now; it goes on afterwards as if nothing had been."""
        late_s = now_s - self.start_s
        return "loop-stalled" in self.kinds and 0.0 <= late_s < self.stall_s

    def on_meters(
        self, now_s: float, history: Sequence[tuple[float, Floats, Floats]], chance: Floats
    ) -> tuple[Floats, Floats]:
        """What meters (N + F + 1,) show and when they say that was.

        `history` is of (time of reading, watts, time told); it ends with what they would show now
        without a fault. `chance` is uniform.
        """
        _, value, at_s = history[-1]
        if not self.acting(now_s):
            return value, at_s
        hit = np.concatenate((self.hits, self.hit_feeds, [self.hit_site]))
        for kind in self.kinds:
            if kind == "meter-lost":
                value = np.where(hit, np.nan, value)
            elif kind == "meter-stale":
                _, old_w, old_s = _at(history, now_s - STALE_S)
                value, at_s = np.where(hit, old_w, value), np.where(hit, old_s, at_s)
            elif kind == "meter-frozen":
                value = np.where(hit, _at(history, self.start_s)[1], value)
            elif kind == "meter-spiking":
                value = np.where(hit & (chance < SPIKE_SHARE), SPIKE * value, value)
            elif kind == "meter-half":
                value = np.where(hit, 0.5 * value, value)
            elif kind == "clock-skew":
                at_s = np.where(hit, at_s - SKEW_S, at_s)
        return value, at_s


def _at(
    history: Sequence[tuple[float, Floats, Floats]], when_s: float
) -> tuple[float, Floats, Floats]:
    """The last readings up to `when_s`, or the first kept."""
    found = history[0]
    for one in history:
        if one[0] > when_s:
            break
        found = one
    return found


def no_fault(devices: int, feeds: int) -> PlantFault:
    """Nothing fails."""
    none = np.zeros(devices, dtype=np.bool_)
    return PlantFault(
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
    hit_site: bool = False,
) -> PlantFault:
    """A fault on a random `share` of devices; meter faults also hit those of `hit_feeds` (F,).

    Silent nodes are a fifth, whatever the share; slow knobs take from `FASTEST_S` to `SLOWEST_S`.
    """
    size = len(feed)
    count = max(round((0.2 if "nodes-silent" in kinds else share) * size), 1)
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
        stall_s=float(rng.uniform(*STALL_S)),
        hit_site=hit_site and on_meters,
    )

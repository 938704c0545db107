"""A machine room from data sheets, written beside the bench's plant and before a look at the loop.

It is what a safety loop is told by and what it acts on: devices whose caps hold a mean, knobs that
take a lognormal time, meters of every habit, other load, breakers by their inverse-time curve.
`Room.drawn` makes one by chance from a seed and a set of `UNKIND` words; without words it is an
orderly room. What each number is from:

* Bursts: a B300 under a cap of 500 W passed 717 W for 500 ms after 150 W, 0.62 of the gap between
  the cap and the mean. Reach: an A40 draws 120.7 W under 100 W. Caps regulate up to 4.5 % high.
* A node of eight H100 draws 1.82 of its GPUs (MLPerf v4.0).
* Breakers: IEC 60898 (2.55 of the rating for a second, 1.13 for ever) and UL 489 (2.0 for two
  minutes, the rating for ever), the early edge of each band.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.safety import Breaker, Fleet, Orders, Readings
from wattherd.engine.safety.contract import FeedLevels

Floats = NDArray[np.float64]
DT_S = 0.1
STEPS = 10

KNOWS_S = 20
"""Before that nobody has learned anything."""

UNKIND = (
    "slow-knobs",
    "coarse-knobs",
    "caps-of-means",
    "caps-high",
    "caps-low",
    "floors-unreachable",
    "rest-of-node",
    "coarse-meters",
    "slow-meters",
    "stamped-when-asked",
    "device-meters-off",
    "no-device-meters",
    "unmetered-feeds",
    "other-steady",
    "other-ramping",
    "other-cyclic",
    "other-switched",
    "swings",
    "comings",
    "deep-tree",
)
"""What a room may be besides orderly."""

FAULTS = (
    "device-meters-lost",
    "device-meters-frozen",
    "device-meters-half",
    "feed-meter-lost",
    "feed-meter-frozen",
    "feed-meter-half",
    "feed-meter-spikes",
    "caps-ignored",
    "caps-claimed",
    "caps-forgotten",
    "knobs-slow",
    "orders-lost",
    "stale-stamps",
    "controller-dead",
    "controller-hangs",
)
"""What may go wrong from the middle of a run on."""


@dataclass(slots=True)
class MeterBank:
    """Many meters: how often, over what window, how late, in what steps."""

    period_s: Floats
    window_s: Floats
    late_s: Floats
    step_w: Floats
    noise: Floats
    gain: Floats
    phase_s: Floats
    there: NDArray[np.bool_]
    stamped_when_asked: bool
    rng: np.random.Generator
    _news: Floats = field(init=False)
    _says_w: Floats = field(init=False)

    def __post_init__(self) -> None:
        self._news = np.full(len(self.period_s), -np.inf)
        self._says_w = np.full(len(self.period_s), np.nan)

    def read(self, energy_j: Floats, steps: int) -> tuple[Floats, Floats]:
        """What each says and of when, by the energy (steps + 1, n) so far."""
        now_s = steps * DT_S
        at_s = np.floor((now_s - self.late_s - self.phase_s) / self.period_s) * self.period_s
        at_s = at_s + self.phase_s
        end = np.clip(np.rint(at_s / DT_S).astype(int), 0, steps)
        begin = np.clip(end - np.maximum(np.rint(self.window_s / DT_S).astype(int), 1), 0, steps)
        which = np.arange(len(at_s))
        mean_w = (energy_j[end, which] - energy_j[begin, which]) / np.maximum(
            (end - begin) * DT_S, DT_S
        )
        fresh = at_s > self._news
        shown_w = mean_w * self.gain * (1 + self.noise * self.rng.standard_normal(len(at_s)))
        shown_w = np.where(self.step_w > 0, np.rint(shown_w / np.maximum(self.step_w, 1e-9))
                           * self.step_w, shown_w)  # fmt: skip
        self._says_w = np.where(fresh, np.maximum(shown_w, 0.0), self._says_w)
        self._news = np.where(fresh, at_s, self._news)
        known = self.there & (end > 0)
        stamp_s = np.full(len(at_s), now_s) if self.stamped_when_asked else at_s
        return np.where(known, self._says_w, np.nan), np.where(known, stamp_s, np.nan)


@dataclass(slots=True, kw_only=True)
class Room:
    """One room and its day: everything that is drawn before it runs."""

    words: frozenset[str]
    seed: int
    seconds: int
    fleet: Fleet
    limit_w: Floats
    """(seconds, F + 1)"""
    cut_s: tuple[int, int]
    demand_w: Floats
    """(seconds * 10, N): what the capped part of each device would draw."""
    other_w: Floats
    """(seconds * 10, F + 1): beside the devices, of each level itself."""
    regulates_at: Floats
    reach_w: Floats
    idle_w: Floats
    rest: Floats
    """What draws beside a device and follows it, as a share of it."""
    window_s: Floats
    lag_s: Floats
    knob_s: float
    knob_sigma: float
    knob_queue: bool
    knob_step_w: Floats
    devices: MeterBank
    feeds: MeterBank
    trips_at: tuple[float, float]
    """What a breaker carries for ever, and K of h' = (m^2 - i^2) / K."""
    surprises: tuple[tuple[int, int], ...]
    settle_s: int

    @classmethod
    def drawn(cls, seed: int, words: Sequence[str], *, seconds: int = 300) -> Room:
        """The room of that seed with these unkindnesses."""
        return _drawn(seed, frozenset(words), seconds)

    def excused(self) -> NDArray[np.bool_]:
        """Seconds of the stated response: the start, the cut, what nobody could have known."""
        found = np.zeros(self.seconds, dtype=np.bool_)
        for begin, end in ((0, 0), (self.cut_s[0], self.cut_s[0]), *self.surprises):
            found[begin : end + self.settle_s] = True
        return found

    def usable_w(self) -> Floats:
        """The most that devices, with what hangs beside them, could draw in each second."""
        tree, n = self.fleet.tree, self.seconds
        per_s = self.demand_w.reshape(n, STEPS, -1).mean(axis=1) * (1 + self.rest)
        other = self.other_w.reshape(n, STEPS, -1).mean(axis=1)
        most = np.zeros((n, tree.count))
        for device, feed in enumerate(self.fleet.feed):
            most[:, feed] += per_s[:, device]
        beside = other.copy()
        for level in range(tree.count):
            most[:, level] = np.minimum(most[:, level], self.limit_w[:, level] - beside[:, level])
            if level < tree.count - 1:
                most[:, tree.above[level]] += most[:, level]
                beside[:, tree.above[level]] += beside[:, level]
        return np.asarray(np.maximum(most[:, -1], 0.0))


@dataclass(slots=True)
class Story:
    """What happened: per second means, and what went wrong."""

    room: Room
    level_w: Floats
    draw_w: Floats
    cap_w: Floats
    ordered_w: Floats
    trips: list[str]
    notes: dict[str, int]
    safe_s: int
    heat: Floats

    def above(self) -> list[tuple[int, int, float]]:
        """(second, level, excess in percent), whatever is not excused."""
        # A level without devices has no limit and no draw.
        over = (self.level_w - self.room.limit_w) / np.maximum(self.room.limit_w, 1.0)
        bad = (over > 2e-4) & ~self.room.excused()[:, None]
        return [
            (int(s), int(f), round(100 * over[s, f], 2))
            for s, f in zip(*np.nonzero(bad), strict=True)
        ]

    def counted(self) -> NDArray[np.bool_]:
        """The seconds in which use is scored: but the start and a minute after the cut's end."""
        counted = np.ones(self.room.seconds, dtype=np.bool_)
        counted[: self.room.settle_s + 20] = False
        end = self.room.cut_s[1]
        counted[end : end + 60] = False
        return counted

    def used(self) -> float:
        """The share of what was usable that was drawn, once settled."""
        usable = self.room.usable_w()
        drawn = (self.draw_w * (1 + self.room.rest)).sum(axis=1)
        counted = self.counted()
        return float(np.minimum(drawn, usable)[counted].sum() / usable[counted].sum())

    def bounded(self) -> float:
        """The most of what was usable that somebody could use who keeps free what may come back.

        Other load may do again, at any time, what it did; and no order helps within the response.
        """
        usable = self.room.usable_w()
        other = self.room.fleet.tree
        own = self.room.other_w.reshape(self.room.seconds, STEPS, -1).mean(axis=1)
        total = np.array([other.sums(row) for row in own])
        highest = np.maximum.accumulate(total, axis=0)
        may = self.room.limit_w - highest
        best = np.minimum(usable, may[:, -1])
        counted = self.counted()
        return float(best[counted].sum() / usable[counted].sum())

    def back_s(self) -> int:
        """Seconds after the cut until 95 % of what is usable is drawn over five seconds."""
        usable = self.room.usable_w()
        drawn = (self.draw_w * (1 + self.room.rest)).sum(axis=1)
        end = self.room.cut_s[1]
        for second in range(end, self.room.seconds - 5):
            if drawn[second : second + 5].sum() >= 0.95 * usable[second : second + 5].sum():
                return second - end
        return self.room.seconds - end


def _drawn(seed: int, words: frozenset[str], seconds: int) -> Room:
    rng = np.random.default_rng([seed, 2026])
    above, feed, kind = _tree(rng, deep="deep-tree" in words)
    n, levels = len(feed), len(above) + 1
    kinds = int(kind.max()) + 1
    max_w = np.round(np.exp(rng.uniform(math.log(200), math.log(3000), kinds)), -1)[kind]
    floor_w = np.round(max_w * rng.uniform(0.2, 0.4, kinds)[kind], -1)
    reach_w = floor_w * (
        rng.uniform(1.05, 1.22, kinds)[kind] if "floors-unreachable" in words else np.ones(n)
    )
    idle_w = floor_w * rng.uniform(0.2, 0.6, kinds)[kind]
    regulates = np.ones(n)
    if "caps-high" in words:
        regulates = rng.uniform(1.005, 1.045, kinds)[kind]
    if "caps-low" in words:
        low = rng.uniform(0.94, 0.99, kinds)[kind]
        regulates = np.where(rng.random(kinds)[kind] < 0.5, low, regulates)
    rest = np.zeros(n)
    if "rest-of-node" in words:
        rest = rng.uniform(0.2, 0.82, kinds)[kind] * rng.uniform(0.95, 1.05, n)
    demand_w = _loads(rng, words, seconds, max_w, idle_w, feed)
    tree = Fleet(
        feed=feed,
        floor_w=floor_w,
        max_w=max_w,
        above=above,
        breaker=Breaker(rated_w=np.ones(levels)),
    )
    least_w = tree.levels(np.maximum(reach_w, floor_w) * np.maximum(regulates, 1.0) * (1 + rest))
    most_w = tree.levels(demand_w.max(axis=0) * (1 + rest))
    other_w, surprises = _other(rng, words, seconds, most_w, tree.tree.above)
    if "swings" in words:
        surprises = (*surprises, (0, 60))
    if "comings" in words and "rest-of-node" in words:
        surprises = (*surprises, (0, 30))
    steady_w = np.array([tree.tree.sums(row) for row in other_w[::STEPS]]).max(axis=0)
    need_w = (1.08 * least_w + steady_w) * 1.03
    ask_w = most_w + steady_w
    tight = rng.uniform(0.1, 0.6, levels)
    lower = np.minimum(need_w / 0.75, 0.95 * ask_w)
    lower = np.maximum(lower, need_w)
    limit_w = lower + tight * np.maximum(ask_w - lower, 0.0)
    loose = rng.random(levels) < 0.5
    loose[-1] = False
    limit_w = np.where(loose, 1.2 * ask_w, limit_w)
    cut_s = (seconds // 3, seconds // 3 + seconds // 4)
    share = np.maximum(0.75, need_w[-1] / limit_w[-1])
    limits = np.tile(limit_w, (seconds, 1))
    limits[cut_s[0] : cut_s[1], -1] *= share
    metered = np.ones(levels, dtype=np.bool_)
    own_hidden = other_w.max(axis=0) > 0
    if "unmetered-feeds" in words:
        metered = rng.random(levels) < 0.4
        hidden = tree.tree.sums(own_hidden + np.bincount(feed, rest, levels)) > 0
        metered |= hidden | own_hidden
    device_metered = np.ones(n, dtype=np.bool_)
    if "no-device-meters" in words:
        device_metered = rng.random(kinds)[kind] < 0.4
        metered |= np.bincount(feed, ~device_metered, levels) > 0
    metered[-1] |= bool(rng.random() < 0.7)
    step_w = np.ones(n)
    if "coarse-knobs" in words:
        step_w = rng.choice([5.0, 10.0, 25.0], kinds)[kind]
        step_w = np.minimum(step_w, np.maximum(np.round(max_w * 0.03), 1.0))
        floor_w = np.ceil(floor_w / step_w) * step_w
        max_w = np.maximum(np.floor(max_w / step_w) * step_w, floor_w)
    knob_s, sigma = (3.0, 0.4) if "slow-knobs" in words else (0.3, 0.3)
    slowest_s = min(knob_s * math.exp(3.0 * sigma), 20.0)
    lag_s = rng.uniform(0.1, 0.8, kinds)[kind]
    devices = _meters(rng, words, max_w, device_metered, of_devices=True)
    feeds = _meters(rng, words, np.maximum(most_w, 1.0), metered, of_devices=False)
    read_s = float((feeds.period_s + feeds.late_s + feeds.window_s).max())
    trips_at = ((1.13, (2.55**2 - 1.13**2) * 1.0), (1.0, (2.0**2 - 1.0) * 120.0))[
        int(rng.random() < 0.5)
    ]
    rated_w = limit_w / rng.uniform(0.8, 1.0)
    return Room(
        words=words, seed=seed, seconds=seconds,
        fleet=Fleet(
            feed=feed, floor_w=floor_w, max_w=max_w, above=above, breaker=Breaker(rated_w=rated_w),
            metered=metered[:-1], site_metered=bool(metered[-1]), device_metered=device_metered,
            step_w=step_w,
        ),
        limit_w=limits, cut_s=cut_s, demand_w=demand_w, other_w=other_w,
        regulates_at=regulates, reach_w=reach_w, idle_w=idle_w, rest=rest,
        window_s=rng.uniform(0.2, 1.0, n) if "caps-of-means" in words else np.zeros(n),
        lag_s=lag_s, knob_s=knob_s, knob_sigma=sigma, knob_queue=bool(rng.random() < 0.5),
        knob_step_w=step_w, devices=devices, feeds=feeds, trips_at=trips_at, surprises=surprises,
        settle_s=math.ceil(4 + 2 * slowest_s + 3 * lag_s.max() + 2 * read_s),
    )  # fmt: skip


def _tree(
    rng: np.random.Generator, *, deep: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    racks = int(rng.integers(1, 5))
    rows = int(rng.integers(1, 3)) if deep else 0
    site = racks + rows
    above = [racks + int(rng.integers(rows)) if rows else site for _ in range(racks)]
    above += [site] * rows
    feed = np.concatenate([np.full(rng.integers(3, 10), rack) for rack in range(racks)])
    kinds = int(rng.integers(1, 4))
    return np.array(above), feed.astype(np.int64), rng.integers(0, kinds, len(feed))


def _loads(
    rng: np.random.Generator, words: frozenset[str], seconds: int, max_w: Floats, idle_w: Floats,
    feed: NDArray[np.int64],
) -> Floats:  # fmt: skip
    """Jobs: compute with a little noise; some swing in step, some come and go."""
    n, steps = len(max_w), seconds * STEPS
    at_s = np.arange(steps) * DT_S
    full_w = max_w * rng.uniform(0.8, 1.0, n)
    noise = 0.01 * rng.standard_normal((steps // 5 + 1, n)).repeat(5, axis=0)[:steps]
    on = np.ones((steps, n))
    if "swings" in words:
        hertz = float(rng.choice([0.1, 0.25, 0.7, 1.3, 2.5]))
        depth = float(rng.uniform(0.2, 0.8))
        wave = ((at_s * hertz) % 1.0) < 0.65
        which = rng.random(n) < 0.7
        on = np.where(which[None, :], np.where(wave[:, None], 1.0, 1.0 - depth), on)
    if "comings" in words:
        for device in range(n):
            if rng.random() < 0.5:
                continue
            at = float(rng.uniform(0, 80))
            while at < seconds:
                gone = float(rng.uniform(5, 60))
                on[(at_s >= at) & (at_s < at + gone), device] = 0.0
                at += gone + float(rng.uniform(30, 150))
    return np.asarray(np.maximum(idle_w + (full_w - idle_w) * on * (1 + noise), idle_w))


def _other(
    rng: np.random.Generator, words: frozenset[str], seconds: int, most_w: Floats,
    above: NDArray[np.int64],
) -> tuple[Floats, tuple[tuple[int, int], ...]]:  # fmt: skip
    """Of one rack and the site; the second says between when and when nobody could have known."""
    levels, steps = len(most_w), seconds * STEPS
    found = np.zeros((steps, levels))
    at_s = np.arange(steps) * DT_S
    surprises: list[int] = []
    for level in {int(rng.integers(levels)), levels - 1}:
        scale = float(most_w[level])
        if "other-steady" in words:
            found[:, level] += scale * rng.uniform(0.1, 0.3)
        if "other-ramping" in words:
            begin, long = rng.uniform(40, 150), rng.uniform(40, 120)
            found[:, level] += scale * rng.uniform(0.05, 0.2) * np.clip((at_s - begin) / long, 0, 1)
        if "other-cyclic" in words:
            period = rng.uniform(60, 400)
            turn = 1 - np.cos(2 * np.pi * (at_s / period + rng.random()))
            found[:, level] += scale * rng.uniform(0.03, 0.08) * turn
        if "other-switched" in words:
            height, period = scale * rng.uniform(0.03, 0.10), rng.uniform(30, 100)
            on = ((at_s + rng.uniform(0, period)) % period) < 0.5 * period
            found[:, level] += height * on
            surprises += [int(at_s[rise]) for rise in np.flatnonzero(np.diff(on.astype(int)) > 0)]
    return found, tuple((rise, rise + 1) for rise in surprises if _new_height(found, above, rise))


def _new_height(other_w: Floats, above: NDArray[np.int64], rise_s: int) -> bool:
    """Whether a step takes some level to where it never was while anybody looked."""
    if rise_s < KNOWS_S:
        return True
    total = np.array([FeedLevels(above).sums(row) for row in other_w[::STEPS]])
    return bool(np.any(total[rise_s : rise_s + 3].max(axis=0)
                       > 1.001 * total[KNOWS_S : rise_s].max(axis=0, initial=0.0)))  # fmt: skip


def _meters(
    rng: np.random.Generator, words: frozenset[str], full_w: Floats, there: NDArray[np.bool_],
    *, of_devices: bool,
) -> MeterBank:  # fmt: skip
    n = len(full_w)
    period, late = np.full(n, 0.1), np.full(n, 0.1)
    window = np.full(n, 1.0)
    step = np.zeros(n)
    if "slow-meters" in words:
        period = np.full(n, float(rng.choice([1.0, 2.0, 3.0, 5.0])))
        late, window = rng.uniform(0.1, 2.0, n), rng.choice([1.0, 2.0]) * np.ones(n)
    if "coarse-meters" in words:
        step = np.round(full_w * rng.uniform(0.002, 0.008))
    gain = np.ones(n)
    if of_devices and "device-meters-off" in words:
        gain = rng.uniform(0.97, 1.03, n)
    return MeterBank(
        period_s=period, window_s=window, late_s=late, step_w=step, noise=np.full(n, 0.001),
        gain=gain, phase_s=rng.uniform(0, 1, n) * period, there=there,
        stamped_when_asked="stamped-when-asked" in words,
        rng=np.random.default_rng(rng.integers(2**32)),
    )  # fmt: skip


# --- a day in it ---------------------------------------------------------------------------------


class Controls:
    """Whoever is asked each second; as `SafetyLoop`."""

    def cycle(self, readings: Readings, limit_w: Floats) -> Orders:
        """Caps."""
        raise NotImplementedError


def live(room: Room, make: Callable[[Room], object], fault: str | None = None) -> Story:
    """The whole day under one controller."""
    return _Day(room, make, fault).run()


class _Day:
    def __init__(self, room: Room, make: Callable[[Room], object], fault: str | None) -> None:
        self.room, self.make, self.fault = room, make, fault
        self.rng = np.random.default_rng([room.seed, 7])
        n, levels = room.fleet.size, room.fleet.feeds + 1
        self.steps = room.seconds * STEPS
        self.fault_s = (room.seconds * 0.4, room.seconds * 0.75)
        self.hit = np.zeros(n, dtype=np.bool_)
        self.hit[self.rng.permutation(n)[: max(1, round(0.15 * n))]] = True
        read = np.flatnonzero(room.fleet.level_read)
        self.hit_level = int(self.rng.choice(read)) if len(read) else -1
        self.cap_w = room.fleet.max_w.copy()
        self.draw_w = room.idle_w.copy()
        self.mean_w = room.idle_w.copy()
        self.energy_j = np.zeros((self.steps + 1, n))
        self.level_j = np.zeros((self.steps + 1, levels))
        self.waiting: list[list[tuple[float, float]]] = [[] for _ in range(n)]
        """By device: (when it is in force, the cap)."""
        self.next_w = np.full(n, np.nan)
        self.lapses_s = np.full(n, np.inf)
        self.off = np.zeros(n, dtype=np.bool_)
        self.outlet: list[tuple[float, int, bool]] = []
        self.heat = np.full(levels, 0.0)
        self.tripped_s = np.full(levels, -np.inf)
        self.trips: list[str] = []
        self.frozen: dict[str, Floats] = {}
        self.stop = np.zeros(n, dtype=np.bool_)

    def run(self) -> Story:
        room = self.room
        n, seconds = room.fleet.size, room.seconds
        cap_w, ordered = np.zeros((seconds, n)), np.zeros((seconds, n))
        notes: dict[str, int] = {}
        loop, safe_s = self.make(room), 0
        for second in range(seconds):
            now_s = float(second)
            dead = self.fault == "controller-dead" and self._bad(now_s)
            hangs = self.fault == "controller-hangs" and self._bad(now_s) and second % 40 < 25
            if dead:
                loop = None
            elif not hangs:
                loop = loop or self.make(room)
                orders = loop.cycle(self._readings(second), room.limit_w[second])  # type: ignore[attr-defined]
                ordered[second] = orders.cap_w
                self._take(orders, now_s)
                safe_s += bool(getattr(loop, "safe_mode", False))
                for note in loop.notes():  # type: ignore[attr-defined]
                    notes[note.kind] = notes.get(note.kind, 0) + 1
            for step in range(second * STEPS, (second + 1) * STEPS):
                self._step(step)
            cap_w[second] = self.cap_w
        level_w = (self.level_j[STEPS::STEPS] - self.level_j[:-1:STEPS])[:seconds]
        draw_w = (self.energy_j[STEPS::STEPS] - self.energy_j[:-1:STEPS])[:seconds]
        return Story(room, level_w, draw_w, cap_w, ordered, self.trips, notes, safe_s, self.heat)

    def _bad(self, now_s: float) -> bool:
        return self.fault is not None and self.fault_s[0] <= now_s < self.fault_s[1]

    def _readings(self, second: int) -> Readings:
        room, now_s = self.room, float(second)
        draw_w, draw_at = room.devices.read(self.energy_j, second * STEPS)
        level_w, level_at = room.feeds.read(self.level_j, second * STEPS)
        cap_w = self.cap_w.copy()
        if self._bad(now_s):
            draw_w, draw_at, level_w, level_at, cap_w = self._garbled(
                now_s, draw_w, draw_at, level_w, level_at, cap_w
            )
        else:
            self.frozen = {}
        draw_w = np.where(self.off & room.fleet.device_read, 0.0, draw_w)
        cap_w = np.where(self.off, np.nan, cap_w)
        return Readings(
            now_s=now_s, draw_w=draw_w, draw_at_s=draw_at, cap_w=cap_w, feed_w=level_w[:-1],
            feed_at_s=level_at[:-1], off=self.off.copy(), site_w=float(level_w[-1]),
            site_at_s=float(level_at[-1]),
        )  # fmt: skip

    def _garbled(
        self,
        now_s: float,
        draw_w: Floats,
        draw_at: Floats,
        level_w: Floats,
        level_at: Floats,
        cap_w: Floats,
    ) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        hit, level = self.hit, self.hit_level
        match self.fault:
            case "device-meters-lost":
                draw_w[hit] = draw_at[hit] = np.nan
            case "device-meters-frozen":
                kept = self.frozen.setdefault("device", draw_w.copy())
                draw_w[hit] = kept[hit]
            case "device-meters-half":
                draw_w[hit] *= 0.5
            case "feed-meter-lost":
                level_w[level] = level_at[level] = np.nan
            case "feed-meter-frozen":
                level_w[level] = self.frozen.setdefault("level", level_w.copy())[level]
            case "feed-meter-half":
                level_w[level] *= 0.5
            case "feed-meter-spikes":
                level_w[level] *= 3.0 if self.rng.random() < 0.1 else 1.0
            case "stale-stamps":
                draw_at, level_at = draw_at - 30.0, level_at - 30.0
            case "caps-claimed":
                claimed = self.frozen.setdefault("ordered", cap_w.copy())
                cap_w[hit] = claimed[hit]
        return draw_w, draw_at, level_w, level_at, cap_w

    def _take(self, orders: Orders, now_s: float) -> None:
        room, fleet = self.room, self.room.fleet
        step_w = room.knob_step_w
        set_w = np.clip(np.round(orders.cap_w / step_w) * step_w, fleet.floor_w, fleet.max_w)
        bad = self._bad(now_s)
        if bad and self.fault == "caps-claimed" and "ordered" in self.frozen:
            self.frozen["ordered"] = np.where(np.isfinite(set_w), set_w, self.frozen["ordered"])
        for device in range(fleet.size):
            deaf = bad and self.hit[device] and self.fault in ("caps-ignored", "caps-claimed")
            if deaf or self.off[device] or not math.isfinite(set_w[device]):
                continue
            if bad and self.fault == "orders-lost" and self.rng.random() < 0.5:
                continue
            self.lapses_s[device] = now_s + orders.lease_s
            queue = self.waiting[device]
            newest = queue[-1][1] if queue else self.cap_w[device]
            newest = self.next_w[device] if math.isfinite(self.next_w[device]) else newest
            if set_w[device] == newest:
                continue
            takes = room.knob_s * math.exp(room.knob_sigma * self.rng.standard_normal())
            if bad and self.fault == "knobs-slow" and self.hit[device]:
                takes *= 5.0
            takes = min(takes, 20.0)
            if room.knob_queue:
                after = max(queue[-1][0] if queue else 0.0, now_s)
                if len(queue) < 2:
                    queue.append((max(now_s + takes, after), float(set_w[device])))
                else:
                    queue[-1] = (queue[-1][0], float(set_w[device]))
            elif queue:
                self.next_w[device] = set_w[device]
            else:
                queue.append((now_s + takes, float(set_w[device])))
        for device in np.flatnonzero(orders.switch_off & ~self.off):
            self.outlet.append((now_s + 3.0, int(device), True))
        for device in np.flatnonzero(orders.switch_on & self.off):
            self.outlet.append((now_s + 15.0, int(device), False))
        self.stop = (
            np.zeros(fleet.size, dtype=np.bool_) if orders.stop_job is None else orders.stop_job
        )

    def _step(self, step: int) -> None:
        room, fleet, now_s = self.room, self.room.fleet, step * DT_S
        for device, queue in enumerate(self.waiting):
            while queue and queue[0][0] <= now_s:
                self.cap_w[device] = queue.pop(0)[1]
                if not queue and math.isfinite(self.next_w[device]):
                    takes = room.knob_s * math.exp(room.knob_sigma * self.rng.standard_normal())
                    queue.append((now_s + min(takes, 20.0), float(self.next_w[device])))
                    self.next_w[device] = np.nan
        self.cap_w = np.where(now_s > self.lapses_s, fleet.floor_w, self.cap_w)
        if self._bad(now_s) and self.fault == "caps-forgotten" and not self.frozen.get("forgot"):
            self.frozen["forgot"] = np.ones(1)
            self.cap_w[self.hit] = fleet.max_w[self.hit]
            for device in np.flatnonzero(self.hit):
                self.waiting[device].clear()
                self.next_w[device] = np.nan
        if not self._bad(now_s) and self.fault == "caps-forgotten":
            self.frozen.pop("forgot", None)
        for at_s, device, gone in self.outlet:
            if at_s <= now_s:
                self.off[device] = gone
                if not gone:
                    self.cap_w[device] = fleet.max_w[device]
        self.outlet = [one for one in self.outlet if one[0] > now_s]
        mean = self.cap_w * room.regulates_at
        mean = np.maximum(mean, room.reach_w)
        burst_w = 0.62 * np.maximum(mean - self.mean_w, 0.0) * (room.window_s > 0)
        want_w = np.where(self.stop, room.idle_w, room.demand_w[step])
        may_w = np.where(self.off, 0.0, np.minimum(want_w, mean + burst_w))
        dark = fleet.any_above(now_s < self.tripped_s + 60.0)
        may_w = np.where(dark, 0.0, may_w)
        self.draw_w = self.draw_w + (1 - np.exp(-DT_S / room.lag_s)) * (may_w - self.draw_w)
        self.draw_w = np.where(self.off | dark, 0.0, self.draw_w)
        part = -np.expm1(-2 * DT_S / np.maximum(room.window_s, DT_S))
        part = np.where(room.window_s > 0, part, 1.0)
        self.mean_w += part * (self.draw_w - self.mean_w)
        own_w = fleet.own(self.draw_w * (1 + room.rest)) + room.other_w[step]
        level_w = fleet.tree.sums(own_w)
        self.energy_j[step + 1] = self.energy_j[step] + self.draw_w * DT_S
        self.level_j[step + 1] = self.level_j[step] + level_w * DT_S
        carried, constant = room.trips_at
        rated_w = fleet.breaker.rated_w  # 0 where nothing hangs on a feed
        loaded = np.divide(
            level_w, rated_w, out=np.where(level_w > 0, 10.0, 0.0), where=rated_w > 0
        )
        self.heat = np.maximum(self.heat + (np.square(loaded) - carried**2) / constant * DT_S, 0.0)
        for level in np.flatnonzero(self.heat >= 1.0):
            self.trips.append(f"level {level} at {now_s:.1f} s with {100 * loaded[level]:.0f} %")
            self.tripped_s[level], self.heat[level] = now_s, 0.0

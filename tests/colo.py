"""A fourth plant, a cage in a colocation: instruments, knobs and neighbours on an ordinary day.

Written from the issue and from data sheets, before its author had read the loop; it shares no line
with the other three. Where those ask for physics, this one asks for instruments as they are found:

* Nodes with two supplies draw about half from each side; when one side trips the other carries all.
* PDU meters tell running means of a minute or decay with 20 s, whole half amperes at 230 V, stamps
  of clocks that are wrong and drift, the same reading twice or an older one after a newer one; a
  current transformer that was chosen too small ends at its full scale.
* DCGM's exporter renews its numbers every 30 s by default. Cap read-backs are cached for 10 s.
* GPUs without persistence mode lose their cap whenever nobody uses them (the driver is unloaded).
* Redfish services answer 429 to all orders but one in 8 s; caps round to 25 W and do not say so;
  some firmware reads a cap back at once and needs 10 s to get there.
* A node draws beside its GPUs a part of its own, 20 to 45 % here, that moves by job phases; fans
  take the cube of their speed, and a cage's cooler follows all of it.
* Breakers carry the early edge of UL 489's band, 30 s at twice the rating, keep their heat, and
  are warm when the loop comes. Limits are the rating itself.

Faults are things that go wrong for a third of the day, in which the site's limit is cut as well.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.safety import Breaker, Fleet, Orders, Readings, SafetyConfig, SafetyLoop
from wattherd.engine.safety.fill import fill

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
DT_S, STEPS = 0.25, 4
SECONDS = 400
RACKS, ROWS = 4, 2

DAYS = (
    "orderly",
    "two-sides",
    "minute-means",
    "decaying-means",
    "skewed-clocks",
    "reordered",
    "full-scale",
    "half-amperes",
    "exporter-30-s",
    "caps-cached",
    "no-persistence",
    "one-order-in-8-s",
    "steps-untold",
    "slow-to-obey",
    "parts-beside",
    "fans",
    "lossy-wires",
    "neighbour-steps",
    "hot-plug",
    "job-in-step",
    "inference",
    "jobs-come-and-go",
    "signal",
    "deep-cut",
    "parts-beside+fans+half-amperes",
    "parts-beside+decaying-means+inference",
    "two-sides+reordered+one-order-in-8-s",
    "neighbour-steps+slow-to-obey+skewed-clocks",
    "fans+lossy-wires+job-in-step+steps-untold",
    "parts-beside+hot-plug+caps-cached+jobs-come-and-go",
)
"""Words alone, and what meets in a real cage."""

FAULTS = (
    "meter-kilo",
    "meter-milli",
    "meter-zero",
    "meter-negative",
    "meter-garbage",
    "meter-stuck",
    "site-kilo",
    "site-garbage",
    "boards-garbage",
    "boards-zero",
    "caps-lost",
    "caps-lost-untold",
    "knobs-lie",
    "knobs-stuck",
    "orders-lost",
    "orders-20-s-late",
    "side-trips",
    "rack-outage",
    "rival",
    "clock-ahead",
    "clock-behind",
    "load-step",
)
"""Units that change with firmware, current transformers turned round, garbage, drivers that reload,
knobs that accept and ignore, a second owner of the caps, clocks that jump an hour."""

BENEATH = ("orderly", "parts-beside+fans", "inference+half-amperes")
"""The days on which each fault is tried."""


@dataclass(slots=True, kw_only=True)
class Cage:
    """One cage and what is to happen in it. Arrays over N nodes or L levels."""

    words: frozenset[str]
    faults: frozenset[str]
    seed: int
    fleet: Fleet
    limit_w: Floats
    """(seconds, L)."""
    cut_s: tuple[int, int]
    fault_s: tuple[int, int]
    demand_w: Floats
    """(steps, N) of the GPUs."""
    beside: Floats
    """(steps, N), watts of a node beside each of its GPUs'."""
    other_w: Floats
    """(steps, L), of each level itself."""
    surprises: tuple[int, ...]
    """Seconds at which something begins that nobody could have known."""
    plugged_s: Floats
    """(N,), when each node is there."""
    idle_w: float
    victims: Bools
    victim_rack: int
    settle_s: int

    @property
    def steps(self) -> int:
        """Of the plant."""
        return SECONDS * STEPS

    def __contains__(self, word: str) -> bool:
        """Whether that is a word or a fault of this day."""
        return word in self.words or word in self.faults


def a_cage(words: str = "orderly", faults: str = "", seed: int = 0) -> Cage:
    """The cage with these words and faults, each joined by +."""
    named = frozenset(words.split("+")) - {"orderly"}
    broken = frozenset(faults.split("+")) - {""}
    rng = np.random.default_rng([seed, 4])
    sizes = rng.integers(5, 8, RACKS)
    feed = np.repeat(np.arange(RACKS), sizes)
    n, levels = len(feed), RACKS + ROWS + 1
    above = np.array([RACKS, RACKS, RACKS + 1, RACKS + 1, levels - 1, levels - 1])
    max_w, floor_w, idle_w = np.full(n, 700.0), np.full(n, 200.0), 80.0
    steps = SECONDS * STEPS
    demand_w = _demand(rng, named, n, steps, max_w, idle_w)
    beside = np.zeros((steps, n))
    if "parts-beside" in named:
        walk = _walk(rng, n, steps, 25.0)
        beside = 0.325 + 0.125 * np.clip(walk, -1, 1)
    tree = Fleet(
        feed=feed, floor_w=floor_w, max_w=max_w, above=above,
        breaker=Breaker(rated_w=np.ones(levels)),
    )  # fmt: skip
    more = 1.0 + beside.mean()
    extra = 1.0 + 0.15 * ("fans" in named)
    most_w = tree.levels(0.95 * max_w * more) * extra
    least_w = tree.levels(floor_w * more) * extra
    other_w, surprises = _other(named, most_w, steps)
    share = rng.uniform(0.65, 0.8, levels)
    share[rng.random(levels) < 0.35] = 1.3
    share[-1] = 0.72
    limit = np.maximum(share * most_w, 1.3 * least_w)
    highest_w = tree.tree.sums(other_w.max(axis=0))
    limit_w = np.tile(limit + highest_w, (SECONDS, 1))
    cut_s, fault_s = (int(0.4 * SECONDS), int(0.6 * SECONDS)), (120, 250)
    kept = 0.6 if "deep-cut" in named else 0.8
    kept = max(kept, (1.12 * least_w[-1] + highest_w[-1]) / limit_w[0, -1])
    limit_w[cut_s[0] : cut_s[1], -1] *= kept
    surprises += (cut_s[0],)
    if "signal" in named:
        for at in range(30, SECONDS, 30):
            limit_w[at : at + 30, -1] *= rng.uniform(0.85, 1.0)
            surprises += (at,)
    plugged_s = np.zeros(n)
    if "hot-plug" in named:
        late = rng.permutation(n)[:4]
        plugged_s[late] = (70, 130, 200, 300)
        surprises += (70, 130, 200, 300)
    knob_s = 8.0 * ("one-order-in-8-s" in named) + 10.0 * ("slow-to-obey" in named)
    knob_s += 10.0 * ("caps-cached" in named)
    window_s = 35.0 * ("minute-means" in named) + 20.0 * ("decaying-means" in named)
    window_s += 4.0 * ("reordered" in named)
    victim_rack = int(rng.integers(RACKS))
    victims = np.zeros(n, dtype=np.bool_)
    victims[rng.permutation(n)[: math.ceil(0.15 * n)]] = True
    return Cage(
        words=named, faults=broken, seed=seed,
        fleet=Fleet(
            feed=feed, floor_w=floor_w, max_w=max_w, above=above, site_metered=True,
            breaker=Breaker(rated_w=limit_w[0]),
        ),
        limit_w=limit_w, cut_s=cut_s, fault_s=fault_s, demand_w=demand_w, beside=beside,
        other_w=other_w, surprises=surprises, plugged_s=plugged_s, idle_w=idle_w,
        victims=victims, victim_rack=victim_rack,
        settle_s=math.ceil(7 + 2 * knob_s + window_s),
    )  # fmt: skip


def _walk(rng: np.random.Generator, n: int, steps: int, hold_s: float) -> Floats:
    """(steps, n) walks about 0 of spread 1 that forget themselves in `hold_s`."""
    keep = math.exp(-DT_S / hold_s)
    found = np.empty((steps, n))
    at = rng.standard_normal(n)
    for step in range(steps):
        at = keep * at + math.sqrt(1 - keep**2) * rng.standard_normal(n)
        found[step] = at
    return found


def _demand(
    rng: np.random.Generator,
    words: frozenset[str],
    n: int,
    steps: int,
    max_w: Floats,
    idle_w: float,
) -> Floats:  # fmt: skip
    at_s = np.arange(steps) * DT_S
    found = max_w * rng.uniform(0.88, 1.0, n) * (1 + 0.01 * rng.standard_normal((steps, n)))
    if "inference" in words:
        found = found * np.clip(0.85 + 0.15 * _walk(rng, n, steps, 12.0), 0.3, 1.0)
    if "job-in-step" in words:
        # A gang of two thirds writes a checkpoint of 7 s every 80 s, all at once.
        found[np.ix_(at_s % 80 > 73, np.arange(n) % 3 > 0)] = 1.3 * idle_w
    if "jobs-come-and-go" in words:
        for node in range(n):
            at = rng.uniform(0, 120)
            while at < SECONDS:
                gone = rng.uniform(10, 40)
                found[(at_s >= at) & (at_s < at + gone), node] = idle_w
                at += gone + rng.uniform(60, 160)
    if "no-persistence" in words:
        for node in rng.permutation(n)[: n // 3]:
            at = rng.uniform(40, SECONDS - 40)
            found[(at_s >= at) & (at_s < at + 6), node] = idle_w
    return found


def _other(
    words: frozenset[str], most_w: Floats, steps: int
) -> tuple[Floats, tuple[int, ...]]:  # fmt: skip
    found = np.zeros((steps, len(most_w)))
    at_s = np.arange(steps) * DT_S
    surprises: tuple[int, ...] = ()
    if "neighbour-steps" in words:
        for begin, end in ((50, 110), (190, 330)):
            found[(at_s >= begin) & (at_s < end), -1] += 0.15 * most_w[-1]
            surprises += (begin,)
        found[at_s >= 90, RACKS] += 0.08 * most_w[RACKS]
        surprises += (90,)
    if words & {"full-scale", "lossy-wires"}:
        found[:, 1] += 0.06 * most_w[1]
    return found, surprises


@dataclass(slots=True)
class Day:
    """What came of it: means of seconds."""

    cage: Cage
    level_w: Floats
    could_w: Floats
    trips: list[str] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    dark: Bools = field(default_factory=lambda: np.zeros(SECONDS, dtype=np.bool_))

    def above(self) -> list[tuple[int, int, float]]:
        """(second, level, percent) above a limit once the response is over."""
        cage = self.cage
        excused = np.zeros(SECONDS, dtype=np.bool_)
        for begin in (0, *cage.surprises):
            excused[begin : begin + cage.settle_s] = True
        over = self.level_w / cage.limit_w - 1.0
        bad = (over > 1e-3) & ~excused[:, None]
        return [
            (int(s), int(f), round(100 * float(over[s, f]), 2))
            for s, f in zip(*np.nonzero(bad), strict=True)
        ]

    def usable_w(self) -> Floats:
        """What could be drawn of the site within all limits, second by second."""
        tree, most = self.cage.fleet.tree, self.could_w.copy()
        for level in range(tree.count - 1):
            most[:, tree.above[level]] -= self.could_w[:, level]
        for level in range(tree.count):
            most[:, level] = np.minimum(most[:, level], self.cage.limit_w[:, level])
            if level < tree.count - 1:
                most[:, tree.above[level]] += most[:, level]
        return np.asarray(most[:, -1])

    def used(self, begin: int = 0) -> float:
        """The share of it that was drawn, but a minute after the start, cuts' ends and plugs."""
        cage, counted = self.cage, np.ones(SECONDS, dtype=np.bool_)
        counted[: max(cage.settle_s + 20, begin)] = False
        if "signal" not in cage:
            for at in (cage.cut_s[1], *cage.surprises):
                counted[at : at + (60 if at != cage.cut_s[0] else 20)] = False
            if "neighbour-steps" in cage:
                for at in (110, 330):
                    counted[at : at + 60] = False
        usable = self.usable_w()
        return float(np.minimum(self.level_w[:, -1], usable)[counted].sum() / usable[counted].sum())

    def mended(self) -> float:
        """What is used again from a minute and a half after fault and cut."""
        return self.used(begin=max(self.cage.fault_s[1], self.cage.cut_s[1]) + 90)

    def told(self) -> str:
        """In one line."""
        bad = self.above()
        worst = max((pct for _, _, pct in bad), default=0.0)
        return (
            f"used {self.used():.3f}, mended {self.mended():.3f}, above in"
            f" {len({s for s, _, _ in bad})} s, at worst {worst} %, {bad[:8]}, trips {self.trips},"
            f" notes {dict(self.notes)}"
        )


@dataclass(slots=True)
class _Nodes:
    """Caps, knobs and draw of all nodes."""

    cage: Cage
    rng: np.random.Generator
    cap_w: Floats
    felt_w: Floats
    told_w: Floats
    lapse_s: Floats
    doing_w: Floats
    done_s: Floats
    next_w: Floats
    taken_s: Floats
    idle_s: Floats
    off_until_s: Floats
    gpu_w: Floats
    fan: Floats
    cooler: float = 0.0

    @classmethod
    def found(cls, cage: Cage) -> _Nodes:
        """As they were before anybody ordered anything."""
        n, max_w = cage.fleet.size, cage.fleet.max_w
        return cls(
            cage, np.random.default_rng([cage.seed, 9]), max_w.copy(), max_w.copy(), max_w.copy(),
            np.full(n, np.inf), np.full(n, np.nan), np.full(n, np.inf), np.full(n, np.nan),
            np.full(n, -1e9), np.zeros(n), cage.plugged_s.copy(),
            np.minimum(cage.demand_w[0], max_w), np.full(n, 0.4), 0.3,
        )  # fmt: skip

    def off(self, now: float) -> Bools:
        """Who has no power."""
        return now < self.off_until_s

    def darken(self, who: Bools, until: float) -> None:
        """No power until then, and no cap after it."""
        self.off_until_s[who] = np.maximum(self.off_until_s[who], until)
        self.lose(who)

    def lose(self, who: Bools, told: bool = True) -> None:
        """The cap is what the board is delivered with."""
        self.cap_w[who] = self.felt_w[who] = self.cage.fleet.max_w[who]
        self.doing_w[who] = self.next_w[who] = np.nan
        self.done_s[who] = self.lapse_s[who] = np.inf
        if told:
            self.told_w[who] = self.cage.fleet.max_w[who]

    def take(self, orders: Orders, now: float, broken: bool) -> None:
        """What a knob is told; it works at one order and keeps the newest of the others."""
        cage, fleet = self.cage, self.cage.fleet
        value = np.round(orders.cap_w)
        if "steps-untold" in cage:
            value = np.round(value / 25.0) * 25.0
        value = np.clip(value, fleet.floor_w, fleet.max_w)
        heard = np.isfinite(orders.cap_w) & ~self.off(now)
        if broken and "orders-lost" in cage:
            heard &= ~cage.victims
        # Who was lost its agent keeps its lease: the cap falls to the floor by itself.
        self.lapse_s[heard] = now + orders.lease_s
        newest = np.where(np.isfinite(self.next_w), self.next_w, self.doing_w)
        newest = np.where(np.isfinite(newest), newest, self.cap_w)
        fresh = heard & (value != newest)
        if "one-order-in-8-s" in cage:
            fresh &= now - self.taken_s >= 8.0
        self.taken_s[fresh] = now
        idle = np.isnan(self.doing_w)
        begin = fresh & idle
        self.doing_w[begin] = value[begin]
        self.done_s[begin] = now + self._takes_s(broken)[begin]
        later = fresh & ~idle
        self.next_w[later] = value[later]
        dark = orders.switch_off & ~self.off(now)
        if dark.any():
            self.darken(dark, 1e9)
        lit = orders.switch_on & (self.off_until_s >= 1e9)
        self.off_until_s[lit] = now + 10.0

    def _takes_s(self, broken: bool) -> Floats:
        n = self.cage.fleet.size
        found = 0.4 * np.exp(0.4 * self.rng.standard_normal(n))
        if broken and "orders-20-s-late" in self.cage:
            found[self.cage.victims] += 20.0
        return found

    def step(self, step: int, now: float, broken: bool) -> Floats:
        """A quarter of a second: watts of each node at its outlets."""
        cage, fleet = self.cage, self.cage.fleet
        done = self.done_s <= now
        deaf = np.zeros(fleet.size, dtype=np.bool_)
        if broken and cage.faults & {"knobs-lie", "knobs-stuck"}:
            deaf = cage.victims
        changed = done & ~deaf
        self.cap_w[changed] = self.doing_w[changed]
        if "knobs-lie" in cage:
            self.told_w[done & deaf] = self.doing_w[done & deaf]
        self.doing_w[done] = self.next_w[done]
        self.next_w[done] = np.nan
        self.done_s[done] = np.where(np.isnan(self.doing_w), np.inf, now + 0.4)[done]
        lapsed = (now > self.lapse_s) & ~deaf
        self.cap_w[lapsed] = fleet.floor_w[lapsed]
        off = self.off(now)
        want = np.where(off, 0.0, cage.demand_w[step])
        self.idle_s = np.where(want < 1.2 * cage.idle_w, self.idle_s + DT_S, 0.0)
        if "no-persistence" in cage:
            self.lose(self.idle_s > 2.0)
        tau = 3.5 if "slow-to-obey" in cage else 0.15
        falls = self.felt_w > self.cap_w
        self.felt_w += (self.cap_w - self.felt_w) * (1 - np.exp(-DT_S / np.where(falls, tau, 0.3)))
        aim = np.where(off, 0.0, np.minimum(want, self.felt_w))
        self.gpu_w = np.where(off, 0.0, self.gpu_w + 0.8 * (aim - self.gpu_w))
        node = self.gpu_w * (1 + cage.beside[step])
        if "fans" in cage:
            speed = np.clip(0.3 + 0.7 * (self.gpu_w / fleet.max_w - 0.2) / 0.75, 0.3, 1.0)
            self.fan += (speed - self.fan) * DT_S / 20.0
            node = node + np.where(off, 0.0, 0.10 * fleet.max_w * self.fan**3)
        return node


def spend(cage: Cage, loop: SafetyLoop) -> Day:
    """The day under that loop."""
    free = _Nodes.found(cage)
    could = np.array([_levels(cage, free, step, free.step(step, step * DT_S, False))
                      for step in range(cage.steps)])  # fmt: skip
    nodes, meters = _Nodes.found(cage), _Meters.found(cage)
    fleet = cage.fleet
    truth = np.empty_like(could)
    day = Day(cage, truth, could.reshape(SECONDS, STEPS, -1).mean(axis=1))
    heat, rated = np.full(fleet.feeds + 1, 0.6), fleet.breaker.rated_w
    last = np.zeros(fleet.size)
    for step in range(cage.steps):
        now = step * DT_S
        broken = cage.fault_s[0] <= now < cage.fault_s[1] and bool(cage.faults)
        if step % STEPS == 0:
            if broken:
                _break(cage, nodes, int(now))
            readings = meters.read(now, nodes, last, broken)
            orders = loop.cycle(readings, cage.limit_w[step // STEPS])
            day.notes.update(note.kind for note in loop.notes())
            nodes.take(orders, now, broken)
        node = nodes.step(step, now, broken)
        level = _levels(cage, nodes, step, node)
        if broken and "load-step" in cage:
            level = level + fleet.tree.sums(
                np.eye(fleet.feeds + 1)[cage.victim_rack] * 0.25 * rated[cage.victim_rack]
            )
        meters.see(level, nodes, node, broken)
        last = nodes.gpu_w if "parts-beside" in cage else node
        truth[step] = level
        # A node of two supplies loads this side with its share only, until the other trips.
        carried = level.copy()
        carried[:RACKS] = meters.carried_w[:RACKS]
        heat = np.maximum(heat + (np.square(carried / rated) - 1) / 90.0 * DT_S, 0.0)
        for tripped in np.flatnonzero(heat >= 1.0):
            day.trips.append(f"level {tripped} at {now:.0f} s")
            heat[tripped] = 0.6
            nodes.darken(fleet.below(int(tripped)), now + 60.0)
    day.level_w = truth.reshape(SECONDS, STEPS, -1).mean(axis=1)
    return day


def _levels(cage: Cage, nodes: _Nodes, step: int, node_w: Floats) -> Floats:
    own = cage.fleet.own(node_w) + cage.other_w[step]
    if "fans" in cage:
        target = 0.05 * float((node_w.sum() / cage.fleet.max_w.sum()) ** 3) * cage.fleet.max_w.sum()
        nodes.cooler += (target - nodes.cooler) * DT_S / 30.0
        own[-1] += nodes.cooler
    if "lossy-wires" not in cage:
        return cage.fleet.tree.sums(own)
    total = own.copy()
    for level, upper in enumerate(cage.fleet.tree.above):
        lost = 0.015 + 0.02 * total[level] / cage.fleet.breaker.rated_w[level]
        total[upper] += total[level] * (1 + lost)
    return np.asarray(total)


def _break(cage: Cage, nodes: _Nodes, now: int) -> None:
    since = now - cage.fault_s[0]
    rack = cage.fleet.feed == cage.victim_rack
    if "caps-lost" in cage and since % 40 == 0:
        nodes.lose(rack)
    if "caps-lost-untold" in cage and since == 0:
        nodes.lose(rack, told=False)
    if "rival" in cage and since % 20 == 0:
        nodes.lose(rack)
    if "rack-outage" in cage and since == 0:
        nodes.darken(rack, now + 30.0)


@dataclass(slots=True)
class _Meters:
    """All instruments and what they remember."""

    cage: Cage
    rng: np.random.Generator
    past_w: list[Floats]
    decaying_w: Floats
    carried_w: Floats
    side: Floats
    skew_s: Floats
    told: list[tuple[float, Floats]]
    cached: tuple[float, Floats]
    exported: tuple[float, Floats]
    stuck_w: float = float("nan")

    @classmethod
    def found(cls, cage: Cage) -> _Meters:
        """Nothing seen yet."""
        rng, levels = np.random.default_rng([cage.seed, 21]), cage.fleet.feeds + 1
        side = np.ones(levels)
        if cage.words & {"two-sides"} or "side-trips" in cage.faults:
            side[cage.victim_rack] = 0.5
        skew = rng.uniform(-25, 25, levels) if "skewed-clocks" in cage else np.zeros(levels)
        nothing = np.full(cage.fleet.size, np.nan)
        return cls(
            cage, rng, [], np.full(levels, np.nan), np.zeros(levels), side, skew, [],
            (-1e9, nothing), (-1e9, nothing),
        )  # fmt: skip

    def see(self, level: Floats, nodes: _Nodes, node: Floats, broken: bool) -> None:
        """A quarter of a second goes by."""
        del nodes, node
        tripped = broken and "side-trips" in self.cage
        self.carried_w = level * (1.0 if tripped else self.side)
        self.past_w.append(self.carried_w)
        first = np.isnan(self.decaying_w)
        self.decaying_w = np.where(
            first, self.carried_w,
            self.decaying_w + (self.carried_w - self.decaying_w) * (1 - math.exp(-DT_S / 20.0)),
        )  # fmt: skip

    def read(self, now: float, nodes: _Nodes, board_w: Floats, broken: bool) -> Readings:
        """What all of them answer."""
        cage, fleet = self.cage, self.cage.fleet
        off = nodes.off(now)
        level, stamp = self._levels(now)
        board = board_w * (1 + 0.002 * self.rng.standard_normal(fleet.size))
        board_at = np.full(fleet.size, now)
        if broken:
            level, stamp, board = self._broken(level, stamp, board)
        if "exporter-30-s" in cage:
            if now - self.exported[0] >= 30.0:
                self.exported = (now, board)
            board, board_at = self.exported[1], np.full(fleet.size, self.exported[0])
        silent = off | (not self.past_w)
        return Readings(
            now_s=now, draw_w=np.where(silent, np.nan, board),
            draw_at_s=np.where(silent, np.nan, board_at),
            cap_w=np.where(off, np.nan, self._caps(now, nodes, broken)),
            feed_w=level[:-1], feed_at_s=stamp[:-1], off=off,
            site_w=float(level[-1]), site_at_s=float(stamp[-1]),
        )  # fmt: skip

    def _caps(self, now: float, nodes: _Nodes, broken: bool) -> Floats:
        cage = self.cage
        lies = np.zeros(cage.fleet.size, dtype=np.bool_)
        if broken and "knobs-lie" in cage:
            lies = cage.victims.copy()
        if broken and "caps-lost-untold" in cage:
            lies |= (cage.fleet.feed == cage.victim_rack) & (nodes.cap_w >= cage.fleet.max_w)
        nodes.told_w = np.where(lies, nodes.told_w, nodes.cap_w)
        if "caps-cached" in cage:
            if now - self.cached[0] >= 10.0:
                self.cached = (now, nodes.told_w.copy())
            return self.cached[1]
        return nodes.told_w.copy()

    def _levels(self, now: float) -> tuple[Floats, Floats]:
        cage, levels = self.cage, self.cage.fleet.feeds + 1
        if not self.past_w:
            return np.full(levels, np.nan), np.full(levels, np.nan)
        at, rng = now, self.rng
        if "minute-means" in cage:
            at = math.floor(now / 10.0) * 10.0
            end = max(int(at / DT_S), 1)
            value = np.mean(self.past_w[max(end - int(60 / DT_S), 0) : end], axis=0)
        elif "decaying-means" in cage:
            value = self.decaying_w.copy()
        else:
            value = np.mean(self.past_w[-STEPS:], axis=0)
        value = value * (1 + 5e-4 * rng.standard_normal(levels))
        if "minute-means" in cage and self.told and self.told[-1][0] == at:
            value = self.told[-1][1]
        if "half-amperes" in cage:
            value = np.round(value / 115.0) * 115.0
        if "full-scale" in cage:
            value[1] = min(value[1], 0.98 * cage.fleet.breaker.rated_w[1])
        self.told.append((at, value))
        stamp = np.full(levels, at) + self.skew_s * (1 + 2e-4 * now)
        if "reordered" in cage and len(self.told) > 5:
            chance = rng.random(levels)
            back = np.where(chance < 0.15, 1, np.where(chance < 0.30, rng.integers(2, 5), 0))
            for level in np.flatnonzero(back):
                was_s, was_w = self.told[-1 - int(back[level])]
                value = value.copy()
                value[level], stamp[level] = was_w[level], was_s
        return np.round(value), stamp

    def _broken(self, level: Floats, stamp: Floats, board: Floats) -> tuple[Floats, Floats, Floats]:
        cage, rng, one = self.cage, self.rng, self.cage.victim_rack
        level, stamp, board = level.copy(), stamp.copy(), board.copy()
        times = {"meter-kilo": 1e-3, "meter-milli": 1e3, "meter-zero": 0.0, "meter-negative": -1.0}
        for word, factor in times.items():
            if word in cage:
                level[one] *= factor
        if "meter-garbage" in cage:
            level[one] = rng.choice([np.nan, -1.0, 0.0, 65535.0, 1e9, level[one]])
        if "meter-stuck" in cage:
            self.stuck_w = level[one] if math.isnan(self.stuck_w) else self.stuck_w
            level[one] = self.stuck_w
        if "site-kilo" in cage:
            level[-1] *= 1e-3
        if "site-garbage" in cage:
            level[-1] = rng.choice([np.nan, -1.0, 0.0, 65535.0, 1e9, level[-1]])
        if "boards-garbage" in cage:
            odd = rng.choice([np.nan, -1.0, 0.0, 65535.0, 1.0], len(board))
            board = np.where(cage.victims & (rng.random(len(board)) < 0.7), odd, board)
        if "boards-zero" in cage:
            board = np.where(cage.victims, 0.0, board)
        if "clock-ahead" in cage:
            stamp[one] += 3600.0
        if "clock-behind" in cage:
            stamp[one] -= 3600.0
        return level, stamp, board


def a_day(words: str, faults: str = "", seed: int = 0) -> Day:
    """Of that cage under the loop as it ships."""
    cage = a_cage(words, faults, seed)
    return spend(cage, SafetyLoop(cage.fleet, SafetyConfig(wake_found=False)))


def bound(words: str, seed: int = 0) -> float:
    """The share used by caps that fit at their worst, made of what every node drew a second ago.

    They act at once and are shared max-min fair, which leaves no watt that a node was seen to want;
    what nodes will want next is all that is not known. Only of days whose nodes draw nothing beside
    their GPUs.
    """
    cage = a_cage(words, "", seed)
    fleet, steps = cage.fleet, cage.steps
    demand_w = np.minimum(cage.demand_w, fleet.max_w)
    demand_w = np.where(np.arange(steps)[:, None] * DT_S < cage.plugged_s, 0.0, demand_w)
    second_w = demand_w.reshape(SECONDS, STEPS, -1)
    level_w, could_w = (np.zeros((SECONDS, fleet.feeds + 1)) for _ in range(2))
    for second in range(SECONDS):
        beside_w = fleet.tree.sums(cage.other_w[second * STEPS])
        budget_w = cage.limit_w[second] - beside_w
        seen_w = np.maximum(second_w[max(second - 1, 0)].mean(axis=0), fleet.floor_w)
        cap_w = fill(fleet, budget_w, fleet.floor_w, seen_w)
        cap_w = fill(fleet, budget_w, cap_w, fleet.max_w)
        drawn_w = np.minimum(second_w[second], cap_w).mean(axis=0)
        level_w[second] = fleet.levels(drawn_w) + beside_w
        could_w[second] = fleet.levels(second_w[second].mean(axis=0)) + beside_w
    return Day(cage, level_w, could_w).used()


def as_row(name: str, day: Day) -> str:
    """Of the page's tables, but for whether that is held."""
    bad = day.above()
    worst = max((pct for _, _, pct in bad), default=0.0)
    seconds = len({second for second, _, _ in bad})
    used = day.mended() if day.cage.faults else day.used()
    return f"| `{name}` | {seconds} | {worst:.1f} | {len(day.trips)} | {100 * used:.1f} |"


def main(asked: list[str]) -> None:
    """Print the rows of all days, or of `faults`, `pairs`, `bound`, or the days named."""
    if asked[:1] == ["faults"]:
        for fault in asked[1:] or FAULTS:
            for words in BENEATH:
                print(as_row(f"{words}` | `{fault}", a_day(words, fault)), flush=True)
    elif asked[:1] == ["bound"]:
        for words in asked[1:]:
            print(f"| `{words}` | {100 * bound(words):.1f} |", flush=True)
    elif asked[:1] == ["pairs"]:
        for one, two in itertools.combinations(FAULTS, 2):
            day = a_day("parts-beside+fans", f"{one}+{two}")
            print(as_row(f"{one}` | `{two}", day), *day.trips, flush=True)
    else:
        for words in asked or DAYS:
            print(as_row(words, a_day(words)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

"""A third plant, of wires, power supplies, fans and boards, that shares no line with the other two.

`tests/unseen_room.py` draws rooms of caps and meters. Here the watts between a board and its feed
have physics of their own, and meters are those of racks as they are bought. Where numbers are from:

* Power supplies: 80 PLUS Titanium at 230 V is 94 % efficient at 20 % load, 96 % at 50 %, 91 % at
  full load: loss = a + b P + c P^2 with three constants that meet these points.
* Fans take the cube of their speed (fan law), here up to 12 % of the boards at full speed; speed
  follows temperature, which follows power, over minutes together.
* A100 and H100 throttle near 90 C and go on a few degrees below.
* PDU meters: 1 Hz instant, IPMI DCMI's mean over 10 or 30 s, billing meters that tell the mean of
  the minute that is over.
* Boards come back from a reset with their default limit, which is their highest (NVML).
* A board that was idle boosts past its limit for some 200 ms before the limit bites.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.safety import (
    Breaker,
    Fleet,
    Orders,
    Readings,
    SafetyConfig,
    SafetyLoop,
    SafetyNote,
)

Floats = NDArray[np.float64]
DT_S, STEPS = 0.2, 5

WORDS = (
    "supplies",
    "fans",
    "means-of-10-s",
    "means-of-30-s",
    "last-minute",
    "unbalanced",
    "phases-unread",
    "hot",
    "boosts",
    "caps-take-8-s",
    "resets",
    "half-counted",
    "pauses",
    "neighbours",
    "walls-read",
)
"""What a hall may have: losses that bend, fans, meters of means, three phases of unequal load with
or without meters of their own, boards that throttle, boost, are slow or reset, a PDU that counts
half of its outlets, jobs that pause for checkpoints, neighbours' load that rises by and by, and
boards whose meter reads their supply's input."""

HALLS = (
    "supplies",
    "fans",
    "means-of-10-s",
    "means-of-30-s",
    "last-minute",
    "phases-unread",
    "hot",
    "caps-take-8-s",
    "resets",
    "supplies+fans",
    "supplies+fans+means-of-10-s",
    "supplies+fans+means-of-30-s",
    "means-of-30-s+neighbours",
    "caps-take-8-s+means-of-10-s",
    "supplies+fans+hot+unbalanced+phases-unread",
    "supplies+fans+resets+walls-read",
    "half-counted+supplies+fans",
)
"""Words alone, and what stands together in a real hall."""

_LOSS = np.linalg.solve(
    [[1.0, 0.2, 0.04], [1.0, 0.5, 0.25], [1.0, 1.0, 1.0]],
    [0.2 * (1 / 0.94 - 1), 0.5 * (1 / 0.96 - 1), 1 / 0.91 - 1],
)


@dataclass(slots=True, kw_only=True)
class Hall:
    """One hall and all that happens in it beside the orders."""

    seed: int
    words: frozenset[str]
    seconds: int
    fleet: Fleet
    limit_w: Floats
    cut_s: tuple[int, int]
    demand_w: Floats
    """(steps, N), of boards."""
    other_w: Floats
    """(steps, F + 1), of each level itself."""
    idle_w: Floats
    knob_s: Floats
    kelvin_per_w: Floats
    reset_s: tuple[tuple[int, int], ...]
    """(second, board)."""
    meter_s: tuple[float, float]
    """How often feeds' meters have news, and the mean of how long it is."""
    counted: Floats
    """What share of its boards (N,) a rack's meter counts."""
    settle_s: int
    supplies: bool = False
    fans: bool = False

    @classmethod
    def drawn(cls, seed: int, words: Sequence[str], *, seconds: int = 600) -> Hall:
        """The hall of that seed."""
        return _drawn(seed, frozenset(words), seconds)


@dataclass(slots=True)
class Day:
    """What came of it: means of seconds."""

    hall: Hall
    level_w: Floats
    board_w: Floats
    cap_w: Floats
    boost_w: Floats
    could_w: Floats
    """What boards and all beside them would draw (seconds, F + 1) without caps."""
    trips: list[str] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)

    def excused(self) -> NDArray[np.bool_]:
        """The seconds of the stated response, to what nobody could have known."""
        hall = self.hall
        found = np.zeros(hall.seconds, dtype=np.bool_)
        for begin in (0, hall.cut_s[0], *(at for at, _ in hall.reset_s)):
            found[begin : begin + hall.settle_s] = True
        for at, _ in hall.reset_s:
            found[at + RESET_S : at + RESET_S + hall.settle_s] = True
        return found

    def above(self) -> list[tuple[int, int, float]]:
        """(second, level, percent) above a limit, beyond what boosts alone make of it."""
        over = (self.level_w - self.boost_w) / self.hall.limit_w - 1.0
        bad = (over > 1e-3) & ~self.excused()[:, None]
        return [
            (int(s), int(f), round(100 * over[s, f], 2))
            for s, f in zip(*np.nonzero(bad), strict=True)
        ]

    def usable_w(self) -> Floats:
        """What could be drawn of the site within all limits, second by second."""
        hall, tree = self.hall, self.hall.fleet.tree
        own = self.could_w.copy()
        for level in range(tree.count - 1):
            own[:, tree.above[level]] -= self.could_w[:, level]
        most = own
        for level in range(tree.count):
            most[:, level] = np.minimum(most[:, level], hall.limit_w[:, level])
            if level < tree.count - 1:
                most[:, tree.above[level]] += most[:, level]
        return np.asarray(most[:, -1])

    def used(self) -> float:
        """The share of it that was drawn, but the start and a minute after the cut."""
        counted = np.ones(self.hall.seconds, dtype=np.bool_)
        counted[: self.hall.settle_s + 20] = False
        counted[self.hall.cut_s[1] : self.hall.cut_s[1] + 60] = False
        for at, _ in self.hall.reset_s:
            counted[at : at + RESET_S + 30] = False
        usable = self.usable_w()
        return float(np.minimum(self.level_w[:, -1], usable)[counted].sum() / usable[counted].sum())

    def told(self) -> str:
        """In one line."""
        bad = self.above()
        worst = max((pct for _, _, pct in bad), default=0.0)
        return (
            f"seed {self.hall.seed} {', '.join(sorted(self.hall.words)) or 'orderly'}: used"
            f" {self.used():.3f}, above in {len({s for s, _, _ in bad})} s, at worst {worst} %,"
            f" {bad[:6]}, trips {self.trips}, notes {self.notes}"
        )


RESET_S = 20
WARM_S = 150


def _drawn(seed: int, words: frozenset[str], seconds: int) -> Hall:
    rng = np.random.default_rng([seed, 15])
    phases = 3
    sizes = rng.integers(2, 5, 6)
    on = np.array([0, 0, 0, 1, 1, 2]) if "unbalanced" in words else np.array([0, 0, 1, 1, 2, 2])
    racks = len(sizes)
    above = np.array([*(racks + on), *[racks + phases] * phases])
    feed = np.repeat(np.arange(racks), sizes)
    n, levels = len(feed), racks + phases + 1
    model = rng.integers(0, 2, racks)[feed]
    max_w = np.array([400.0, 700.0])[model]
    floor_w = np.array([100.0, 200.0])[model]
    idle_w = np.array([55.0, 75.0])[model]
    busy_w = max_w * rng.uniform(0.85, 1.0, n)
    demand_w = _demand(rng, words, seconds, busy_w, idle_w)
    plain = Fleet(
        feed=feed, floor_w=floor_w, max_w=max_w, above=above,
        breaker=Breaker(rated_w=np.ones(levels)),
    )  # fmt: skip
    beside = 1.0 + 0.10 * ("supplies" in words) + 0.12 * ("fans" in words)
    most_w, least_w = plain.levels(busy_w * beside), plain.levels(floor_w * beside)
    other_w = np.zeros((seconds * STEPS, levels))
    if "neighbours" in words:
        at_s = np.arange(seconds * STEPS) * DT_S
        for level in (int(rng.integers(racks)), levels - 1):
            begin, long = rng.uniform(100, 300), rng.uniform(100, 250)
            rise = np.clip((at_s - begin) / long, 0, 1)
            other_w[:, level] += most_w[level] * (0.08 + 0.10 * rise)
    other_most_w = plain.tree.sums(other_w.max(axis=0))
    limits, cut_s = _limits(rng, seconds, most_w, least_w, other_most_w)
    knob_s = np.full(n, 0.4)
    if "caps-take-8-s" in words:
        knob_s[rng.random(racks)[feed] < 0.5] = 8.0
    meter_s = next((METERS[one] for one in METERS if one in words), (1.0, 1.0))
    counted = np.ones(n)
    if "half-counted" in words:
        mine = np.flatnonzero(feed == int(rng.integers(racks)))
        counted[mine[len(mine) // 2 :]] = 0.0
    metered = np.ones(racks + phases, dtype=np.bool_)
    metered[racks:] = "phases-unread" not in words
    resets: tuple[tuple[int, int], ...] = ()
    if "resets" in words:
        at = rng.uniform(60, seconds - 120, 2)
        resets = tuple((int(one), int(rng.integers(n))) for one in at)
    warm = (0.9, 1.25) if "hot" in words else (0.6, 0.85)
    return Hall(
        seed=seed, words=words, seconds=seconds,
        fleet=Fleet(
            feed=feed, floor_w=floor_w, max_w=max_w, above=above,
            breaker=Breaker(rated_w=limits[0] / 0.95), metered=metered, site_metered=True,
        ),
        limit_w=limits, cut_s=cut_s, demand_w=demand_w, other_w=other_w, idle_w=idle_w,
        knob_s=knob_s, kelvin_per_w=rng.uniform(*warm, n) * 65 / max_w, reset_s=resets,
        meter_s=meter_s, counted=counted,
        settle_s=math.ceil(6 + 2 * knob_s.max() + 2 * sum(meter_s)),
        supplies="supplies" in words, fans="fans" in words,
    )  # fmt: skip


METERS = {
    "means-of-10-s": (1.0, 10.0),
    "means-of-30-s": (5.0, 30.0),
    "last-minute": (60.0, 60.0),
}


def _demand(
    rng: np.random.Generator, words: frozenset[str], seconds: int, busy_w: Floats, idle_w: Floats
) -> Floats:
    n, steps = len(busy_w), seconds * STEPS
    at_s = np.arange(steps) * DT_S
    noise = 0.015 * rng.standard_normal((steps // 3 + 1, n)).repeat(3, 0)[:steps]
    found = busy_w * (1 + noise)
    if "pauses" in words:
        for board in range(n):
            at = rng.uniform(30, 120)
            while at < seconds:
                long = rng.uniform(4, 25)
                found[(at_s >= at) & (at_s < at + long), board] = 1.2 * idle_w[board]
                at += long + rng.uniform(60, 200)
    if "boosts" in words:
        for board in rng.permutation(n)[: n // 2]:
            period = rng.uniform(15, 40)
            gone = (at_s + rng.uniform(0, period)) % period < 3.0
            found[gone, board] = idle_w[board]
    return found


def _limits(
    rng: np.random.Generator, seconds: int, most_w: Floats, least_w: Floats, other_w: Floats
) -> tuple[Floats, tuple[int, int]]:
    """Limits (seconds, F + 1), and when the site's is cut."""
    levels = len(most_w)
    share = rng.uniform(0.55, 0.85, levels)
    limit_w = np.maximum(share * most_w, 1.25 * least_w) + other_w
    loose = rng.random(levels) < 0.4
    limit_w[loose] = 1.3 * (most_w + other_w)[loose]
    limit_w[-1] = max(0.75 * most_w[-1], 1.25 * least_w[-1]) + other_w[-1]
    found = np.tile(limit_w, (seconds, 1))
    cut_s = (seconds * 2 // 5, seconds * 3 // 5)
    least = 1.1 * (least_w[-1] + other_w[-1]) / limit_w[-1]
    found[cut_s[0] : cut_s[1], -1] *= max(0.8, least)
    return found, cut_s


@dataclass(slots=True)
class _Boards:
    """Boards, their temperature, fans and supplies."""

    hall: Hall
    celsius: Floats
    fan: Floats
    throttled: NDArray[np.bool_]
    was_idle_s: Floats
    boost_s: Floats
    power_w: Floats

    @classmethod
    def cold(cls, hall: Hall) -> _Boards:
        n = hall.fleet.size
        return cls(
            hall, np.full(n, 45.0), np.full(n, 0.3), np.zeros(n, dtype=np.bool_), np.zeros(n),
            np.zeros(n), hall.idle_w.copy(),
        )  # fmt: skip

    def step(self, step: int, cap_w: Floats, off: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """One step: (watts at the wall, those of them that are boost) of each board."""
        hall = self.hall
        hot = hall.kelvin_per_w * self.power_w + 25.0
        self.celsius += (hot - self.celsius) * DT_S / 45.0
        self.throttled = np.where(self.throttled, self.celsius > 83.0, self.celsius > 88.0)
        want = hall.demand_w[step] * np.where(self.throttled, 0.65, 1.0)
        idle = want < 1.5 * hall.idle_w
        if "boosts" in hall.words:
            woke = ~idle & (self.was_idle_s > 2.0)
            self.boost_s = np.where(woke, 0.2, np.maximum(self.boost_s - DT_S, 0.0))
        self.was_idle_s = np.where(idle, self.was_idle_s + DT_S, 0.0)
        steady = np.where(off, 0.0, np.minimum(want, cap_w))
        boosted = np.where((self.boost_s > 0) & ~off, want, steady)
        self.power_w = np.where(off, 0.0, self.power_w + 0.7 * (boosted - self.power_w))
        boost = np.maximum(self.power_w - np.maximum(cap_w, hall.idle_w), 0.0) * (self.boost_s > 0)
        # A third of the speed at 50 C, all of it at 85 C, and slow to get there.
        speed = np.clip(0.3 + 0.7 * (self.celsius - 50.0) / 35.0, 0.3, 1.0)
        self.fan += (speed - self.fan) * DT_S / 60.0
        node = self.power_w.copy()
        if hall.fans:
            node = node + 0.12 * hall.fleet.max_w * self.fan**3
        return self._wall(node), boost * 1.15

    def _wall(self, node_w: Floats) -> Floats:
        if not self.hall.supplies:
            return node_w
        full = self.hall.fleet.max_w * 1.15
        load = node_w / full
        return np.where(node_w > 0, node_w + full * (_LOSS[0] + _LOSS[1] * load
                                                     + _LOSS[2] * load**2), 0.0)  # fmt: skip


def spend(hall: Hall, make: Callable[[Hall], object]) -> Day:
    """The day under a controller with `cycle` and perhaps `notes`."""
    fleet, n, levels = hall.fleet, hall.fleet.size, hall.fleet.feeds + 1
    steps = hall.seconds * STEPS
    free = _Boards.cold(hall)
    none = np.zeros(n, dtype=np.bool_)
    could = np.empty((steps, levels))
    for step in range(steps):
        wall, _ = free.step(step, np.full(n, np.inf), none)
        could[step] = fleet.tree.sums(fleet.own(wall) + hall.other_w[step])
    boards = _Boards.cold(hall)
    loop: object = make(hall)
    cap, lapse = fleet.max_w.copy(), np.full(n, np.inf)
    coming: list[list[tuple[float, float]]] = [[] for _ in range(n)]
    level_j = np.zeros((steps + 1, levels))
    # What meters know of the hours before: boards at work without limits.
    warm = WARM_S * STEPS
    board_j, seen_j = np.zeros((warm + steps + 1, n)), np.zeros((warm + steps + 1, levels))
    boost_j = np.zeros((steps + 1, levels))
    caps = np.empty((hall.seconds, n))
    rng = np.random.default_rng([hall.seed, 3])
    phase_s = rng.uniform(0, hall.meter_s[0], levels)
    day = Day(hall, np.empty(0), np.empty(0), caps, np.empty(0), np.empty(0))
    heat = np.zeros(levels)
    resets = {board: at for at, board in hall.reset_s}
    for step in range(-warm, steps):
        now = step * DT_S
        off = np.array([resets.get(b, -1e9) <= now < resets.get(b, -1e9) + RESET_S
                        for b in range(n)])  # fmt: skip
        for board in np.flatnonzero(off):
            cap[board], lapse[board] = fleet.max_w[board], np.inf
            coming[board].clear()
        if step >= 0 and step % STEPS == 0:
            readings = _read(hall, warm + step, board_j, seen_j, cap, off, phase_s, rng)
            orders: Orders = loop.cycle(readings, hall.limit_w[step // STEPS])  # type: ignore[attr-defined]
            for note in getattr(loop, "notes", lambda: ())():
                kind = note.kind if isinstance(note, SafetyNote) else str(note)
                day.notes[kind] = day.notes.get(kind, 0) + 1
            for board in np.flatnonzero(~off & np.isfinite(orders.cap_w)):
                value = float(np.clip(np.round(orders.cap_w[board]), fleet.floor_w[board],
                                      fleet.max_w[board]))  # fmt: skip
                lapse[board] = now + orders.lease_s
                newest = coming[board][-1][1] if coming[board] else cap[board]
                if value != newest:
                    # A knob works at one order and keeps the newest of the others.
                    del coming[board][1:]
                    after = coming[board][0][0] if coming[board] else now
                    coming[board].append((after + hall.knob_s[board], value))
            caps[step // STEPS] = cap
        for board in range(n):
            while coming[board] and coming[board][0][0] <= now:
                cap[board] = coming[board].pop(0)[1]
        cap = np.where(now > lapse, fleet.floor_w, cap)
        wall, boost = boards.step(max(step, 0), cap, off)
        other = hall.other_w[max(step, 0)]
        level = fleet.tree.sums(fleet.own(wall) + other)
        seen = fleet.tree.sums(fleet.own(wall * hall.counted) + other)
        # Only the rack's own meter counts half; those above it have clamps of their own.
        racks = fleet.feeds - 3
        seen[racks:] = level[racks:]
        shown = wall if "walls-read" in hall.words else boards.power_w
        row = warm + step
        board_j[row + 1] = board_j[row] + shown * DT_S
        seen_j[row + 1] = seen_j[row] + seen * DT_S
        if step < 0:
            continue
        level_j[step + 1] = level_j[step] + level * DT_S
        boost_j[step + 1] = boost_j[step] + fleet.levels(boost) * DT_S
        # UL 489's early edge: the rating for ever, twice of it for two minutes.
        heat = np.maximum(heat + (np.square(level / fleet.breaker.rated_w) - 1) / 360.0 * DT_S, 0)
        for tripped in np.flatnonzero(heat >= 1.0):
            day.trips.append(f"level {tripped} at {now:.0f} s")
            heat[tripped] = 0.0
    day.level_w = np.diff(level_j[::STEPS], axis=0)
    day.board_w = np.diff(board_j[warm::STEPS], axis=0)
    day.boost_w = np.diff(boost_j[::STEPS], axis=0)
    day.could_w = could.reshape(hall.seconds, STEPS, levels).mean(axis=1)
    return day


def _read(
    hall: Hall, step: int, board_j: Floats, seen_j: Floats, cap: Floats,
    off: NDArray[np.bool_], phase_s: Floats, rng: np.random.Generator,
) -> Readings:  # fmt: skip
    fleet, now = hall.fleet, step * DT_S - WARM_S
    period, window = hall.meter_s
    back = max(step - STEPS, 0)
    board = (board_j[step] - board_j[back]) / max((step - back) * DT_S, DT_S)
    board = board * (1 + 0.002 * rng.standard_normal(fleet.size))
    at = np.floor((now - phase_s) / period) * period + phase_s
    end = np.clip(np.rint((at + WARM_S) / DT_S).astype(int), 0, step)
    begin = np.clip(end - round(window / DT_S), 0, step)
    which = np.arange(fleet.feeds + 1)
    level = (seen_j[end, which] - seen_j[begin, which]) / np.maximum((end - begin) * DT_S, DT_S)
    level = np.where((end > 0) & fleet.level_read, np.round(level), np.nan)
    stamp = np.where(np.isfinite(level), at, np.nan)
    known = step > 0
    return Readings(
        now_s=now, draw_w=np.where(off | (not known), np.nan, board),
        draw_at_s=np.where(off | (not known), np.nan, now),
        cap_w=np.where(off, np.nan, cap), feed_w=level[:-1], feed_at_s=stamp[:-1], off=off,
        site_w=float(level[-1]), site_at_s=float(stamp[-1]),
    )  # fmt: skip


def a_day(name: str, seed: int = 0) -> Day:
    """Of the hall with these words, joined by +, under the loop as it ships.

    Where meters tell of the minute that is over the response is four minutes long.
    """
    words = name.split("+")

    def make(hall: Hall) -> SafetyLoop:
        return SafetyLoop(hall.fleet, SafetyConfig(wake_found=False))

    return spend(Hall.drawn(seed, words, seconds=900 if "last-minute" in words else 300), make)


def as_row(name: str, day: Day) -> str:
    """Of the page's table, but for whether that is held."""
    bad = day.above()
    worst_pct = max((pct for _, _, pct in bad), default=0.0)
    seconds = len({second for second, _, _ in bad})
    return f"| `{name}` | {seconds} | {worst_pct:.1f} | {len(day.trips)} | {100 * day.used():.1f} |"


if __name__ == "__main__":
    for each in sys.argv[1:] or HALLS:
        print(as_row(each, a_day(each)), flush=True)

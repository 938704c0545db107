"""Gavel's published simulation once more, as one loop over dictionaries and nothing else.

No core, no events, no plant: rounds follow each other, and everything is looked up by job number
and type name. Solving is left to the caller, so that both sides solve with the same thing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Shares = dict[int, dict[str, float]]
ROUND_S, RESET_S = 360, 1920


@dataclass
class Job:
    """`rates` by type name."""

    arrival_s: float
    steps: int
    scale: int
    weight: float
    rates: Mapping[str, float]


@dataclass
class Model:
    """`allot(live job numbers, steps left by number, now)` gives shares by number and type."""

    jobs: Sequence[Job]
    gpus: Mapping[str, int]
    allot: Callable[[list[int], dict[int, int], float], Shares]
    shuffled: bool = False
    fifo: bool = False
    jct_s: dict[int, float] = field(default_factory=dict)

    def run(self) -> float:
        """Fill `jct_s`; the time at which everything is over."""
        left = {number: job.steps for number, job in enumerate(self.jobs)}
        waiting, live = sorted(left, key=lambda i: (self.jobs[i].arrival_s, i)), list[int]()
        owed: Shares = {}
        got: dict[str, dict[int, float]] = {name: {} for name in self.gpus}
        short: dict[str, dict[int, float]] = {name: {} for name in self.gpus}
        total = dict.fromkeys(self.gpus, 0.0)
        draws = random.Random(5)
        now_s = counted_from_s = reset_s = 0.0
        ran: list[tuple[float, int, str, int]] = []
        stale = True
        while len(self.jct_s) < len(self.jobs):
            if not waiting and not ran:
                reset_s = 0.0
            now_s = max(ran)[0] if ran else self.jobs[waiting[0]].arrival_s if waiting else now_s
            for end_s, number, name, steps in sorted(ran, key=lambda one: (-one[0], one[1])):
                left[number] -= steps
                got[name][number] += end_s - counted_from_s
                total[name] += end_s - counted_from_s
                if not left[number]:
                    self.jct_s[number] = end_s - self.jobs[number].arrival_s
                    live.remove(number)
                    stale = True
            counted_from_s = now_s if ran else counted_from_s
            while waiting and self.jobs[waiting[0]].arrival_s <= now_s:
                live.append(number := waiting.pop(0))
                stale = True
                for name in self.gpus:
                    got[name][number], short[name][number] = ROUND_S / 2, 0.0
            if stale and (now_s - reset_s >= RESET_S or reset_s == 0):
                for name in self.gpus:
                    total[name] = 0.0
                    for number in live:
                        due_s = owed.get(number, {}).get(name, 0.0) * (now_s - reset_s)
                        short[name][number] += due_s - (got[name][number] - ROUND_S / 2)
                        got[name][number] = ROUND_S / 2
                        total[name] += ROUND_S / 2
                reset_s, stale = now_s, False
                owed = self.allot(live, left, now_s) if live else {}
            order = [name for name in ("v100", "p100", "k80") if name in self.gpus]
            if self.shuffled:
                draws.shuffle(order)
            ran = self._chosen(order, live, owed, got, short, total, left, now_s)
        return now_s

    def _chosen(
        self,
        order: list[str],
        live: list[int],
        owed: Shares,
        got: dict[str, dict[int, float]],
        short: dict[str, dict[int, float]],
        total: dict[str, float],
        left: dict[int, int],
        now_s: float,
    ) -> list[tuple[float, int, str, int]]:
        taken, ran = set[int](), list[tuple[float, int, str, int]]()
        for name in order:
            room = self.gpus[name]
            keys = []
            for number in live:
                share = owed.get(number, {}).get(name, 0.0)
                part = got[name][number] / total[name] if total[name] else 0.0
                urgency = share / part if part > 0 else share * 1e9
                if not self.jobs[number].rates[name]:
                    urgency = 0.0
                keys.append((-urgency, -short[name][number], -share, number))
            for urgency, _, _, number in sorted(keys):
                job = self.jobs[number]
                rate = job.rates[name]
                if number in taken or job.scale > room or not rate or (self.fifo and not urgency):
                    continue
                taken.add(number)
                room -= job.scale
                if number in owed:
                    steps = min(int(rate * ROUND_S), left[number])
                    ran.append((now_s + steps / rate, number, name, steps))
        return ran

"""Speed of power allocation on a tree of 1 site, 10 rows and 100 racks (docs/speed.md).

    python benchmarks/allocate.py [--jobs 1000,10000] [--no-judges] [--out FILE.json]

Water-filling beside linear programs for the same (Clarabel, HiGHS), all in one run, and a cycle of
the safety loop for 10,000 devices. Times are those of the processor (everything here runs on one
core), the least of several. The exit code is 1 if a target is missed. HiGHS' simplex alone takes a
minute or more for 10,000 jobs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from wattherd.engine.safety.contract import Breaker, Fleet, Readings
from wattherd.engine.safety.loop import SafetyLoop
from wattherd.estimate.measured_curve import CountedWatts, JobCurve, MeasuredPoint
from wattherd.model.power_tree import PowerTree, TreeDomain
from wattherd.policy.power.allocation import Allocator, tree_limits
from wattherd.policy.power.choices import PowerChoices, menu_of
from wattherd.policy.power.limits import DomainRoom
from wattherd.policy.power.market import equilibrium
from wattherd.policy.power.rules import leximin_rows
from wattherd.policy.power.tree_filling import filling, hulls_of

T = TypeVar("T")
TARGET_MS = {1_000: 3.0, 10_000: 40.0}
CYCLE_MS = 100.0
RACKS, ROWS = 100, 10


@dataclass(frozen=True)
class Figure:
    what: str
    milliseconds: float
    target: float | None = None

    @property
    def met(self) -> bool:
        return self.target is None or self.milliseconds <= self.target


def timed(work: Callable[[], T], times: int = 25) -> tuple[float, T]:
    """The least milliseconds of CPU time, and what came out."""
    found: list[float] = []
    for _ in range(times):
        start = time.process_time()
        result = work()
        found.append(1e3 * (time.process_time() - start))
    return min(found), result


def curves(jobs: int, seed: int = 1) -> list[JobCurve]:
    """Seven to nine caps each, power laws with the noise of single measurements."""
    draw = np.random.default_rng(seed)
    found = []
    for number in range(jobs):
        count = int(draw.integers(7, 10))
        caps = np.linspace(100.0, 400.0, count)
        watts = caps * draw.uniform(0.85, 0.99)
        exponent, noise = draw.uniform(0.2, 0.9), draw.normal(1.0, 0.02, count)
        rates = ((watts - 55.0) / (400.0 - 55.0)) ** exponent * noise
        points = tuple(map(MeasuredPoint, caps.tolist(), watts.tolist(), rates.tolist()))
        rack = int(draw.integers(RACKS))
        found.append(JobCurve(job=f"job-{number}", points=points, domain=f"rack-{rack}"))
    return found


def tree(jobs: list[JobCurve]) -> PowerTree:
    """70 % of the full draw at the site, 75 % at rows, 80 % at racks: all levels bind somewhere."""
    rack_w = dict.fromkeys((f"rack-{rack}" for rack in range(RACKS)), 0.0)
    for one in jobs:
        rack_w[one.domain] += max(point.power_w for point in one.points)
    names = list(rack_w)
    rows = [names[row::ROWS] for row in range(ROWS)]
    domains = [TreeDomain(name="site", budget_w=0.7 * sum(rack_w.values()))]
    for number, below in enumerate(rows):
        budget_w = 0.75 * sum(rack_w[name] for name in below)
        domains.append(TreeDomain(name=f"row-{number}", parent="site", budget_w=budget_w))
        domains.extend(
            TreeDomain(name=name, parent=f"row-{number}", budget_w=0.8 * rack_w[name])
            for name in below
        )
    return PowerTree(tuple(domains))


def water_filling(jobs: int) -> tuple[list[Figure], PowerChoices, DomainRoom, float]:
    """Everything between curves and a cap for every job, in the parts that may be kept."""
    some = curves(jobs)
    limits = tree_limits(tree(some), [one.domain for one in some])
    choices = [one.choices(CountedWatts.DRAW) for one in some]
    whole_ms, _ = timed(lambda: Allocator(menu_of(choices), limits).rows(limits.room_w))
    menu = menu_of(choices)
    hulls = hulls_of(menu)

    def cached() -> float:
        level = filling(hulls, limits)
        return level.value(level.served(level.room(limits.room_w)))

    cached_ms, most = timed(cached)
    allocator = Allocator(menu, limits)
    again_ms, _ = timed(lambda: allocator.watts(limits.room_w))
    rows_ms, rows = timed(lambda: allocator.rows(limits.room_w))
    part = 100 * menu.value[rows].sum() / most
    title = f"{jobs:,} jobs: "
    target = TARGET_MS.get(jobs)
    figures = [
        Figure(title + "water-filling, hulls cached", cached_ms, target),
        Figure(title + "water-filling, order cached as well", again_ms, target),
        Figure(
            title + f"a measured cap each ({part:.3f} % of the optimum), cached", rows_ms, target
        ),
        Figure(title + "a measured cap each, nothing cached", whole_ms),
    ]
    return figures, menu, limits, most


def fair_ones(jobs: int, menu: PowerChoices, limits: DomainRoom) -> list[Figure]:
    """Nash's market to the last bit of its prices, and leximin."""
    market_ms, _ = timed(lambda: equilibrium(menu, limits, np.ones(jobs)), times=3)
    leximin_ms, _ = timed(lambda: leximin_rows(menu, limits), times=3)
    return [
        Figure(f"{jobs:,} jobs: market with prices (Nash welfare)", market_ms),
        Figure(f"{jobs:,} jobs: max-min, a measured cap each", leximin_ms),
    ]


def judges(
    jobs: int, menu: PowerChoices, limits: DomainRoom, most: float, ours_ms: float
) -> list[Figure]:
    """The same linear program in solvers; each must find the same optimum."""
    from wattherd.experiments.allocate.milp import by_clarabel, by_highs

    solvers: dict[str, Callable[[PowerChoices, DomainRoom], float]] = {
        "Clarabel": by_clarabel,
        "HiGHS simplex": lambda menu, limits: by_highs(menu, limits, "highs-ds").value,
        "HiGHS interior point": lambda menu, limits: by_highs(menu, limits, "highs-ipm").value,
    }
    figures = []
    for name, solve in solvers.items():
        spent_ms, value = timed(lambda solve=solve: solve(menu, limits), times=1)
        if abs(value - most) > 1e-5 * most:
            raise SystemExit(f"{name} finds {value}, water-filling {most}")
        figures.append(Figure(f"{jobs:,} jobs: {name}, {spent_ms / ours_ms:,.0f}x", spent_ms))
    return figures


def safety_cycle(devices: int = 10_000, feeds: int = 110) -> Figure:
    """A cycle while a quarter of the limit is cut and readings flicker."""
    draw = np.random.default_rng(1)
    feed = np.sort(draw.integers(0, feeds, devices))
    floor_w, max_w = np.full(devices, 100.0), np.full(devices, 400.0)
    rated_w = np.append(np.bincount(feed, max_w, feeds), max_w.sum())
    fleet = Fleet(feed=feed, floor_w=floor_w, max_w=max_w, breaker=Breaker(rated_w=rated_w))
    loop, cap_w, spent = SafetyLoop(fleet), max_w.copy(), []
    for second in range(60):
        limit_w = rated_w * (1.0 if second < 20 else 0.75)
        draw_w = cap_w * draw.uniform(0.9, 1.0, devices)
        readings = Readings(
            now_s=float(second),
            draw_w=draw_w,
            draw_at_s=np.full(devices, float(second)),
            cap_w=cap_w,
            feed_w=np.bincount(feed, draw_w, feeds),
            feed_at_s=np.full(feeds, float(second)),
            off=np.zeros(devices, dtype=np.bool_),
        )
        start = time.process_time()
        orders = loop.cycle(readings, limit_w)
        spent.append(1e3 * (time.process_time() - start))
        cap_w = orders.cap_w
    return Figure(
        f"safety cycle, {devices:,} devices, median of 60", float(np.median(spent)), CYCLE_MS
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--jobs", default="1000,10000")
    parser.add_argument("--no-judges", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    figures: list[Figure] = []
    for jobs in map(int, options.jobs.split(",")):
        ours, menu, limits, most = water_filling(jobs)
        figures += ours
        figures += fair_ones(jobs, menu, limits)
        if not options.no_judges:
            figures += judges(jobs, menu, limits, most, ours[0].milliseconds)
    figures.append(safety_cycle())
    for one in figures:
        target = "" if one.target is None else f"target {one.target:g}: "
        verdict = "" if one.target is None else "met" if one.met else "MISSED"
        print(f"{one.what:66} {one.milliseconds:10.2f} ms  {target}{verdict}")
    if options.out:
        options.out.write_text(json.dumps([asdict(one) for one in figures], indent=1) + "\n")
    return 0 if all(one.met for one in figures) else 1


if __name__ == "__main__":
    sys.exit(main())

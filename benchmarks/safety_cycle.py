"""Speed of the safety loop on a site of three levels: 1,000 racks on 10 rows, 10,000 devices.

    python benchmarks/safety_cycle.py [--racks 1000] [--devices 10000] [--cycles 60]

Everything moves: readings flicker, a row carries other load, a quarter of the limit is cut and
given back. Prints the median and the worst cycle in milliseconds of one core, and the median in
sums of all devices by rack (a bincount), which does not depend on the machine. The exit code is 1
where the median is above 20 ms.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

from wattherd.engine.safety.loop import Breaker, Fleet, Readings, SafetyLoop

TARGET_MS = 20.0
ROWS = 10


def a_fleet(racks: int, devices: int) -> Fleet:
    rack = np.arange(devices) % racks
    max_w = np.full(devices, 700.0)
    rated_w = np.append(np.bincount(rack, max_w, racks), np.zeros(ROWS + 1))
    np.add.at(rated_w, racks + np.arange(racks) % ROWS, rated_w[:racks])
    rated_w[-1] = max_w.sum()
    return Fleet(
        feed=rack,
        above=np.append(racks + np.arange(racks) % ROWS, np.full(ROWS, racks + ROWS)),
        floor_w=np.full(devices, 200.0),
        max_w=max_w,
        breaker=Breaker(rated_w=rated_w),
        site_metered=True,
    )


def cycles_ms(fleet: Fleet, cycles: int) -> list[float]:
    draw, size = np.random.default_rng(1), fleet.size
    loop, cap_w, spent = SafetyLoop(fleet), fleet.max_w.copy(), []
    wish_w = fleet.max_w * draw.uniform(0.4, 1.0, size)
    base_w = np.zeros(fleet.feeds + 1)
    base_w[-2] = 0.1 * fleet.breaker.rated_w[-2]
    for second in range(cycles):
        cut = cycles // 3 <= second < 2 * cycles // 3
        limit_w = fleet.breaker.rated_w * (0.6 if cut else 0.8)
        draw_w = np.minimum(cap_w, wish_w) * draw.uniform(0.99, 1.0, size)
        level_w = fleet.tree.sums(fleet.own(draw_w) + base_w) * draw.uniform(0.998, 1.002)
        at_s = float(second)
        readings = Readings(
            now_s=at_s, draw_w=draw_w, draw_at_s=np.full(size, at_s), cap_w=cap_w,
            feed_w=level_w[:-1], feed_at_s=np.full(fleet.feeds, at_s),
            site_w=float(level_w[-1]), site_at_s=at_s, off=np.zeros(size, dtype=np.bool_),
        )  # fmt: skip
        start = time.process_time()
        orders = loop.cycle(readings, limit_w)
        spent.append(1e3 * (time.process_time() - start))
        cap_w = orders.cap_w
    return spent


def yardstick_ms(fleet: Fleet) -> float:
    spent = []
    for _ in range(50):
        start = time.process_time()
        np.bincount(fleet.feed, fleet.max_w, fleet.feeds)
        spent.append(1e3 * (time.process_time() - start))
    return float(np.median(spent))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--racks", type=int, default=1_000)
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--cycles", type=int, default=60)
    options = parser.parse_args()
    fleet = a_fleet(options.racks, options.devices)
    spent, unit_ms = cycles_ms(fleet, options.cycles), yardstick_ms(fleet)
    median_ms = float(np.median(spent))
    print(f"{options.devices:,} devices, {options.racks:,} racks, three levels:")
    print(f"median {median_ms:.1f} ms, worst {max(spent):.1f} ms (target {TARGET_MS:g} ms)")
    print(f"{median_ms / unit_ms:.0f} sums of all devices by rack")
    return 0 if median_ms <= TARGET_MS else 1


if __name__ == "__main__":
    sys.exit(main())

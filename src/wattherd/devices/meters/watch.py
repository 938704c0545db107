"""Reads several meters at once, again and again: a slow one never delays the others' next turn."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from wattherd.devices.meters.contract import MeterReading
from wattherd.devices.meters.meter import Meter
from wattherd.devices.wire.clock import SYSTEM, Clock
from wattherd.devices.wire.device_errors import DeviceError

Outcome = MeterReading | DeviceError


def read_all(meters: Sequence[Meter], pool: ThreadPoolExecutor | None) -> list[Outcome]:
    """A reading, or the error in its place, of every meter and in their order."""
    return list(map(_outcome, meters) if pool is None else pool.map(_outcome, meters))


def rounds(
    meters: Sequence[Meter], every_s: float, count: int | None, clock: Clock = SYSTEM
) -> Iterator[list[Outcome]]:
    """`count` rounds of readings (None: for ever), started every `every_s` seconds.

    A round that takes longer than that is followed at once by the next, and what was missed is not
    made up for.
    """
    pool = ThreadPoolExecutor(len(meters)) if len(meters) > 1 else None
    due_s = clock.steady_s()
    try:
        for number in itertools.count() if count is None else range(count):
            if number:
                now_s = clock.steady_s()
                due_s = max(due_s + every_s, now_s)
                clock.sleep(due_s - now_s)
            yield read_all(meters, pool)
    finally:
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)


def _outcome(meter: Meter) -> Outcome:
    try:
        return meter.read()
    except DeviceError as error:
        return error

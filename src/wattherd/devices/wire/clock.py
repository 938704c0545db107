"""The clocks of the shells in one place, so that tests can let time pass without waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from wattherd.devices.wire import cooperative_io


class Clock(NamedTuple):
    """Unix time for stamps, steady time for durations, and a way to wait; all in seconds."""

    unix_s: Callable[[], float]
    steady_s: Callable[[], float]
    sleep: Callable[[float], None]


SYSTEM = Clock(time.time, time.monotonic, cooperative_io.sleep)

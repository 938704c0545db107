"""A draw over some seconds, read from meters as fast as is asked for."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from wattherd.devices.meters.registry import open_meter
from wattherd.devices.wire.device_errors import DeviceError
from wattherd.errors import UserError

Floats = NDArray[np.float64]
MISSED = 0.1
"""So many readings may fail."""


def record(uris: Sequence[str], length_s: float, every_s: float) -> tuple[Floats, Floats]:
    """Seconds from the beginning (P,), and watts (P,) of all these meters together.

    What was read late is stamped as it was read; a round in which one does not answer is left out.

    Raises:
        UserError: an address that cannot be used, or more than a tenth of the rounds failed.
    """
    rows: list[tuple[float, float]] = []
    missed, problem = 0, ""
    with ExitStack() as opened:
        meters = [opened.enter_context(open_meter(uri)) for uri in uris]
        began_s = due_s = time.monotonic()
        while (now_s := time.monotonic()) < began_s + length_s:
            try:
                rows.append((now_s - began_s, math.fsum(one.read().watts for one in meters)))
            except DeviceError as error:
                missed, problem = missed + 1, error.problem
            due_s = max(due_s + every_s, time.monotonic())
            time.sleep(max(min(due_s, began_s + length_s) - time.monotonic(), 0.0))
    if not rows or missed > MISSED * (missed + len(rows)):
        raise UserError(f"{missed} of {missed + len(rows)} readings failed: {problem}",
                        where=", ".join(uris))  # fmt: skip
    table = np.array(rows)
    return table[:, 0], table[:, 1]

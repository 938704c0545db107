"""A draw over some seconds, read from meters as fast as is asked for, or as fast as they measure.

Asking a meter more often than it measures tells the same again, and looks as if nothing had moved
between. So `fastest` says how an instrument is best recorded, and what it hides all the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattherd.devices.meters.meter import Meter
from wattherd.devices.meters.registry import open_meter
from wattherd.devices.wire.device_errors import DeviceError
from wattherd.errors import UserError

Floats = NDArray[np.float64]
MISSED = 0.1
"""So many readings may fail."""


KEPT_S = 0.5
"""How often kept samples are fetched: well before an instrument forgets them (NVML: 2.4 s)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FastMeter:
    """How an instrument is recorded: renewed every `renewed_s`, means over `averaged_s`."""

    uri: str
    renewed_s: float = 0.0
    averaged_s: float = 0.0


NVML_MODES = (
    ("samples", 0.0, 0.0),
    ("instant", 0.1, 0.0),
    ("average", 0.1, 1.0),
)
"""Mode, renewed every so many seconds, mean over so many: measured on an H100 (driver 580.159)."""


def fastest(uri: str) -> FastMeter:
    """The fastest that an instrument tells; an address that names its mode is taken as it is.

    Raises:
        UserError: an address that cannot be used.
    """
    if not uri.startswith("nvml:"):
        return FastMeter(uri=uri)
    named = next((mode for mode in NVML_MODES if f"mode={mode[0]}" in uri), None)
    if named is not None:
        return FastMeter(uri=uri, renewed_s=named[1], averaged_s=named[2])
    for mode, renewed_s, averaged_s in NVML_MODES:
        asked = f"{uri}{'&' if '?' in uri else '?'}mode={mode}"
        try:
            with open_meter(asked) as meter:
                meter.read()
        except DeviceError:
            continue
        return FastMeter(uri=asked, renewed_s=renewed_s, averaged_s=averaged_s)
    return FastMeter(uri=uri, renewed_s=NVML_MODES[-1][1], averaged_s=NVML_MODES[-1][2])


def record(uris: Sequence[str], length_s: float, every_s: float) -> tuple[Floats, Floats]:
    """Seconds from the beginning (P,), and watts (P,) of all these meters together.

    Meters that keep samples tell all of them, whatever `every_s` is. Others are asked: what was
    read late is stamped as it was read; a round in which one does not answer is left out.

    Raises:
        UserError: an address that cannot be used, or more than a tenth of the rounds failed.
    """
    rows: list[tuple[float, float]] = []
    missed, problem = 0, ""
    with ExitStack() as opened:
        meters = [opened.enter_context(open_meter(uri)) for uri in uris]
        if all(one.keeps_samples for one in meters):
            return _kept(meters, length_s)
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


def _kept(meters: Sequence[Meter], length_s: float) -> tuple[Floats, Floats]:
    """The sum of what meters measured in so many seconds from now, at the times of the first."""
    began_s = time.time()
    until_s = time.monotonic() + length_s
    rows: list[list[tuple[float, float]]] = [[] for _ in meters]
    problem = ""
    while True:
        time.sleep(max(min(KEPT_S, until_s - time.monotonic()), 0.0))
        for meter, known in zip(meters, rows, strict=True):
            try:
                known.extend(meter.kept_since(known[-1][0] if known else began_s))
            except DeviceError as error:
                problem = error.problem
        if time.monotonic() >= until_s:
            break
    if not all(rows):
        raise UserError(f"told no sample{': ' if problem else ''}{problem}",
                        where=", ".join(one.source for one in meters))  # fmt: skip
    first, *others = (np.array(known) for known in rows)
    watts = first[:, 1] + sum(np.interp(first[:, 0], at[:, 0], at[:, 1]) for at in others)
    return first[:, 0] - first[0, 0], watts

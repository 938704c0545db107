"""What there is to read: the meters of this machine, and whether given ones answer."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wattherd.devices.meters.contract import MeterReading
from wattherd.devices.meters.meter import Meter
from wattherd.devices.meters.rapl import ROOT
from wattherd.devices.meters.registry import PROTOCOLS, open_meter
from wattherd.devices.wire.clock import SYSTEM, Clock
from wattherd.devices.wire.device_errors import DeviceError
from wattherd.devices.wire.protocols import installed

SCHEMA = "wattherd.probe/1"


def local_uris(powercap: Path = Path(ROOT)) -> Sequence[str]:
    """Addresses that may be tried on this machine: its CPUs and GPUs, where they tell."""
    found = ["rapl:"] if any(powercap.glob("intel-rapl:*")) else []
    if installed(PROTOCOLS["nvml"]):
        from wattherd.devices.meters.nvml import present_uris

        found += present_uris()
    return found


def document(uris: Sequence[str], times: int, clock: Clock = SYSTEM) -> dict[str, Any]:
    """Each meter read `times` times over (`wattherd.probe/1`): last reading, median latency.

    Raises:
        UserError: an address cannot be used.
    """
    return {
        "schema": SCHEMA,
        "meters": [_probed(open_meter(uri, clock), times, clock) for uri in uris],
        "protocols": [
            {"scheme": scheme, "installed": installed(protocol), "example": protocol.example}
            for scheme, protocol in PROTOCOLS.items()
        ],
    }


def _probed(meter: Meter, times: int, clock: Clock) -> dict[str, Any]:
    try:
        with meter:
            looks = [_timed(meter, clock) for _ in range(times)]
    except DeviceError as error:
        return {"meter": meter.source, "watts": None, "at_s": None, "quality": None,
                "latency_s": None, "trouble": error.trouble, "problem": error.problem}  # fmt: skip
    reading = looks[-1][1]
    return {"meter": meter.source, "watts": reading.watts, "at_s": reading.at_s,
            "quality": reading.quality, "latency_s": statistics.median(took for took, _ in looks),
            "trouble": None, "problem": None}  # fmt: skip


def _timed(meter: Meter, clock: Clock) -> tuple[float, MeterReading]:
    asked_s = clock.steady_s()
    reading = meter.read()
    return clock.steady_s() - asked_s, reading

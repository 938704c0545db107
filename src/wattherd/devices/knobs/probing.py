"""What there is to set: the knobs of this machine, their limits, and whether we may set them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wattherd.devices.knobs import rapl
from wattherd.devices.knobs.contract import NO_LIMIT, KnobLimits
from wattherd.devices.knobs.knob import Knob
from wattherd.devices.knobs.registry import PROTOCOLS, SWITCHES, open_knob
from wattherd.devices.wire.device_errors import DeviceError
from wattherd.devices.wire.protocols import installed
from wattherd.devices.wire.uri import parse

SCHEMA = "wattherd.devices.knobs/1"
POWERCAP = Path("/sys/class/powercap")
CPUS = Path("/sys/devices/system/cpu")
ZEUSD = Path("/run/zeusd/zeusd.sock")
CAP_SYS_ADMIN = 21
"""Bit of the capability that NVIDIA's driver asks for (capabilities(7))."""


def local_uris(powercap: Path = POWERCAP, cpus: Path = CPUS, zeusd: Path = ZEUSD) -> Sequence[str]:
    """Addresses of the knobs of this machine."""
    found = rapl.present_uris(powercap)
    if any(cpus.glob("cpufreq/policy*/scaling_max_freq")):
        found.append(f"cpufreq://{cpus}")
    if installed(PROTOCOLS["nvml"]):
        from wattherd.devices.knobs import nvml

        found += nvml.present_uris()
    if installed(PROTOCOLS["amdsmi"]):
        from wattherd.devices.knobs import amdsmi

        found += amdsmi.present_uris()
    if zeusd.exists():
        found.append(f"zeusd+unix://{zeusd}?gpu=0")
    return found


def document(uris: Sequence[str]) -> dict[str, Any]:
    """Each knob's limits (`wattherd.devices.knobs/1`); nothing is set.

    Raises:
        UserError: an address cannot be used.
    """
    return {
        "schema": SCHEMA,
        "knobs": [_probed(open_knob(uri)) for uri in uris],
        "protocols": [
            {
                "scheme": scheme,
                "installed": installed(protocol),
                "switches": scheme in SWITCHES,
                "example": protocol.example,
            }
            for scheme, protocol in PROTOCOLS.items()
        ],
    }


def may_set(uri: str) -> bool | None:
    """Whether this process has the right to turn a knob here; None for knobs elsewhere."""
    address = parse(uri)
    match address.scheme:
        case "rapl":
            return os.access(Path(address.path) / "constraint_0_power_limit_uw", os.W_OK)
        case "cpufreq":
            folder = Path(address.path)
            limits = [*folder.glob("cpufreq/policy*/scaling_max_freq"),
                      *folder.glob("scaling_max_freq")]  # fmt: skip
            return bool(limits) and all(os.access(path, os.W_OK) for path in limits)
        case "nvml" | "nvml-clock":
            return _has_capability(CAP_SYS_ADMIN)
        case "amdsmi":
            return os.geteuid() == 0
        case "zeusd+unix":
            return os.access(address.path, os.W_OK)
    return None


def finite(value: float | None) -> float | None:
    """A limit as JSON has it: null where there is none."""
    return None if value is None or value == NO_LIMIT else value


def _probed(knob: Knob) -> dict[str, Any]:
    try:
        with knob:
            return _row(knob, knob.limits(), None)
    except DeviceError as error:
        return _row(knob, None, error)


def _row(knob: Knob, limits: KnobLimits | None, error: DeviceError | None) -> dict[str, Any]:
    return {
        "knob": knob.source,
        "unit": knob.unit,
        "limited": None if limits is None else limits.now != NO_LIMIT,
        "now": None if limits is None else finite(limits.now),
        "lowest": None if limits is None else limits.lowest,
        "highest": None if limits is None else limits.highest,
        "default": None if limits is None else limits.default,
        "may_set": may_set(knob.source),
        "trouble": None if error is None else error.trouble,
        "problem": None if error is None else error.problem,
    }


def _has_capability(number: int) -> bool:
    """Whether the effective capabilities of this process hold one (proc(5))."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return os.geteuid() == 0
    mask = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(mask, 16) >> number & 1)

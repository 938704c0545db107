"""The protocols there are, by scheme; a driver's module is imported when an address asks for it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib import import_module
from importlib.util import find_spec
from shutil import which
from typing import NamedTuple

from wattherd.meters import meter
from wattherd.meters.clock import SYSTEM, Clock
from wattherd.meters.contract import Driver
from wattherd.meters.meter import Meter, metered
from wattherd.meters.uri import MeterUri, parse
from wattherd.spelling import hint_for

Maker = Callable[[MeterUri, Clock], Driver]


class Protocol(NamedTuple):
    """Where a driver is, what an address looks like, and what it takes: a library or a program."""

    module: str
    example: str
    client: str = ""
    program: str = ""


PROTOCOLS = {
    "replay": Protocol("replay", "replay:FILE.csv?column=power_w"),
    "rapl": Protocol("rapl", "rapl:"),
    "nvml": Protocol("nvml", "nvml://0", "pynvml"),
    "modbus": Protocol(
        "modbus", "modbus://HOST:502/UNIT/REGISTER?type=float32&order=big", "pymodbus"
    ),
    "snmp": Protocol("snmp", "snmp://HOST:161/rpdu2?credentials=FILE", "pysnmp"),
    "nut": Protocol("nut", "nut://HOST:3493/UPS?variable=ups.realpower"),
    "ipmi": Protocol("ipmi", "ipmi://BMC/dcmi?credentials=FILE", program="ipmitool"),
    "prom+http": Protocol("prometheus", "prom+http://HOST:9090/api/v1?query=sum(rack_power_watts)"),
    "prom+https": Protocol("prometheus", "prom+https://HOST/api/v1?dcgm=NODE&credentials=FILE"),
    "redfish+https": Protocol(
        "redfish", "redfish+https://BMC/redfish/v1/Chassis/1?credentials=FILE"
    ),
    "redfish+http": Protocol("redfish", "redfish+http://HOST:8000/redfish/v1/Chassis/1"),
}


def installed(protocol: Protocol) -> bool:
    """Whether its client library or program is here."""
    if protocol.program:
        return which(protocol.program) is not None
    return not protocol.client or find_spec(protocol.client) is not None


def open_meter(text: str, clock: Clock = SYSTEM) -> Meter:
    """The meter at an address; connects when first read.

    Raises:
        UserError: the address cannot be used, or what its driver takes is not installed.
    """
    uri = parse(text)
    if uri.scheme not in PROTOCOLS:
        raise uri.error(f"protocol {uri.scheme!r} is unknown", hint=hint_for(uri.scheme, PROTOCOLS))
    protocol = PROTOCOLS[uri.scheme]
    if not installed(protocol):
        hint = "it comes with your system" if protocol.program else "pip install 'wattherd[meters]'"
        raise uri.error(f"{protocol.program or protocol.client} is not installed", hint=hint)
    module = import_module(f"wattherd.meters.{protocol.module}")
    options: Collection[str] = module.OPTIONS
    uri.allow({*options, *meter.OPTIONS})
    make: Maker = module.driver
    return metered(uri, make(uri, clock), clock)

"""The protocols there are, by scheme; a driver's module is imported when an address asks for it."""

from __future__ import annotations

from collections.abc import Callable, Collection

from wattherd.devices.meters import meter
from wattherd.devices.meters.contract import MeterDriver
from wattherd.devices.meters.meter import Meter, metered
from wattherd.devices.meters.plugin_meter import plugged
from wattherd.devices.wire.clock import SYSTEM, Clock
from wattherd.devices.wire.plugin_calls import made
from wattherd.devices.wire.protocols import Protocol, driver_module, require_program
from wattherd.devices.wire.uri import Uri, parse

Maker = Callable[[Uri, Clock], MeterDriver]


PROTOCOLS = {
    "replay": Protocol("replay", "replay:FILE.csv?column=power_w"),
    "rapl": Protocol("rapl", "rapl:"),
    "nvml": Protocol("nvml", "nvml://0", "pynvml"),
    "amdsmi": Protocol("amdsmi", "amdsmi://0", "amdsmi"),
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


def open_meter(text: str, clock: Clock = SYSTEM) -> Meter:
    """The meter at an address; connects when first read.

    Raises:
        UserError: the address cannot be used, or what its driver takes is not installed.
    """
    uri = parse(text)
    module = driver_module(uri, PROTOCOLS, "wattherd.devices.meters", "meters")
    options: Collection[str] = module.OPTIONS
    uri.allow({*options, *meter.OPTIONS})
    make: Maker = module.driver
    if uri.scheme in PROTOCOLS:
        driver = make(uri, clock)
    else:
        driver = made(uri, lambda: plugged(uri.scheme, make(uri, clock)))
    require_program(uri, PROTOCOLS)
    return metered(uri, driver, clock)

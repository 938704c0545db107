"""The knobs and switches there are, by scheme; a driver is imported when an address asks for it."""

from __future__ import annotations

from collections.abc import Callable, Collection

from wattherd.devices.knobs import knob
from wattherd.devices.knobs.contract import KnobDriver
from wattherd.devices.knobs.journal import KnobJournal
from wattherd.devices.knobs.knob import Knob, turned
from wattherd.devices.knobs.plugin_knob import PluggedKnob
from wattherd.devices.knobs.switch import Outlet, Switch
from wattherd.devices.wire.clock import SYSTEM, Clock
from wattherd.devices.wire.plugin_calls import made
from wattherd.devices.wire.protocols import Protocol, driver_module, require_program
from wattherd.devices.wire.uri import Uri, parse

Maker = Callable[[Uri], KnobDriver]
OutletMaker = Callable[[Uri], Outlet]

PROTOCOLS = {
    "nvml": Protocol("nvml", "nvml://GPU-UUID", "pynvml"),
    "nvml-clock": Protocol("nvml_clock", "nvml-clock://GPU-UUID", "pynvml"),
    "zeusd": Protocol("zeusd", "zeusd://HOST:4938/0?credentials=FILE"),
    "zeusd+unix": Protocol("zeusd", "zeusd+unix:///run/zeusd/zeusd.sock?gpu=0"),
    "amdsmi": Protocol("amdsmi", "amdsmi://0", "amdsmi"),
    "rapl": Protocol("rapl", "rapl:///sys/class/powercap/intel-rapl:0"),
    "cpufreq": Protocol("cpufreq", "cpufreq:///sys/devices/system/cpu"),
    "redfish+https": Protocol(
        "redfish", "redfish+https://BMC/redfish/v1/Chassis/1?credentials=FILE"
    ),
    "redfish+http": Protocol("redfish", "redfish+http://HOST:8000/redfish/v1/Chassis/1"),
    "ipmi": Protocol("ipmi", "ipmi://BMC?credentials=FILE", program="ipmitool"),
    "modbus": Protocol("modbus", "modbus://HOST:502/UNIT/REGISTER?type=int32", "pymodbus"),
}
SWITCHES = {
    "redfish+https": Protocol(
        "redfish_switch", "redfish+https://BMC/redfish/v1/Systems/1?credentials=FILE"
    ),
    "redfish+http": Protocol("redfish_switch", "redfish+http://HOST:8000/redfish/v1/Systems/1"),
    "ipmi": Protocol("ipmi_switch", "ipmi://BMC?credentials=FILE", program="ipmitool"),
}


def open_knob(text: str, journal: KnobJournal | None = None, clock: Clock = SYSTEM) -> Knob:
    """The knob at an address; connects when first used.

    Raises:
        UserError: the address cannot be used, or what its driver takes is not installed.
    """
    uri = parse(text)
    module = driver_module(uri, PROTOCOLS, "wattherd.devices.knobs", "knobs")
    options: Collection[str] = module.OPTIONS
    uri.allow({*options, *knob.OPTIONS})
    make: Maker = module.driver
    if uri.scheme in PROTOCOLS:
        driver = make(uri)
    else:
        driver = made(uri, lambda: PluggedKnob(uri.scheme, make(uri)))
    require_program(uri, PROTOCOLS)
    return turned(uri, driver, journal, clock)


def open_switch(text: str, clock: Clock = SYSTEM) -> Switch:
    """The switch at an address; connects when first used.

    Raises:
        UserError: the address cannot be used, or what its driver takes is not installed.
    """
    uri = parse(text)
    module = driver_module(uri, SWITCHES, "wattherd.devices.knobs", "knobs")
    options: Collection[str] = module.OPTIONS
    uri.allow({*options, *knob.OPTIONS})
    make: OutletMaker = module.outlet
    outlet = make(uri)
    require_program(uri, SWITCHES)
    return Switch(uri.text, outlet, uri.seconds("settle", knob.SETTLE_S), clock)

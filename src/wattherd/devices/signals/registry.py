"""The signals there are, by scheme; a driver's module is imported when an address asks for it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

from wattherd.devices.signals.contract import LimitSignal, SignalSite
from wattherd.devices.signals.plugin_signal import PluggedSignal
from wattherd.devices.wire.clock import SYSTEM, Clock
from wattherd.devices.wire.plugin_calls import made
from wattherd.devices.wire.protocols import names_options
from wattherd.devices.wire.uri import Uri, parse
from wattherd.plugins import GUIDE, announced, loaded
from wattherd.spelling import hint_for


class SignalDriver(NamedTuple):
    """Where a driver is, what an address looks like, and the library it takes."""

    module: str
    maker: str
    example: str
    client: str = ""


DRIVERS = {
    "schedule": SignalDriver(
        "schedule", "ScheduleFile", "schedule:limits.csv?start=2026-11-21T00:00:00Z"
    ),
    "http": SignalDriver("web", "WebSignal", "http://HOST:8080/limits?safe=8kW"),
    "https": SignalDriver("web", "WebSignal", "https://HOST/limits?safe=60%25&credentials=FILE"),
    "openadr+https": SignalDriver(
        "openadr2", "OpenAdr2", "openadr+https://VTN?ven=NAME&cert=FILE&key=FILE", "openleadr"
    ),
    "openadr+http": SignalDriver(
        "openadr2", "OpenAdr2", "openadr+http://VTN:8080?ven=NAME", "openleadr"
    ),
    "openadr3+https": SignalDriver(
        "openadr3", "OpenAdr3", "openadr3+https://VTN/openadr3?program=ID&credentials=FILE"
    ),
    "openadr3+http": SignalDriver("openadr3", "OpenAdr3", "openadr3+http://VTN:8080?program=ID"),
}


def open_signal(text: str, site: SignalSite, clock: Clock = SYSTEM) -> LimitSignal:
    """The signal at an address; it listens from now on.

    Raises:
        UserError: the address cannot be used, or what its driver takes is not installed.
    """
    uri = parse(text)
    if uri.scheme not in DRIVERS and uri.scheme in announced("signals"):
        found = loaded("signals", uri.scheme)
        told = getattr(found, "OPTIONS", None)
        if not callable(getattr(found, "signal", None)) or not names_options(told):
            problem = f"{announced('signals')[uri.scheme].value} has no `signal` and `OPTIONS`"
            raise uri.error(problem, hint=GUIDE)
        uri.allow(found.OPTIONS)
        return made(uri, lambda: PluggedSignal(uri.scheme, text, found.signal(uri, site, clock)))
    if uri.scheme not in DRIVERS:
        raise uri.error(f"signal {uri.scheme!r} is unknown", hint=hint_for(uri.scheme, DRIVERS))
    driver = DRIVERS[uri.scheme]
    if driver.client and find_spec(driver.client) is None:
        raise uri.error(f"{driver.client} is not installed", hint="pip install 'wattherd[grid]'")
    module = import_module(f"wattherd.devices.signals.{driver.module}")
    uri.allow(module.OPTIONS)
    make: Callable[[Uri, SignalSite, Clock], LimitSignal] = getattr(module, driver.maker)
    return make(uri, site, clock)

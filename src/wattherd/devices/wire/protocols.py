"""Which module speaks a protocol, and whether what it takes is installed: a library or a program.

Tables of protocols are the rooms' own; this knows only how to look one up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module
from importlib.util import find_spec
from shutil import which
from types import ModuleType
from typing import NamedTuple

from wattherd.devices.wire.uri import Uri
from wattherd.plugins import GUIDE, announced, loaded
from wattherd.spelling import hint_for


class Protocol(NamedTuple):
    """Where a driver is, what an address looks like, and what it takes: a library or a program."""

    module: str
    example: str
    client: str = ""
    program: str = ""


def installed(protocol: Protocol) -> bool:
    """Whether its client library or program is here."""
    if protocol.program:
        return which(protocol.program) is not None
    return not protocol.client or find_spec(protocol.client) is not None


def driver_module(uri: Uri, protocols: Mapping[str, Protocol], room: str, extra: str) -> ModuleType:
    """The module in `room` that speaks an address's protocol, imported now.

    Packages may add protocols of the same form (`wattherd.plugins`).

    Raises:
        UserError: the protocol is unknown, or the library it takes is not installed.
    """
    if uri.scheme not in protocols and uri.scheme in announced(extra):
        module: ModuleType = loaded(extra, uri.scheme)
        told = getattr(module, "OPTIONS", None)
        if not callable(getattr(module, "driver", None)) or not names_options(told):
            problem = f"{announced(extra)[uri.scheme].value} has no `driver` and `OPTIONS`"
            raise uri.error(problem, hint=GUIDE)
        return module
    if uri.scheme not in protocols:
        raise uri.error(f"protocol {uri.scheme!r} is unknown", hint=hint_for(uri.scheme, protocols))
    protocol = protocols[uri.scheme]
    if not protocol.program and not installed(protocol):
        hint = f"pip install 'wattherd[{extra}]'"
        raise uri.error(f"{protocol.client} is not installed", hint=hint)
    return import_module(f"{room}.{protocol.module}")


def names_options(told: object) -> bool:
    """Whether a package says which options its addresses may have."""
    return isinstance(told, Collection) and all(isinstance(one, str) for one in told)


def require_program(uri: Uri, protocols: Mapping[str, Protocol]) -> None:
    """Check that the program behind an address is here; asked once the address itself is good.

    A driver needs its library to be made, but its program only to be used. So a wrong address is
    called wrong on every machine.

    Raises:
        UserError: the program is not installed.
    """
    protocol = protocols.get(uri.scheme)
    if protocol is not None and protocol.program and not installed(protocol):
        hint = f"install your system's package of it, as in: apt-get install {protocol.program}"
        raise uri.error(f"the program {protocol.program} is not installed", hint=hint)

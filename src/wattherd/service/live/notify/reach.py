"""Which addresses a webhook may reach: a user names it, and the service asks from where it stands.

The service may reach what its users may not: itself, the cloud's metadata, machines behind the
firewall. So public addresses only, unless the operator lists more; this service never. What counts
is the address that is connected to, not the name, which may stand for another one a moment later.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Collection

from wattherd.wire.http_client import MayNotConnect

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
NAT64 = ipaddress.ip_network("64:ff9b::/96")


def guard(
    host: str, port: int, allow: Collection[str], own_ports: Collection[int]
) -> Callable[[str], None]:
    """What refuses, by `MayNotConnect`, an address that `host` may not stand for."""
    networks = [ipaddress.ip_network(one, strict=False) for one in allow if _is_network(one)]
    named = host.lower().rstrip(".") in {one.lower() for one in allow}

    def check(text: str) -> None:
        address = _inner(ipaddress.ip_address(text.partition("%")[0]))
        if port in own_ports and _is_ours(address):
            raise MayNotConnect(f"{address} port {port} is this service itself")
        listed = named or any(address in one for one in networks)
        if not listed and (not address.is_global or address.is_multicast or _is_ours(address)):
            raise MayNotConnect(
                f"{address} is not a public address, and not listed in `notify.allow`"
            )

    return check


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def _inner(address: Address) -> Address:
    """The IPv4 address that an IPv6 one carries."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _is_ours(address: Address) -> bool:
    """Whether this machine has the address."""
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True

"""Which addresses a webhook may reach: a user names it, and the service asks from where it stands.

The service may reach what its users may not: itself, the cloud's metadata, machines behind the
firewall. So public addresses only, unless the operator lists more; this service never. What counts
is the address that is connected to, not the name, which may stand for another one a moment later.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Collection

from wattherd.devices.wire.http_client import MayNotConnect

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
ISATAP = frozenset({0x0000_5EFE, 0x0200_5EFE})
"""The 32 bits before an IPv4 address (RFC 5214)."""
NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            "::/96",  # "IPv4-compatible", given up (RFC 4291)
            "64:ff9b:1::/48",  # translated to IPv4 by a rule of the site (RFC 8215)
            "100::/64",  # discarded
            "2001::/32",  # Teredo: two IPv4 addresses, one of them in disguise (RFC 4380)
            "3fff::/20",  # documentation
            "5f00::/16",  # segment routing within a site
            "fec0::/10",  # site-local, given up (RFC 3879)
            "168.63.129.16/32",  # Azure's own services, from within any of its machines
            "192.0.0.0/24",  # protocols; Oracle's cloud has its metadata there
            "192.88.99.0/24",  # relays of 6to4, given up (RFC 7526)
        ),
    )
)
"""Networks that `is_global` of some Python takes for public and that are not for users."""


def guard(
    host: str, port: int, allow: Collection[str], own_ports: Collection[int]
) -> Callable[[str], None]:
    """What refuses, by `MayNotConnect`, an address that `host` may not stand for."""
    networks = [ipaddress.ip_network(one, strict=False) for one in allow if _is_network(one)]
    named = host.lower().rstrip(".") in {one.lower() for one in allow}

    def check(text: str) -> None:
        for address in _faces(ipaddress.ip_address(text.partition("%")[0])):
            ours = _is_ours(address)
            if port in own_ports and ours:
                raise MayNotConnect(f"{address} port {port} is this service itself")
            listed = named or any(address in one for one in networks)
            if not listed and (ours or not _is_public(address)):
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


def _faces(address: Address) -> tuple[Address, ...]:
    """The address and the IPv4 ones within it that a gateway may take it for; each must do."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    if address.ipv4_mapped is not None:  # the very same, written otherwise
        return (address.ipv4_mapped,)
    last = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    carries_last = address in NAT64 or (int(address) >> 32) & 0xFFFF_FFFF in ISATAP
    inner = [address.sixtofour, *(address.teredo or ()), last if carries_last else None]
    return (address, *(one for one in inner if one is not None))


def _is_public(address: Address) -> bool:
    if (
        not address.is_global
        or address.is_multicast
        or (address.is_reserved and address not in NAT64)
    ):
        return False
    return not any(address in one for one in NOT_PUBLIC)


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

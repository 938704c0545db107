"""A rack PDU, or anything else that counts watts, by SNMP: `snmp://HOST:161/OID?version=2c`.

`snmp://PDU/rpdu2` is the whole of an APC PDU of the second generation (rPDU2DeviceStatusPower of
PowerNet-MIB, in hundredths of a kilowatt), `rpdu2/2` the second of a chain. Over UDP a lost device
and a wrong community look like a slow device: all three are timeouts.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pysnmp.hlapi.v3arch.asyncio import (
    CommunityData,
    ContextData,
    ObjectIdentity,
    ObjectType,
    SnmpEngine,
    UdpTransportTarget,
    UsmUserData,
    get_cmd,
    usmAesCfb128Protocol,
    usmHMACSHAAuthProtocol,
)

from wattherd.devices.meters.contract import MeterSample
from wattherd.devices.wire import cooperative_io
from wattherd.devices.wire.clock import Clock
from wattherd.devices.wire.credentials import Credentials, read_credentials
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.uri import Uri

OPTIONS = frozenset({"version", "credentials"})
PORT = 161
RPDU2 = "rpdu2"
RPDU2_OID = "1.3.6.1.4.1.318.1.1.26.4.3.1.5"
RPDU2_W = 10.0
MOST_TOGETHER = 24
"""Objects in one message, which still fits into one packet."""
VERSIONS = {"1": 0, "2c": 1, "3": 3}
REFUSALS = {6: "no access", 16: "authorisation"}
NO_SUCH_NAME = 2
OPAQUE_FLOAT = b"\x9f\x78\x04"
"""How net-snmp wraps a float32 (draft-perkins-opaque): tag and length before its four bytes."""


class _Conversation:
    """An engine and its event loop, which are slow to make and so are kept between readings."""

    def __init__(self, host: str, port: int, wait_s: float) -> None:
        self.loop = asyncio.new_event_loop()
        self.engine = SnmpEngine()
        target = UdpTransportTarget.create((host, port), timeout=wait_s, retries=0)
        self.target = self.loop.run_until_complete(target)

    def get(self, user: Any, oid: str, wait_s: float) -> Any:
        """Error indication, status, index and bindings, as pysnmp returns them."""
        wanted = ObjectType(ObjectIdentity(oid))
        asked = get_cmd(self.engine, user, self.target, ContextData(), wanted, lookupMib=False)
        return self.loop.run_until_complete(asyncio.wait_for(asked, wait_s))

    def end(self) -> None:
        """Close the socket and the loop."""
        self.engine.close_dispatcher()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.loop.close()


@dataclass(slots=True)
class Snmp:
    """Gets one object, `factor` watts a unit."""

    host: str
    port: int
    oid: str
    version: str
    secrets: Path | None
    timeout_s: float
    factor: float = 1.0
    concurrent = True
    _conversation: _Conversation | None = None

    def sample(self) -> MeterSample:
        """The object's value.

        Raises:
            DeviceError: no answer in time, no such object, or no number in it.
        """
        try:
            return MeterSample(_value(self._ask(), self.oid) * self.factor)
        except DeviceError:
            self.close()
            raise

    def close(self) -> None:
        """Hang up."""
        if self._conversation is not None:
            self._conversation.end()
            self._conversation = None

    def _ask(self) -> Any:
        user = _user(self.version, read_credentials(self.secrets))
        try:
            if cooperative_io.aside():
                return self._ask_aside(user)
            if self._conversation is None:
                self._conversation = _Conversation(self.host, self.port, self.timeout_s)
            return self._conversation.get(user, self.oid, self.timeout_s)
        except TimeoutError:
            raise DeviceError(
                DeviceErrorKind.TIMEOUT, f"no answer within {self.timeout_s:g} s"
            ) from None
        except Exception as error:  # noqa: BLE001 - pysnmp raises what it likes, down to plain Exception
            raise DeviceError(
                DeviceErrorKind.UNREACHABLE, f"{self.host}:{self.port}: {error}"
            ) from None

    def _ask_aside(self, user: Any) -> Any:
        """In the asking thread: objects of one agent go into one message, where it allows that."""

        def ask(oids: Sequence[str]) -> Any:
            return cooperative_io.wait(_got(self.host, self.port, user, oids, self.timeout_s))

        round_ = cooperative_io.sharing()
        if round_ is None or self.version == "1":  # which answers all or nothing
            return ask([self.oid])
        agent = self.host, self.port, self.version, self.secrets, self.timeout_s
        answer = round_.together(agent, self.oid, ask, MOST_TOGETHER)
        indication, status, index, bindings = answer
        if indication:
            return answer
        own = [one for one in bindings if str(one[0]) == self.oid]
        if int(status) or not own:
            return ask([self.oid])  # another object's fault, perhaps
        return indication, status, index, own


async def _got(host: str, port: int, user: Any, oids: Sequence[str], wait_s: float) -> Any:
    """What an agent answers, by the one engine of the asking thread."""
    engine = cooperative_io.kept("snmp", SnmpEngine)
    targets: dict[Any, Any] = cooperative_io.kept("snmp targets", dict)
    key = host, port, wait_s
    async with asyncio.timeout(wait_s):
        if key not in targets:
            found = await UdpTransportTarget.create((host, port), timeout=wait_s, retries=0)
            targets[key] = found
        wanted = [ObjectType(ObjectIdentity(oid)) for oid in oids]
        return await get_cmd(engine, user, targets[key], ContextData(), *wanted, lookupMib=False)


def driver(uri: Uri, clock: Clock) -> Snmp:
    """The driver that `uri` names.

    Raises:
        UserError: no host, no OID, or a version that there is not.
    """
    del clock  # the protocol tells no time
    oid, factor = _object(uri)
    port = PORT if uri.port is None else uri.port
    version = uri.choice("version", VERSIONS, "2c")
    return Snmp(
        uri.needs_host(), port, oid, version, uri.file("credentials"), uri.timeout_s, factor
    )


def _object(uri: Uri) -> tuple[str, float]:
    name, _, index = uri.path.strip("/").partition("/")
    if name == RPDU2 and (index or "1").isdecimal():
        return f"{RPDU2_OID}.{index or 1}", RPDU2_W
    parts = name.lstrip(".").split(".")
    if index or len(parts) < 2 or not all(part.isdecimal() for part in parts):
        raise uri.error("names no object", hint=f"write snmp://HOST/1.3.6.1... or /{RPDU2}")
    return ".".join(parts), 1.0


def _user(version: str, known: Credentials) -> Any:
    """Community, or a user of version 3 with SHA and AES (RFC 3414, RFC 3826)."""
    if version != "3":
        return CommunityData(known.community.get_secret_value(), mpModel=VERSIONS[version])
    password = known.password.get_secret_value()
    privacy = known.privacy_password.get_secret_value()
    return UsmUserData(
        known.username,
        authKey=password or None,
        privKey=privacy or None,
        authProtocol=usmHMACSHAAuthProtocol if password else None,
        privProtocol=usmAesCfb128Protocol if privacy else None,
    )


def _value(answer: Any, oid: str) -> float:
    indication, status, _, bindings = answer
    if indication:
        raise _indicated(indication)
    if int(status) == NO_SUCH_NAME:
        raise DeviceError(DeviceErrorKind.ABSENT, f"no object {oid}")
    if int(status):
        trouble = DeviceErrorKind.REFUSED if int(status) in REFUSALS else DeviceErrorKind.GARBAGE
        raise DeviceError(trouble, f"{oid}: error status {int(status)}")
    value = bindings[0][1]
    if type(value).__name__ in ("NoSuchObject", "NoSuchInstance", "EndOfMibView"):
        raise DeviceError(DeviceErrorKind.ABSENT, f"no object {oid}")
    return _number(value, oid)


def _indicated(indication: Any) -> DeviceError:
    kind, text = type(indication).__name__, str(indication)
    if kind == "RequestTimedOut":
        return DeviceError(DeviceErrorKind.TIMEOUT, text)
    refused = kind in ("WrongDigest", "UnknownUserName", "UnsupportedSecurityLevel",
                       "DecryptionError", "AuthenticationFailure")  # fmt: skip
    return DeviceError(DeviceErrorKind.REFUSED if refused else DeviceErrorKind.GARBAGE, text)


def _number(value: Any, oid: str) -> float:
    """Numbers, numbers written as text, and net-snmp's wrapped floats."""
    raw = bytes(value) if hasattr(value, "asOctets") else b""
    if raw.startswith(OPAQUE_FLOAT) and len(raw) == 7:
        return float(struct.unpack(">f", raw[3:])[0])
    try:
        number = float(raw.decode("ascii")) if raw else float(int(value))
    except (ValueError, TypeError):
        number = math.nan
    if math.isnan(number):
        raise DeviceError(DeviceErrorKind.GARBAGE, f"{oid} is no number: {str(value)[:40]!r}")
    return number

"""A value in a device's registers by Modbus TCP: `modbus://HOST:502/UNIT/REGISTER?type=float32`.

REGISTER is the address in the request, from 0: what handbooks call 40071 is often 70. Registers are
big-endian (Modbus Application Protocol 1.1b3, section 4.2), but devices differ in which word of a
longer value comes first: `order`. The connection stays open between readings and is dropped after
any trouble, so that a late answer is never taken for the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

from pymodbus.client import AsyncModbusTcpClient, ModbusTcpClient
from pymodbus.exceptions import ConnectionException, ModbusException
from pymodbus.pdu import ModbusPDU

from wattherd.devices.wire import cooperative_io
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.uri import Uri
from wattherd.errors import words

PORT = 502
TYPES = {
    name: ModbusTcpClient.DATATYPE[name.upper()]
    for name in ("int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64")
}
RANGES = {
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "uint32": (0, (1 << 32) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
    "uint64": (0, (1 << 64) - 1),
}
"""What whole numbers of a type can be."""
EXCEPTIONS = {
    1: (DeviceErrorKind.ABSENT, "the device does not know this kind of register"),
    2: (DeviceErrorKind.ABSENT, "the device has no such register"),
    3: (DeviceErrorKind.ABSENT, "the device does not give as many registers at once"),
    4: (DeviceErrorKind.UNREACHABLE, "the device failed"),
    6: (DeviceErrorKind.UNREACHABLE, "the device is busy"),
    10: (DeviceErrorKind.UNREACHABLE, "the gateway has no path to the device"),
    11: (DeviceErrorKind.UNREACHABLE, "no device answers the gateway"),
}
"""Exception codes of the protocol (same document, section 7)."""


@dataclass(frozen=True, slots=True)
class ModbusRegister:
    """Where a value stands and how it is coded."""

    unit: int
    address: int
    kind: str = "holding"
    type: str = "float32"
    order: Literal["big", "little"] = "big"

    @property
    def words(self) -> int:
        """Registers that the value takes."""
        return TYPES[self.type].value[1]


@dataclass(slots=True)
class ModbusDevice:
    """One value of it; `timeout_s` holds for connecting, and again for the answer."""

    host: str
    port: int
    register: ModbusRegister
    timeout_s: float
    _client: ModbusTcpClient | None = None
    _aside: AsyncModbusTcpClient | None = None
    _heard: bool = False
    concurrent = True

    def read(self) -> float:
        """The register's value, which may be no number.

        Raises:
            DeviceError: no connection, no answer in time, or an exception of the device.
        """
        try:
            if cooperative_io.aside():
                return self._value(cooperative_io.wait(self._asked_aside()))
            return self._value(self._ask(self._connected()))
        except DeviceError:
            self.close()
            raise

    def write(self, value: float) -> None:
        """Write a value, rounded where the type is whole, over a connection of its own.

        Raises:
            DeviceError: no connection, no answer in time, or an exception of the device.
        """
        at = self.register
        number: float | int = round(value) if at.type in RANGES else value
        coded = ModbusTcpClient.convert_to_registers(number, TYPES[at.type], word_order=at.order)
        client = ModbusTcpClient(self.host, port=self.port, timeout=self.timeout_s, retries=0)
        try:
            if not client.connect():
                raise self._no_connection()
            answer = client.write_registers(at.address, coded, device_id=at.unit)
        except (ConnectionException, OSError) as error:
            problem = f"connection lost: {words(error)}"
            raise DeviceError(DeviceErrorKind.UNREACHABLE, problem) from None
        except ModbusException:
            problem = f"no answer within {self.timeout_s:g} s"
            raise DeviceError(DeviceErrorKind.TIMEOUT, problem) from None
        finally:
            client.close()
        if answer.isError():
            raise _exception(answer.exception_code)

    def close(self) -> None:
        """Hang up."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._aside is not None:
            self._aside.close()
            self._aside = None

    async def _asked_aside(self) -> ModbusPDU:
        """The same question in the asking thread."""
        self._heard = False
        try:
            async with asyncio.timeout(self.timeout_s):
                client = await self._connected_aside()
                at = self.register
                input_kind = at.kind == "input"
                read = client.read_input_registers if input_kind else client.read_holding_registers
                return await read(at.address, count=at.words, device_id=at.unit)
        except TimeoutError:
            raise self._no_answer("nothing that is Modbus") from None
        except (ConnectionException, OSError) as error:
            raise DeviceError(
                DeviceErrorKind.UNREACHABLE, f"connection lost: {words(error)}"
            ) from None
        except ModbusException as error:
            raise self._no_answer(str(error)) from None

    def _no_answer(self, problem: str) -> DeviceError:
        """The asynchronous client waits on where it hears noise, or the server hangs up."""
        if self._heard:
            return DeviceError(DeviceErrorKind.GARBAGE, f"the answer is no Modbus: {problem}")
        if self._aside is not None and not self._aside.connected:
            return DeviceError(DeviceErrorKind.UNREACHABLE, "connection lost: the server hung up")
        return DeviceError(DeviceErrorKind.TIMEOUT, f"no answer within {self.timeout_s:g} s")

    async def _connected_aside(self) -> AsyncModbusTcpClient:
        if self._aside is not None and self._aside.connected:
            return self._aside
        self._aside = AsyncModbusTcpClient(
            self.host,
            port=self.port,
            timeout=self.timeout_s,
            retries=0,
            reconnect_delay=0,
            trace_packet=self._hear,
        )
        if not await self._aside.connect():
            raise self._no_connection()
        return self._aside

    def _connected(self) -> ModbusTcpClient:
        if self._client is None:
            self._client = ModbusTcpClient(
                self.host,
                port=self.port,
                timeout=self.timeout_s,
                retries=0,
                trace_packet=self._hear,
            )
        if not self._client.connect():
            raise self._no_connection()
        return self._client

    def _no_connection(self) -> DeviceError:
        problem = f"no connection to {self.host}:{self.port} within {self.timeout_s:g} s"
        return DeviceError(DeviceErrorKind.UNREACHABLE, problem)

    def _hear(self, sending: bool, packet: bytes) -> bytes:  # noqa: FBT001 - pymodbus' signature
        self._heard |= not sending
        return packet

    def _ask(self, client: ModbusTcpClient) -> ModbusPDU:
        self._heard = False
        read: Callable[..., ModbusPDU] = (
            client.read_input_registers
            if self.register.kind == "input"
            else client.read_holding_registers
        )
        at = self.register
        try:
            return read(at.address, count=at.words, device_id=at.unit)
        except (ConnectionException, OSError) as error:
            raise DeviceError(
                DeviceErrorKind.UNREACHABLE, f"connection lost: {words(error)}"
            ) from None
        except ModbusException as error:
            if self._heard:
                raise DeviceError(
                    DeviceErrorKind.GARBAGE, f"the answer is no Modbus: {error}"
                ) from None
            raise DeviceError(
                DeviceErrorKind.TIMEOUT, f"no answer within {self.timeout_s:g} s"
            ) from None

    def _value(self, answer: ModbusPDU) -> float:
        if answer.isError():
            raise _exception(answer.exception_code)
        if len(answer.registers) != self.register.words:
            problem = f"{len(answer.registers)} registers in place of {self.register.words}"
            raise DeviceError(DeviceErrorKind.GARBAGE, problem)
        kind, order = TYPES[self.register.type], self.register.order
        value = ModbusTcpClient.convert_from_registers(answer.registers, kind, word_order=order)
        return float(cast("float", value))


def _exception(code: int) -> DeviceError:
    trouble, meaning = EXCEPTIONS.get(code, (DeviceErrorKind.GARBAGE, "unknown to the protocol"))
    return DeviceError(trouble, f"exception {code}: {meaning}")


def device_at(uri: Uri) -> ModbusDevice:
    """The device and register that `uri` names.

    Raises:
        UserError: no host, or unit and register are not both there and in range.
    """
    # Its errors reach us as exceptions; without a handler they would be printed as well.
    logging.getLogger("pymodbus").addHandler(logging.NullHandler())
    unit, address = _place(uri)
    register = ModbusRegister(
        unit=unit,
        address=address,
        kind=uri.choice("kind", ("holding", "input"), "holding"),
        type=uri.choice("type", TYPES, "float32"),
        order="little" if uri.choice("order", ("big", "little"), "big") == "little" else "big",
    )
    port = PORT if uri.port is None else uri.port
    return ModbusDevice(uri.needs_host(), port, register, uri.timeout_s)


def _place(uri: Uri) -> tuple[int, int]:
    unit, _, address = uri.path.strip("/").partition("/")
    if not (unit.isdecimal() and address.isdecimal()):
        raise uri.error("names no register", hint="write modbus://HOST:PORT/UNIT/REGISTER")
    if int(unit) > 255 or int(address) > 65_535:
        raise uri.error("unit or register is out of range", hint="at most 255 and 65535")
    return int(unit), int(address)

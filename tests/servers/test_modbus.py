"""A smart meter: the driver against pymodbus' server on loopback, and against worse ones."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("pymodbus", reason="pymodbus is not installed")

from pymodbus.server import ModbusTcpServer
from pymodbus.simulator import DataType, SimData, SimDevice

from wattherd.devices.meters.registry import open_meter
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.errors import UserError

pytestmark = pytest.mark.usefixtures("both_ways")

REGISTER = 40_070
UNIT = 7


class Device:
    """Registers that answer with what `words` says at that moment, after `delay_s`."""

    def __init__(self, port: int = 0) -> None:
        self.words: list[int] = [0]
        self.delay_s = 0.0
        self.port = port

    async def answer(
        self, _code: int, _start: int, _address: int, count: int, current: list[int], new: object
    ) -> None:
        await asyncio.sleep(self.delay_s)
        current[:count] = (self.words + [0] * count)[:count]

    async def serve(self, ready: threading.Event, stop: asyncio.Event) -> None:
        data = SimData(REGISTER, values=[0] * 8, datatype=DataType.REGISTERS)
        device = SimDevice(UNIT, [data], action=self.answer)
        server = ModbusTcpServer(device, address=("127.0.0.1", self.port))
        await server.serve_forever(background=True)
        self.port = server.transport.sockets[0].getsockname()[1]
        ready.set()
        await stop.wait()
        await server.shutdown()


@contextmanager
def serving(device: Device) -> Iterator[Device]:
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=[device.serve(ready, stop)])
    thread.start()
    assert ready.wait(10)
    try:
        yield device
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@pytest.fixture
def device() -> Iterator[Device]:
    with serving(Device()) as device:
        yield device


def address(port: int, more: str = "", register: int = REGISTER, unit: int = UNIT) -> str:
    return f"modbus://127.0.0.1:{port}/{unit}/{register}?timeout=1s&{more}"


def words(kind: str, value: float, *, little: bool = False) -> list[int]:
    coded = struct.pack(f">{kind}", value)
    found = list(struct.unpack(f">{len(coded) // 2}H", coded))
    return found[::-1] if little else found


def test_values_are_followed_as_they_change(device: Device) -> None:
    with open_meter(address(device.port)) as meter:
        for watts in (0.0, 4200.5, 1e6, -350.25):
            device.words = words("f", watts)
            asked_s = time.time()
            reading = meter.read()
            assert reading.watts == watts
            assert asked_s <= reading.at_s <= time.time()


@pytest.mark.parametrize(
    ("name", "code", "value"),
    [
        ("int16", "h", -1234),
        ("uint16", "H", 54_321),
        ("int32", "i", -70_000),
        ("uint32", "I", 4_000_000_000),
        ("int64", "q", -5_000_000_000),
        ("uint64", "Q", 5_000_000_000),
        ("float32", "f", 812.5),
        ("float64", "d", 0.125),
    ],
)
def test_every_type_in_both_orders(device: Device, name: str, code: str, value: float) -> None:
    for order in ("big", "little"):
        device.words = words(code, value, little=order == "little")
        uri = address(device.port, f"type={name}&order={order}")
        with open_meter(uri) as meter:
            assert meter.read().watts == value


def test_scale_and_unit_make_watts(device: Device) -> None:
    device.words = [123]
    with open_meter(address(device.port, "type=int16&scale=0.1&unit=kW&kind=input")) as meter:
        assert meter.read().watts == pytest.approx(12_300)


def trouble(uri: str) -> DeviceErrorKind:
    with open_meter(uri) as meter, pytest.raises(DeviceError) as error:
        meter.read()
    return error.value.trouble


def test_what_the_device_refuses_has_a_name(device: Device) -> None:
    assert trouble(address(device.port, register=5)) is DeviceErrorKind.ABSENT
    assert trouble(address(device.port, unit=9)) is DeviceErrorKind.UNREACHABLE


def test_no_number_is_no_reading(device: Device) -> None:
    device.words = words("f", float("nan"))
    assert trouble(address(device.port)) is DeviceErrorKind.GARBAGE


def test_a_slow_device_times_out_and_its_late_answer_is_not_believed(device: Device) -> None:
    with open_meter(address(device.port).replace("timeout=1s", "timeout=0.3s")) as meter:
        device.words, device.delay_s = words("f", 111.0), 4.0
        started_s = time.monotonic()
        with pytest.raises(DeviceError) as error:
            meter.read()
        assert error.value.trouble is DeviceErrorKind.TIMEOUT
        assert time.monotonic() - started_s < 4.0
        device.words, device.delay_s = words("f", 222.0), 0.0
        assert meter.read().watts == 222.0


def test_a_killed_server_is_unreachable_until_it_is_back() -> None:
    device = Device()
    device.words = words("f", 5.0)
    with serving(device):
        meter = open_meter(address(device.port))
        assert meter.read().watts == 5.0
    for _ in range(2):
        with pytest.raises(DeviceError) as error:
            meter.read()
        assert error.value.trouble is DeviceErrorKind.UNREACHABLE
    with serving(Device(device.port)) as again, meter:
        again.words = words("f", 6.0)
        assert meter.read().watts == 6.0


@pytest.mark.parametrize("noise", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 300, b"\xff"])
def test_noise_is_garbage(noise: bytes, request: pytest.FixtureRequest) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_answer_once, args=[server, noise])
        thread.start()
        uri = address(server.getsockname()[1]).replace("timeout=1s", "timeout=0.3s")
        # More than a frame holds is dropped unheard by pymodbus' asynchronous client.
        dropped = len(noise) > 260 and "beside" in request.node.name
        assert trouble(uri) is (DeviceErrorKind.TIMEOUT if dropped else DeviceErrorKind.GARBAGE)
        thread.join()


def _answer_once(server: socket.socket, noise: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(64)
        connection.sendall(noise)
        connection.recv(64)  # until the client hangs up


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("modbus://h", "names no register"),
        ("modbus://h/1/x", "names no register"),
        ("modbus://h/1/65536", "out of range"),
        ("modbus://h/256/1", "out of range"),
        ("modbus:///1/1", "no host"),
        ("modbus://h/1/1?type=float", "did you mean"),
        ("modbus://h/1/1?order=middle", "unknown"),
    ],
)
def test_an_address_is_checked(text: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        open_meter(text)

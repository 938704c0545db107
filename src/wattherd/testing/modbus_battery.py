"""A battery with its inverter behind a Modbus server on loopback, beside a room of boards.

Three float registers of unit 7, in watts and shares: 0 what it gives, 2 how full it is, 4 what it
is told to give; negative watts are taken. What is told is done within the next look.

`python -m wattherd.testing.modbus_battery --nodes 4 --port 8700 --battery-port 8701` serves both
until it is stopped; the room's meter shows what the battery leaves.
"""

from __future__ import annotations

import argparse
import asyncio
import struct
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pymodbus.server import ModbusTcpServer
from pymodbus.simulator import DataType, SimData, SimDevice

from wattherd.engine.safety.storage import Storage, StorageSize
from wattherd.testing.redfish_boards import Board, a_room

UNIT = 7
GIVES, CHARGE, SETPOINT = 0, 2, 4
WRITE_REGISTERS = 16


@dataclass(slots=True)
class ModbusBattery:
    """`deaf` ones hold what they are told, and do nothing; `charge` is a share."""

    size: StorageSize = field(
        default_factory=lambda: StorageSize(power_w=2000.0, energy_j=36e3, efficiency=0.9)
    )
    charge: float = 1.0
    deaf: bool = False
    setpoint_w: float = 0.0
    port: int = 0
    told_w: list[float] = field(default_factory=list)
    _store: Storage = field(init=False)
    _at_s: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """As full as stated."""
        self._store = Storage(self.size, self.charge)

    def gives_w(self) -> float:
        """What it gives now."""
        with self._lock:
            now_s = time.monotonic()
            step_s, self._at_s = max(now_s - self._at_s, 1e-6), now_s
            return self._store.give(0.0 if self.deaf else self.setpoint_w, step_s)

    @property
    def full(self) -> float:
        """How full it is, 0 to 1."""
        self.gives_w()
        return self._store.charge_j / self.size.energy_j

    def uri(self, register: int) -> str:
        """The address of a register."""
        return f"modbus://127.0.0.1:{self.port}/{UNIT}/{register}?timeout=1s"

    async def answer(
        self, code: int, _start: int, _address: int, _count: int, current: list[int],
        new: list[int] | list[bool] | None,
    ) -> None:  # fmt: skip
        """One request, as pymodbus' simulator hands it on."""
        if code == WRITE_REGISTERS and new:
            self.setpoint_w = struct.unpack(">f", struct.pack(">2H", *new[:2]))[0]
            self.told_w.append(self.setpoint_w)
        values = (self.gives_w(), self.full, self.setpoint_w)
        words = struct.unpack(">6H", struct.pack(">3f", *values))
        current[: len(words)] = words

    async def serve(self, ready: threading.Event, stop: asyncio.Event) -> None:
        """Answer until told to stop."""
        data = SimData(0, values=[0] * 6, datatype=DataType.REGISTERS)
        device = SimDevice(UNIT, [data], action=self.answer)
        server = ModbusTcpServer(device, address=("127.0.0.1", self.port))
        await server.serve_forever(background=True)
        self.port = server.transport.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        ready.set()
        await stop.wait()
        await server.shutdown()


@contextmanager
def a_battery(battery: ModbusBattery) -> Iterator[ModbusBattery]:
    """A battery on a free port of 127.0.0.1, or on its own."""
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    serving = battery.serve(ready, stop)
    thread = threading.Thread(target=loop.run_until_complete, args=[serving])
    thread.start()
    if not ready.wait(10.0):
        raise TimeoutError("the server does not start")
    try:
        yield battery
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve a room with a battery until it is stopped."""
    parser = argparse.ArgumentParser(description="Simulated nodes and a battery beside them.")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--port", type=int, default=8700)
    parser.add_argument("--battery-port", type=int, default=8701)
    chosen = parser.parse_args(arguments)
    battery = ModbusBattery(port=chosen.battery_port)
    boards = [Board() for _ in range(chosen.nodes)]
    with a_battery(battery), a_room(*boards, port=chosen.port) as room:
        room.beside_w = lambda: -battery.gives_w()
        sys.stdout.write(f"{chosen.nodes} nodes, the battery at {battery.uri(GIVES)}\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main()

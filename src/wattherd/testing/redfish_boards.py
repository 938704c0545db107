"""A room of simulated nodes behind Redfish controller boards that keep what they are told.

Draw follows min(demand, cap) as a first-order lag with noise,
P += (1 - exp(-dt / tau)) (min(demand, cap) - P). Boards answer on loopback as those of racks do, by
EnvironmentMetrics and by Power; their power limit and power state may be changed. The draw of all
is also answered as Prometheus would (`/api/v1/query?query=room`). Boards may be made to misbehave.

`python -m wattherd.testing.redfish_boards --nodes 4 --port 8700` serves one until it is stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

NOISE = 0.005
IDLE_W = 60.0


@dataclass(slots=True)
class Board:
    """One node and its board; `cap_w` is None where no limit is set.

    `deaf` boards answer success and keep their limit, `stuck` ones their power; `shy` ones want the
    version of what is changed, `mute` ones do not answer at all; limits act after `delay_s`.
    """

    demand_w: float = 600.0
    lowest_w: float = 200.0
    highest_w: float = 700.0
    cap_w: float | None = None
    on: bool = True
    deaf: bool = False
    stuck: bool = False
    shy: bool = False
    mute: bool = False
    delay_s: float = 0.0
    tau_s: float = 0.3
    reads_w: float | None = None
    """What its meter says in place of the truth: frozen."""
    reads_share: float = 1.0
    """The share of the truth that its meter says: lying."""
    serial: str = ""
    changes: int = 0
    _draw_w: float = IDLE_W
    _at_s: float = field(default_factory=time.monotonic)
    _orders: list[tuple[float, float | None]] = field(default_factory=list)

    def draw_w(self) -> float:
        """Watts drawn now."""
        now_s = time.monotonic()
        self._obey(now_s)
        wanted_w = min(self.demand_w, math.inf if self.cap_w is None else self.cap_w)
        target_w = wanted_w if self.on else 0.0
        share = 1.0 - math.exp(-(now_s - self._at_s) / self.tau_s)
        self._draw_w += share * (target_w - self._draw_w)
        self._at_s = now_s
        return self._draw_w

    def order(self, cap_w: float | None) -> None:
        """Take a new limit, at once or after the delay."""
        if self.deaf:
            return
        self.changes += 1
        self.draw_w()  # so far by the old limit
        self._orders.append((time.monotonic() + self.delay_s, cap_w))
        self._obey(time.monotonic())

    def switch(self, *, on: bool) -> None:
        """Power on or off; a node that starts has no limit."""
        self.draw_w()
        self.on = on
        if on:
            self.cap_w = None

    def _obey(self, now_s: float) -> None:
        while self._orders and self._orders[0][0] <= now_s:
            self.cap_w = self._orders.pop(0)[1]


@dataclass(slots=True)
class BoardRoom:
    """Boards on one server; everything is done under one lock."""

    boards: Sequence[Board]
    port: int = 0
    beside_w: Callable[[], float] = lambda: 0.0
    """What else the meter of them all shows; below zero where storage gives."""
    _random: random.Random = field(default_factory=lambda: random.Random(1))  # noqa: S311
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def uri(self, number: int, part: str = "Chassis") -> str:
        """The address of a board."""
        return f"redfish+http://127.0.0.1:{self.port}/redfish/v1/{part}/{number}"

    @property
    def meter_uri(self) -> str:
        """The address of the meter of them all."""
        return f"prom+http://127.0.0.1:{self.port}/api/v1?query=room"

    def draw_w(self) -> float:
        """Watts of all nodes and of what is beside them, without noise."""
        with self._lock:
            return math.fsum(board.draw_w() for board in self.boards) + self.beside_w()

    def caps_w(self) -> list[float | None]:
        """Limits in force."""
        with self._lock:
            for board in self.boards:
                board.draw_w()
            return [board.cap_w for board in self.boards]

    def answer(self, method: str, path: str, body: Any, version: str) -> BoardReply:
        """One request; `version` is what the client believes to change."""
        with self._lock:
            return self._answer(method, path.rstrip("/"), body, version)

    def _answer(self, method: str, path: str, body: Any, version: str) -> BoardReply:
        if path == "/api/v1/query":
            return BoardReply(200, self._prometheus())
        parts = path.removeprefix("/redfish/v1").strip("/").split("/")
        if len(parts) < 2:
            return self._folder(path, parts[0])
        number = int(parts[1]) if parts[1].isdecimal() else -1
        if not 0 <= number < len(self.boards):
            return BoardReply(404, {})
        board = self.boards[number]
        if board.mute:
            return BoardReply(0, None)
        match method, parts[0], parts[2:]:
            case "GET", _, _:
                return self._resource(board, path, parts)
            case "PATCH", "Chassis", ["EnvironmentMetrics" | "Power" as kind]:
                return _patched(board, kind, body, version)
            case "POST", "Systems", ["Actions", "ComputerSystem.Reset"]:
                return _reset(board, body)
        return BoardReply(405, {})

    def _folder(self, path: str, kind: str) -> BoardReply:
        if not kind:
            return BoardReply(
                200, {name: _link(f"/redfish/v1/{name}") for name in ("Chassis", "Systems")}
            )
        members = [_link(f"{path}/{number}") for number in range(len(self.boards))]
        return BoardReply(200, {"Members": members})

    def _resource(self, board: Board, path: str, parts: Sequence[str]) -> BoardReply:
        match parts[0], parts[2:]:
            case "Chassis", []:
                names = "EnvironmentMetrics", "Power"
                links = {name: _link(f"{path}/{name}") for name in names}
                return BoardReply(200, {**links, "SerialNumber": board.serial or None})
            case "Chassis", ["EnvironmentMetrics"]:
                return BoardReply(200, self._metrics(board))
            case "Chassis", ["Power"]:
                return BoardReply(200, self._power(board))
            case "Systems", []:
                target = f"{path}/Actions/ComputerSystem.Reset"
                kinds = ["On", "ForceOff", "GracefulShutdown"]
                reset = {"target": target, "ResetType@Redfish.AllowableValues": kinds}
                return BoardReply(200, {"PowerState": "On" if board.on else "Off",
                                   "Actions": {"#ComputerSystem.Reset": reset}})  # fmt: skip
        return BoardReply(404, {})

    def _metrics(self, board: Board) -> Mapping[str, Any]:
        reading_w = self._reading_w(board)
        mode = "Disabled" if board.cap_w is None else "Automatic"
        limit = {"SetPoint": board.cap_w, "ControlMode": mode,
                 "AllowableMin": board.lowest_w, "AllowableMax": board.highest_w}  # fmt: skip
        return {"@odata.etag": _version(board), "PowerWatts": {"Reading": reading_w},
                "PowerLimitWatts": limit}  # fmt: skip

    def _power(self, board: Board) -> Mapping[str, Any]:
        control = {"Name": "System", "PowerConsumedWatts": self._reading_w(board),
                   "PowerCapacityWatts": board.highest_w,
                   "PowerLimit": {"LimitInWatts": board.cap_w}}  # fmt: skip
        return {"@odata.etag": _version(board), "PowerControl": [control]}

    def _reading_w(self, board: Board) -> float:
        noise = board.reads_share * (1.0 + self._random.gauss(0.0, NOISE))
        return board.draw_w() * noise if board.reads_w is None else board.reads_w

    def _prometheus(self) -> Mapping[str, Any]:
        watts = math.fsum(board.draw_w() for board in self.boards) + self.beside_w()
        sample = [time.time(), str(watts * (1.0 + self._random.gauss(0.0, NOISE)))]
        result = [{"metric": {}, "value": sample}]
        return {"status": "success", "data": {"resultType": "vector", "result": result}}


@contextmanager
def a_room(*boards: Board, port: int = 0) -> Iterator[BoardRoom]:
    """Boards on a free port of 127.0.0.1."""
    room = BoardRoom(boards)
    with serving(room.answer, port) as room.port:
        yield room


def _patched(board: Board, kind: str, body: Any, version: str) -> BoardReply:
    if board.shy and version != _version(board):
        return BoardReply(412, {"error": {"message": "the resource has another version"}})
    if kind == "Power":
        limit_w = body["PowerControl"][0]["PowerLimit"]["LimitInWatts"]
    else:
        change = body["PowerLimitWatts"]
        lifted = change.get("ControlMode") == "Disabled"
        limit_w = None if lifted else change["SetPoint"]
    if limit_w is not None and not board.lowest_w <= limit_w <= board.highest_w:
        return BoardReply(400, {"error": {"message": f"{limit_w} is out of range"}})
    board.order(limit_w)
    return BoardReply(204, None)


def _reset(board: Board, body: Any) -> BoardReply:
    kind = body.get("ResetType")
    if kind not in ("On", "ForceOff", "GracefulShutdown"):
        return BoardReply(400, {"error": {"message": f"no reset {kind}"}})
    if not board.stuck:
        board.switch(on=kind == "On")
    return BoardReply(204, None)


def _version(board: Board) -> str:
    return f'W/"{board.changes}"'


def _link(path: str) -> Mapping[str, str]:
    return {"@odata.id": path}


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve a room until it is stopped."""
    parser = argparse.ArgumentParser(description="Simulated nodes behind Redfish boards.")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--port", type=int, default=8700)
    parser.add_argument("--demand", type=float, default=600.0, help="watts of each node")
    chosen = parser.parse_args(arguments)
    boards = [Board(demand_w=chosen.demand) for _ in range(chosen.nodes)]
    with a_room(*boards, port=chosen.port) as room:
        sys.stdout.write(f"{chosen.nodes} nodes, the first at {room.uri(0)}\n")
        sys.stdout.flush()
        threading.Event().wait()


class BoardReply(NamedTuple):
    """Status and JSON; status 0 is no answer at all."""

    status: int
    content: Any


Answer = Callable[[str, str, Any, str], BoardReply]
"""Method, path, body and the version in If-Match to a reply."""


class _Handler(BaseHTTPRequestHandler):
    answer: ClassVar[Answer]

    def do_GET(self) -> None:
        self._reply(None)

    def do_PATCH(self) -> None:
        self._reply(self._body())

    def do_POST(self) -> None:
        self._reply(self._body())

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")

    def _reply(self, body: Any) -> None:
        path = urlsplit(self.path).path
        version = self.headers.get("If-Match") or ""
        reply = type(self).answer(self.command, path, body, version)
        if not reply.status:
            self.close_connection = True
            return
        coded = b"" if reply.content is None else json.dumps(reply.content).encode()
        self.send_response(reply.status)
        if coded:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(coded)))
        self.end_headers()
        self.wfile.write(coded)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """Clients that hang up are their own business."""


@contextmanager
def serving(answer: Answer, port: int = 0) -> Iterator[int]:
    """Serve on 127.0.0.1; gives the port."""
    handler = type("Handler", (_Handler,), {"answer": staticmethod(answer)})
    server = _Server(("127.0.0.1", port), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    main()

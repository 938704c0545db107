"""A rack in the test: two boards whose demand follows a service's jobs, and others' load."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from test_live_site import Service

from unit.web_server import Site as Pages
from unit.web_server import serving as web_serving
from wattherd.library.client import Client
from wattherd.local.orphans import end_stray
from wattherd.testing.redfish_boards import Board, BoardRoom, a_room

BUSY_W, IDLE_W = 600.0, 60.0
LOOK_S = 0.1


@dataclass
class Rack:
    """Boards and other load; `seen_w` is what was truly drawn, ten times a second."""

    room: BoardRoom
    limit_w: float
    other_w: float = 300.0
    mute: bool = False
    """Whether its meter answers nothing."""
    client: Client | None = None
    seen_w: list[tuple[float, float]] = field(default_factory=list)
    port: int = 0

    def answer(self, path: str, query: dict[str, str]) -> Any:
        del path, query
        if self.mute:
            return {"status": "success", "data": {"resultType": "vector", "result": []}}
        watts = self.draw_w() * (1.0 + 0.001 * (len(self.seen_w) % 3))
        result = [{"metric": {}, "value": [time.time(), str(watts)]}]
        return {"status": "success", "data": {"resultType": "vector", "result": result}}

    def draw_w(self) -> float:
        return self.room.draw_w() + self.other_w

    def follow(self, over: threading.Event) -> None:
        """Boards draw for the jobs on them; those of a service that is dead go on."""
        while not over.wait(LOOK_S):
            self.seen_w.append((time.monotonic(), self.draw_w()))
            with suppress(Exception):  # a service that is being killed
                if self.client is None:
                    continue
                (node,) = self.client.get("nodes")["nodes"]
                for board, gpu in zip(self.room.boards, node["gpus"], strict=True):
                    board.demand_w = BUSY_W if gpu["jobs"] else IDLE_W

    def config(self, path: Path, step: str | None = None) -> Path:
        """A service's configuration: both boards below the rack."""
        meter = f"prom+http://127.0.0.1:{self.port}/api/v1?query=rack"
        each = [
            {
                "meter": self.room.uri(n),
                "knob": f"{self.room.uri(n)}?timeout=1s",
                **({} if step is None else {"step": step}),
            }
            for n in (0, 1)
        ]
        site = {
            "feeds": {"rack-1": {"limit": self.limit_w, "meter": meter}},
            "feed": "rack-1", "devices": each, "lease": "4s", "handover": "20s",
        }  # fmt: skip
        path.write_text(yaml.safe_dump({"site": site}))
        return path

    def above_s(self, since_s: float, until_s: float | None = None) -> list[float]:
        """Watts above the limit at that time, one for each look."""
        until_s = time.monotonic() if until_s is None else until_s
        over = [(at_s, watts - self.limit_w) for at_s, watts in self.seen_w]
        return [watts for at_s, watts in over if since_s <= at_s <= until_s and watts > 0]

    def caps_w(self) -> list[float | None]:
        return self.room.caps_w()


def gpus(rack: Rack) -> list[Any]:
    """The machine's devices as the service tells."""
    assert rack.client is not None
    (node,) = rack.client.get("nodes")["nodes"]
    return list(node["gpus"])


@contextmanager
def a_rack(limit_w: float, *boards: Board) -> Iterator[Rack]:
    """Two boards that are idle, and the rack's meter."""
    with a_room(*(boards or (Board(demand_w=IDLE_W), Board(demand_w=IDLE_W)))) as room:
        rack, over, pages = Rack(room, limit_w), threading.Event(), Pages()
        pages.answer = rack.answer
        thread = threading.Thread(target=rack.follow, args=[over])
        with web_serving(pages):
            rack.port = pages.port
            thread.start()
            try:
                yield rack
            finally:
                over.set()
                thread.join()


@contextmanager
def served(rack: Rack, folder: Path, config: Path, jobs: int = 2) -> Iterator[list[Any]]:
    """A service, in a list of one so that it may be replaced, and its running jobs."""
    service = Service.begin(folder / "state", "--config", str(config))
    rack.client = Client(service.url)
    now: list[Any] = [service]
    try:
        for _ in range(jobs):
            job = service.call("submit", "--", "sleep", "600").strip()
            service.until(job, "Running")
            now.append(job)
        yield now
    finally:
        rack.client = None
        if now[0].process.poll() is None:
            now[0].end()
        for run in (folder / "state").glob("jobs/*/run-*"):
            end_stray(run)
        end_watchdogs(folder)


def end_watchdogs(state: Path) -> None:
    """Those that stand for leases would wait for their boards for ever."""
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            command = (process / "cmdline").read_text() if process.name.isdecimal() else ""
            if "hold.watchdog" in command and str(state) in command:
                os.kill(int(process.name), signal.SIGKILL)


def again(rack: Rack, folder: Path, config: Path, now: list[Any]) -> None:
    """The next life of the service, on the same state."""
    rack.client = None
    service = Service.begin(folder / "state", "--config", str(config))
    now[0], rack.client = service, Client(service.url)

"""Thousands of controller boards in one process: each 127.a.b.c is a board, with chassis behind it.

`python many_boards.py` prints its port and serves until its input ends. Boards keep what they are
told, draw min(demand, cap) at once, and hang from a request on that names them in `/hang`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

DEMAND_W, LOWEST_W, HIGHEST_W = 600.0, 200.0, 700.0


@dataclass
class Boards:
    """All of them, by address and chassis."""

    caps_w: dict[tuple[str, str], float | None] = field(default_factory=dict)
    hung: set[str] = field(default_factory=set)
    requests: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        board = writer.get_extra_info("sockname")[0]
        try:
            while line := await reader.readline():
                method, path, _ = line.decode().split()
                size = 0
                while head := (await reader.readline()).decode().strip().lower():
                    if head.startswith("content-length:"):
                        size = int(head.partition(":")[2])
                body = json.loads(await reader.readexactly(size)) if size else None
                self.requests += 1
                if board in self.hung:
                    await asyncio.sleep(60.0)
                content = self.answer(board, method, path, body)
                coded = b"" if content is None else json.dumps(content).encode()
                status = "200 OK" if coded else "204 No Content"
                writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(coded)}\r\n\r\n".encode())
                writer.write(coded)
        except (OSError, ValueError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def answer(self, board: str, method: str, path: str, body: Any) -> Any:
        if path == "/hang":
            self.hung = set(body)
            return None
        if path == "/count":
            return {
                "requests": self.requests,
                "capped": sum(cap_w is not None for cap_w in self.caps_w.values()),
                "draw_w": sum(min(DEMAND_W, cap_w or DEMAND_W) for cap_w in self.caps_w.values()),
            }
        parts = path.split("/")  # /redfish/v1/Chassis/N[/EnvironmentMetrics]
        if len(parts) == 5:
            return {"EnvironmentMetrics": {"@odata.id": f"{path}/EnvironmentMetrics"}}
        key = board, parts[4]
        if method == "PATCH":
            self.caps_w[key] = body["PowerLimitWatts"]["SetPoint"]
            return None
        cap_w = self.caps_w.setdefault(key, HIGHEST_W)
        draw_w = min(DEMAND_W, cap_w or DEMAND_W) * random.gauss(1.0, 0.003)
        return {
            "PowerWatts": {"Reading": draw_w},
            "PowerLimitWatts": {
                "SetPoint": cap_w,
                "AllowableMin": LOWEST_W,
                "AllowableMax": HIGHEST_W,
            },
        }


@dataclass(frozen=True)
class Served:
    """The boards as a test sees them."""

    port: int

    def uri(self, number: int, *, behind: int = 1) -> str:
        """The address of a device; `behind` one board each are so many."""
        board, chassis = divmod(number, behind)
        return f"redfish+http://{self.host(board)}:{self.port}/redfish/v1/Chassis/{chassis}"

    @staticmethod
    def host(board: int) -> str:
        return f"127.{1 + board // 62_500}.{1 + board // 250 % 250}.{1 + board % 250}"

    def hang(self, boards: list[int]) -> None:
        self._ask("/hang", [self.host(board) for board in boards])

    def count(self) -> dict[str, Any]:
        told: dict[str, Any] = self._ask("/count", None)
        return told

    def _ask(self, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"http://127.0.0.1:{self.port}{path}", data=data)
        with urlopen(request, timeout=10) as answer:
            return json.loads(answer.read() or b"null")


@contextmanager
def many_boards() -> Iterator[Served]:
    """A process that serves them, for as long as this is open."""
    command = [sys.executable, str(Path(__file__))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Served(int(process.stdout.readline()))
        finally:
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


async def main() -> None:
    boards = Boards()
    server = await asyncio.start_server(boards.serve, "0.0.0.0", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os._exit(0)  # thousands of connections are not worth a word each


if __name__ == "__main__":
    asyncio.run(main())

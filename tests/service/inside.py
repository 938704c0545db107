"""A client of sessions for tests, which says what it is told to and nothing else."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

MOST_S = 60.0


class Inside:
    """One session; what came is in `out` and `err`, the last words in `last`."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.out = self.err = b""
        self.given = self.taken = 0
        self.last: dict[str, Any] = {}

    def say(self, **document: Any) -> None:
        with contextlib.suppress(ConnectionClosed):  # what came before that is still to be read
            self.socket.send(json.dumps(document))

    def give(self, data: bytes) -> None:
        self.given += len(data)
        self.socket.send(b"\0" + data)

    def hear(self, timeout_s: float = MOST_S) -> bool:
        """The next message; False once the session is over."""
        try:
            message = self.socket.recv(timeout_s)
        except ConnectionClosed:
            return False
        if isinstance(message, str):
            document = json.loads(message)
            self.taken += document.get("taken", 0)
            if "taken" not in document:
                self.last = document
        elif message[0] == 1:
            self.out += message[1:]
            self.say(taken=len(message) - 1)
        else:
            self.err += message[1:]
            self.say(taken=len(message) - 1)
        return True

    def until(self, true: Callable[[], object], most_s: float = MOST_S) -> None:
        end_s = time.monotonic() + most_s
        while not true():
            assert time.monotonic() < end_s, (self.out[-500:], self.err[-500:], self.last)
            with contextlib.suppress(TimeoutError):
                if not self.hear(0.2):
                    assert true(), (self.out[-500:], self.err[-500:], self.last)
                    return

    def rest(self) -> dict[str, Any]:
        """Everything up to the end, and the last words."""
        while self.hear():
            pass
        return self.last


@contextlib.contextmanager
def inside(port: int, job_id: str, *command: str, token: str = "", **more: Any) -> Iterator[Inside]:
    """A session in a job; `more` goes with the request."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    headers |= more.pop("headers", {})
    address = f"ws://127.0.0.1:{port}/api/v1/jobs/{job_id}/sessions"
    with connect(
        address, additional_headers=headers, proxy=None, compression=None, max_queue=None
    ) as socket:
        session = Inside(socket)
        session.say(**({"command": command} if command else {"attach": True}), **more)
        yield session

"""A real service of our own, in a process that tests may kill."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wattherd.local.orphans import end_stray

WATTHERD = (sys.executable, "-m", "wattherd.cli.main")
MOST_S = 180.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def until(true: Callable[[], Any], most_s: float = MOST_S) -> Any:
    end_s = time.monotonic() + most_s
    while not (found := true()):
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.05)
    return found


class Serving:
    """One state folder and port; the process comes and goes."""

    def __init__(self, state: Path, *options: str, port: int | None = None) -> None:
        self.state = state
        self.port = port or free_port()
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None
        self.errors = state.with_name(f"{state.name}.err")

    def begin(self) -> None:
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [*WATTHERD, "serve", "--state", str(self.state), "--port", str(self.port),
                 "--slots", "2", *self.options],
                stderr=errors,
            )  # fmt: skip

    def ready(self, most_s: float = MOST_S) -> None:
        def answers() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.errors.read_text()
            return self.ask("health") is not None

        until(answers, most_s)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process = None

    def end_service(self) -> None:
        """As an operator does: by SIGTERM, and its jobs go on."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(20)
        self.process = None

    def end(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        for folder in self.state.glob("jobs/*/run-*"):
            end_stray(folder)

    def ask(self, path: str, body: Any = None, **headers: str) -> Any:
        """The answer, an error's document with its `code`, or None if nobody answered."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api/v1/{path}",
            None if body is None else json.dumps(body).encode(),
            {"content-type": "application/json", **headers},
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return {"code": error.code, **json.load(error)}
        except (OSError, ValueError, http.client.HTTPException):  # cut off, too
            return None

    def call(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*WATTHERD, *arguments],
            env={**os.environ, "WATTHERD_SERVER": f"http://127.0.0.1:{self.port}", **more},
            capture_output=True,
            text=True,
            timeout=MOST_S,
            check=False,
        )

    def store(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.call("store", *arguments, "--state", str(self.state))

    def submit(self, run: str, **more: Any) -> str:
        answer = self.ask("jobs", {"run": run, **more})
        assert "id" in answer, answer
        return str(answer["id"])

    def state_of(self, job_id: str) -> str:
        answer = self.ask(f"jobs/{job_id}")
        return "" if answer is None else str(answer.get("state", ""))

    def wait_for(self, job_id: str, state: str) -> None:
        until(lambda: self.state_of(job_id) == state)

    def tasks(self, job_id: str, run: int = 1) -> list[int]:
        """Process numbers of a run's tasks, by what they wrote to `pid-*` in their folder."""
        found = []
        for path in sorted((self.state / "jobs" / job_id / "work").glob(f"pid-{run}-*")):
            with contextlib.suppress(ValueError):
                found.append(int(path.read_text()))
        return found

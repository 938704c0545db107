"""Open connections that never end use up every descriptor: runs go on, and none runs twice."""

from __future__ import annotations

import resource
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import WATTHERD, Serving, until

from promises import PromiseBroken

pytestmark = pytest.mark.long

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

DESCRIPTORS, CONNECTIONS, FLOOD_S = 256, 300, 8.0


class Starved(Serving):
    """A service that may not open many files, and cannot help itself to more."""

    def begin(self) -> None:
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [*WATTHERD, "serve", "--state", str(self.state), "--port", str(self.port),
                 "--slots", "4", *self.options],
                stderr=errors,
                preexec_fn=lambda: resource.setrlimit(
                    resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS)
                ),
            )  # fmt: skip


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Starved]:
    service = Starved(tmp_path / "state")
    service.begin()
    service.ready()
    yield service
    service.end()


def flood(port: int) -> list[socket.socket]:
    """Requests that were begun and are never ended, by nobody who was let in."""
    opened = []
    for _ in range(CONNECTIONS):
        one = socket.socket()
        one.settimeout(0.2)
        try:
            one.connect(("127.0.0.1", port))
            one.sendall(b"GET /api/v1/jobs HTTP/1.1\r\nHost: a\r\nX-Slow: ")
        except OSError:  # the queue of those that wait to be let in is full
            pass
        opened.append(one)
    return opened


def test_a_flood_of_half_requests_costs_no_run(service: Starved, tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    run = (
        f"echo began $WATTHERD_JOB_ID $WATTHERD_ATTEMPT >> {effects}; sleep {{}};"
        f" echo ended $WATTHERD_JOB_ID $WATTHERD_ATTEMPT >> {effects}"
    )
    long = [service.submit(run.format(14), restarts=5) for _ in range(2)]
    short = [service.submit(run.format(4)) for _ in range(2)]
    waiting = [service.submit(run.format(0.1)) for _ in range(3)]
    for job in (*long, *short):
        service.wait_for(job, "Running")
    opened = flood(service.port)
    try:
        time.sleep(FLOOD_S)
    finally:
        for one in opened:
            one.close()
    jobs = [*long, *short, *waiting]
    ends: dict[str, Any] = {}

    def over() -> bool:
        for job in jobs:
            ends[job] = (service.ask(f"jobs/{job}") or {}).get("state", "")
        return all(end in ("Succeeded", "Failed", "Cancelled") for end in ends.values())

    until(over)
    lines = Counter(effects.read_text().splitlines())
    once = Counter(f"{what} {job} 1" for job in jobs for what in ("began", "ended"))
    if lines != once or set(ends.values()) != {"Succeeded"}:
        raise PromiseBroken(f"{ends}, ran: {sorted(lines.items())}")

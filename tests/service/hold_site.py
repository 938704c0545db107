"""A site of simulated boards on loopback, and `wattherd power hold` as a process that holds it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wattherd.testing.redfish_boards import BoardRoom

PERIOD_S = 0.25
PATIENCE_S = 30.0


def write_site(path: Path, room: BoardRoom, limit: str, *, lease: str = "2s", **more: Any) -> Path:
    """All boards on one feed, whose meter is the room's; `more` goes into the file."""
    devices = {
        f"node-{n}": {"feed": "row", "meter": room.uri(n), "knob": room.uri(n) + "?timeout=1s"}
        for n in range(len(room.boards))
    }
    for name, options in more.pop("each", {}).items():
        devices[name] |= options
    feeds = {"row": {"meter": room.meter_uri}}
    site = {"limit": limit, "period": PERIOD_S, "lease": lease, "lead": "0s", "feeds": feeds}
    path.write_text(json.dumps({**site, "devices": devices, **more}))  # JSON is YAML
    return path


class Loop:
    """One life of the loop, and what it has said so far."""

    def __init__(self, site: Path, *arguments: str, text: bool = False) -> None:
        command = [sys.executable, "-m", "wattherd.cli.main", "power", "hold", str(site)]
        self.process = subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[dict[str, Any]] = []
        self.text = text
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append({"event": line} if self.text else json.loads(line))

    def said(self, event: str) -> list[dict[str, Any]]:
        return [line for line in list(self.lines) if line["event"] == event]

    def close(self) -> None:
        """After its end: let go of its pipes."""
        self.reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it, and wait for that."""
        self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        self.reader.join()
        return code


@contextmanager
def holding(site: Path, *arguments: str) -> Iterator[Loop]:
    """A loop that has decided at least once; killed at the end if it still lives."""
    loop = Loop(site, *arguments)
    try:
        eventually(lambda: bool(loop.said("cycle")) or loop.process.poll() is not None)
        yield loop
    finally:
        if loop.process.poll() is None:
            loop.process.kill()
        loop.process.wait()
        loop.reader.join()
        for pipe in (loop.process.stdout, loop.process.stderr):
            assert pipe is not None
            print(pipe.read())  # shown where the test fails
            pipe.close()


def eventually(holds: Callable[[], bool], within_s: float = PATIENCE_S) -> float:
    """Seconds until it holds."""
    began_s = time.monotonic()
    while not holds():
        assert time.monotonic() - began_s < within_s, "never"
        time.sleep(0.02)
    return time.monotonic() - began_s


def watched(room: BoardRoom, seconds: float) -> list[float]:
    """The true draw of a room, again and again."""
    until_s, seen_w = time.monotonic() + seconds, []
    while time.monotonic() < until_s:
        seen_w.append(room.draw_w())
        time.sleep(0.02)
    return seen_w


@contextmanager
def sampled(room: BoardRoom) -> Iterator[list[float]]:
    """The true draw of a room in the background, fifty times a second."""
    over, seen_w = threading.Event(), list[float]()

    def look() -> None:
        while not over.wait(0.02):
            seen_w.append(room.draw_w())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen_w
    finally:
        over.set()
        thread.join()


def end_watchdogs(site: Path) -> None:
    """Those of killed loops would try to reach their boards for ever."""
    for orphan in watchdogs(site):
        os.kill(orphan, signal.SIGKILL)


def watchdogs(site: Path) -> list[int]:
    """All that guard a site, their loops dead or not."""
    journal = str(site.with_name("site.journal.json"))
    return [
        int(folder.name)
        for folder in Path("/proc").iterdir()
        if folder.name.isdecimal() and journal in _command(folder)
        if "hold.watchdog" in _command(folder)
    ]


def _command(folder: Path) -> str:
    try:
        return (folder / "cmdline").read_text()
    except OSError:
        return ""


def watchdog_of(loop: Loop) -> int | None:
    """The process that guards a loop, if there is one now."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and _is_watchdog(folder, loop.process.pid):
            return int(folder.name)
    return None


def _is_watchdog(folder: Path, parent: int) -> bool:
    try:
        command = (folder / "cmdline").read_text()
        stat = (folder / "stat").read_text()
    except OSError:
        return False
    return "hold.watchdog" in command and int(stat.rpartition(")")[2].split()[1]) == parent

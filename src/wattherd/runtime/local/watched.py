"""One run as its directory tells: whether it began, what it reports, how it ended."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wattherd.model.event import (
    BatchApplied,
    CapApplied,
    Event,
    JobExited,
    JobProgressed,
    JobStarted,
    JobStopped,
)
from wattherd.runtime.local import run_dir

CANNOT_RUN = 127
KILLED = 137
_TOLD = ("rate_per_s", "loss", "total", "micro_batch")
REQUEUE = 143
MOST_BYTES = 1 << 20
"""Of a job's reports, read at a time."""


class Watched:
    """Reads one run directory again and again; `news` says what is new."""

    def __init__(self, key: tuple[str, int], folder: Path) -> None:
        """Whatever is there already is news."""
        self.launched: int | None = None
        """Process number of the supervisor while it is our own child."""
        self._job_id, self._attempt = key
        self._folder = folder
        self._started = False
        self._read_to = 0
        self._awaited: tuple[float, float | None] | None = None
        self._used: tuple[float, float] | None = None
        self.over = False
        self.micro_batch: int | None = None
        """Samples at once, as the job says."""
        self.rate_per_s: float | None = None
        """Steps per second, as the job says."""
        self.usage = (0.0, 0)
        """vCPUs in use over the last seconds, and bytes of memory."""

    @property
    def begun(self) -> bool:
        """Whether a supervisor has taken the order."""
        return (self._folder / run_dir.BEGUN).exists()

    @property
    def duty(self) -> float | None:
        """The part of the time in which it may compute, as its supervisor says."""
        found = (run_dir.read(self._folder / run_dir.HEEDED) or {}).get("duty")
        return float(found) if isinstance(found, int | float) else None

    @property
    def supervisor(self) -> int | None:
        """Process number of the supervisor, None if there is none alive."""
        who = run_dir.read(self._folder / run_dir.BEGUN)
        if who is None or who["boot"] != run_dir.boot_id():
            return None
        alive = run_dir.started_ticks(int(who["pid"])) == who["ticks"]
        return int(who["pid"]) if alive else None

    def await_duty(self, duty: float, cap_w: float | None) -> None:
        """Tell when this duty, and so the cap, is in force."""
        self._awaited = (duty, cap_w)

    def news(self) -> Iterator[Event]:
        """What happened since the last call."""
        who: dict[str, Any] = {"at_s": 0.0, "job_id": self._job_id, "attempt": self._attempt}
        given_up = self._given_up()  # looked at first: last words come before the end
        if not self._started and (self._folder / run_dir.STARTED).exists():
            self._started = True
            yield JobStarted(**who)
        yield from self._progress(who)
        yield from self._capped(who)
        self._use()
        ended = run_dir.read(self._folder / run_dir.EXIT)
        if ended is not None:
            self.over = True
            yield _ending(ended, who)
            self._wait()
        elif given_up:
            self.over = True
            yield self._abandoned(who)

    def _given_up(self) -> bool:
        """Whether nobody carries the order out any more.

        Whether it has begun is looked at before who carries it out: a supervisor that begins
        between the two is alive. Our own child may end because another has begun before it.
        """
        if self.begun:
            return self.supervisor is None
        return self._wait() and not self.begun

    def _wait(self) -> bool:
        """Take note of our own child's end, so that it does not stay on as a zombie."""
        if self.launched is None:
            return False
        ended = os.waitpid(self.launched, os.WNOHANG)[0] != 0
        if ended:
            self.launched = None
        return ended

    def _abandoned(self, who: dict[str, Any]) -> Event:
        """The supervisor died without a word: with the whole machine, or alone."""
        began = run_dir.read(self._folder / run_dir.BEGUN)
        if began is not None and began["boot"] != run_dir.boot_id():
            return JobExited(**who, exit_code=REQUEUE, cause="the machine was restarted")
        return JobExited(**who, exit_code=KILLED, cause="its supervisor was killed")

    def _progress(self, who: dict[str, Any]) -> Iterator[Event]:
        """The last complete report among those that are new."""
        try:
            with run_dir.open_regular(self._folder / run_dir.PROGRESS) as stream:
                stream.seek(self._read_to)
                text = stream.read(MOST_BYTES)
        except OSError:
            return
        lines, _, _ = text.rpartition(b"\n")
        if lines:
            self._read_to += len(lines) + 1
            report = _report(lines.splitlines()[-1])
            if report:
                micro_batch = report.pop("micro_batch", None)
                self.rate_per_s = report.get("rate_per_s")
                yield JobProgressed(**who, **report)
                if micro_batch not in (None, self.micro_batch):
                    self.micro_batch = int(micro_batch)
                    yield BatchApplied(**who, micro_batch=self.micro_batch)

    def _capped(self, who: dict[str, Any]) -> Iterator[Event]:
        heeded = run_dir.read(self._folder / run_dir.HEEDED)
        if self._awaited is None or heeded is None:
            return
        duty, cap_w = self._awaited
        if math.isclose(heeded.get("duty", -1.0), duty, abs_tol=1e-9):
            self._awaited = None
            yield CapApplied(**who, cap_w=cap_w)

    def _use(self) -> None:
        used = run_dir.read(self._folder / run_dir.USAGE)
        if used is None:
            return
        if self._used is not None and used["at"] > self._used[1]:
            rate = (used["cpu_s"] - self._used[0]) / (used["at"] - self._used[1])
            self.usage = (max(0.0, rate), used["memory_bytes"])
        self._used = (used["cpu_s"], used["at"])


def _ending(ended: dict[str, Any], who: dict[str, Any]) -> Event:
    if ended.get("stopped"):
        return JobStopped(**who, cause=ended.get("why", ""))
    return JobExited(**who, exit_code=int(ended["exit_code"]), cause=ended.get("why", ""))


def _report(line: bytes) -> dict[str, Any] | None:
    """A line of `progress.jsonl`; None if it is none, as jobs write it themselves."""
    try:
        found = json.loads(line)
        report = {"progress": float(found["step"])}
        for name in _TOLD:
            if found.get(name) is not None:
                report[name] = float(found[name])
    except (ValueError, TypeError, KeyError):
        return None
    return report if all(map(math.isfinite, report.values())) else None

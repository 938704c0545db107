"""One run as its directory tells: whether it began, what it reports, how it ended."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wattherd.errors import words
from wattherd.local import run_dir, run_lock
from wattherd.local.observation import (
    ABSENT,
    Absent,
    Present,
    Reading,
    Unknown,
    document,
    open_regular,
    passes,
    present,
)
from wattherd.model.event import (
    BatchApplied,
    CapApplied,
    Event,
    JobExited,
    JobProgressed,
    JobStarted,
    JobStopped,
)

CANNOT_RUN = 127
KILLED = 137
_TOLD = ("rate_per_s", "loss", "total", "micro_batch", "noise_scale", "batch")
REQUEUE = 143
LEFT_BEHIND = "its supervisor is gone, but processes of it still run"
MOST_LOOKS = 50
"""For how many an end waits for reports that cannot be read."""
MOST_BYTES = 1 << 20
"""Of a job's reports, read at a time: the last ones."""


class RunObserver:
    """Reads one run directory again and again; `news` says what is new."""

    def __init__(self, key: tuple[str, int], folder: Path) -> None:
        """Whatever is there already is news."""
        self._job_id, self._attempt = key
        self._folder = folder
        self._started = False
        self._read_to = self._held_back = 0
        self._awaited: tuple[float, float | None] | None = None
        self._used: tuple[float, float] | None = None
        self.over = False
        self.abandoned = False
        """Whether its supervisor is proven to have ended without a word."""
        self.damaged = False
        """Whether it has ended, and what it wrote of its end makes no sense."""
        self.unknown = ""
        """What could not be told at the last look, as something could not be read; or nothing."""
        self.trouble = ""
        """What its supervisor cannot do at the moment."""
        self.unkept: list[str] = []
        """Limits that the kernel was asked to keep, and does not, in sentences."""
        self.micro_batch: int | None = None
        """Samples at once, as the job says."""
        self.rate_per_s: float | None = None
        """Steps per second, as the job says."""
        self.usage = (0.0, 0)
        """vCPUs in use over the last seconds, and bytes of memory."""

    @property
    def begun(self) -> Reading[object]:
        """Whether a supervisor has taken the order."""
        return present(self._folder / run_dir.BEGUN)

    @property
    def duty(self) -> float | None:
        """The part of the time in which it may compute, as its supervisor says."""
        match document(self._folder / run_dir.HEEDED):
            case Present({"duty": int() | float() as duty}):
                return float(duty)
            case _:
                return None

    @property
    def supervisor(self) -> Reading[int]:
        """Process number of the supervisor; absent when it is proven to have ended.

        Processes of the job may have outlived it: while they hold its lock, nothing is proven.
        """
        match document(self._folder / run_dir.BEGUN):
            case Present({"pid": int() as pid, "ticks": ticks, "boot": boot}):
                return self._alive(pid, ticks, boot)
            case Unknown(why, damaged) if not damaged:
                return Unknown(why)
            case Present() | Unknown():
                return self._by_lock()  # power was cut while it was written, say
            case Absent():
                return ABSENT

    def _alive(self, pid: int, ticks: object, boot: object) -> Reading[int]:
        match run_dir.boot_id():
            case Present(now) if now != boot:
                return ABSENT  # whatever ran before the system was booted is gone
            case Unknown(why):
                return Unknown(why)
            case _:
                pass
        match run_dir.started_ticks(pid):
            case Present(found) if found == ticks:
                return Present(pid)
            case Unknown(why):
                return Unknown(why)
            case _:
                return self._by_lock()

    def _by_lock(self) -> Absent | Unknown:
        """Its supervisor cannot be found: whether anything else of the job still runs."""
        match run_lock.held(self._folder):
            case Present(True):
                return Unknown(LEFT_BEHIND)
            case Unknown(why):
                return Unknown(why)
            case _:
                return ABSENT

    def await_duty(self, duty: float, cap_w: float | None) -> None:
        """Tell when this duty, and so the cap, is in force."""
        self._awaited = (duty, cap_w)

    def news(self) -> Iterator[Event]:
        """What happened since the last call; `unknown` says what could not be told."""
        self.unknown = ""
        who: dict[str, Any] = {"at_s": 0.0, "job_id": self._job_id, "attempt": self._attempt}
        given_up = self._given_up()  # looked at first: last words come before the end
        self.abandoned = self.damaged = False
        of_its_life, self.unknown = self.unknown, ""
        if not self._started and self._is_there(run_dir.STARTED):
            self._started = True
            yield JobStarted(**who)
        yield from self._progress(who)
        yield from self._capped(who)
        self._use()
        if self.unknown and self._held_back < MOST_LOOKS:
            self._held_back += 1  # the end is told after all that came before it
            return
        self.unknown = self.unknown or of_its_life
        match document(self._folder / run_dir.EXIT):
            case Present({"exit_code": _} as ended):
                yield from self._progress(who)  # what came between that look and this
                self.over = True
                yield _ending(ended, who)
            case Present():
                self.unknown, self.damaged = f"{run_dir.EXIT} does not say how it ended", given_up
            case Unknown(why, damaged):
                self.unknown, self.damaged = why, damaged and given_up
            case Absent():
                self.abandoned = given_up

    def abandon(self) -> JobExited:
        """The supervisor died without a word, and nothing of the run is left."""
        self.over = True
        who: dict[str, Any] = {"at_s": 0.0, "job_id": self._job_id, "attempt": self._attempt}
        began, booted = document(self._folder / run_dir.BEGUN), run_dir.boot_id()
        match began, booted:
            case Present({"boot": str() as boot}), Present(now) if boot != now:
                return JobExited(**who, exit_code=REQUEUE, cause="the machine was restarted")
            case _:
                return JobExited(**who, exit_code=KILLED, cause="its supervisor was killed")

    def _is_there(self, name: str) -> bool:
        match present(self._folder / name):
            case Present():
                return True
            case Unknown(why):
                self.unknown = why
            case Absent():
                pass
        return False

    def _given_up(self) -> bool:
        """Whether nobody carries the order out any more.

        Whether it has begun is looked at before who carries it out: a supervisor that begins
        between the two is alive. One that has not begun is not given up: it can be begun again.
        """
        match self.begun:
            case Present():
                found = self.supervisor
                if isinstance(found, Unknown):
                    self.unknown = found.why
                return isinstance(found, Absent)
            case Unknown(why):
                self.unknown = why
            case Absent():
                pass
        return False

    def _progress(self, who: dict[str, Any]) -> Iterator[Event]:
        """The last complete report among those that are new."""
        try:
            with open_regular(self._folder / run_dir.PROGRESS) as stream:
                size = os.fstat(stream.fileno()).st_size
                if size < self._read_to:  # the job has begun it anew
                    self._read_to = 0
                # Whatever came before the last report is out of date, after a restart, too.
                self._read_to = max(self._read_to, size - MOST_BYTES)
                stream.seek(self._read_to)
                text = stream.read(MOST_BYTES)
        except OSError as error:
            if passes(error):  # anything else is the job's own doing
                self.unknown = words(error)
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
        if self._awaited is None:
            return
        duty, cap_w = self._awaited
        heeded = self.duty
        if heeded is not None and math.isclose(heeded, duty, abs_tol=1e-9):
            self._awaited = None
            yield CapApplied(**who, cap_w=cap_w)

    def _use(self) -> None:
        match document(self._folder / run_dir.USAGE):
            case Present({"cpu_s": cpu_s, "memory_bytes": memory, "at": at} as used):
                self.trouble = str(used.get("trouble", ""))
                self.unkept = [str(one) for one in used.get("unkept", ())]
                if self._used is not None and at > self._used[1]:
                    rate = (cpu_s - self._used[0]) / (at - self._used[1])
                    self.usage = (max(0.0, rate), memory)
                self._used = (cpu_s, at)
            case _:
                pass  # what it uses is what was read last


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
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    # A loss that is no number any more makes no report of the step beside it untrue.
    sound = {name: value for name, value in report.items() if math.isfinite(value)}
    return sound if "progress" in sound else None

"""Finds runs that lag: a synchronous job is as fast as its slowest task, and stands when one hangs.

A run is compared with itself, at the same cap on the same devices: with the median of the rates it
reported before, and with the longest it ever was silent. Jobs that report nothing are not judged.
"""

from __future__ import annotations

import logging
import statistics
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from wattherd.model.command import Command, StartJob, StopJob
from wattherd.model.event import CapApplied, JobExited, JobProgressed, JobStopped
from wattherd.store.entry import JournalEntry

SLOW = 0.5
"""Part of its pace below which a run lags."""
LAG_S = 10.0
"""For how long it must: a checkpoint or an evaluation is no lag."""
SILENT_S, TIMES = 15.0, 5.0
"""A run hangs that is silent so long, and so many times longer than ever before."""
LEAST, MOST = 5, 50
"""Reports that make a pace, and those that are kept."""
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Run:
    """One run: its rates so far (per second), its last report, since when it is slow."""

    attempt: int
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=MOST))
    heard_s: float | None = None
    longest_s: float = 0.0
    slow_since_s: float | None = None
    reported: bool = False
    stopping: bool = False

    def begin_again(self) -> None:
        """Another cap, another pace."""
        self.rates.clear()
        self.slow_since_s = None

    def hear(self, at_s: float, rate: float | None) -> None:
        """A report came."""
        if self.heard_s is not None:
            self.longest_s = max(self.longest_s, at_s - self.heard_s)
        self.heard_s = at_s
        if rate is not None and len(self.rates) >= LEAST and rate < SLOW * self.pace:
            self.slow_since_s = at_s if self.slow_since_s is None else self.slow_since_s
            return
        self.slow_since_s, self.reported = None, False
        if rate is not None:
            self.rates.append(rate)

    @property
    def pace(self) -> float:
        """The median of its rates."""
        return statistics.median(self.rates)

    def trouble(self, now_s: float) -> str:
        """What is wrong with it, if anything."""
        if self.slow_since_s is not None and now_s - self.slow_since_s >= LAG_S:
            return f"is below half of its pace of {self.pace:.3g} steps/s"
        silent_s = 0.0 if self.heard_s is None else now_s - self.heard_s
        if self.longest_s and silent_s >= max(SILENT_S, TIMES * self.longest_s):
            return f"has reported nothing for {silent_s:.0f} s"
        return ""


class PaceWatch:
    """`told` hears every turn, `look` says once a second which runs have begun to lag."""

    def __init__(self, found: Callable[[str], None]) -> None:
        """`found` gets the id of a job whose run lags, once until it has caught up."""
        self._found = found
        self._runs: dict[str, _Run] = {}
        self._lock = threading.Lock()

    def told(self, turns: Sequence[tuple[JournalEntry, Sequence[Command]]]) -> None:
        """Follow events and orders."""
        with self._lock:
            for entry, commands in turns:
                self._hear(entry)
                for command in commands:
                    self._obey(command)

    def _hear(self, entry: JournalEntry) -> None:
        event = entry.event
        if isinstance(event, JobProgressed):  # also of a run that began before the service did
            self._runs.setdefault(event.job_id, _Run(event.attempt))
        run = self._runs.get(getattr(event, "job_id", ""))
        if run is None or getattr(event, "attempt", None) != run.attempt:
            return
        match event:
            case JobProgressed():
                run.hear(event.at_s, event.rate_per_s)
            case CapApplied():
                run.begin_again()
            case JobStopped() | JobExited():
                del self._runs[event.job_id]

    def _obey(self, command: Command) -> None:
        match command:
            case StartJob():
                self._runs[command.job_id] = _Run(command.attempt)
            case StopJob() if command.job_id in self._runs:
                self._runs[command.job_id].stopping = True

    def look(self, now_s: float) -> None:
        """Tell of those that lag."""
        with self._lock:
            lagging = list(self._new(now_s))
        for job_id, trouble in lagging:
            _LOG.warning("job %s %s", job_id, trouble)
            self._found(job_id)

    def _new(self, now_s: float) -> Iterator[tuple[str, str]]:
        for job_id, run in self._runs.items():
            trouble = "" if run.reported or run.stopping else run.trouble(now_s)
            if trouble:
                run.reported = True
                yield job_id, trouble

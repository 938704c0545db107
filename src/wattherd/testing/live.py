"""A live cluster without disk, clock or processes: for tests of what is built around a core."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wattherd.engine.core.executor import RunOrder
from wattherd.model.command import GiveNotice, SetBatch, SetCap, StartJob, StopJob
from wattherd.model.event import CapApplied, Event, JobExited, JobStarted, JobStopped
from wattherd.store.entry import JournalEntry, StoreDoubt, StoreFailure


class MemoryJournal:
    """Keeps entries in a list; refuses all while `full`, and forgets to say so while `silent`."""

    def __init__(self, entries: Sequence[JournalEntry] = ()) -> None:
        """Begin with what another journal has."""
        self.kept = list(entries)
        self.full = False
        self.silent = False
        self._told = len(self.kept)

    def entries(self, after: int = 0) -> Iterator[JournalEntry]:
        """Those after a number."""
        return iter([entry for entry in self.kept if entry.seq > after])

    def append(self, entries: Sequence[JournalEntry]) -> None:
        """Keep them, unless full."""
        if self.full:
            raise StoreFailure("the journal is full")
        self.kept.extend(entries)
        if self.silent:
            raise StoreDoubt("the connection was lost")
        self._told = len(self.kept)

    def settle(self) -> Sequence[JournalEntry]:
        """What was kept in silence."""
        if self.silent:
            raise StoreFailure("there is no connection")
        found, self._told = self.kept[self._told :], len(self.kept)
        return found

    def check_writable(self) -> None:
        """Refuse, if full."""
        if self.full:
            raise StoreFailure("the journal is full")


class SetClock:
    """Shows what it is set to."""

    def __init__(self, at_s: float = 0.0) -> None:
        """Start at `at_s`."""
        self.at_s = at_s

    def now_s(self) -> float:
        """The time that was set."""
        return self.at_s


class PaperExecutor:
    """Carries out nothing by itself: a test says when a run starts, stops or ends."""

    def __init__(self) -> None:
        """Nothing runs."""
        self.runs: dict[tuple[str, int], RunOrder] = {}
        """What runs in this world, by job and attempt."""
        self.begun: list[tuple[str, int]] = []
        """Every run that was ever begun, in order."""
        self.stops: dict[tuple[str, int], StopJob] = {}
        self.caps: list[tuple[str, int, float | None]] = []
        self.batches: list[SetBatch] = []
        self.notices: list[GiveNotice] = []

    def adopt(self, runs: Sequence[RunOrder]) -> None:
        """Begin what was never begun, end what is not to be."""
        wanted = {_key(run.start): run for run in runs}
        for key in set(self.runs) - set(wanted):
            del self.runs[key]
        for key, run in wanted.items():
            if key not in self.begun:
                self.start(run)
            if run.stop is not None:
                self.stop(run.stop)

    def start(self, run: RunOrder) -> None:
        """Begin it, once."""
        key = _key(run.start)
        if key not in self.begun:
            self.runs[key] = run
            self.begun.append(key)

    def stop(self, order: StopJob) -> None:
        """Remember that it is to stop."""
        if _key(order) in self.runs:
            self.stops[_key(order)] = order

    def give_notice(self, order: GiveNotice) -> None:
        """Remember it."""
        self.notices.append(order)

    def cap(self, order: SetCap) -> None:
        """Remember it."""
        self.caps.append((order.job_id, order.attempt, order.cap_w))

    def set_batch(self, order: SetBatch) -> None:
        """Remember it."""
        self.batches.append(order)

    def close(self) -> None:
        """Nothing to leave."""

    # What a test makes happen -------------------------------------------------------------------

    def started(self, key: tuple[str, int]) -> Event:
        """The run tells that it runs."""
        return JobStarted(at_s=0.0, job_id=key[0], attempt=key[1])

    def capped(self, key: tuple[str, int], cap_w: float | None) -> Event:
        """Its cap was read back."""
        return CapApplied(at_s=0.0, job_id=key[0], attempt=key[1], cap_w=cap_w)

    def stopped(self, key: tuple[str, int]) -> Event:
        """The run stops as told."""
        self.runs.pop(key, None)
        self.stops.pop(key, None)
        return JobStopped(at_s=0.0, job_id=key[0], attempt=key[1])

    def exited(self, key: tuple[str, int], exit_code: int = 0) -> Event:
        """The run ends by itself."""
        self.runs.pop(key, None)
        self.stops.pop(key, None)
        return JobExited(at_s=0.0, job_id=key[0], attempt=key[1], exit_code=exit_code)


def _key(order: StartJob | StopJob) -> tuple[str, int]:
    return order.job_id, order.attempt

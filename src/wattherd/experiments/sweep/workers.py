"""Processes that compute cells side by side; one that dies takes only its own cell with it."""

from __future__ import annotations

import json
import math
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

_AT_ONCE = 1 << 16
_LOOK_S = 1.0
"""How often processes are looked at that say nothing: a child may hold a dead one's pipe open."""


class _Worker:
    """A process of `worker.py`, the task that it has, and what of the answer has come."""

    def __init__(self) -> None:
        path = os.pathsep.join(str(Path(one).absolute()) for one in sys.path)
        # One thread each: processes are what computes side by side, and sums stay as they are.
        threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "wattherd.experiments.sweep.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0,
            env={**threads, **os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        self.number = -1
        self.until_s = math.inf
        self._limit_s: float | None = None
        self._ready = False
        self._come = b""

    @property
    def heard_from(self) -> IO[bytes]:
        """Where its answers come from."""
        return cast("IO[bytes]", self.process.stdout)

    def begin(self, number: int, task: Mapping[str, Any], limit_s: float | None) -> None:
        """Give it a task."""
        self.number = number
        self._limit_s = limit_s
        if self._ready:
            self._time()
        tasks = cast("IO[bytes]", self.process.stdin)
        with suppress(BrokenPipeError):  # it is dead, which is heard where answers are
            tasks.write(json.dumps(task).encode() + b"\n")
            tasks.flush()

    def answer(self) -> dict[str, Any] | None:
        """What it answers, once that is there whole; a failure where it has died."""
        more = os.read(self.heard_from.fileno(), _AT_ONCE)
        self._come += more
        line, end, rest = self._come.partition(b"\n")
        if not self._ready and end:
            self._come, self._ready = rest, True
            self._time()
            # A short task's answer may have come in the same read: nothing follows it to wake us.
            line, end, rest = self._come.partition(b"\n")
        if end:
            self._come = rest
            found: dict[str, Any] = json.loads(line)
            return found
        return None if more else {"failure": self.death()}

    def _time(self) -> None:
        """From now on the task's time runs."""
        self.until_s = math.inf if self._limit_s is None else time.monotonic() + self._limit_s

    def silent(self) -> bool:
        """Whether it is dead and has said all that it will."""
        dead = self.process.poll() is not None
        return dead and not select.select([self.heard_from], [], [], 0)[0]

    def death(self) -> str:
        """How it ended."""
        code = self.process.wait()
        if code < 0:
            return f"its process was killed ({signal.Signals(-code).name})"
        return f"its process ended with exit code {code}"

    def end(self) -> None:
        """At once, whatever it does, and with it what it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self.process.wait()


class _Workers:
    """The processes, and the tasks that none of them has begun."""

    def __init__(
        self, tasks: Sequence[Mapping[str, Any]], processes: int, limit_s: float | None
    ) -> None:
        self._tasks = tasks
        self._waiting = deque(range(len(tasks)))
        self._processes = processes
        self._limit_s = limit_s
        self._selector = selectors.DefaultSelector()
        self._workers: set[_Worker] = set()

    def answers(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Each task's number and answer, as they come."""
        while self._waiting or self._workers:
            while self._waiting and len(self._workers) < self._processes:
                self._begin(self._started())
            for worker, answer in self._heard():
                number = worker.number
                dead = "failure" in answer and worker.process.poll() is not None
                if dead or not self._waiting:
                    self._drop(worker)
                else:
                    self._begin(worker)
                yield number, answer

    def end(self) -> None:
        """Every process, at once."""
        for worker in list(self._workers):
            self._drop(worker)
        self._selector.close()

    def _started(self) -> _Worker:
        worker = _Worker()
        self._workers.add(worker)
        self._selector.register(worker.heard_from, selectors.EVENT_READ, worker)
        return worker

    def _begin(self, worker: _Worker) -> None:
        number = self._waiting.popleft()
        worker.begin(number, self._tasks[number], self._limit_s)

    def _drop(self, worker: _Worker) -> None:
        self._selector.unregister(worker.heard_from)
        self._workers.discard(worker)
        worker.end()

    def _heard(self) -> list[tuple[_Worker, dict[str, Any]]]:
        """Answers that are there now, or failures of those that take too long."""
        first_s = min(worker.until_s for worker in self._workers)
        wait_s = min(max(first_s - time.monotonic(), 0.0), _LOOK_S)
        found = []
        for key, _ in self._selector.select(wait_s):
            answer = key.data.answer()
            if answer is not None:
                found.append((key.data, answer))
        answered = {worker for worker, _ in found}
        for worker in self._workers - answered:
            if worker.silent():
                found.append((worker, {"failure": worker.death()}))
            elif time.monotonic() >= worker.until_s:
                worker.process.kill()
                worker.process.wait()
                found.append((worker, {"failure": f"took longer than {self._limit_s:g} s"}))
        return found


def compute_all(
    tasks: Sequence[Mapping[str, Any]], *, processes: int, limit_s: float | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each task's number and answer, as they come: `{"result": ...}` or `{"failure": why}`.

    Args:
        tasks: as `worker.py` takes them.
        processes: how many at a time.
        limit_s: a task that takes longer is ended, and fails.
    """
    workers = _Workers(tasks, processes, limit_s)
    try:
        yield from workers.answers()
    finally:
        workers.end()

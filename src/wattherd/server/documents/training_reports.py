"""What a job reported of its training: step, loss and speed, read back from the files of its runs.

The files hold every report and outlive the service, but a job may write as much as it likes. Of a
long file a few hundred places are read, evenly spread; never the whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from wattherd.local import run_dir

MOST = 320
"""Reports of all runs together; more could not be told apart in a picture."""
RUNS = 16
"""Runs that are looked at, the latest."""
WHOLE_BYTES = 1 << 17
"""A file up to this size is read whole."""
PIECE_BYTES = 1024
"""Read at each place of a longer one; a report longer than half of it may be passed over."""
LARGEST = 1e15
"""No step, loss, speed or time is larger; an axis for what a job may invent could not be drawn."""


@dataclass(frozen=True, slots=True)
class TrainingReportLine:
    """One report of run `attempt`; `at_unix_s` is when it was made, where the job says so."""

    attempt: int
    step: float
    loss: float | None = None
    rate_per_s: float | None = None
    at_unix_s: float | None = None


def training_reports(root: Path, job_id: str, attempts: int) -> list[TrainingReportLine]:
    """The reports of the latest runs of a job, the oldest first, about `MOST` of them.

    What cannot be read, or is no report, is passed over: jobs write these files themselves.
    """
    runs = range(max(1, attempts - RUNS + 1), attempts + 1)
    each = MOST // max(len(runs), 1)
    found: list[TrainingReportLine] = []
    for attempt in runs:
        try:
            stream = run_dir.open_below(root, job_id, f"run-{attempt}", run_dir.PROGRESS)
        except OSError:
            continue
        with stream:
            found += _thinned(list(_reports(stream, attempt, each)), each)
    return found


def _reports(stream: IO[bytes], attempt: int, places: int) -> Iterator[TrainingReportLine]:
    try:
        for line in _lines(stream, places):
            report = _report(line, attempt)
            if report is not None:
                yield report
    except OSError:
        return


def _lines(stream: IO[bytes], places: int) -> Iterator[bytes]:
    """All complete lines of a short file; of a long one the first after each of some places."""
    size = os.fstat(stream.fileno()).st_size
    if size <= WHOLE_BYTES:
        yield from stream.read(WHOLE_BYTES).rpartition(b"\n")[0].splitlines()
        return
    yield from stream.read(PIECE_BYTES).splitlines()[:1]
    for place in range(1, places - 1):
        stream.seek(place * (size - PIECE_BYTES) // places)
        yield from stream.read(PIECE_BYTES).split(b"\n")[1:-1][:1]
    stream.seek(size - PIECE_BYTES)
    yield from stream.read(PIECE_BYTES).split(b"\n")[1:-1][-1:]


def _report(line: bytes, attempt: int) -> TrainingReportLine | None:
    try:
        found = json.loads(line)
        step = _number(found["step"])
        told = [_number(found.get(name)) for name in ("loss", "rate_per_s", "at")]
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    return None if step is None else TrainingReportLine(attempt, step, *told)


def _number(value: object) -> float | None:
    """A number to be drawn; None where there is none, such as the loss of what diverged."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= LARGEST else None


def _thinned(reports: list[TrainingReportLine], most: int) -> list[TrainingReportLine]:
    """No more than `most`, evenly spread, the first and the last among them."""
    if len(reports) <= most:
        return reports
    last = len(reports) - 1
    return [reports[round(place * last / (most - 1))] for place in range(most)]

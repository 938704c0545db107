"""How far this run is: a line of JSON now and then, appended to `progress.jsonl`."""

from __future__ import annotations

import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wattherd_train.trouble import Trouble

EVERY_S = 1.0
WINDOW = 8
"""Reports over which a rate is taken: slow enough to be steady, quick enough to show a cap."""


class Reporter:
    """Writes at most one line in `every_s`; the first at once, what is left with `flush`."""

    def __init__(
        self,
        path: Path | None,
        trouble: Trouble,
        *,
        also: Callable[[Mapping[str, Any]], None] | None = None,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without a path nothing is written; `also` is told of each report, written or not."""
        self._path, self._trouble, self._also = path, trouble, also
        self._every_s, self._clock = every_s, clock
        self._last_s = -math.inf
        self._waiting: dict[str, Any] | None = None
        self._samples = 0.0
        self._past: deque[tuple[float, float, float]] = deque(maxlen=WINDOW)
        self._torn = False

    def announce(self) -> None:
        """Make the file, which says that this run reads what is wanted of it."""
        if self._path is not None:
            with self._trouble.swallowed("cannot report progress"):
                self._path.touch()

    def step(self, number: float, samples: float | None, values: Mapping[str, Any]) -> None:
        """Step `number` is done, with so many more samples; `values` are read if it is written."""
        if self._path is None and self._also is None:
            return
        with self._trouble.swallowed("cannot count samples", TypeError, ValueError):
            batch = float(samples or 0)
            self._samples += batch
            values = {**values, "batch": batch or None}
        self._waiting = {**values, "step": number}
        if self._clock() - self._last_s >= self._every_s:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting."""
        if self._waiting is None:
            return
        self._last_s = self._clock()
        with self._trouble.swallowed("cannot report progress", TypeError, ValueError):
            document = self._document(self._waiting)
            if self._also is not None:
                self._also(document)
            if self._path is not None:
                self._append(json.dumps(document).encode() + b"\n")
        self._waiting = None

    def _document(self, waiting: Mapping[str, Any]) -> dict[str, Any]:
        """Numbers only: what is none, or not finite, is left out."""
        numbers = {name: _finite(value) for name, value in waiting.items()}
        step = numbers.pop("step")
        if step is None:
            raise ValueError(f"step {waiting['step']!r} is no number")
        numbers.update(self._rates(step))
        known = {name: value for name, value in numbers.items() if value is not None}
        return {"step": step, **known, "at": time.time()}

    def _rates(self, step: float) -> dict[str, float | None]:
        """Steps and samples a second over the last reports."""
        if self._past and step < self._past[-1][1]:
            self._past.clear()  # begun anew, as from a checkpoint
        self._past.append((self._last_s, step, self._samples))
        before_s, before, samples = self._past[0]
        span_s = self._last_s - before_s
        rates: dict[str, float | None] = {}
        if span_s > 0:
            rates["rate_per_s"] = (step - before) / span_s
        if self._samples:
            rates["samples"] = self._samples
            rates["samples_per_s"] = (self._samples - samples) / span_s if span_s > 0 else None
        return rates

    def _append(self, line: bytes) -> None:
        """In one call, so that lines do not mix; what a full disk cut off is ended first."""
        descriptor = os.open(str(self._path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            whole = b"\n" + line if self._torn else line
            written = os.write(descriptor, whole)
            self._torn = written < len(whole)
        finally:
            os.close(descriptor)


def _finite(value: Any) -> float | None:
    """A number of any kind, tensors of one element too, as one that JSON knows."""
    if value is None:
        return None
    number = float(value)
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() else number

"""How long this rank needs for its own part of a step: what it waits for others is left out.

In a synchronous job all steps last equally long, on the slow rank because it computes and on the
others because they wait. Only what a rank does by itself tells who holds the others up.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from wattherd_train.trouble import Trouble
from wattherd_train.world import World

EVERY_S = 1.0
WINDOW = 64
"""Steps over which the mean is taken, at most: a minute where a step lasts about a second."""


class RankPace:
    """Writes `rank-N.json` once in `every_s`; without a folder, or alone, nothing."""

    def __init__(
        self,
        folder: Path | None,
        world: World,
        trouble: Trouble,
        *,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is written before the second step."""
        self._path = folder / f"rank-{world.rank}.json" if folder and world.size > 1 else None
        self._world, self._trouble, self._every_s, self._clock = world, trouble, every_s, clock
        self._began_s: float | None = None
        self._waited_s = 0.0
        self._own: deque[float] = deque(maxlen=WINDOW)
        self._last_s = -math.inf

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Time within is not this rank's own."""
        began_s = self._clock()
        try:
            yield
        finally:
            self._waited_s += self._clock() - began_s

    def step(self, number: float) -> None:
        """Step `number` is done."""
        if self._path is None:
            return
        now_s = self._clock()
        if self._began_s is not None:
            self._own.append(max(0.0, now_s - self._began_s - self._waited_s))
        self._began_s, self._waited_s = now_s, 0.0
        if self._own and now_s - self._last_s >= self._every_s:
            self._last_s = now_s
            with self._trouble.swallowed("cannot report the pace of a rank", TypeError, ValueError):
                self._write(self._path, number)

    def _write(self, path: Path, number: float) -> None:
        told = {
            "rank": self._world.rank,
            "ranks": self._world.size,
            "step": float(number),
            "own_s": sum(self._own) / len(self._own),
            "at": time.time(),
        }
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        fresh.write_text(json.dumps(told), encoding="utf-8")
        fresh.replace(path)

"""What the ranks of a run say of their pace: `rank-N.json` of its directory, written by the job."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattherd.local import run_dir

MOST_RANKS = 4096


@dataclass(frozen=True, slots=True)
class RankPace:
    """Rank `rank` of `ranks` needs `own_s` seconds a step without waiting; said at Unix `at`."""

    rank: int
    ranks: int
    step: float
    own_s: float
    at: float


def paces(folder: Path) -> Iterator[RankPace]:
    """Of all ranks that have said something sound; jobs write these files themselves."""
    for number, path in enumerate(folder.glob("rank-*.json")):
        if number >= MOST_RANKS:
            return
        found = _pace(run_dir.read_told(path) or {})
        if found is not None:
            yield found


def _pace(told: dict[str, Any]) -> RankPace | None:
    try:
        rank, ranks = int(told["rank"]), int(told["ranks"])
        step, own_s, at = float(told["step"]), float(told["own_s"]), float(told["at"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    sound = 0 <= rank < ranks <= MOST_RANKS and all(map(math.isfinite, (step, own_s, at)))
    return RankPace(rank, ranks, step, own_s, at) if sound and own_s >= 0 else None

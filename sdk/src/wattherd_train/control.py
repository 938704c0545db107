"""What is wanted of this run: `control.json`, looked at again whenever it was replaced."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from wattherd_train import files
from wattherd_train.trouble import Trouble


@dataclass(frozen=True, slots=True)
class StopOrder:
    """The run is to save its state and end; at Unix time `by` it is killed."""

    reason: str = ""
    by: float = math.inf


class Control:
    """One look costs one `stat` unless something changed."""

    def __init__(self, path: Path | None, trouble: Trouble, announced: Path | None = None) -> None:
        """Without a path nothing is ever wanted; `announced` is where a pod finds its notice."""
        self._path, self._trouble, self._announced = path, trouble, announced
        self._seen: tuple[int, int] | None = None
        self._document: dict[str, Any] = {}

    def _look(self) -> dict[str, Any]:
        if self._path is not None:
            with self._trouble.swallowed("cannot read what is wanted"):
                status = self._path.stat()
                seen = (status.st_mtime_ns, status.st_ino)
                if seen != self._seen:
                    self._document = files.document(self._path) or self._document
                    self._seen = seen
        return self._document

    @property
    def stop(self) -> StopOrder | None:
        """The order to stop, if there is one."""
        found = self._look().get("stop")
        if not isinstance(found, dict):
            return None
        return StopOrder(str(found.get("reason", "")), _number(found.get("by")) or math.inf)

    @property
    def notice(self) -> dict[str, Any] | None:
        """What the scheduler has announced, if anything."""
        found = self._look().get("notice")
        return found if isinstance(found, dict) else self._notice_of_pod()

    def _notice_of_pod(self) -> dict[str, Any] | None:
        """`2026-01-31T12:00:00Z Reclaimed`; the file is empty as long as nothing is announced."""
        if self._announced is None:
            return None
        with self._trouble.swallowed("cannot read what is announced", ValueError):
            at, _, reason = self._announced.read_text().strip().partition(" ")
            if at:
                by = datetime.fromisoformat(f"{at.removesuffix('Z')}+00:00").timestamp()
                return {"by": by, "reason": reason}
        return None

    @property
    def micro_batch(self) -> int | None:
        """The wanted size of micro-batches, in samples."""
        found = _number(self._look().get("micro_batch"))
        return int(found) if found is not None and found >= 1 else None


def _number(value: Any) -> float | None:
    """A finite number; None for whatever else stands there."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if known and math.isfinite(value) else None

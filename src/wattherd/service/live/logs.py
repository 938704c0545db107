"""Logs of a run, read while they grow: plain files below the folder of jobs, and no links."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from wattherd.runtime.local import run_dir

CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class TaskLog:
    """What one task of a run prints; there may be nothing yet."""

    root: Path
    job_id: str
    attempt: int
    rank: int

    def tail(self, lines: int | None) -> tuple[bytes, int]:
        """The last lines (all of them for None), and up to where that was read."""
        try:
            with self._open() as stream:
                text = stream.read()
        except OSError:
            return b"", 0
        if lines is not None:
            kept = text.splitlines(keepends=True)[-lines:] if lines else []
            return b"".join(kept), len(text)
        return text, len(text)

    def grown(self, offset: int) -> Iterator[bytes]:
        """What was printed from `offset` on; a log rotated meanwhile is read from its start."""
        try:
            with self._open() as stream:
                size = os.fstat(stream.fileno()).st_size
                stream.seek(offset if size >= offset else 0)
                while chunk := stream.read(CHUNK):
                    yield chunk
        except OSError:
            return

    def _open(self) -> IO[bytes]:
        run = f"run-{self.attempt}"
        return run_dir.open_below(self.root, self.job_id, run, run_dir.LOGS, f"{self.rank}.log")

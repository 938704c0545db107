"""Logs of a run, read while they grow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from wattherd.runtime.local import run_dir

CHUNK = 65_536


def log_path(root: Path, job_id: str, attempt: int, rank: int) -> Path:
    """Where a task's log is, or will be once it prints something."""
    return root / job_id / f"run-{attempt}" / run_dir.LOGS / f"{rank}.log"


def tail(path: Path, lines: int | None) -> tuple[bytes, int]:
    """The last lines (all of them for None), and up to where that was read."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return b"", 0
    if lines is not None:
        kept = text.splitlines(keepends=True)[-lines:] if lines else []
        return b"".join(kept), len(text)
    return text, len(text)


def grown(path: Path, offset: int) -> Iterator[bytes]:
    """What was printed from `offset` on; a log rotated meanwhile is read from its start."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            stream.seek(offset if size >= offset else 0)
            while chunk := stream.read(CHUNK):
                yield chunk
    except FileNotFoundError:
        return

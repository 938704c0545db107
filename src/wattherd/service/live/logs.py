"""Logs of a run, read while they grow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from wattherd.errors import UserError
from wattherd.runtime.local import run_dir

CHUNK = 65_536


def log_path(root: Path, job_id: str, attempt: int, rank: int) -> Path:
    """Where a task's log is; the numbers are checked, so that no path leads elsewhere.

    Raises:
        UserError: there is no such log (yet).
    """
    path = root / job_id / f"run-{int(attempt)}" / run_dir.LOGS / f"{int(rank)}.log"
    if not path.is_file():
        raise UserError("nothing was printed yet", where=f"{job_id} run {attempt}", field="logs")
    return path


def tail(path: Path, lines: int | None) -> tuple[bytes, int]:
    """The last lines (all of them for None), and up to where that was read."""
    with path.open("rb") as stream:
        text = stream.read()
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

"""Files that are there as a whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def replace(path: Path, document: Mapping[str, Any]) -> None:
    """Put `document` in place of a file, on disk before this returns.

    Raises:
        OSError: nothing was changed.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("w", encoding="utf-8") as stream:
            json.dump(document, stream)
            sync(stream.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def claim(path: Path, document: Mapping[str, Any]) -> None:
    """Make a file, complete at once, unless there is one already.

    Raises:
        OSError: it cannot be made.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(json.dumps(document), encoding="utf-8")
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def document(path: Path) -> dict[str, Any] | None:
    """What a file says; None if there is none, or it is no JSON object.

    Raises:
        OSError: it is there and cannot be read.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def sync(descriptor: int) -> None:
    """Have the system write to disk what it holds of an open file."""
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Have names made or changed in a folder outlive a power cut."""
    with opened(folder) as descriptor:
        sync(descriptor)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[int]:
    """A folder's descriptor, closed afterwards."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)

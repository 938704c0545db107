"""Get public trace files over HTTP, check them, and put them in place only when they are right.

The download goes through `pooch` (extra `fetch`): into a temporary file next to the target,
checksum, then a rename, so a reader never sees half a file. A file that is right already needs
no network. Every failure ends in one line with a way out.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattherd.errors import UserError
from wattherd.workload.public_files import (
    LOCK_FILE,
    Condition,
    PublicFile,
    condition,
    read_lock,
    sha256_of,
    write_lock,
)

# One repository holds all 26 files; this commit comes after the last change to any of them.
BASE_URL = (
    "https://raw.githubusercontent.com/alibaba/clusterdata/"
    "358ef992044f8393cb17d750e360cb5c26b7bdae/cluster-trace-gpu-v2023/csv"
)
_CHUNK_BYTES = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait, in seconds: for a connection, for the next bytes, for one whole file."""

    connect_s: float = 10.0
    stall_s: float = 30.0
    file_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Where the file is, and what was there before (`VERIFIED` and `LOCKED`: nothing to do)."""

    path: Path
    before: Condition


def base_url(environ: Mapping[str, str] = os.environ) -> str:
    """`$WATTHERD_TRACE_URL`, else where the traces were published."""
    return environ.get("WATTHERD_TRACE_URL") or BASE_URL


def fetch(
    entry: PublicFile,
    directory: Path,
    *,
    url: str = BASE_URL,
    unverified: bool = False,
    patience: Patience | None = None,
) -> Fetched:
    """Have `entry` in `directory`, downloading it from below `url` if it is not there or damaged.

    With `unverified`, a file without a known checksum is taken as it comes and its checksum goes
    into the lock file; from then on it is held to that.

    Raises:
        UserError: no checksum and not `unverified`; the extra is not installed; the server cannot
            be reached, has no such file, stalls, or sends something else; the disk refuses.
    """
    before = condition(entry, directory)
    path = directory / entry.file
    if before in (Condition.VERIFIED, Condition.LOCKED):
        return Fetched(path=path, before=before)
    expected = entry.sha256 or read_lock(directory).get(entry.file)
    if expected is None and not unverified:
        raise UserError(
            "no checksum is known for this file, so what comes cannot be checked",
            where=entry.name,
            hint=f"--unverified takes it as it comes and records it in {directory / LOCK_FILE}",
        )
    if before is not Condition.UNVERIFIED:
        _download(entry, path, url, expected, patience or Patience())
    if entry.sha256 is None:
        _record(path)
    return Fetched(path=path, before=before)


def _download(
    entry: PublicFile, path: Path, url: str, expected: str | None, patience: Patience
) -> None:
    """Let pooch fetch, check and rename; say in one line what went wrong."""
    _check(url)
    import pooch  # type: ignore[import-untyped, unused-ignore]
    import requests

    full = f"{url.rstrip('/')}/{entry.file}"
    elsewhere = f"or put the file there yourself: {path}"
    pooch.get_logger().setLevel("WARNING")
    cache = pooch.create(
        path=path.parent, base_url=f"{url.rstrip('/')}/", registry={entry.file: expected}
    )
    try:
        # pooch takes any file for good that has no checksum; only a wrong size brought us here
        if expected is None:
            path.unlink(missing_ok=True)
        cache.fetch(entry.file, downloader=_Download(entry=entry, patience=patience))
        path.chmod(0o644)
    except requests.HTTPError as problem:
        answer = problem.response
        raise UserError(
            f"the server answered {answer.status_code} {answer.reason}",
            where=full,
            hint=f"check --base-url and WATTHERD_TRACE_URL, {elsewhere}",
        ) from problem
    except requests.RequestException as problem:
        raise UserError(
            _what_went_wrong(problem), where=full, hint=f"try again, {elsewhere}"
        ) from problem
    except ValueError as problem:
        raise UserError(
            "the server's file has another SHA-256 than it should; nothing was kept",
            where=full,
            hint=_hint_on_mismatch(entry, path.parent),
        ) from problem
    except OSError as problem:
        raise UserError(
            f"cannot write: {problem.strerror}",
            where=str(path),
            hint="set WATTHERD_DATA to a directory that you can write to",
        ) from problem

"""Get public trace files over HTTP, check them, and put them in place only when they are right.

The download goes through `pooch` (extra `fetch`): into a temporary file next to the target,
checksum, then a rename, so a reader never sees half a file. A file that is right already needs
no network. Every failure ends in one line with a way out.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urlsplit

from wattherd.errors import UserError, harmless
from wattherd.workload.public_files import (
    LOCK_FILE,
    FileCondition,
    PublicFile,
    condition,
    read_lock,
    sha256_of,
    write_lock,
)

if TYPE_CHECKING:
    import requests

# One repository holds all 26 files. The commit is pinned so that they cannot change under us; it
# added another trace, years after these were published and last changed.
BASE_URL = (
    "https://raw.githubusercontent.com/alibaba/clusterdata/"
    "358ef992044f8393cb17d750e360cb5c26b7bdae/cluster-trace-gpu-v2023/csv"
)
_CHUNK_BYTES = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTimeouts:
    """How long to wait, in seconds: for a connection, for the next bytes, for one whole file."""

    connect_s: float = 10.0
    stall_s: float = 30.0
    file_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedFile:
    """Where the file is, and what was there before (`VERIFIED` and `LOCKED`: nothing to do)."""

    path: Path
    before: FileCondition

    def said(self) -> str:
        """What was done, in a few words."""
        match self.before:
            case FileCondition.VERIFIED:
                return "here already, checksum right"
            case FileCondition.LOCKED:
                return "here already, unchanged since it was first fetched"
            case FileCondition.UNVERIFIED:
                return f"here already; no checksum is known, recorded it in {LOCK_FILE}"
            case FileCondition.DIFFERS:
                return "replaced a damaged or changed file"
            case FileCondition.MISSING:
                return "fetched"


def trace_url(environ: Mapping[str, str] = os.environ) -> str:
    """`$WATTHERD_TRACE_URL`, else where the traces were published."""
    return environ.get("WATTHERD_TRACE_URL") or BASE_URL


def fetch(
    entry: PublicFile,
    directory: Path,
    *,
    url: str = BASE_URL,
    unverified: bool = False,
    patience: FetchTimeouts | None = None,
) -> FetchedFile:
    """Have `entry` in `directory`, downloading it from below `url` if it is not there or damaged.

    With `unverified`, a file without a known checksum is taken as it comes and its checksum goes
    into the lock file; from then on it is held to that.

    Raises:
        UserError: no checksum and not `unverified`; the extra is not installed; the server cannot
            be reached, has no such file, stalls, or sends something else; the disk refuses.
    """
    before = condition(entry, directory)
    path = directory / entry.file
    if before in (FileCondition.VERIFIED, FileCondition.LOCKED):
        return FetchedFile(path=path, before=before)
    expected = entry.sha256 or read_lock(directory).get(entry.file)
    if expected is None and not unverified:
        raise UserError(
            "no checksum is known for this file, so what comes cannot be checked",
            where=entry.name,
            hint=f"--unverified takes it as it comes and records it in {directory / LOCK_FILE}",
        )
    if before is not FileCondition.UNVERIFIED:
        _check(url)
        _download(entry, path, url, expected, patience or FetchTimeouts())
    if entry.sha256 is None:
        _record(path)
    return FetchedFile(path=path, before=before)


def _download(
    entry: PublicFile, path: Path, url: str, expected: str | None, patience: FetchTimeouts
) -> None:
    """Let pooch fetch and check it in a directory of its own, then move it into place."""
    import pooch
    import requests

    pooch.get_logger().setLevel("WARNING")
    full = f"{url.rstrip('/')}/{entry.file}"
    elsewhere = f"or put the file there yourself: {path}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent) as draft:
            came = pooch.retrieve(
                url=full,
                known_hash=expected,
                fname=entry.file,
                path=draft,
                downloader=_Download(entry=entry, patience=patience),
            )
            Path(came).chmod(0o644)
            Path(came).replace(path)
    except requests.HTTPError as problem:
        raise UserError(
            _refusal(problem.response),
            where=full,
            hint=f"check --base-url and WATTHERD_TRACE_URL, {elsewhere}",
        ) from problem
    except requests.RequestException as problem:
        raise UserError(_trouble(problem), where=full, hint=f"try again, {elsewhere}") from problem
    except ValueError as problem:
        raise UserError(
            "the server's file has another SHA-256 than it should; it was not kept",
            where=full,
            hint=_on_mismatch(entry, path.parent),
        ) from problem
    except OSError as problem:
        raise UserError(
            f"cannot write: {problem.strerror}",
            where=str(path),
            hint="point WATTHERD_DATA at a directory that you can write to",
        ) from problem


@dataclass(frozen=True, slots=True, kw_only=True)
class _Download:
    """What pooch calls: stream one file; stop when it stalls, takes too long or is too large."""

    entry: PublicFile
    patience: FetchTimeouts

    def __call__(self, url: str, output_file: str, _pooch: object) -> None:
        import requests

        timeout = (self.patience.connect_s, self.patience.stall_s)
        with requests.get(url, stream=True, timeout=timeout) as answer:
            answer.raise_for_status()
            with Path(output_file).open("wb") as file:
                self._copy(url, answer.iter_content(_CHUNK_BYTES), file)

    def _copy(self, url: str, chunks: Iterable[bytes], file: BinaryIO) -> None:
        until = time.monotonic() + self.patience.file_s
        received = 0
        for chunk in chunks:
            received += file.write(chunk)
            if received > self.entry.size_bytes:
                break
            if time.monotonic() > until:
                raise UserError(f"not complete after {self.patience.file_s:g} s", where=url)
        if received != self.entry.size_bytes:
            more = "more than" if received > self.entry.size_bytes else f"{received:,} instead of"
            raise UserError(
                f"the server sent {more} {self.entry.size_bytes:,} bytes",
                where=url,
                hint="this is another file, or one cut short; check --base-url",
            )


def _check(url: str) -> None:
    """Refuse an address that is not HTTP, and an installation that cannot fetch."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UserError(f"{url!r} is not an http(s) address", field="--base-url")
    if importlib.util.find_spec("pooch") is None:
        raise UserError("fetching needs the package pooch", hint="pip install 'wattherd[fetch]'")


def _refusal(answer: requests.Response | None) -> str:
    if answer is None:
        return "the server refused"
    reason = harmless(str(answer.reason), 100)
    return f"the server answered {answer.status_code} {reason}".rstrip()


def _trouble(problem: requests.RequestException) -> str:
    """What went wrong on the way, in words; the most particular kind first."""
    from requests import exceptions as kinds
    from urllib3.exceptions import ReadTimeoutError

    if any(isinstance(cause, ReadTimeoutError) for cause in problem.args):
        return "the server stopped sending"
    for kind, words in (
        (kinds.ConnectTimeout, "no connection in time"),
        (kinds.Timeout, "the server does not answer"),
        (kinds.SSLError, "the server's certificate is not accepted"),
        (kinds.ProxyError, "the proxy cannot be reached"),
        (kinds.ConnectionError, "the server cannot be reached"),
        (kinds.ChunkedEncodingError, "the connection broke off"),
    ):
        if isinstance(problem, kind):
            return words
    return f"the download failed ({type(problem).__name__})"


def _on_mismatch(entry: PublicFile, directory: Path) -> str:
    if entry.sha256:
        return "check --base-url and WATTHERD_TRACE_URL"
    return f"if it was republished, remove its line from {directory / LOCK_FILE}"


def _record(path: Path) -> None:
    """Write down what was taken without a checksum."""
    try:
        write_lock(path.parent, read_lock(path.parent) | {path.name: sha256_of(path)})
    except OSError as problem:
        where = str(path.parent / LOCK_FILE)
        raise UserError(f"cannot write: {problem.strerror}", where=where) from problem

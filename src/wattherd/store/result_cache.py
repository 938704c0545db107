"""Results that were computed before: one small file each, found by what they were computed from.

The key says everything that a result depends on, so an entry is never out of date: what changed has
another key. Whatever cannot be read as an entry (cut off, of another version, not ours) counts as
absent and is computed anew. Where nothing can be written, nothing is kept, and work goes on.

The folder is `WATTHERD_CACHE`, else `wattherd/results` in the user's folder of caches
(https://specifications.freedesktop.org/basedir-spec). It can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = "wattherd.cached/1"
OFF = ("off", "none", "0", "no", "false")
"""Values of `WATTHERD_CACHE` that switch it off."""
_ENTRY = re.compile(r"[0-9a-f]{64}\.json")
_DRAFT = ".draft-"


def cache_folder(environ: Mapping[str, str] | None = None) -> Path | None:
    """Where results of this user are kept; None where they are not."""
    known = os.environ if environ is None else environ
    said = known.get("WATTHERD_CACHE", "").strip()
    if said.casefold() in OFF:
        return None
    try:
        if said:
            return Path(said).expanduser()
        return Path(known.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "wattherd" / "results"
    except RuntimeError:  # this user has no home
        return None


def key_of(identity: Mapping[str, Any]) -> str:
    """The name of what is computed from these; equal content, equal name."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return _digest(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUse:
    """What a cache holds: all entries, and those that another version left."""

    entries: int
    held_bytes: int
    of_others: int


class ResultCache:
    """Results by key, for many processes at once; without a folder it keeps nothing.

    Args:
        folder: where; made on the first write.
        made_by: which code makes results now; entries say whose they are.
    """

    def __init__(self, folder: Path | None, made_by: str = "") -> None:
        """Touch nothing yet."""
        self.folder = folder
        self.problem = ""
        """Why the last result could not be kept."""
        self._made_by = made_by

    def get(self, key: str) -> dict[str, Any] | None:
        """The result of this name, or None where there is none that can be read."""
        if self.folder is None:
            return None
        entry = _read(_path(self.folder, key))
        if entry is None or entry["key"] != key:
            return None
        try:
            value = json.loads(entry["value"])
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None

    def put(self, key: str, value: Mapping[str, Any]) -> bool:
        """Keep a result, whole or not at all; whether that was possible."""
        if self.folder is None:
            return False
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
        entry = {
            "schema": SCHEMA, "key": key, "made_by": self._made_by, "sha256": _digest(text),
            "value": text,
        }  # fmt: skip
        path = _path(self.folder, key)
        try:
            _write(path, json.dumps(entry) + "\n")
        except OSError as error:
            self.problem = f"{path.parent}: {error.strerror}"
            return False
        return True

    def use(self) -> CacheUse:
        """How much is kept."""
        entries = held_bytes = of_others = 0
        for path in self._files():
            if not _ENTRY.fullmatch(path.name):
                continue
            entry = _read(path)
            entries += 1
            held_bytes += _size(path)
            of_others += entry is None or entry["made_by"] != self._made_by
        return CacheUse(entries=entries, held_bytes=held_bytes, of_others=of_others)

    def clear(self, *, only_others: bool = False) -> int:
        """Delete entries, or only those that no run of this version would take; how many went.

        Nothing but entries is deleted, whatever else is in the folder.
        """
        gone = 0
        for path in list(self._files()):
            entry = _read(path) if only_others and _ENTRY.fullmatch(path.name) else None
            if entry is not None and entry["made_by"] == self._made_by:
                continue
            try:
                path.unlink()
            except OSError:
                continue
            gone += not path.name.startswith(_DRAFT)
        return gone

    def _files(self) -> Iterator[Path]:
        """Entries, and drafts that a process left when it was killed."""
        if self.folder is None:
            return
        for path in sorted(self.folder.glob("[0-9a-f][0-9a-f]/*")):
            ours = _ENTRY.fullmatch(path.name) or path.name.startswith(_DRAFT)
            if ours and path.is_file():
                yield path


def _path(folder: Path, key: str) -> Path:
    return folder / key[:2] / f"{key}.json"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path) -> dict[str, str] | None:
    """An entry as it was written; None of anything else."""
    try:
        if not path.is_file():  # a pipe of that name would never end
            return None
        entry = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    names = ("schema", "key", "made_by", "sha256", "value")
    if not isinstance(entry, dict) or not all(isinstance(entry.get(one), str) for one in names):
        return None
    whole = entry["schema"] == SCHEMA and entry["sha256"] == _digest(entry["value"])
    return entry if whole else None


def _write(path: Path, text: str) -> None:
    """Under another name first: whoever reads sees the old file, the new one or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    number, draft = tempfile.mkstemp(prefix=_DRAFT, dir=path.parent)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise

"""The public openb files: what they are called, how large they are, and which are on this disk.

Sizes are those of the published files. The SHA-256 is known where a published copy was at hand
to compute it from; for the other files (`-` below) a lock file in `sha256sum` format records
what was first fetched, so that a later change is noticed. No network here; see `workload.fetch`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from wattherd.errors import UserError
from wattherd.spelling import hint_for

LOCK_FILE = "unverified.sha256"

_REGISTRY = """\
nodes gpu_node    42353  2beca64b4d3dfa342036a34b56a495c6cef9225db836c81f541282cb1df320b5
nodes all_node    52287  5a85c2af79c66a1efff8bbcbda430400aae56d8431370d738480967e1a9c6b15
pods  default     575468 1ee7ed79c27a3b0861cda8ddba86a004c6aba904caafa329a76ae93ca63834a8
pods  cpu0        499765 -
pods  cpu037      518687 -
pods  cpu050      525811 747f43247bffc2b0bb081d7f61f0705ca8d390dafc0b647e642c92f3baf3ba1e
pods  cpu072      537576 -
pods  cpu100      554709 bec1c33fbdde61fd463877534ec79b393aec73e1cbb22d55fab9f166ac480982
pods  cpu200      622703 b7e9d8a1a601da84d6e0b4110b19ef5001be5e4796d33e7b82f166ba95161f87
pods  cpu235      651171 -
pods  cpu250      663708 -
pods  cpu300      710698 -
pods  gpushare20  574603 -
pods  gpushare40  572662 d83ce79a4eb6987524bedbb0c65e41aed3a36bf6c1b78b86234c3687a07e1d40
pods  gpushare60  566361 d31809628128a1f24491086eda4af3e23882b9213d3ef57a56ee2d1af69492fe
pods  gpushare80  563740 88b6649369ced40d0fde287d2498ea61ff4b05fccba8bdc95daf6042f2f8431e
pods  gpushare100 561220 -
pods  multigpu20  271530 d9ec6f6c74fb980cc0b81239470c6353fceea077ea9abd610003b604c7cc2b01
pods  multigpu30  277920 a5e479c6444b1d83eef848159cf00c3cfa13441b2d1e2c113c391b91f1cc5b11
pods  multigpu40  286202 32c9e8731ca07ef96108aa65f2a289bb9aacb47f642ed9e3789f99b242df60eb
pods  multigpu50  297219 -
pods  gpuspec05   577176 -
pods  gpuspec10   579461 2dc7e4cb9480484f08539720b433a9ec9ab5d76b396f3f7557c53a2ff78a7611
pods  gpuspec20   582612 6b9b89ab8913c1c074e994e98f548cf1a872fc5f76f2442ca8cd514a478b00a9
pods  gpuspec25   584915 9d030679a2ccd7e27a7ec9ff15baff34480d22a0012515691fc187e3f35ee68c
pods  gpuspec33   587467 -
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicFile:
    """One published file; `sha256` is None where none is known."""

    name: str
    kind: str
    file: str
    size_bytes: int
    sha256: str | None


class FileCondition(StrEnum):
    """What is on disk under the name of a public file."""

    MISSING = "missing"
    VERIFIED = "verified"
    """It has the checksum of the published file."""
    LOCKED = "locked"
    """No checksum is known; it is what was first fetched."""
    UNVERIFIED = "unverified"
    """No checksum is known, and none was recorded."""
    DIFFERS = "differs"
    """It has another size or checksum than it should."""


def _entry(line: str) -> PublicFile:
    kind, name, size, sha256 = line.split()
    stem = {"nodes": "openb_node_list", "pods": "openb_pod_list"}[kind]
    return PublicFile(
        name=name,
        kind=kind,
        file=f"{stem}_{name}.csv",
        size_bytes=int(size),
        sha256=None if sha256 == "-" else sha256,
    )


PUBLIC_FILES: Mapping[str, PublicFile] = MappingProxyType(
    {entry.name: entry for entry in map(_entry, _REGISTRY.splitlines())}
)
"""Two node lists and 24 pod lists by short name."""


def public_file(name: str) -> PublicFile:
    """The public file with that short name or file name.

    Raises:
        UserError: there is none.
    """
    for entry in PUBLIC_FILES.values():
        if name in (entry.name, entry.file):
            return entry
    raise UserError(f"unknown public trace {name!r}", hint=hint_for(name, PUBLIC_FILES))


def data_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where public files live: `$WATTHERD_DATA/openb`, else the user's cache directory."""
    if chosen := environ.get("WATTHERD_DATA"):
        return Path(chosen).expanduser() / "openb"
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "wattherd" / "openb"


def condition(entry: PublicFile, directory: Path) -> FileCondition:
    """What `directory` holds of it, by size and checksum.

    Raises:
        UserError: the file or the lock file cannot be read.
    """
    path = directory / entry.file
    try:
        if not path.is_file():
            return FileCondition.MISSING
        if path.stat().st_size != entry.size_bytes:
            return FileCondition.DIFFERS
        expected = entry.sha256 or read_lock(directory).get(entry.file)
        if expected is None:
            return FileCondition.UNVERIFIED
        if sha256_of(path) != expected:
            return FileCondition.DIFFERS
    except OSError as problem:
        raise UserError(f"cannot read: {problem.strerror}", where=str(path)) from problem
    return FileCondition.VERIFIED if entry.sha256 else FileCondition.LOCKED


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_lock(directory: Path) -> dict[str, str]:
    """Checksums recorded at first fetch, by file name; empty where there is no lock file.

    Raises:
        UserError: a line is not of the form `sha256  file`.
    """
    path = directory / LOCK_FILE
    if not path.is_file():
        return {}
    locked: dict[str, str] = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        digest, _, file = line.partition("  ")
        if len(digest) != 64 or not file:
            raise UserError(
                "not a line of `sha256  file`",
                where=f"{path}:{number}",
                hint="remove the line and fetch the file again",
            )
        locked[file] = digest
    return locked


def write_lock(directory: Path, locked: Mapping[str, str]) -> None:
    """Replace the lock file as a whole, in `sha256sum -c` format, sorted by file name."""
    path = directory / LOCK_FILE
    draft = path.with_suffix(".part")
    text = "".join(f"{digest}  {file}\n" for file, digest in sorted(locked.items()))
    draft.write_text(text, "utf-8")
    draft.replace(path)

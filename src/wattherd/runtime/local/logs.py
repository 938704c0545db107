"""What a task prints, on disk: never more of it than was agreed, and no secret."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO

CHUNK = 65_536
MASK = b"***"


class RotatingLog:
    """A file of at most `most_bytes`, and the one before it under the same name with `.1`.

    `secrets` are replaced wherever they are printed.
    """

    def __init__(self, path: Path, most_bytes: int, secrets: Sequence[bytes] = ()) -> None:
        """Nothing is written yet; the folder is made."""
        self._path, self._most = path, most_bytes
        self._secrets = sorted((one for one in secrets if one), key=len, reverse=True)
        self._size = 0
        path.parent.mkdir(parents=True, exist_ok=True)

    def pump(self, source: IO[bytes]) -> None:
        """Write down all that comes, until no more does.

        A full disk loses text, but never stops the task that prints.
        """
        held = b""
        with source:
            while chunk := os.read(source.fileno(), CHUNK):
                text, held = self._masked(held + chunk)
                self._write(text)
        self._write(held)

    def _masked(self, text: bytes) -> tuple[bytes, bytes]:
        """What may be written, and what is held back because it may be the start of a secret."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        held = max((_overlap(text, secret) for secret in self._secrets), default=0)
        return (text[:-held], text[-held:]) if held else (text, b"")

    def _write(self, text: bytes) -> None:
        try:
            if self._size and self._size + len(text) > self._most:
                self._path.replace(self._path.with_name(self._path.name + ".1"))
                self._size = 0
            with self._path.open("ab", buffering=0) as stream:
                stream.write(text)
                self._size = stream.tell()
        except OSError:
            return


def _overlap(text: bytes, secret: bytes) -> int:
    """Length of the longest end of `text` with which `secret` begins, short of all of it."""
    longest = min(len(text), len(secret) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(secret[:n])), 0)

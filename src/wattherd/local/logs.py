"""What a task prints, on disk: never more of it than was agreed, and no secret.

Where the disk is full, text is lost and the task goes on; a line in the log says how much, once
there is room again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from wattherd.errors import words
from wattherd.local.observation import passes
from wattherd.local.run_dir import write_all

CHUNK = 65_536
MASK = b"***"
LOST = b"\n[wattherd: %d bytes of output are lost here: %s]\n"
MODE = 0o600
LAST_TRIES, LAST_PAUSE_S = 10, 0.1
"""For the line that tells of lost text, when nothing more is printed."""


class RotatingLog:
    """A file of at most `most_bytes`, and the one before it under the same name with `.1`.

    `secrets` are replaced wherever they are printed.
    """

    def __init__(self, path: Path, most_bytes: int, secrets: Sequence[bytes] = ()) -> None:
        """Nothing is written yet."""
        self._path, self._most = path, most_bytes
        self._secrets = sorted((one for one in secrets if one), key=len, reverse=True)
        self._size = 0
        self._lost, self._why = 0, ""
        """Bytes that could not be written since the last that could, and why not."""

    def pump(self, source: IO[bytes]) -> None:
        """Write down all that comes, until no more does."""
        held = b""
        with source:
            while chunk := self._read(source):
                text, held = self._masked(held + chunk)
                self._write(text)
        self._write(held)
        for _ in range(LAST_TRIES):
            if not self._lost:
                return
            time.sleep(LAST_PAUSE_S)
            self._write(b"")

    def _read(self, source: IO[bytes]) -> bytes:
        """What comes next, nothing at the end; a read that fails is no end."""
        while True:
            try:
                return os.read(source.fileno(), CHUNK)
            except OSError as error:
                if not passes(error):
                    return b""
                time.sleep(LAST_PAUSE_S)

    def _masked(self, text: bytes) -> tuple[bytes, bytes]:
        """What may be written, and what is held back because it may be the start of a secret."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        held = max((_overlap(text, secret) for secret in self._secrets), default=0)
        return (text[:-held], text[-held:]) if held else (text, b"")

    def _write(self, text: bytes) -> None:
        """As much of it as there is room for; what is missing is counted, and told of later."""
        mark = LOST % (self._lost, self._why.encode()) if self._lost else b""
        written = 0
        try:
            if self._size and self._size + len(mark) + len(text) > self._most:
                self._path.replace(self._path.with_name(self._path.name + ".1"))
                self._size = 0
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._path, flags, MODE)
            try:
                if mark:
                    write_all(descriptor, mark)
                    self._lost = 0
                while written < len(text):
                    written += os.write(descriptor, text[written:])
                self._size = os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
        except (OSError, MemoryError) as error:
            self._lost += len(text) - written
            self._why = words(error)


def _overlap(text: bytes, secret: bytes) -> int:
    """Length of the longest end of `text` with which `secret` begins, short of all of it."""
    longest = min(len(text), len(secret) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(secret[:n])), 0)

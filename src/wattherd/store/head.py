"""The end of a journal, noted outside of its entries: without it, a cut-off end would not show.

Entries are a chain: each has a digest over itself and the one before, so that a change or a gap in
the middle shows. What is missing at the end does not, unless the end itself is known elsewhere. It
is noted twice: in a table of its own, with the very commit that adds entries, and in a small file
beside the runs, written before an entry is acknowledged. An operator may keep a third note.

A crash between commit and file leaves a file that is behind, which is fine: the entry it names is
still there. A file that is ahead of the journal, or names another entry, is what must be told.
So the file need not be forced to disk for every entry, which would cost as much as the commit: a
killed process loses nothing, and a power cut leaves it behind by what `SYNC_S` held back.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from wattherd.errors import UserError

HEAD_FILE = "journal.head"
HEAD_FACT = "head"
IDENTITY_FACT = "store"
SYNC_S = 0.2
"""Heads that follow each other faster are forced to disk together."""
_LINE = 160
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Head:
    """Entry `seq` with its digest was the last of the store with this identity."""

    store: str
    seq: int
    digest: str

    def __str__(self) -> str:
        """For people; digests are cut, as those of Git are."""
        return f"entry {self.seq} ({self.digest[:_SHOWN]})"

    def line(self) -> bytes:
        """One line of a fixed length, with a checksum: half a line is none."""
        text = f"{self.seq} {self.digest} {self.store}".encode()
        return b"%s %08x" % (text, zlib.crc32(text))

    @classmethod
    def read(cls, line: bytes) -> Head | None:
        """What `line` wrote; None if it is something else."""
        text, _, check = line.strip().rpartition(b" ")
        parts = text.decode("ascii", "replace").split(" ")
        if len(parts) != 3 or check != b"%08x" % zlib.crc32(text) or not parts[0].isdigit():
            return None
        return cls(store=parts[2], seq=int(parts[0]), digest=parts[1])


class HeadFile:
    """The file with the last two heads: while one is written, the other is whole."""

    def __init__(self, path: Path) -> None:
        """Nothing is opened yet."""
        self.path = path
        self.problem = ""
        """Why the last head could not be written, if it could not."""
        self._handle: int | None = None
        self._turn = 0
        self._synced_s = -math.inf

    def read(self) -> Head | None:
        """The later of the heads; None if there is no such file.

        Raises:
            UserError: it cannot be read, or there is none in it.
        """
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(f"cannot be read: {error.strerror}", where=str(self.path)) from None
        if not text:
            return None  # made, and killed before the first note
        lines = (text[:_LINE], text[_LINE : 2 * _LINE])
        heads = [head for line in lines if (head := Head.read(line)) is not None]
        if not heads:
            hint = "if `wattherd store verify` finds the store sound, remove the file"
            raise UserError("names no entry of a journal", where=str(self.path), hint=hint)
        return max(heads, key=lambda head: head.seq)

    def write(self, head: Head) -> None:
        """Have it written when this returns; where that fails, `problem` says why.

        The entry itself is on disk already, so that a failure here loses nothing but the note.
        """
        try:
            if self._handle is None:
                self._handle = self._opened()
            line = head.line().ljust(_LINE - 1) + b"\n"
            os.pwrite(self._handle, line, self._turn * _LINE)
            now_s = time.monotonic()
            if now_s - self._synced_s >= SYNC_S:
                os.fdatasync(self._handle)
                self._synced_s = now_s
            self._turn = 1 - self._turn
            self.problem = ""
        except OSError as error:
            self.problem = f"{self.path}: {error.strerror}"
            self.close()

    def renew(self, head: Head) -> None:
        """Forget what was noted before: only this counts."""
        self.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        self.write(head)

    def _opened(self) -> int:
        """The file, made so that its name outlives a power cut too; a later head is not undone."""
        fresh = not self.path.exists() or not self.path.stat().st_size
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if fresh:
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            self._turn = 0
            return handle
        first = Head.read(os.pread(handle, _LINE, 0))
        second = Head.read(os.pread(handle, _LINE, _LINE))
        newest_is_first = first is not None and (second is None or first.seq >= second.seq)
        self._turn = 1 if newest_is_first else 0
        return handle

    def close(self) -> None:
        """Let go of the file."""
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(OSError):
                os.fdatasync(handle)
            with contextlib.suppress(OSError):
                os.close(handle)

"""Logs of a run, read while they grow: plain files below the folder of jobs, and no links.

A task's log is two files: what it prints now, and under the same name with `.1` what it printed
before that was full (`local.logs`). They are read as one text, in blocks: however long a
log or a line of it is, no more than a block of it is in memory.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

from wattherd.errors import ClusterError
from wattherd.local import run_dir

BLOCK = 65_536
OLDER = ".1"
NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO)
"""There is no such file yet, or a job has put something else in its place."""


@dataclass(frozen=True, slots=True)
class TaskLog:
    """What one task of a run prints; there may be nothing yet."""

    root: Path
    job_id: str
    attempt: int
    rank: int

    def reader(self) -> LogReader:
        """Read it from its beginning.

        Raises:
            ClusterError: it is there, but cannot be read.
        """
        newer, older = self._open(""), self._open(OLDER)
        # Renamed in between, the two are one file; what is new by now comes later.
        if newer is not None and older is not None and _same(newer, older):
            older.close()
            older = None
        return LogReader(self, [one for one in (older, newer) if one is not None])

    def end(self, lines: int, most_bytes: int) -> bytes:
        """The last lines, of which no more than the last `most_bytes`.

        Raises:
            ClusterError: as `reader`.
        """
        with self.reader() as reader:
            reader.skip_to_last(lines, most_bytes)
            text = b""
            while len(text) < most_bytes and (block := reader.read(most_bytes - len(text))):
                text += block
            return text

    def _open(self, suffix: str) -> IO[bytes] | None:
        name = f"{self.rank}.log{suffix}"
        try:
            return run_dir.open_below(
                self.root, self.job_id, f"run-{self.attempt}", run_dir.LOGS, name
            )
        except OSError as error:
            if error.errno in NOTHING:
                return None
            raise ClusterError(f"the log cannot be read: {error.strerror}") from None


@dataclass(slots=True)
class LogReader:
    """A place in a log, which moves on as it is read; goes on where a log is rotated meanwhile.

    The file that is read stays open, so that its number is no other file's until all is read.
    """

    log: TaskLog
    _files: list[IO[bytes]] = field(default_factory=list)
    """Those still to read, the oldest first; the last may grow."""

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close what is open."""
        for one in self._files:
            one.close()
        self._files = []

    def skip_to_last(self, lines: int, most_bytes: int | None = None) -> None:
        """Go to where the last lines begin, or later, if there are more than `most_bytes` left.

        A line ends at its newline; what follows the last newline is a line, too.
        """
        kept = 0
        for place in range(len(self._files) - 1, -1, -1):
            start, lines = _start_of_last(self._files[place], lines, text_follows=kept > 0)
            size = _size(self._files[place])
            if most_bytes is not None and kept + size - start >= most_bytes:
                start, lines = size - (most_bytes - kept), 0
            kept += size - start
            self._files[place].seek(start)
            if not lines:
                for one in self._files[:place]:
                    one.close()
                del self._files[:place]
                return

    def read(self, most: int = BLOCK) -> bytes:
        """What comes next, at most that many bytes; nothing if nothing is there yet.

        Raises:
            ClusterError: it is there, but cannot be read.
        """
        while True:
            if not self._files:
                self._files = self.log.reader()._files  # noqa: SLF001 - its own kind
                if not self._files:
                    return b""
            text = self._read_first(most)
            if text:
                return text
            if len(self._files) == 1:
                self._look_for_newer()
                text = self._read_first(most)  # written between the last look and the rotation
                if text or len(self._files) == 1:
                    return text
            self._files.pop(0).close()

    def blocks(self) -> Iterator[bytes]:
        """All that is there now.

        Raises:
            ClusterError: as `read`.
        """
        while text := self.read():
            yield text

    def _read_first(self, most: int) -> bytes:
        first = self._files[0]
        try:
            if first.tell() > _size(first):
                first.seek(0)  # cut short and begun again
            return first.read(most)
        except OSError as error:
            raise ClusterError(f"the log cannot be read: {error.strerror}") from None

    def _look_for_newer(self) -> None:
        """Files that have come since; of several rotations the last two are left."""
        found = self.log.reader()._files  # noqa: SLF001 - its own kind
        known = [place for place, one in enumerate(found) if _same(one, self._files[0])]
        begin = known[0] + 1 if known else 0
        for one in found[:begin]:
            one.close()
        self._files += found[begin:]


def _start_of_last(stream: IO[bytes], lines: int, *, text_follows: bool) -> tuple[int, int]:
    """Where the last lines of a file begin, and how many of them it does not have.

    If text follows in another file, then what is behind the last newline is part of a line that
    was counted there.
    """
    at = end = _size(stream)
    if not lines:
        return end, 0
    while at > 0:
        begin = max(0, at - BLOCK)
        stream.seek(begin)
        block = stream.read(at - begin)
        found = len(block)
        if at == end and not text_follows and block.endswith(b"\n"):
            found -= 1  # it ends the last line
        while (found := block.rfind(b"\n", 0, found)) >= 0:
            lines -= 1
            if not lines:
                return begin + found + 1, 0
        at = begin
    return 0, lines


def _size(stream: IO[bytes]) -> int:
    return os.fstat(stream.fileno()).st_size


def _same(one: IO[bytes], other: IO[bytes]) -> bool:
    return os.path.samestat(os.fstat(one.fileno()), os.fstat(other.fileno()))

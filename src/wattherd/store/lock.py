"""One writer to a store: a second service on it would undo what the first one promised.

SQLite: a lock on a file beside the database, which the system releases with the process.
PostgreSQL: an advisory lock of the very session that writes, so that a session that is lost takes
the lock and the right to write along.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

import sqlalchemy as sa

PATIENCE_S = 3.0
"""How long a predecessor that was killed may take to vanish."""
POLL_S = 0.05
_ADVISORY = 0x77617474
"""First half of the key: `watt`; the second is the schema's, so that schemas are stores of their
own."""


class InUse(Exception):
    """Another process writes to this store."""


class FileLock:
    """A lock on PATH.lock, held until `release` or the end of the process."""

    def __init__(self, database: Path) -> None:
        """Take it.

        Raises:
            InUse: somebody else has it.
            OSError: the file can be neither made nor locked.
        """
        self._path = database.with_name(f"{database.name}.lock")
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._take()
        except BaseException:
            os.close(self._file)
            raise
        with contextlib.suppress(OSError):  # on a full disk: the lock counts, not who is named
            who = f"{os.getpid()}\n".encode()
            os.truncate(self._file, os.pwrite(self._file, who, 0))

    def _take(self) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if time.monotonic() >= end_s:
                raise InUse(f"process {os.pread(self._file, 20, 0).decode().strip() or '?'}")
            time.sleep(POLL_S)

    def release(self) -> None:
        """Let go."""
        os.close(self._file)


def take_advisory(connection: sa.Connection) -> None:
    """Take the store for the session of this connection.

    Raises:
        InUse: another session has it.
    """
    query = sa.text("SELECT pg_try_advisory_lock(:key, hashtext(current_schema()))")
    end_s = time.monotonic() + PATIENCE_S
    while not connection.scalar(query, {"key": _ADVISORY}):
        if time.monotonic() >= end_s:
            raise InUse("another session of the database")
        time.sleep(POLL_S)
    connection.commit()

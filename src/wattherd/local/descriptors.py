"""Open files that are kept for supervision: connections can use up all others, but not these.

A process may have so many files open at once (`ulimit -n`); a connection is one of them. A service
that cannot open any more cannot read its runs. So it takes all that the system allows when it
starts, and holds some back that it lets go only while it looks after its runs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
import weakref
from collections.abc import Iterator

RESERVED = 32
"""A look at a run needs one or two at a time; starting a supervisor a few more."""
SHORT = frozenset({errno.EMFILE, errno.ENFILE})


def raise_limit() -> int:
    """Allow this process as many open files as it may allow itself; how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # A limit that the system refuses leaves things as they are.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Reserve:
    """Descriptors that nobody else can have; `spared` gives way while there are no others."""

    def __init__(self, count: int = RESERVED) -> None:
        """Take as many as can be had."""
        self._count = count
        self._held: list[int] = []
        self._users = 0
        self._lock = threading.Lock()
        # A service that fails while it starts closes nothing: what it held must not stay taken.
        weakref.finalize(self, _let_go, self._held)
        self._take()

    @contextlib.contextmanager
    def spared(self) -> Iterator[None]:
        """Within this, files can be opened although all other descriptors are in use."""
        with self._lock:
            self._users += 1
            if self._held and _short():
                _let_go(self._held)
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._take()

    def close(self) -> None:
        """Hold nothing any more."""
        with self._lock:
            self._count = 0
            _let_go(self._held)

    def _take(self) -> None:
        with contextlib.suppress(OSError):  # what is missing is taken once there is some
            while len(self._held) < self._count:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


def _let_go(held: list[int]) -> None:
    while held:
        os.close(held.pop())


def _short() -> bool:
    """Whether no file can be opened now, as too many are."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in SHORT
    return False

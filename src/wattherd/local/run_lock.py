"""The lock of a job: whatever runs of it holds it, so that no two of its attempts ever run at once.

It is `flock(2)` on the file `lock` in the job's folder. A supervisor takes it before it begins, and
its tasks inherit it: it is free only when the last of them has ended, whatever the service believes
and whoever was killed. An attempt that cannot get it waits.

Tasks get a descriptor that they can only read, so no task can write there. One that gives the lock
back on purpose can harm nobody but its own job.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from wattherd.local import processes, run_dir
from wattherd.local.observation import ABSENT, Absent, Present, Reading, Unknown, failed

MODE = 0o600


def lock_of(run: Path) -> Path:
    """The lock's file, by the directory of any run of the job."""
    return run.parent / run_dir.LOCK


class RunLock:
    """Held from `take` on, until this process and all that inherited it have ended."""

    def __init__(self, run: Path) -> None:
        """Nothing is opened yet."""
        self._path = lock_of(run)
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Whether it is ours now; False while something else of the job holds it.

        Raises:
            OSError: that cannot be told; it is not ours.
        """
        if self._descriptor is None:
            flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, MODE)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    @property
    def inherited(self) -> tuple[int, ...]:
        """Descriptors that a task is to be given."""
        return () if self._descriptor is None else (self._descriptor,)


def held(run: Path) -> Reading[bool]:
    """Whether anything of the job runs; absent for jobs of versions that made no lock."""
    try:
        descriptor = os.open(lock_of(run), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return failed(error)
    try:
        # Shared: two who ask at once are not in each other's way.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return Present(value=True)
    except OSError as error:
        return failed(error)
    finally:
        os.close(descriptor)
    return Present(value=False)


def holders(run: Path) -> Reading[list[int]]:
    """Processes that hold the job's lock, ourselves apart: as far as we may look into them."""
    try:
        status = lock_of(run).stat()
    except OSError as error:
        return failed(error)
    match processes.all_pids():
        case Present(pids):
            pass
        case other:
            return other
    found = []
    for pid in pids:
        match _holds(pid, (status.st_dev, status.st_ino)):
            case Present(True) if pid != os.getpid():
                found.append(pid)
            case Unknown(why):
                return Unknown(why)
            case _:
                pass
    return Present(found)


def _holds(pid: int, file: tuple[int, int]) -> Reading[bool]:
    """Whether one of its descriptors is of that file and holds a lock, as /proc shows."""
    fds = Path(f"/proc/{pid}/fd")
    try:
        for one in list(fds.iterdir()):
            try:
                status = one.stat()
                if (status.st_dev, status.st_ino) != file:
                    continue
                if "lock:" in Path(f"/proc/{pid}/fdinfo/{one.name}").read_text(encoding="utf-8"):
                    return Present(value=True)
            except OSError as error:
                if isinstance(unless_hidden(error), Unknown):
                    return Unknown(str(error))
    except OSError as error:
        return unless_hidden(error)
    return Present(value=False)


def unless_hidden(error: OSError) -> Absent | Unknown:
    """Processes of other users are none of ours: their secrets stay theirs."""
    return ABSENT if error.errno in (errno.EACCES, errno.EPERM) else failed(error)

"""What a look at the world finds: something is there, it is not there, or nobody can tell.

`Unknown` is an answer of its own, so that a file that cannot be opened is never taken for a file
that does not exist: too many open files, a disk that fails or a missing permission say nothing
about what was looked for. Whoever gets `Unknown` changes nothing, says so, and looks again later.

Beside `errors` only the standard library is imported: a supervisor must start quickly and stay
small.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

from wattherd.errors import words

T_co = TypeVar("T_co", covariant=True)
Made = TypeVar("Made")

NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESRCH, errno.ENODEV})
"""Errors that prove it: no such file or folder, no such process, a control group that is gone."""
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The disk, the quota or the limit of a file's size is used up."""
PASSING = NO_ROOM | {
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EAGAIN,
    errno.EINTR,
    errno.EIO,
    errno.EBUSY,
    errno.ENOBUFS,
}
"""Errors of the machine, not of what was asked for: the same call may succeed a moment later."""
MOST_BYTES = 16 << 20
"""No document of a run is larger; a job could put anything in place of its own."""


@dataclass(frozen=True, slots=True)
class Present(Generic[T_co]):
    """It is there, and this is what it is."""

    value: T_co


@dataclass(frozen=True, slots=True)
class Absent:
    """It is proven not to be there."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody can tell, and `why`; `damaged` where it was read and makes no sense."""

    why: str
    damaged: bool = False


Reading = Present[T_co] | Absent | Unknown
ABSENT = Absent()


def certain(reading: Reading[Made]) -> Made | None:
    """What is there, or None where nothing is: for who can do nothing without an answer.

    Raises:
        OSError: nobody can tell.
    """
    match reading:
        case Present(value):
            return value
        case Absent():
            return None
        case Unknown(why):
            raise OSError(errno.EIO, why)


def failed(error: OSError) -> Absent | Unknown:
    """What a failed look says."""
    return ABSENT if error.errno in NOT_THERE else Unknown(words(error))


def passes(error: BaseException) -> bool:
    """Whether it may be over by itself: then what failed is tried again, and never given up."""
    if isinstance(error, OSError):
        return error.errno in PASSING
    return isinstance(error, MemoryError)


def present(path: Path) -> Reading[os.stat_result]:
    """Whether there is such a file or folder; links are followed."""
    try:
        return Present(os.stat(path))  # noqa: PTH116 - `Path.exists` hides why it cannot tell
    except OSError as error:
        return failed(error)


def looked_up(of: Callable[[], Made]) -> Reading[Made]:
    """What a function that raises `OSError` where it fails finds."""
    try:
        return Present(of())
    except OSError as error:
        return failed(error)


def text(path: Path) -> Reading[str]:
    """A small file of the kernel's, or of ours, as text."""
    return looked_up(lambda: path.read_text(encoding="utf-8", errors="replace"))


def document(path: Path) -> Reading[dict[str, Any]]:
    """A JSON object of ours; half of one, or something else in its place, is unknown.

    A job with an account of its own may add files to its run's folder. One that it made under a
    name of ours, such as an end that never came, is not there.
    """
    try:
        with open_regular(path) as stream:
            if os.fstat(stream.fileno()).st_uid != os.geteuid():
                return ABSENT
            found = json.loads(stream.read(MOST_BYTES))
    except OSError as error:
        return failed(error)
    except (ValueError, RecursionError):
        return Unknown(f"{path.name} is no whole JSON document", damaged=True)
    if not isinstance(found, dict):
        return Unknown(f"{path.name} is no JSON object", damaged=True)
    return Present(found)


def open_regular(path: Path) -> IO[bytes]:
    """Open what is a plain file, and nothing that a job could have put there instead.

    A link would show what the job itself may not see, a pipe would hold us up for ever.

    Raises:
        OSError: it cannot be read, or is something else.
    """
    return regular(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), str(path))


def regular(descriptor: int, name: str) -> IO[bytes]:
    """The stream of a descriptor, which is closed where it is of no plain file.

    Raises:
        OSError: it is something else.
    """
    try:
        plain = stat.S_ISREG(os.fstat(descriptor).st_mode)
        if plain:
            return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    raise OSError(errno.EINVAL, "no plain file", name)

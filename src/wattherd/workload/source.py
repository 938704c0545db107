"""Open an input file, plain or gzip, and turn all that can go wrong with it into one line.

gzip is told by its first bytes, not by the file's name. What the bytes mean is the callers'
business.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, cast

from wattherd.errors import UserError
from wattherd.spelling import nearest

_GZIP_MAGIC = b"\x1f\x8b"
_BLOCK = 1 << 20
_SHOWN = 40


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The unpacked bytes of `path`.

    Raises:
        UserError: the file is missing, a directory, unreadable, or a damaged gzip; the last also
            when it shows only while the caller reads.
    """
    where = str(path)
    try:
        with _open(path) as raw:
            packed = raw.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
            yield cast("BinaryIO", gzip.GzipFile(fileobj=raw)) if packed else raw
    except FileNotFoundError:
        raise UserError("no such file", where=where, hint=_neighbour(path)) from None
    except IsADirectoryError:
        raise UserError("is a directory", where=where, hint="name a file in it") from None
    except EOFError:
        hint = "the copy was cut short; fetch the file again"
        raise UserError("truncated gzip file", where=where, hint=hint) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        hint = "fetch the file again"
        raise UserError(f"damaged gzip file: {error}", where=where, hint=hint) from None
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror or error}", where=where) from None


def _open(path: Path) -> BufferedReader:
    try:
        return path.open("rb")
    except ValueError as error:  # a NUL byte in the path, refused before the system is asked
        raise UserError(f"cannot be opened: {error}", where=shown(str(path))) from None


def line_count(path: Path, *, stop_after: int) -> int:
    """Lines in the regular file `path`, or any number above `stop_after` once there are more.

    Counting also ends at a line of more than a block: no table has one, and a wrong file of any
    size is given up early. What is no regular file (a pipe) can be read only once and counts 0.
    """
    lines = 0
    if not _is_regular(path):
        return lines
    with opened(path) as stream:
        while lines <= stop_after and (block := stream.read(_BLOCK)):
            found = block.count(b"\n")
            if not found:
                break
            lines += found
    return lines


def _is_regular(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def shown(value: str) -> str:
    """`value` in quotes, on one line and short enough for an error message."""
    return repr(value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…")


def _neighbour(path: Path) -> str:
    """`did you mean …?` where the folder holds a file of nearly that name."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except (OSError, ValueError):
        return ""
    near = nearest(path.name, names)
    return f"did you mean {str(path.parent / near)!r}?" if near else ""

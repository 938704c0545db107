"""Fails one call of the operating system: which ones there are is recorded, not listed by hand.

Within `watching`, calls of one thread are noted as *sites*: what is called, on which file (numbers
of processes and folders of the test left out), and for which time in a row. A second pass through
the same code has one of them fail. Calls are seen where Python announces them (`sys.addaudithook`)
and, for those it does not announce, at the functions of `os`.

As a program it runs a supervisor so: `python failing_calls.py RUN_DIR`, with FAIL_SITE (JSON) or
RECORD_SITES (a file) in its environment.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ERRORS = ("EMFILE", "ENOSPC", "EIO", "EACCES", "EINTR", "SHORT")
"""SHORT is no error: a write takes only a part of what it is given."""
WRAPPED = ("write", "fsync", "stat", "fstat", "lstat", "fchmod", "posix_fallocate",
           "waitpid", "waitid", "sendfile")  # fmt: skip
ANNOUNCED = frozenset({
    "open", "os.link", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.listdir", "os.scandir",
    "os.chmod", "os.chown", "os.utime", "os.symlink", "os.truncate", "os.posix_spawn", "os.kill",
    "subprocess.Popen", "fcntl.flock", "resource.setrlimit",
})  # fmt: skip


FIRED = "the call has failed"


class Site(NamedTuple):
    """One call: what, on what, for which time, and how it is to fail."""

    call: str
    path: str
    time: int
    error: str = ""


class Watch:
    """What was called, and which call is to fail."""

    def __init__(self, root: str, failing: Site | None) -> None:
        self.root, self.failing = root, failing
        self.seen: Counter[tuple[str, str]] = Counter()
        self.fired = 0

    def note(self, call: str, path: str) -> str:
        """How this call is to fail; empty if it is not."""
        self.seen[call, path] += 1
        wanted = self.failing
        if wanted is None or (call, path, self.seen[call, path]) != wanted[:3]:
            return ""
        self.fired += 1
        return wanted.error


_now = threading.local()
_everywhere: list[Watch] = []
"""A watch of all threads, of a process that is watched as a whole."""


def _watch() -> Watch | None:
    found: Watch | None = getattr(_now, "watch", None)
    return found or (_everywhere[0] if _everywhere else None)


def _plain(path: object, root: str) -> str:
    """A path without what differs from one pass to the next."""
    if not isinstance(path, str | bytes | os.PathLike):
        return ""
    text = os.fsdecode(path).replace(root, "ROOT")
    text = re.sub(r"(/sys/fs/cgroup/.*wattherd/)[^/]+", r"\1GROUP", text)
    return re.sub(r"\d+", "N", text) if text.startswith(("/proc", "/sys")) or "/." in text else text


def _failure(error: str, path: object) -> OSError:
    number = getattr(errno, error)
    return OSError(number, os.strerror(number), path if isinstance(path, str) else None)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event not in ANNOUNCED or (watch := _watch()) is None:
        return
    path = args[0] if args else ""
    if event == "open" and str(path).endswith((".py", ".pyc", "__pycache__")):
        return  # Python's own
    error = watch.note(event, _plain(path, watch.root))
    if error and error != "SHORT":
        raise _failure(error, path)


def _wrapped(name: str) -> Callable[..., Any]:
    real = getattr(os, name)

    def call(*args: Any, **more: Any) -> Any:
        watch = _watch()
        if watch is None:
            return real(*args, **more)
        path = args[0] if args and not isinstance(args[0], int) else _name_of(args)
        error = watch.note(f"os.{name}", _plain(path, watch.root))
        if error == "SHORT":
            if name == "write" and len(args[1]) > 1:
                return real(args[0], args[1][: len(args[1]) // 2])
            return real(*args, **more)
        if error:
            raise _failure(error, path)
        return real(*args, **more)

    return call


def _name_of(args: tuple[Any, ...]) -> str:
    """The file of a descriptor."""
    if not args or not isinstance(args[0], int):
        return ""
    try:
        return _readlink(f"/proc/self/fd/{args[0]}")
    except OSError:
        return ""


_readlink = os.readlink
_installed: list[bool] = []


def install() -> None:
    """Announcements cannot be taken back: without a watch they do nothing."""
    if not _installed:
        _installed.append(True)
        for name in WRAPPED:
            setattr(os, name, _wrapped(name))
        sys.addaudithook(_hook)


def begin(watch: Watch) -> None:
    """From now on see to the calls of this thread, until it ends."""
    _now.watch = watch


@contextlib.contextmanager
def watching(root: Path, failing: Site | None = None) -> Iterator[Watch]:
    """Note the calls of this thread, and fail one of them."""
    install()
    _now.watch = Watch(str(root), failing)
    try:
        yield _now.watch
    finally:
        _now.watch = None


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """What the test itself does meanwhile."""
    watch, _now.watch = getattr(_now, "watch", None), None
    try:
        yield
    finally:
        _now.watch = watch


def sites_of(seen: Counter[tuple[str, str]]) -> list[Site]:
    """Every call that was seen, the first, the second and the last time, with every error."""
    found = []
    for (call, path), times in sorted(seen.items()):
        for time in sorted({1, min(2, times), times}):
            for error in ERRORS:
                if (error == "SHORT") <= (call == "os.write"):
                    found.append(Site(call, path, time, error))
    return found


def main() -> None:
    """Run a supervisor with one failing call, or record which there are."""
    from wattherd.local import supervisor

    folder = Path(sys.argv[1])
    told = os.environ.pop("FAIL_SITE", "")
    record = os.environ.pop("RECORD_SITES", "")
    watch = Watch(str(folder.parents[1]), Site(*json.loads(told)) if told else None)
    install()
    _everywhere.append(watch)
    try:
        supervisor.main(folder)
    finally:
        _everywhere.clear()
        if watch.fired:
            print(FIRED, flush=True)
        if record:
            rows = [[*site, times] for site, times in watch.seen.items()]
            Path(record).write_text(json.dumps(rows), encoding="utf-8")


if __name__ == "__main__":
    main()

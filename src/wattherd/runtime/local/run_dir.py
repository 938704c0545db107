"""The directory of one run: how its supervisor, the executor and the job itself talk.

    order.json      what to run, written by the executor before the supervisor exists
    staging.json    what is brought to the job, and taken away, by transfer.zip
    begun           made once, exclusively: whoever makes it runs the order, so nothing runs twice;
                    holds number and start of that process, and of the system it was booted in
    started.json    all tasks run
    control.json    what is wanted of it now: stop, notice, duty, cap_w; replaced as a whole
    heeded.json     what of it the supervisor has seen to: the duty in force
    progress.jsonl  what the job reports of itself, a line each
    rank-N.json     how long rank N of several needs for its own part of a step
    checkpointed    made by the job before it ends early with its state saved, as it was asked to
    app.json        where a job that serves pages listens, and what it wants to be shown
    trainer-token   what the job shows the service when it reports over HTTP; its secret
    usage.json      processor time and memory so far, renewed every second
    exit.json       how it ended, written last
    logs/RANK.log   what each task printed; RANK.log.1 is older

Files are replaced by renaming, so that readers never see half of one. Only the standard library is
imported here: a supervisor must start quickly and stay small.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

ORDER, BEGUN, STARTED, CONTROL = "order.json", "begun", "started.json", "control.json"
HEEDED, PROGRESS, USAGE, EXIT = "heeded.json", "progress.jsonl", "usage.json", "exit.json"
STAGING, TRANSFER = "staging.json", "transfer.zip"
CHECKPOINTED, TOKEN = "checkpointed", "trainer-token"
LOGS = "logs"
TIDY_S = 30.0
"""For each command that tidies up."""
READABLE = 0o644
"""Files of a run may be read by whoever gets into its folder."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def write(path: Path, document: Mapping[str, Any], *, durable: bool = False) -> None:
    """Replace a file by `document` as JSON, on disk before this returns if `durable`."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)  # a job may have put a link there, which is not to be followed
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, READABLE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        os.fchmod(descriptor, READABLE)  # whatever the service's umask: the job must read it
        json.dump(document, stream)
        if durable:
            stream.flush()
            os.fsync(stream.fileno())
    fresh.replace(path)


def read(path: Path) -> dict[str, Any] | None:
    """The document, or None where there is none or it is no JSON."""
    try:
        with open_regular(path) as stream:
            found = json.loads(stream.read())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def open_regular(path: Path) -> IO[bytes]:
    """Open what is a plain file, and nothing that a job could have put there instead.

    A link would show what the job itself may not see, a pipe would hold us up for ever.

    Raises:
        OSError: it cannot be read, or is something else.
    """
    return _regular(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), str(path))


def _regular(descriptor: int, name: str) -> IO[bytes]:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no plain file", name)
    return os.fdopen(descriptor, "rb")


def open_below(root: Path, *names: str) -> IO[bytes]:
    """Open the plain file at `root`/NAMES, no part of which below `root` may be a link.

    A job without a user of its own could put links in place of folders, too, and so show one
    tenant's files to whoever may read another's logs.

    Raises:
        OSError: it cannot be read, or there is something else on the way.
    """
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in names[:-1]:
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = below
        descriptor = os.open(names[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
    finally:
        os.close(at)
    return _regular(descriptor, names[-1])


def write_token(folder: Path) -> Path:
    """Make a run a token that only its owner can read, unless it has one; its file."""
    path = folder / TOKEN
    fresh = folder / f".{TOKEN}.{os.getpid()}"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as stream:
        stream.write(os.urandom(32).hex())
    with contextlib.suppress(FileExistsError):
        os.link(fresh, path)
    fresh.unlink()
    return path


def tidy_up(order: Mapping[str, Any]) -> None:
    """Run what an order wants done when its run is over, however it ended."""
    for argv in order.get("afterwards", ()):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            subprocess.run(argv, **quiet, timeout=TIDY_S, check=False)  # noqa: S603 - our own


def claim(run_dir: Path) -> bool:
    """Whether this process is the first that wants to run the order."""
    me = os.getpid()
    return _begin(run_dir, {"pid": me, "ticks": started_ticks(me), "boot": boot_id()})


def forestall(run_dir: Path) -> bool:
    """Whether nobody runs the order, nor ever will from now on."""
    return _begin(run_dir, {"pid": 0, "ticks": -1, "boot": ""})


def _begin(run_dir: Path, who: Mapping[str, Any]) -> bool:
    fresh = run_dir / f".{BEGUN}.{os.getpid()}"
    fresh.write_text(json.dumps(who), encoding="utf-8")
    try:
        os.link(fresh, run_dir / BEGUN)  # complete at once, and only for the first
    except FileExistsError:
        return False
    finally:
        fresh.unlink()
    return True


def boot_id() -> str:
    """Names the time since this system was booted."""
    try:
        return BOOT_ID.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def started_ticks(pid: int) -> int | None:
    """When a process was started, in clock ticks since boot; None if there is no such process.

    Together with the number it names a process for good: numbers alone come round again. A process
    that has ended but was not waited for counts as none.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])

"""The directory of one run: how its supervisor, the executor and the job itself talk.

    origin.json     which store ordered the run, by which entry; written before all else
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
    .exit.spare, .stop.spare  room on the disk for the end's record, and for an order to stop
    logs/RANK.log   what each task printed; RANK.log.1 is older
    sessions/       sockets for those who run commands inside (`sessions`)

Beside the directories of a job's runs lies `lock` (`run_lock`), which whatever runs of it holds.

Files are replaced by renaming, so that readers never see half of one. Only the standard library is
imported here: a supervisor must start quickly and stay small.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from wattherd.local.observation import (
    ABSENT,
    NO_ROOM,
    Present,
    Reading,
    Unknown,
    certain,
    document,
    open_regular,
    passes,
    regular,
    text,
)

ORDER, BEGUN, STARTED, CONTROL = "order.json", "begun", "started.json", "control.json"
HEEDED, PROGRESS, USAGE, EXIT = "heeded.json", "progress.jsonl", "usage.json", "exit.json"
STAGING, TRANSFER, ORIGIN = "staging.json", "transfer.zip", "origin.json"
CHECKPOINTED, TOKEN = "checkpointed", "trainer-token"
LOGS = "logs"
MOST_TOLD = 1 << 16
"""Bytes of a document that a job writes."""
HELD = "WATTHERD_HELD_"
"""How secrets of a job are called in its supervisor's environment: one that is called `LD_PRELOAD`
must not change what the supervisor, which may be root's, loads."""
TIDY_S = 30.0
"""For each command that tidies up."""
READABLE = 0o644
"""Files of a run may be read by whoever gets into its folder."""
SPARE_BYTES = 4096
"""Room that is kept for a document that must be written on a full disk, too."""
EXIT_SPARE, STOP_SPARE = ".exit.spare", ".stop.spare"
NEVER = ".never"
"""What `begun` is to say of a run that never will: written while there is room on the disk."""
NOBODY: Mapping[str, Any] = {"pid": 0, "ticks": -1, "boot": ""}
LOCK = "lock"
"""In the folder of the job, not of one run: held by whatever runs of it, so that two never do."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def write(
    path: Path, document: Mapping[str, Any], *, durable: bool = False, spare: Path | None = None
) -> None:
    """Replace a file by `document` as JSON, on disk before this returns if `durable`.

    Where the disk is full, `spare` is room that `set_aside` kept: it becomes the file, and is gone.

    Raises:
        OSError: nothing was changed, and nothing is left over.
    """
    text = json.dumps(document).encode()
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write_new(fresh, text, durable=durable)
    except OSError as error:
        if spare is None or error.errno not in NO_ROOM:
            raise
        _fill(spare, text)
        fresh = spare
    fresh.replace(path)


def _write_new(fresh: Path, text: bytes, *, durable: bool) -> None:
    fresh.unlink(missing_ok=True)  # a job may have put a link there, which is not to be followed
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, READABLE)
    try:
        try:
            os.fchmod(descriptor, READABLE)  # whatever the service's umask: the job must read it
            write_all(descriptor, text)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):  # the next call removes it
            fresh.unlink()
        raise


def write_all(descriptor: int, text: bytes) -> None:
    """Write the whole of it: one call may take a part only.

    Raises:
        OSError: not all was written.
    """
    left = memoryview(text)
    while left:
        left = left[os.write(descriptor, left) :]


def set_aside(spare: Path) -> None:
    """Keep room on the disk for one document, for when there is none left.

    Raises:
        OSError: there is none now.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
    descriptor = os.open(spare, flags, READABLE)
    try:
        os.fchmod(descriptor, READABLE)
        os.posix_fallocate(descriptor, 0, SPARE_BYTES)
    finally:
        os.close(descriptor)


def _fill(spare: Path, text: bytes) -> None:
    """Put a text into room that was kept; blanks at its end are no part of a JSON document."""
    if len(text) > SPARE_BYTES:
        raise OSError(errno.ENOSPC, "more than the room that was kept", str(spare))
    descriptor = os.open(spare, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        write_all(descriptor, text.ljust(SPARE_BYTES))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path) -> dict[str, Any] | None:
    """The document, or None where there is none; for who cannot go on without an answer.

    Raises:
        OSError: that cannot be told, or it is no document.
    """
    return certain(document(path))


def read_told(path: Path) -> dict[str, Any] | None:
    """What a job says of itself; None where that is nothing, or longer than any report."""
    try:
        with open_regular(path) as stream:
            text = stream.read(MOST_TOLD + 1)
        found = json.loads(text) if len(text) <= MOST_TOLD else None
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


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
    return regular(descriptor, names[-1])


def write_token(folder: Path) -> Path:
    """Make a run a token that only its owner can read, unless it has one; its file."""
    path = folder / TOKEN
    fresh = folder / f".{TOKEN}.{os.getpid()}"
    fresh.unlink(missing_ok=True)
    made = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(made, "w", encoding="ascii") as stream:
        stream.write(os.urandom(32).hex())
    with contextlib.suppress(FileExistsError):
        os.link(fresh, path)
    fresh.unlink()
    return path


def tidy_up(order: Mapping[str, Any]) -> bool:
    """Run what an order wants done when its run is over, however it ended; whether all was run."""
    done = True
    for argv in order.get("afterwards", ()):
        quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        try:
            subprocess.run(argv, **quiet, timeout=TIDY_S, check=False)  # noqa: S603 - our own
        except OSError as error:
            done = done and not passes(error)
        except subprocess.SubprocessError:
            done = False
    return done


def claim(run_dir: Path) -> bool:
    """Whether this process is the first that wants to run the order.

    Raises:
        OSError: that cannot be told; it is not.
    """
    me = os.getpid()
    ticks, boot = certain(started_ticks(me)), certain(boot_id())
    return _begin(run_dir, {"pid": me, "ticks": ticks, "boot": boot or ""})


def forestall(run_dir: Path) -> bool:
    """Whether nobody runs the order, nor ever will from now on.

    Raises:
        OSError: that cannot be told.
    """
    try:
        os.link(run_dir / NEVER, run_dir / BEGUN)  # takes no room: the disk may be full
    except FileExistsError:
        return read(run_dir / BEGUN) == NOBODY
    except OSError:
        return _begin(run_dir, NOBODY)
    return True


def _begin(run_dir: Path, who: Mapping[str, Any]) -> bool:
    fresh = run_dir / f".{BEGUN}.{os.getpid()}"
    _write_new(fresh, json.dumps(who).encode(), durable=True)
    try:
        os.link(fresh, run_dir / BEGUN)  # complete at once, and only for the first
    except FileExistsError:
        # An earlier call of ours may have made it and failed all the same.
        return read(run_dir / BEGUN) == who
    finally:
        with contextlib.suppress(OSError):  # of no harm where it stays
            fresh.unlink()
    return True


def boot_id() -> Reading[str]:
    """Names the time since this system was booted."""
    match text(BOOT_ID):
        case Present(found):
            return Present(found.strip())
        case other:
            return other


def started_ticks(pid: int) -> Reading[int]:
    """When a process was started, in clock ticks since boot.

    Together with the number it names a process for good: numbers alone come round again. A process
    that has ended but was not waited for counts as absent.
    """
    match text(Path(f"/proc/{pid}/stat")):
        case Present(line):
            fields = line.rpartition(")")[2].split()
            if len(fields) < 20:  # field 22 of proc(5), less two
                return Unknown(f"/proc/{pid}/stat is not whole")
            return ABSENT if fields[0] in "ZX" else Present(int(fields[19]))
        case other:
            return other

"""Whose files are whose: jobs of one system user cannot see those of another, nor the service's.

    JOBS/               0711  passed through, not listed
    JOBS/JOB/           0710  of the service, with the job's group: nobody else gets in
    JOBS/JOB/run-N/     1770  the job adds its reports; what the service put there stays (sticky)
    JOBS/JOB/run-N/logs 0700  of the service: jobs print, they do not read
    JOBS/JOB/work, checkpoint  0700  the job's own

Users who share their primary group are not kept apart: the group is what lets a job in.
Without a user of its own a job runs as the service does, and is kept from nothing that is its.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
from collections.abc import Iterable
from pathlib import Path

from wattherd.errors import UserError

MOST_S = 10.0
_ANYTHING = ("-mindepth", "1", "-maxdepth", "1", "-printf", "x", "-quit")
OURS = ("journal.sqlite", "tokens.json", "jobs")
"""In a state folder."""
User = tuple[int, int]
"""Numbers of a user and of their group."""


def make_passage(folder: Path) -> None:
    """Make a folder, unless there is one, that root's jobs pass through and nobody can list.

    One in which a service has left something is closed to readers; another is left as it is.

    Raises:
        OSError: it cannot be made.
    """
    if not folder.is_dir():
        folder.mkdir(parents=True)
        folder.chmod(0o711 if os.geteuid() == 0 else 0o700)
    elif any((folder / name).exists() for name in OURS):
        mode = stat.S_IMODE(folder.stat().st_mode)
        if mode & 0o066:
            folder.chmod(mode & ~0o066)


def open_to_all(program: Path) -> bool:
    """Whether any user may run a program: it, and the folders on all ways to it."""
    real = program.resolve()
    ways = {real, *real.parents, *program.absolute().parents}
    return all(way.stat().st_mode & stat.S_IXOTH for way in ways)


def hand_over(job: Path, run: Path, own: Iterable[Path], reports: Path, user: User | None) -> None:
    """Give the folders of a run to whom they belong; `reports` is made for the job to write to.

    The folder of the run is closed to the account until its own files are given away, and is opened
    last: other jobs of the same account run meanwhile, and could put a link in place of a file.

    Raises:
        UserError: the user could not reach the folders.
        OSError: modes or owners cannot be set.
    """
    _make_plain(reports)
    if user is None:
        job.chmod(0o700)
        return
    for path in (*own, reports):
        _give(path, user, file_mode=0o600, folder_mode=0o700)
    _give(job, (0, user[1]), folder_mode=0o710)
    _give(run, (0, user[1]), folder_mode=0o1770)
    for folder in job.parents:
        _check_passage(folder, user)


def holds_anything(folder: Path, user: User | None) -> bool:
    """Whether something is in a folder, as far as an account sees; no more is told to its jobs.

    Root would see what they may not, and a user names the folder.
    """
    if user is None or user[0] == os.geteuid():
        try:
            return any(folder.iterdir())
        except OSError:
            return False
    try:
        done = subprocess.run(  # noqa: S603 - the path is an argument, and no option
            ["/usr/bin/find", str(folder.absolute()), *_ANYTHING],
            user=user[0], group=user[1], extra_groups=[], env={}, cwd="/",
            stdin=subprocess.DEVNULL, capture_output=True, timeout=MOST_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False
    return bool(done.stdout)


def _make_plain(path: Path) -> None:
    """See that an empty file of ours is there, or one that was there before and is a plain file."""
    with contextlib.suppress(FileNotFoundError):
        found = path.lstat()
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
            return
        path.unlink()  # planted by a job, before a start that is tried again
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))


def _give(path: Path, owner: User, *, folder_mode: int, file_mode: int | None = None) -> None:
    """Set mode and owner of just this folder or file, whatever takes its place meanwhile.

    Raises:
        OSError: it is a link, has a second name, or is something else.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        is_file = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
        mode = folder_mode if stat.S_ISDIR(found.st_mode) else file_mode if is_file else None
        if mode is None:
            raise OSError(errno.EINVAL, "no plain file or folder", str(path))
        os.fchown(descriptor, *owner)
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def _check_passage(folder: Path, user: User) -> None:
    status = folder.stat()
    needed = stat.S_IXOTH
    if status.st_uid == user[0]:
        needed = stat.S_IXUSR
    elif status.st_gid == user[1]:
        needed = stat.S_IXGRP
    if not status.st_mode & needed:
        hint = f"choose another --state, or allow passage: chmod o+x {folder}"
        raise UserError("the job's user cannot get in", where=str(folder), field="user", hint=hint)

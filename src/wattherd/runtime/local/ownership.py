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

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from wattherd.errors import UserError

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

    Raises:
        UserError: the user could not reach the folders.
        OSError: modes or owners cannot be set.
    """
    reports.touch(mode=0o600)
    if user is None:
        job.chmod(0o700)
        return
    for folder, mode in ((job, 0o710), (run, 0o1770)):
        os.chown(folder, 0, user[1], follow_symlinks=False)
        folder.chmod(mode)
    for path in (*own, reports):
        os.chown(path, *user, follow_symlinks=False)
        path.chmod(0o700 if path.is_dir() else 0o600)
    for folder in job.parents:
        _check_passage(folder, user)


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

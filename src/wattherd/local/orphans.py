"""Runs that nobody counts on any more: found by their folders, ended with all their processes.

Nothing here is believed gone before that is proven: what cannot be read counts as still there, and
who asked asks again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

from wattherd.local import cgroups, processes, run_dir, run_lock
from wattherd.local.observation import Present, Unknown, certain, document, present
from wattherd.local.run_observer import KILLED, LEFT_BEHIND, RunObserver

GONE_S = 0.5
"""For a process that was killed to be gone."""
KEPT_RUNS = 100
"""Of one job: a program that ends at once, and is tried again, must not fill the disk with logs."""


def folders_in(folder: Path) -> list[Path]:
    """All folders in a folder; none where it is none.

    Raises:
        OSError: they cannot be listed. (`Path.glob` would show none.)
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(one.path) for one in entries if one.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []


def run_folders(job: Path) -> list[Path]:
    """Directories of a job's runs.

    Raises:
        OSError: they cannot be listed.
    """
    return [
        one
        for one in folders_in(job)
        if one.name.startswith("run-") and one.name.removeprefix("run-").isdigit()
    ]


def drop_old_runs(job: Path, attempt: int) -> None:
    """Remove directories of runs that are over, long before `attempt`; others are left.

    What cannot be looked at or removed now is removed when the next run begins.
    """
    with contextlib.suppress(OSError):
        for folder in run_folders(job):
            if key_of(folder)[1] > attempt - KEPT_RUNS:
                continue
            over = isinstance(document(folder / run_dir.EXIT), Present)
            if over and run_lock.held(folder) == Present(value=False):
                shutil.rmtree(folder, ignore_errors=True)


def end_stray(folder: Path) -> bool:
    """End a run that nobody counts on; whether that is proven.

    Its supervisor is killed first, which takes its tasks along. One that is about to begin finds
    that it has been forestalled.
    """
    try:
        if certain(present(folder)) is None:
            return True
        # A file that the job itself put there says nothing: `document` takes only our own.
        match document(folder / run_dir.EXIT):
            case Present(_):
                return True
            case Unknown(_, damaged) if not damaged:
                return False
            case _:
                pass
        if certain(present(folder / run_dir.BEGUN)) is None and run_dir.forestall(folder):
            note_end(folder)
            return True
    except OSError:
        return False
    watched = RunObserver(key_of(folder), folder)
    end_s = time.monotonic() + GONE_S
    while isinstance(found := watched.supervisor, Present):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(found.value, signal.SIGKILL)
        if time.monotonic() >= end_s:
            return False
        time.sleep(0.01)
    # The lock alone says nothing here: another attempt may hold it, and rightly.
    if isinstance(found, Unknown) and found.why != LEFT_BEHIND:
        return False
    done = end_group(folder)
    if done:
        note_end(folder)
    return done


def note_end(folder: Path, exit_code: int = KILLED, why: str = "nobody counted on it") -> None:
    """Write down that a run is over whose supervisor cannot: it need not be ended once more.

    Where that cannot be written, it is done again at the next start, which does no harm.
    """
    with contextlib.suppress(OSError):
        run_dir.write(folder / run_dir.EXIT, {"exit_code": exit_code, "why": why})


def end_group(folder: Path) -> bool:
    """Kill whatever is left of a run whose supervisor is gone; whether nothing is."""
    match document(folder / run_dir.ORDER):
        case Present(order):
            pass
        case Unknown(_, damaged) if not damaged:
            return False
        case _:
            order = {}
    done = run_dir.tidy_up(order)
    try:
        if "group" in order:
            support = cgroups.Support.of(order)
            group = cgroups.Group(support, order["group"], cgroups.CgroupLimits(), None)
            done = group.kill() == Present([]) and done
            group.remove()
        left = certain(processes.with_variable(f"WATTHERD_RUN_DIR={folder}")) or []
    except OSError:
        return False
    processes.signal_all(left, signal.SIGKILL)
    return done and not left


def end_holders(run: Path) -> list[int]:
    """Kill processes that hold a job's lock and are no part of `run`; those that were there."""
    match run_lock.holders(run), processes.with_variable(f"WATTHERD_RUN_DIR={run}"):
        case Present(found), Present(own):
            pass
        case _:
            return []
    left = [pid for pid in found if pid not in own and not _supervises(pid, run)]
    processes.signal_all(left, signal.SIGKILL)
    return left


def _supervises(pid: int, run: Path) -> bool:
    """Whether a process is the supervisor of that run, or may be."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True
    return str(run).encode() in line.split(b"\0")


def key_of(folder: Path) -> tuple[str, int]:
    """Job and attempt, by the name of a run's folder."""
    return folder.parent.name, int(folder.name.removeprefix("run-"))

"""Brings a task its data and code, runs it, and takes its results away.

    python staging.py PLAN.json RANK -- COMMAND...

It runs as the task itself does, as its user and within its limits, and so can read and write no
more than the job may. Whatever is copied is copied beside its place first and renamed there when it
is whole and on disk: nobody ever sees half of it, and a later run finds it and copies nothing. The
first task to come copies for all of a gang, the others wait. Results are taken away by the first
task when it has succeeded and has not merely checkpointed. Only the standard library is imported,
and nothing of this package, so that any interpreter can run this file.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

CANNOT_STAGE = 125
"""Exit code when data, code or results could not be copied."""
LOCK, PART = ".staging.lock", ".part"


def local_path(uri: str) -> Path:
    """The path that `file:///PATH` or an absolute path (mounts of NFS, too) stands for.

    Raises:
        ValueError: anything else.
    """
    parts = urlsplit(uri)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        return Path(unquote(parts.path))
    if not parts.scheme and uri.startswith("/"):
        return Path(uri)
    raise ValueError(f"{uri!r} is neither file:///PATH nor an absolute path")


def bring(source: Path, target: Path) -> None:
    """Copy a file or a folder to where nothing is yet; whole, or not at all.

    Raises:
        OSError: it cannot be read or written.
    """
    part = target.with_name(f".{target.name}{PART}")
    _remove(part)
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, part, symlinks=True)
    else:
        shutil.copy2(source, part)
    _sync(part)
    if part.is_dir() and target.is_dir():  # only an empty folder could be replaced by renaming
        aside = target.with_name(f".{target.name}.old")
        _remove(aside)
        target.rename(aside)
        part.rename(target)
        _remove(aside)
    else:
        part.replace(target)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Have everything on disk."""
    for one in [path, *path.rglob("*")] if path.is_dir() else [path]:
        if one.is_file() and not one.is_symlink():
            with one.open("rb") as stream:
                os.fsync(stream.fileno())


def stage_in(plan: Mapping[str, str], lock: Path) -> None:
    """Bring what is not there yet: targets by source.

    Raises:
        OSError: something cannot be copied.
    """
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for target, source in plan.items():
            if not Path(target).exists():
                bring(local_path(source), Path(target))


def run(argv: Sequence[str]) -> int:
    """Run the task and wait; signals are sent to it directly, and are its business."""
    task = subprocess.Popen(argv)  # noqa: S603 - what users submit is what is run
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    code = task.wait()
    return code if code >= 0 else 128 - code


def main(plan_file: Path, rank: int, argv: Sequence[str]) -> int:
    """The exit code of the task, or of what went wrong around it."""
    plan = json.loads(plan_file.read_text(encoding="utf-8"))
    try:
        stage_in(plan["bring"], Path(plan["folder"]) / LOCK)
        Path(plan["outputs"]).mkdir(parents=True, exist_ok=True)
        if plan["cwd"]:
            os.chdir(plan["cwd"])
        code = run(argv)
        done = code == 0 and rank == 0 and not Path(plan["checkpointed"]).exists()
        for name, target in plan["take"].items() if done else ():
            bring(Path(plan["outputs"]) / name, local_path(target))
    except OSError as error:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"wattherd: cannot stage: {error}\n")
        return CANNOT_STAGE
    return code


if __name__ == "__main__":
    at = sys.argv.index("--")
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[at + 1 :]))

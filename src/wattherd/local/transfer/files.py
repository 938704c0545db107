"""Files and folders of this machine: copied beside their place, renamed there when whole."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

PART = ".part"
FILLING = ".wattherd-copy"
"""What becomes the content of a folder, while it is put in its place."""


def bring(source: Path, target: Path) -> None:
    """Copy a file or a folder to where nothing is yet; whole, or not at all.

    Raises:
        OSError: it cannot be read or written.
    """
    part = part_of(target)
    remove(part)
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        _copy_folder(source, part)
    else:
        shutil.copy2(source, part)
    settle(part, target)


def fill(folder: Path, source: Path) -> bool:
    """Copy what is in a folder into one that is empty; whether there was anything to do.

    A copy grows below a name of its own and counts when it is whole. What was cut off is done
    again, and a folder in which there is something else stays as it is.

    Raises:
        OSError: something cannot be read or written.
    """
    whole = folder / FILLING
    part = part_of(whole)
    if not whole.is_dir():
        if any(one.name != part.name for one in folder.iterdir()):
            return False
        remove(part)
        _copy_folder(source, part)
        settle(part, whole)
    for one in sorted(whole.iterdir()):
        one.replace(folder / one.name)
    whole.rmdir()
    return True


def _copy_folder(source: Path, target: Path) -> None:
    """As `shutil.copytree`, which hides why it fails: a full disk is waited for."""
    target.mkdir()
    for one in sorted(source.iterdir()):
        at = target / one.name
        if one.is_symlink():
            at.symlink_to(one.readlink())
        elif one.is_dir():
            _copy_folder(one, at)
        else:
            shutil.copy2(one, at)
    shutil.copystat(source, target)


def part_of(target: Path) -> Path:
    """Where a copy grows."""
    return target.with_name(f".{target.name}{PART}")


def settle(part: Path, target: Path) -> None:
    """Put a copy that is whole in its place, on disk first; what was there is replaced.

    Raises:
        OSError: it cannot be renamed.
    """
    _sync(part)
    if part.is_dir() and target.is_dir():  # only an empty folder could be replaced by renaming
        aside = target.with_name(f".{target.name}.old")
        remove(aside)
        target.rename(aside)
        part.rename(target)
        remove(aside)
    else:
        part.replace(target)


def remove(path: Path) -> None:
    """Whatever it is, if it is there."""
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

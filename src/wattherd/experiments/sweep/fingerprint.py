"""What a result was computed from, by content: files, our own code, code of plug-ins, libraries.

Names of files and the time of day do not count, so equal inputs are recognised under another name,
and a changed file under the same one is another input. Where something that matters cannot be read,
the answer is None: a result that cannot be named is not kept.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import wattherd
from wattherd.engine.core.config import RULES
from wattherd.plugins import AnnouncedPart, announced

_ROOMS_APART = ("cli", "server", "kube", "local", "hold", "report", "library", "testing")
"""Rooms of this package that no figure of a simulation comes from."""
_LIBRARIES = ("numpy", "scipy", "numba", "clarabel", "scikit-learn", "PyYAML", "pydantic")
"""Packages whose versions may change the last digits, or more."""


def of_file(path: Path) -> str | None:
    """A file by its ending and bytes, or a folder by all of its files; None if unreadable."""
    try:
        if path.is_dir():
            return _of_files(sorted(_within(path)), path)
        if not path.is_file():  # a pipe can be read only once
            return None
        return f"{_ending(path)}:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    except OSError:
        return None


def of_plugin(seam: str, name: str) -> str | None:
    """The code behind an announced name: its package's files, its distribution, what that needs.

    What a plug-in imports beyond its distribution counts by its version where the distribution
    names it as needed, else not at all.
    """
    entry = announced(seam).get(name)
    if entry is None:
        return None
    try:
        found = _files_of(entry)
        if not found:  # in an archive, or made by an import hook
            return None
        dist = getattr(entry, "dist", None)
        needs = _needs(dist) if dist is not None else []
        digest = hashlib.sha256("\n".join([entry.value, *needs]).encode())
        for path, relative in sorted(found.items(), key=lambda one: (str(one[1]), str(one[0]))):
            _add(digest, str(relative), path)
    except (OSError, ValueError, ImportError):
        return None
    return digest.hexdigest()


def _files_of(entry: AnnouncedPart) -> dict[Path, Path]:
    """Files of the package and of the distribution behind an entry point, by what they are called.

    None at all where the package's own cannot be found.
    """
    module = entry.value.partition(":")[0].strip()
    spec = find_spec(module.partition(".")[0])
    found = {path: path.relative_to(root) for root, path in _sources(spec)}
    if found:
        for path, relative in _recorded(getattr(entry, "dist", None)):
            found.setdefault(path, relative)
    return found


def files_behind(parts: Mapping[str, str]) -> Iterator[Path]:
    """What a process must have loaded as it is on disk: ours, installed packages, plug-ins.

    Args:
        parts: names of policies by seam.

    Installing or removing a package changes the folder that it stands in.
    """
    yield from _ours()
    for name in _LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            yield Path(str(metadata.distribution(name).locate_file("")))
    for seam, name in parts.items():
        entry = announced(seam).get(name)
        if entry is not None:
            try:
                yield from _files_of(entry)
            except (ValueError, ImportError):
                return  # such a result has no name either


def _ours() -> list[Path]:
    """Files of this package that figures of a simulation come from."""
    root = Path(wattherd.__file__).parent
    return [path for path in _within(root) if path.relative_to(root).parts[0] not in _ROOMS_APART]


@cache
def made_by() -> str:
    """This version of wattherd: its number, its rules, its source, and what it computes with."""
    root = Path(wattherd.__file__).parent
    source = _of_files(sorted(_ours()), root)
    versions = [f"{name}={_version(name)}" for name in _LIBRARIES]
    with_what = [platform.machine(), sys.implementation.name, platform.python_version(), *versions]
    digest = hashlib.sha256("\n".join([source, *with_what]).encode()).hexdigest()
    return f"{wattherd.__version__} rules {RULES} {digest[:16]}"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"


def _ending(path: Path) -> str:
    """Readers choose by it: `.csv`, `.jsonl.gz`."""
    return "".join(one for one in path.suffixes[-2:] if one.isascii() and len(one) <= 8)


def _within(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
            yield path


def _of_files(paths: Iterable[Path], root: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        _add(digest, str(path.relative_to(root)), path)
    return digest.hexdigest()


def _add(digest: hashlib._Hash, name: str, path: Path) -> None:
    content = path.read_bytes()
    digest.update(f"{name}\0{len(content)}\0".encode())
    digest.update(content)


def _sources(spec: ModuleSpec | None) -> Iterator[tuple[Path, Path]]:
    """Files of a package or module, each with the folder that its name is relative to."""
    if spec is None:
        return
    if spec.submodule_search_locations:
        for place in spec.submodule_search_locations:
            yield from ((Path(place), path) for path in sorted(_within(Path(place))))
    elif spec.origin and Path(spec.origin).is_file():
        yield Path(spec.origin).parent, Path(spec.origin)


def _recorded(dist: metadata.Distribution | None) -> Iterator[tuple[Path, Path]]:
    """What the distribution has installed beside that; what was compiled from it is left out."""
    for one in (dist.files or []) if dist is not None else []:
        path = Path(str(one.locate()))
        apart = path.suffix == ".pyc" or any(
            p.endswith((".dist-info", ".egg-info")) for p in one.parts
        )
        if not apart and path.is_file():
            yield path, Path(*one.parts)


def _needs(dist: metadata.Distribution) -> list[str]:
    """Versions of the distribution and of what it says that it needs."""
    names = {_bare(one) for one in dist.requires or []} - {""}
    return [f"{dist.name}={dist.version}", *(f"{one}={_version(one)}" for one in sorted(names))]


def _bare(requirement: str) -> str:
    """`numpy>=2; python_version > "3"` as `numpy`."""
    name = requirement.strip()
    for at, letter in enumerate(name):
        if not (letter.isalnum() or letter in "-_."):
            return name[:at]
    return name

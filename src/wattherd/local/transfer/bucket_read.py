"""Objects brought from a store: in pieces, several at a time, checked, and resumed where it ended.

    .NAME.pieces/    what is under way: of each object the bytes so far, and a list of its pieces
    .NAME.part/      of a folder the objects that are whole

A piece is noted when it is on disk. Who comes later, after a crash or another attempt of the job,
asks the store whether the object is still the same (`If-Match`) and fetches what is missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from wattherd.devices.wire.file_places import BucketPlace
from wattherd.errors import ClusterError, UserError
from wattherd.local.transfer import files
from wattherd.local.transfer.bucket import BucketClient
from wattherd.local.transfer.checks import Checksum, check_of, etag_of, parts_in
from wattherd.units import show_bytes

PIECE = 16 << 20
AT_ONCE = 4
"""Objects, and pieces of one, that are fetched at a time."""


class Brought(NamedTuple):
    """How much came; `unchecked` objects have no checksum that could be looked at."""

    objects: int
    size_bytes: int
    unchecked: int


class _Found(NamedTuple):
    """An object of the store, and where it is to lie."""

    place: BucketPlace
    size: int
    etag: str
    path: Path


def bring(store: BucketClient, place: BucketPlace, target: Path) -> Brought:
    """Bring an object, or all below a prefix, to where nothing is yet; whole, or not at all.

    Raises:
        UserError: it is not there, may not be read, names no files, or does not fit the disk.
        ClusterError: the store cannot be reached, changes meanwhile, or sends what is not its own.
        OSError: it cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    pieces = target.with_name(f".{target.name}.pieces")
    pieces.mkdir(exist_ok=True)
    part = files.part_of(target)
    found = _one(store, place, part) or _folder(store, place, part)
    _make_room(found, pieces, place)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        checked = list(pool.map(lambda one: _fetch(store, one, pieces), found))
    files.settle(part, target)
    files.remove(pieces)
    return Brought(len(found), sum(one.size for one in found), checked.count(False))


def _one(store: BucketClient, place: BucketPlace, path: Path) -> list[_Found]:
    """The object, if there is one of this name."""
    if not place.key or place.key.endswith("/"):
        return []
    try:
        head = store.ask(place, lambda: _head(store, place))
    except UserError as error:
        if "no such object" in error.problem:
            return []
        raise
    return [_Found(place, int(head["ContentLength"]), etag_of(head), path)]


def _head(store: BucketClient, place: BucketPlace, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = store.client.head_object(
        Bucket=place.bucket, Key=place.key, ChecksumMode="ENABLED", **more
    )
    return found


def _folder(store: BucketClient, place: BucketPlace, part: Path) -> list[_Found]:
    """All objects below a prefix; those that end in a slash only say that there is a folder."""
    prefix = place.key if not place.key or place.key.endswith("/") else f"{place.key}/"
    part.mkdir(exist_ok=True)
    found, seen = [], False
    for one in _listed(store, place, prefix):
        seen = True
        name = one["Key"][len(prefix) :]
        if not name or name.endswith("/"):
            _inside(part, name or ".", place).mkdir(parents=True, exist_ok=True)
            continue
        at = BucketPlace(place.bucket, one["Key"])
        found.append(_Found(at, int(one["Size"]), etag_of(one), _inside(part, name, place)))
    if not seen:
        raise UserError("no such object or folder", where=str(place))
    wanted = {one.path for one in found}
    for path in list(part.rglob("*")):  # of an attempt before somebody deleted objects
        if path.is_file() and path not in wanted:
            path.unlink()
    return found


def _listed(store: BucketClient, place: BucketPlace, prefix: str) -> Iterator[dict[str, Any]]:
    more: dict[str, str] = {}
    while True:
        answer = store.ask(
            place,
            lambda: store.client.list_objects_v2(Bucket=place.bucket, Prefix=prefix, **more),  # noqa: B023
        )
        yield from answer.get("Contents", ())
        if not answer.get("IsTruncated"):
            return
        more = {"ContinuationToken": answer["NextContinuationToken"]}


def _inside(folder: Path, name: str, place: BucketPlace) -> Path:
    """Where an object of that name lies; keys may hold anything, `..` included."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise UserError(f"object {name!r} cannot be a file", where=str(place))
    return folder / path


def _make_room(found: list[_Found], pieces: Path, place: BucketPlace) -> None:
    """Say now what would be said by a full disk after hours."""
    missing = sum(one.size for one in found if not one.path.is_file())
    under_way = sum(one.stat().st_blocks * 512 for one in pieces.iterdir())
    free = shutil.disk_usage(pieces).free
    if missing - under_way > free:
        needs = f"needs {show_bytes(missing)}, {show_bytes(free + under_way)} are free"
        raise UserError(f"out of disk: {needs}", where=f"{place} to {pieces.parent}")


def _fetch(store: BucketClient, found: _Found, pieces: Path) -> bool:
    """Bring one object; whether its checksum could be looked at.

    Raises:
        ClusterError: twice it was not what the store had stated.
    """
    name = hashlib.sha256(found.place.key.encode()).hexdigest()[:32]
    whole = pieces / f"{name}.whole"
    if found.path.is_file() and whole.exists() and whole.read_text("utf-8") == found.etag:
        return True
    stated = ""
    for _ in range(2):
        growing = _Growing(pieces / name, found)
        growing.fill(store)
        check = _check(store, found)
        if check is None or check.holds(growing.path):
            _keep(growing, found, whole)
            return check is not None
        growing.discard()
        stated = check.algorithm
    raise ClusterError(f"{found.place}: what came does not match its {stated}")


def _keep(growing: _Growing, found: _Found, whole: Path) -> None:
    """Move it among those that are whole, and note which version it is."""
    try:
        found.path.parent.mkdir(parents=True, exist_ok=True)
        growing.path.replace(found.path)
    except (NotADirectoryError, FileExistsError, IsADirectoryError):
        problem = "an object and a folder of one name: no file system holds both"
        raise UserError(problem, where=str(found.place)) from None
    whole.write_text(found.etag, encoding="utf-8")
    growing.discard()


def _check(store: BucketClient, found: _Found) -> Checksum | None:
    """The checksum to look at, the sizes of its parts asked for where it is made of them."""
    head = store.ask(found.place, lambda: _head(store, found.place))
    if etag_of(head) != found.etag:
        raise ClusterError(f"{found.place}: was changed while it was read")
    check, count = check_of(head), parts_in(head)
    if check is not None or not count:
        return check
    sizes = []
    for number in range(1, count + 1):
        part = store.ask(found.place, lambda: _head(store, found.place, PartNumber=number))  # noqa: B023
        sizes.append(int(part["ContentLength"]))
    # A store that does not know parts answers with the whole, which then does not add up.
    return Checksum("md5", found.etag, sizes) if sum(sizes) == found.size else None


class _Growing:
    """An object of which some pieces may be there already."""

    def __init__(self, path: Path, found: _Found) -> None:
        self.path, self._found = path, found
        self._list = path.with_name(f"{path.name}.list")
        self._lock = threading.Lock()

    def fill(self, store: BucketClient) -> None:
        """Fetch the pieces that are missing."""
        done = self._done()
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, self._found.size)
            missing = [at for at in range(0, self._found.size, PIECE) if at not in done]
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(lambda at: self._fetch(store, descriptor, at), missing))
        finally:
            os.close(descriptor)

    def _done(self) -> set[int]:
        """Where the pieces begin that are on disk; none if they are of another version."""
        with contextlib.suppress(OSError, ValueError):
            etag, *begins = self._list.read_text(encoding="utf-8").split("\n")
            if etag == self._found.etag and self.path.stat().st_size == self._found.size:
                return {int(begin) for begin in begins[:-1]}
        self._list.write_text(f"{self._found.etag}\n", encoding="utf-8")
        return set()

    def _fetch(self, store: BucketClient, descriptor: int, begin: int) -> None:
        end = min(begin + PIECE, self._found.size)
        data = store.ask(self._found.place, lambda: self._get(store, begin, end))
        os.pwrite(descriptor, data, begin)
        os.fdatasync(descriptor)
        with self._lock, self._list.open("a", encoding="utf-8") as stream:
            stream.write(f"{begin}\n")

    def _get(self, store: BucketClient, begin: int, end: int) -> bytes:
        place = self._found.place
        answer = store.client.get_object(
            Bucket=place.bucket,
            Key=place.key,
            IfMatch=f'"{self._found.etag}"',
            Range=f"bytes={begin}-{end - 1}",
        )
        with contextlib.closing(answer["Body"]) as body:
            data: bytes = body.read()
        if len(data) != end - begin:
            raise ClusterError(
                f"{place}: {len(data)} bytes came where {end - begin} were asked for"
            )
        return data

    def discard(self) -> None:
        """Forget what is there."""
        files.remove(self.path)
        files.remove(self._list)

"""Results taken to a store: large files in parts, each with its checksum, resumed where it ended.

An object appears when it is whole. A folder is many objects: `_SUCCESS`, as Hadoop and Spark write
it, is removed first and written last, so that readers can tell a folder that is whole.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from wattherd.devices.wire.file_places import BucketPlace
from wattherd.errors import UserError
from wattherd.local.transfer import files
from wattherd.local.transfer.bucket import BucketClient
from wattherd.local.transfer.checks import md5

PART = 16 << 20
MOST_PARTS = 10_000
"""S3 takes no more (user guide, multipart upload limits)."""
AT_ONCE = 4
MARK = "_SUCCESS"


class Taken(NamedTuple):
    """How much was taken."""

    objects: int
    size_bytes: int


def take(store: BucketClient, source: Path, place: BucketPlace) -> Taken:
    """Upload a file to a key (below a key that ends in a slash), or a folder below a prefix.

    Raises:
        UserError: the store refuses, or a link leads out of the folder.
        ClusterError: the store cannot be reached.
        OSError: something cannot be read.
    """
    notes = source.with_name(f".{source.name}.uploads")
    notes.mkdir(exist_ok=True)
    if source.is_dir():
        taken = _folder(store, source, place, notes)
    else:
        whole = not place.key or place.key.endswith("/")
        _file(store, source, place.below(source.name) if whole else place, notes / "0")
        taken = Taken(1, source.stat().st_size)
    files.remove(notes)
    return taken


def _folder(store: BucketClient, source: Path, place: BucketPlace, notes: Path) -> Taken:
    found = sorted(_files(source))
    mark = place.below(MARK)
    store.ask(mark, lambda: store.client.delete_object(Bucket=mark.bucket, Key=mark.key))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = [
            pool.submit(_file, store, source / name, place.below(name), notes / str(number))
            for number, name in enumerate(found)
            if name != MARK
        ]
        for job in jobs:
            job.result()
    _put(store, mark, b"")
    return Taken(len(found), sum((source / name).stat().st_size for name in found))


def _files(folder: Path) -> Iterator[str]:
    """Names of all files below, with slashes; links are followed within the folder only."""
    root = folder.resolve()
    for above, _, names in os.walk(folder):
        for name in names:
            path = Path(above, name)
            if not path.resolve().is_relative_to(root):
                raise UserError("the link leads out of the folder of results", where=str(path))
            if path.is_file():
                yield path.relative_to(folder).as_posix()


def _file(store: BucketClient, source: Path, place: BucketPlace, note: Path) -> None:
    if source.stat().st_size <= PART:
        _put(store, place, source.read_bytes())
    else:
        _Upload(store, source, place, note).finish()


def _put(store: BucketClient, place: BucketPlace, data: bytes) -> None:
    sent = {"Bucket": place.bucket, "Key": place.key, "Body": data, "ContentMD5": _stated(data)}
    store.ask(place, lambda: store.client.put_object(**sent))


def _stated(data: bytes) -> str:
    """The checksum that the store compares with what arrives (RFC 1864)."""
    return base64.b64encode(md5(data).digest()).decode()


class _Upload:
    """A large file on its way; `note` remembers the upload's id for who comes later."""

    def __init__(self, store: BucketClient, source: Path, place: BucketPlace, note: Path) -> None:
        self._store, self._source, self._place, self._note = store, source, place, note
        status = source.stat()
        self._size = status.st_size
        self._part = max(PART, -(-self._size // MOST_PARTS // (1 << 20)) << 20)
        self._version = [str(place), status.st_size, status.st_mtime_ns, self._part]
        self._at = {"Bucket": place.bucket, "Key": place.key}

    def finish(self) -> None:
        """Upload what is missing, and have the store make one object of it."""
        upload, there = self._known() or (self._begin(), {})
        try:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                numbers = range(1, -(-self._size // self._part) + 1)
                tags = list(pool.map(lambda n: self._send(upload, n, there.get(n)), numbers))
            parts = [{"PartNumber": n, "ETag": tag} for n, tag in zip(numbers, tags, strict=True)]
            self._ask(
                "complete_multipart_upload", UploadId=upload, MultipartUpload={"Parts": parts}
            )
        except UserError:
            # Nobody will come later to finish it, and parts cost money as objects do.
            with contextlib.suppress(Exception):
                self._ask("abort_multipart_upload", UploadId=upload)
            raise

    def _begin(self) -> str:
        upload = str(self._ask("create_multipart_upload")["UploadId"])
        self._note.write_text(json.dumps([*self._version, upload]), encoding="utf-8")
        return upload

    def _known(self) -> tuple[str, dict[int, str]] | None:
        """An upload of this very file that was begun, and the ETags of its parts."""
        try:
            *version, upload = json.loads(self._note.read_text(encoding="utf-8"))
            if version != self._version:
                return None
            return upload, dict(self._parts(upload))
        except (OSError, ValueError, UserError):  # the store has forgotten it
            return None

    def _parts(self, upload: str) -> Iterator[tuple[int, str]]:
        after = 0
        while True:
            answer = self._ask("list_parts", UploadId=upload, PartNumberMarker=after)
            for part in answer.get("Parts", ()):
                yield int(part["PartNumber"]), str(part["ETag"])
            if not answer.get("IsTruncated"):
                return
            after = int(answer["NextPartNumberMarker"])

    def _send(self, upload: str, number: int, there: str | None) -> str:
        """Upload a part, unless it is there; its ETag."""
        with self._source.open("rb") as stream:
            stream.seek((number - 1) * self._part)
            data = stream.read(self._part)
        if there is not None and there.strip('"') == md5(data).hexdigest():
            return there
        sent = {"UploadId": upload, "PartNumber": number, "Body": data}
        return str(self._ask("upload_part", **sent, ContentMD5=_stated(data))["ETag"])

    def _ask(self, operation: str, **more: Any) -> dict[str, Any]:
        call = getattr(self._store.client, operation)
        found: dict[str, Any] = self._store.ask(self._place, lambda: call(**self._at, **more))
        return found

"""Whether a downloaded object is what the store holds, by the checksums that the store states.

S3 states the MD5 of what was uploaded in one piece as its ETag, and of what came in parts the MD5
of the parts' MD5s, with their number behind a dash; uploaders may add a SHA-256, SHA-1 or CRC-32 of
the whole (S3 API reference, HeadObject, `x-amz-checksum-*`). Objects under keys of a key service
have ETags that say nothing. CRC-32C and CRC-64 would need another package and are not looked at.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

BLOCK = 1 << 20
PLAIN = re.compile(r"^[0-9a-f]{32}$")
IN_PARTS = re.compile(r"^[0-9a-f]{32}-([0-9]+)$")
STATED = {"ChecksumSHA256": "sha256", "ChecksumSHA1": "sha1", "ChecksumCRC32": "crc32"}


class Checksum(NamedTuple):
    """An algorithm and the digest that is expected; `parts` are sizes in bytes, in order."""

    algorithm: str
    expected: str
    parts: Sequence[int] = ()

    def holds(self, path: Path) -> bool:
        """Whether the file has that digest."""
        return _digest(path, self.algorithm, self.parts) == self.expected


def etag_of(head: Mapping[str, Any]) -> str:
    """Without its quotes."""
    return str(head.get("ETag", "")).strip('"')


def check_of(head: Mapping[str, Any]) -> Checksum | None:
    """The first checksum of the whole that an answer to HeadObject states; None if none is."""
    if head.get("ChecksumType") != "COMPOSITE":
        for field, algorithm in STATED.items():
            if head.get(field) and "-" not in head[field]:
                return Checksum(algorithm, head[field])
    if _etag_says_nothing(head) or not PLAIN.match(etag_of(head)):
        return None
    return Checksum("md5", etag_of(head))


def parts_in(head: Mapping[str, Any]) -> int:
    """In how many parts an object came, if its ETag is made of theirs; else 0."""
    found = IN_PARTS.match(etag_of(head))
    return 0 if found is None or _etag_says_nothing(head) else int(found[1])


def _etag_says_nothing(head: Mapping[str, Any]) -> bool:
    return "kms" in str(head.get("ServerSideEncryption", "")) or "SSECustomerAlgorithm" in head


def etag_of_parts(digests: Iterable[bytes]) -> str:
    """The ETag of an object that came in parts with these MD5s."""
    found = list(digests)
    return f"{md5(b''.join(found)).hexdigest()}-{len(found)}"


def md5(data: bytes = b"") -> Any:
    """As S3 uses it: against accidents, not against anybody."""
    return hashlib.md5(data, usedforsecurity=False)


def _digest(path: Path, algorithm: str, parts: Sequence[int]) -> str:
    """As the store writes it: SHA and CRC in base 64, MD5 in hexadecimal digits."""
    if parts:
        return etag_of_parts(_md5_of(path, parts))
    if algorithm == "crc32":
        value = 0
        for block in _blocks(path):
            value = zlib.crc32(block, value)
        return base64.b64encode(value.to_bytes(4, "big")).decode()
    found = hashlib.new(algorithm, usedforsecurity=False)
    for block in _blocks(path):
        found.update(block)
    return found.hexdigest() if algorithm == "md5" else base64.b64encode(found.digest()).decode()


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while block := stream.read(BLOCK):
            yield block


def _md5_of(path: Path, parts: Sequence[int]) -> Iterator[bytes]:
    with path.open("rb") as stream:
        for left in parts:
            found, size = md5(), left
            while size and (block := stream.read(min(size, BLOCK))):
                found.update(block)
                size -= len(block)
            yield found.digest()

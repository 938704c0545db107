"""Where data, code and results are: the addresses that job files name.

    /PATH, file:///PATH               a file or folder of this machine (of an NFS server: its mount)
    s3://BUCKET/KEY, s3://BUCKET/     an object, or all objects below a prefix
    git+https://HOST/REPO@REVISION    code at a branch, tag or commit; also git+ssh, git+file and,
                                      as pip has it, `#subdirectory=FOLDER`

No address holds a password: they are kept in journals and shown to colleagues. This module is also
part of a program that runs without the rest of wattherd, and imports the standard library only.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Union
from urllib.parse import SplitResult, unquote, urlsplit

FORMS = "/PATH, file:///PATH, s3://BUCKET/KEY or git+https://HOST/REPO@REVISION"
GIT_SCHEMES = ("git+https", "git+http", "git+ssh", "git+file")
_BUCKET = re.compile(r"^[a-z0-9A-Z][\w.-]{1,254}$")
_REVISION = re.compile(r"^[\w][\w./+-]*$")


class FilePlace(NamedTuple):
    """A path of this machine."""

    path: str


class BucketPlace(NamedTuple):
    """An object, or a prefix; the empty key is the whole bucket."""

    bucket: str
    key: str

    def __str__(self) -> str:
        """As users write it."""
        return f"s3://{self.bucket}/{self.key}"

    def below(self, name: str) -> BucketPlace:
        """The object of that name below this prefix."""
        head = self.key.rstrip("/")
        return BucketPlace(self.bucket, f"{head}/{name}" if head else name)


class GitPlace(NamedTuple):
    """A repository, a revision (`HEAD`: its default branch), and a folder in it, maybe empty."""

    url: str
    revision: str
    folder: str


Place = Union[FilePlace, BucketPlace, GitPlace]  # noqa: UP007 - older interpreters run this, too


def parse(text: str) -> Place:
    """What an address stands for.

    Raises:
        ValueError: it is none of the forms above, or names a password.
    """
    parts = urlsplit(text)
    if parts.password or (parts.username and parts.scheme != "git+ssh"):
        raise ValueError("an address must hold no user or password: give them as secrets")
    if parts.scheme == "s3":
        return _bucket(parts)
    if parts.scheme in GIT_SCHEMES:
        return _git(parts)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path[:1] == "/":
        return FilePlace(unquote(parts.path))
    if not parts.scheme and text[:1] == "/":
        return FilePlace(text)
    raise ValueError(f"{text!r} is none of {FORMS}")


def _bucket(parts: SplitResult) -> BucketPlace:
    """Keys are taken to the letter: they may hold what would mean something in a web address."""
    if not _BUCKET.match(parts.netloc):
        raise ValueError(f"{parts.netloc!r} is no name of a bucket")
    key = parts.geturl().partition(parts.netloc)[2].removeprefix("/")
    return BucketPlace(parts.netloc, key)


def _git(parts: SplitResult) -> GitPlace:
    path, _, revision = parts.path.partition("@")
    if not _REVISION.match(revision or "HEAD") or ".." in revision:
        raise ValueError(f"{revision!r} is no branch, tag or commit")
    kind, _, folder = parts.fragment.partition("=")
    inside = kind == "subdirectory" and folder and ".." not in folder and folder[0] not in "/-"
    if parts.fragment and not inside:
        raise ValueError(f"{parts.fragment!r}: only #subdirectory=FOLDER is known")
    scheme = parts.scheme.removeprefix("git+")
    if not path.strip("/") or (scheme != "file") != bool(parts.netloc):
        raise ValueError(f"{parts.geturl()!r} names no repository")
    return GitPlace(f"{scheme}://{parts.netloc}{path}", revision or "HEAD", folder)

"""Secrets of jobs: read when a run starts, kept in its environment and nowhere else.

They come from places that the operator names: folders for files, variables of the service by name.
A file is read as the job's account, and not through a link. Of a service that asks for no token and
names no place any file counts; a job that runs as the service could read it anyhow.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wattherd.errors import UserError
from wattherd.local import run_dir
from wattherd.local.accounts import SecretPlaces
from wattherd.local.observation import passes
from wattherd.local.ownership import User

FOR_JOBS = "WATTHERD_SECRET_"
"""Variables of the service that jobs of other accounts may have begin so, unless the operator names
variables."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MOST_S = 10.0
MOST_BYTES = 1 << 20


class _TooLong(Exception):
    """No secret is as long as that."""


def check_secrets(paper: Mapping[str, Any], places: SecretPlaces) -> None:
    """Whether all secrets of a job are in places where jobs may have them from.

    Raises:
        UserError: one is not.
    """
    for name, source in paper.get("secrets", {}).items():
        _check_place(f"secrets.{name}", str(source), places)


def secrets_of(paper: Mapping[str, Any], user: User | None, places: SecretPlaces) -> dict[str, str]:
    """Values of secrets, by the names under which the job expects them.

    Raises:
        UserError: a secret that cannot be read, not by this user, or not from there.
        OSError: one cannot be read now, for want of something.
    """
    check_secrets(paper, places)
    for name in paper.get("secrets", {}):
        if not NAME.fullmatch(str(name)):
            hint = "letters, digits and _, no digit first"
            raise UserError(f"{name!r} is no name of a variable", field="secrets", hint=hint)
    apart = user if user is not None and user[0] != os.geteuid() else None
    return {
        name: _secret(f"secrets.{name}", str(source), apart, places)
        for name, source in paper.get("secrets", {}).items()
    }


def _check_place(field: str, source: str, places: SecretPlaces) -> None:
    kind, _, where = source.partition(":")
    if kind not in ("file", "env"):
        raise UserError(f"{source!r} is no secret", field=field, hint="file:/path or env:NAME")
    if places.anywhere:
        return
    if kind == "env" and where not in places.variables:
        hint = "an operator names it in `secret_env`"
        raise UserError(f"{source!r} is not for jobs of this tenant", field=field, hint=hint)
    if kind == "file" and _below(Path(where), places.folders) is None:
        known = ", ".join(map(str, places.folders))
        hint = f"put it below {known}" if known else "an operator names folders in `secret_dirs`"
        raise UserError(f"{source!r} is no place of secrets", field=field, hint=hint)


def _below(path: Path, folders: tuple[Path, ...]) -> tuple[Path, tuple[str, ...]] | None:
    """The folder in which the path lies, and the names from there on; None if it lies in none."""
    if ".." in path.parts:
        return None
    for folder in folders:
        if path != folder and path.is_relative_to(folder):
            return folder, path.relative_to(folder).parts
    return None


def _secret(field: str, source: str, user: User | None, places: SecretPlaces) -> str:
    kind, _, where = source.partition(":")
    if kind == "env" and user is not None and places.anywhere and not where.startswith(FOR_JOBS):
        hint = f"name it {FOR_JOBS}... where the service starts"
        raise UserError(f"{source!r} is not for jobs with a user", field=field, hint=hint)
    try:
        if kind == "env":
            return os.environ[where]
        text = _file(Path(where), user, places).decode("utf-8").rstrip("\n")
    except _TooLong as error:
        raise UserError(f"{source!r} {error}", field=field, hint="name the right file") from None
    except (OSError, KeyError, UnicodeDecodeError, subprocess.SubprocessError) as error:
        if passes(error):
            raise
        raise UserError(f"cannot read {source!r}", field=field) from None
    if "\0" in text:
        raise UserError(f"{source!r} holds a zero byte", field=field, hint="keep text in it")
    return text


def _file(path: Path, user: User | None, places: SecretPlaces) -> bytes:
    """The file's bytes; below a named folder no part of its path may be a link."""
    found = _below(path, places.folders)
    if found is None:
        if user:
            return _read_as(path, user)
        with path.open("rb") as stream:
            return _short(stream.read(MOST_BYTES + 1))
    with run_dir.open_below(found[0], *found[1]) as stream:
        return _read_as(path, user) if user else _short(stream.read(MOST_BYTES + 1))


def _read_as(path: Path, user: User) -> bytes:
    """A file, read by a process of that user's; whatever stands there, it is theirs to read."""
    done = subprocess.run(  # noqa: S603 - the path is an argument, and no option
        ["/usr/bin/head", f"--bytes={MOST_BYTES + 1}", "--", str(path)],
        user=user[0],
        group=user[1],
        extra_groups=[],
        env={},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=MOST_S,
        check=True,
    )
    return _short(done.stdout)


def _short(text: bytes) -> bytes:
    """The same, unless it is longer than any secret: no file without end gets into memory."""
    if len(text) > MOST_BYTES:
        raise _TooLong(f"is longer than {MOST_BYTES:,} bytes")
    return text

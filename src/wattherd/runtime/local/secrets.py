"""Secrets of jobs: read when a run starts, kept in its environment and nowhere else.

A job that runs as somebody gets what that account may read itself, and of the service's own
environment only what was put there for jobs. One that runs as the service gets what the service
has, which it could read anyhow.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wattherd.errors import UserError
from wattherd.runtime.local.ownership import User
from wattherd.runtime.local.reading import passes

FOR_JOBS = "WATTHERD_SECRET_"
"""Variables of the service that jobs of other accounts may have begin so."""
MOST_S = 30.0


def secrets_of(paper: Mapping[str, Any], user: User | None) -> dict[str, str]:
    """Values of secrets, by the names under which the job expects them.

    Raises:
        UserError: a secret that cannot be read, or not by this user.
        OSError: one cannot be read now, for want of something.
    """
    apart = user if user is not None and user[0] != os.geteuid() else None
    return {
        name: _secret(f"secrets.{name}", str(source), apart)
        for name, source in paper.get("secrets", {}).items()
    }


def _secret(field: str, source: str, user: User | None) -> str:
    kind, _, where = source.partition(":")
    if kind == "env" and user is not None and not where.startswith(FOR_JOBS):
        hint = f"name it {FOR_JOBS}... where the service starts"
        raise UserError(f"{source!r} is not for jobs with a user", field=field, hint=hint)
    try:
        if kind == "file":
            return (_read_as(where, user) if user else Path(where).read_text("utf-8")).rstrip("\n")
        if kind == "env":
            return os.environ[where]
    except (OSError, KeyError, UnicodeDecodeError, subprocess.SubprocessError) as error:
        if passes(error):
            raise
        raise UserError(f"cannot read {source!r}", field=field) from None
    raise UserError(f"{source!r} is no secret", field=field, hint="file:/path or env:NAME")


def _read_as(path: str, user: User) -> str:
    """A file, read by a process of that user's."""
    done = subprocess.run(  # noqa: S603 - the path is an argument, and no option
        ["/bin/cat", "--", path],
        user=user[0],
        group=user[1],
        extra_groups=[],
        env={},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=MOST_S,
        check=True,
    )
    return done.stdout.decode("utf-8")

"""Where a job that serves pages listens, and the secret that whoever asks it has to show.

Everybody on a machine can reach a port on loopback; only the service, which knows who is asking it,
can read the secret, and the job has it in its environment. It is masked in logs, as secrets are.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wattherd.local import run_dir

FILE = "app.json"
LISTENS = "0A"
PORT, BASE, SECRET = "WATTHERD_APP_PORT", "WATTHERD_APP_BASE", "WATTHERD_APP_SECRET"
SECRET_OF = {"jupyter": "JUPYTER_TOKEN", "vscode": "HASHED_PASSWORD"}
"""Variables in which those programs look for theirs. Code-server's is a SHA-256 in hexadecimal,
which its session cookie holds as it is: any 64 such digits do, and no password leads to them."""


def base_of(job_id: str) -> str:
    """The path below which a job's pages are seen."""
    return f"/jobs/{job_id}/app/"


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """What one run serves; it listens on loopback."""

    kind: str
    port: int
    base: str
    secret: str
    keep_prefix: bool
    user: int | None = None
    """Number of the account that the job runs as, if it has one of its own."""

    def is_its_own(self) -> bool:
        """Whether nobody but the job's account listens: another could have been quicker."""
        return self.user is None or not listens_as(self.port) - {self.user}

    @classmethod
    def made(
        cls, folder: Path, job_id: str, asked: Mapping[str, Any], user: int | None = None
    ) -> App:
        """The app of a run, the same if asked again; only the service's user can read its file."""
        known = cls.read(folder)
        if known is not None:
            return known
        app = cls(
            kind=str(asked["kind"]),
            port=free_port(),
            base=base_of(job_id),
            secret=secrets.token_hex(32),
            keep_prefix=bool(asked["keep_prefix"]),
            user=user,
        )
        fresh = folder / f".{FILE}.{os.getpid()}"
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(asdict(app), stream)
        fresh.replace(folder / FILE)
        return app

    @classmethod
    def read(cls, folder: Path) -> App | None:
        """The app of a run, or None if it serves nothing."""
        found = run_dir.read(folder / FILE)
        return None if found is None else cls(**found)

    def environment(self) -> dict[str, str]:
        """What may be seen by others."""
        return {PORT: str(self.port), BASE: self.base}

    def secrets(self) -> dict[str, str]:
        """What may not."""
        names = (SECRET, SECRET_OF.get(self.kind, SECRET))
        return dict.fromkeys(names, self.secret)


def listens_as(port: int) -> set[int]:
    """Numbers of the users who listen at a port, as the kernel tells (proc(5), /proc/net/tcp)."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(int(fields[7]))
    return found


def free_port() -> int:
    """A port of loopback that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

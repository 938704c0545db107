"""Where a job that serves pages listens, and the secret that whoever asks it has to show.

Everybody on a machine can reach a port on loopback; only the service, which knows who is asking it,
can read the secret, and the job has it in its environment. It is masked in logs, as secrets are.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wattherd.runtime.local import run_dir

FILE = "app.json"
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

    @classmethod
    def made(cls, folder: Path, job_id: str, asked: Mapping[str, Any]) -> App:
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


def free_port() -> int:
    """A port of loopback that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""Two tenants on one service of root, each with a system account, who wish each other ill.

`victor` has a job that runs, with a secret, a checkpoint, a log, an app; `mallory` attempts things.
The accounts are made for the time of the tests.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from service.serving import Serving, until

PYTHON = "/usr/bin/python3"
"""Of the system: accounts may not be able to run that of these tests."""
START_S = 300.0
"""Beside much other work a service takes minutes to start."""
SECRET = "open-sesame-of-victor"
PAGES = """\
import http.server, os
class Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.headers.get("x-wattherd-app-secret") == os.environ["WATTHERD_APP_SECRET"]
        self.send_response(200 if known else 403)
        self.end_headers()
        self.wfile.write(b"page-of-victor" if known else b"not for you")
    def log_message(self, *_): pass
port = int(os.environ["WATTHERD_APP_PORT"])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Pages).serve_forever()
"""
VICTIM = f"""\
echo words-of-victor; echo weights-of-victor > $WATTHERD_CHECKPOINT_DIR/w; echo own > file
echo '{{"step": 3}}' >> $WATTHERD_PROGRESS
echo shared > /tmp/wattherd-victor-$$; rm /tmp/wattherd-victor-$$
exec {PYTHON} -c '{PAGES.replace("'", '"')}'
"""


def why_not() -> str:
    """What two real accounts need and is missing here."""
    if os.geteuid() != 0:
        return "only root runs jobs as other users"
    if shutil.which("useradd") is None or not Path(PYTHON).exists():
        return f"needs useradd and {PYTHON}"
    return ""


@contextlib.contextmanager
def accounts(*names: str) -> Iterator[None]:
    """System accounts with homes and groups of their own, while this lasts."""
    try:
        for name in names:
            subprocess.run(["useradd", "--create-home", "--user-group", name], check=True)
            Path(pwd.getpwnam(name).pw_dir).chmod(0o700)
        yield
    finally:
        for name in names:
            subprocess.run(["userdel", "--remove", name], check=False, capture_output=True)


class Tenants:
    """The service, its two tenants and its admin."""

    def __init__(self, above: Path, one: str, other: str) -> None:
        self.above, self.accounts = above, {"mallory": one, "victor": other}
        self.secrets = above / "secrets"
        self._lay_out()
        config = above / "serve.yaml"
        config.write_text(yaml.safe_dump(self._config()))
        self.serving = Serving(above / "state", "--config", str(config), "--slots", "6")
        self.tokens = {
            "mallory": self._token("mallory", tenant="mallory"),
            "victor": self._token("victor", tenant="victor"),
            "viewer": self._token("vera", "viewer", tenant="mallory"),
            "operator": self._token("olga", "operator"),
            "admin": self._token("root", "admin"),
        }
        self.serving.begin()
        self.serving.ready(START_S)

    def _lay_out(self) -> None:
        """Secrets of each, a closed folder of root's with an open one in it, and a link out."""
        self.secrets.mkdir()
        for who, account in self.accounts.items():
            folder = self.secrets / who
            folder.mkdir(mode=0o750)
            (folder / "key").write_text(SECRET if who == "victor" else "own-secret")
            (folder / "key").chmod(0o640)
            for path in (folder, folder / "key"):
                shutil.chown(path, "root", account)
        (self.secrets / "mallory" / "link").symlink_to(self.secrets / "victor" / "key")
        closed = self.above / "closed"
        (closed / "open").mkdir(parents=True)
        (closed / "open" / "note").write_text("note-of-root")
        (closed / "open" / "note").chmod(0o644)
        (closed / "open").chmod(0o755)
        closed.chmod(0o700)

    def _config(self) -> dict[str, Any]:
        tenants = {
            who: {"account": account, "secret_dirs": [str(self.secrets / who)]}
            for who, account in self.accounts.items()
        }
        return {"tenants": tenants}

    def _token(self, user: str, role: str = "user", tenant: str = "") -> str:
        named = ["--tenant", tenant] if tenant else []
        made = self.serving.call(
            *("token", "create", "--state", str(self.serving.state)),
            *("--user", user, "--role", role, *named),
        )
        assert made.returncode == 0, made.stderr
        return made.stdout.strip()

    def uid(self, who: str) -> int:
        return pwd.getpwnam(self.accounts[who]).pw_uid

    def ask(self, who: str, path: str, body: Any = None) -> Any:
        return self.serving.ask(path, body, authorization=f"Bearer {self.tokens[who]}")

    def submit(self, who: str, run: Any, **more: Any) -> str:
        answer = self.ask(who, "jobs", {"run": run, **more})
        assert "id" in answer, answer
        return str(answer["id"])

    def state_of(self, job: str) -> str:
        return str((self.ask("admin", f"jobs/{job}") or {}).get("state", ""))

    def wait_for(self, job: str, *states: str) -> str:
        return str(until(lambda: next((one for one in states if self.state_of(job) == one), "")))

    def run(self, job: str) -> Path:
        return self.serving.state / "jobs" / job / "run-1"

    def log(self, job: str) -> str:
        """As root reads it from the disk."""
        path = self.run(job) / "logs" / "0.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def result(self, who: str, run: Any, **more: Any) -> tuple[str, str]:
        """How a job ended, and what it printed."""
        job = self.submit(who, run, **more)
        return self.wait_for(job, "Succeeded", "Failed", "Cancelled"), self.log(job)

    def close(self) -> None:
        for job in (self.ask("admin", "jobs") or {}).get("jobs", ()):
            self.ask("admin", f"jobs/{job['id']}/cancel", {})
        end_s = time.monotonic() + 20
        while time.monotonic() < end_s and (self.ask("admin", "jobs") or {}).get("jobs"):
            time.sleep(0.1)
        self.serving.end()


@contextlib.contextmanager
def tenants() -> Iterator[Tenants]:
    """Below /tmp itself: folders of tests are closed to other users."""
    above = Path(tempfile.mkdtemp(prefix="wattherd-tenants-"))
    above.chmod(0o711)
    one, other = f"whmal{os.getpid()}", f"whvic{os.getpid()}"
    with accounts(one, other):
        found = None
        try:
            found = Tenants(above, one, other)
            yield found
        finally:
            if found is not None:
                found.close()
            shutil.rmtree(above)

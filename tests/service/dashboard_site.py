"""A dashboard under test: a real service in this process, and a browser."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn", reason="the extra `server` is not installed")

from wattherd.local.orphans import end_stray  # noqa: E402
from wattherd.server.app import app_of  # noqa: E402
from wattherd.server.auth.caller import Role  # noqa: E402
from wattherd.server.settings.config import ServeConfig  # noqa: E402
from wattherd.server.site.site import LiveSite, open_site  # noqa: E402
from wattherd.workload.job_file import JobFile  # noqa: E402

MOST_S = 60.0
CHROMIUM = shutil.which("chromium")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


class Dashboard:
    """A site and the address of its pages."""

    def __init__(self, site: LiveSite, app: Any, url: str) -> None:
        self.site, self.app, self.url = site, app, url

    def submit(self, run: str, tenant: str = "", **more: Any) -> str:
        job = JobFile.model_validate({"run": run, **more})
        spec = job.spec(user="ann", tenant=tenant)
        return self.site.keeper.submit(spec, job.paper(), by="ann").result(MOST_S)

    def token(self, role: str, **more: Any) -> str:
        """A token of somebody with that role; from the first on tokens are asked for."""
        _, text = self.app.state.desk.tokens.create(user=f"some-{role}", role=Role(role), **more)
        return text

    def state(self, job_id: str) -> str:
        def look(found: Any) -> str:
            record = found.core.jobs.get(job_id)
            return str(record.state if record else found.history[job_id].state)

        return self.site.look(look)


def until(true: Callable[[], object], most_s: float = MOST_S) -> float:
    """Wait, and say for how long."""
    begun_s = time.monotonic()
    while not true():
        assert time.monotonic() < begun_s + most_s, "waited in vain"
        time.sleep(0.05)
    return time.monotonic() - begun_s


@contextmanager
def a_dashboard(state: Path, **config: Any) -> Iterator[Dashboard]:
    site = open_site(ServeConfig(state=state, **{"slots": 2, "budget": "300W", **config}))
    app = app_of(site)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Dashboard(site, app, f"http://127.0.0.1:{port}")
    finally:
        server.should_exit = True
        thread.join(MOST_S)
        site.close()
        for folder in state.glob("jobs/*/run-*"):
            end_stray(folder)


def absent() -> str:
    """Why no browser can be started, empty if one can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    return "" if CHROMIUM else "chromium is not installed (scripts/test-servers.sh)"


@contextmanager
def a_browser() -> Iterator[Any]:
    if why := absent():
        if os.environ.get("WATTHERD_NEED_SERVERS"):
            pytest.fail(why)
        pytest.skip(why)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()

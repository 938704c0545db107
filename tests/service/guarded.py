"""A real service in a thread, with tokens for callers of every role and two tenants."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from wattherd.local.orphans import end_stray
from wattherd.server.api.connections import ConnectionLimits, server_of
from wattherd.server.app import app_of, desk_of
from wattherd.server.auth.app_origin import AppOrigins
from wattherd.server.auth.caller import Role
from wattherd.server.settings.config import ServeConfig
from wattherd.server.site.site import open_site

MOST_S = 60.0
PEOPLE = (
    ("viewer", Role.VIEWER, "a"),
    ("user", Role.USER, "a"),
    ("colleague", Role.USER, "a"),
    ("stranger", Role.USER, "b"),
    ("nobody", Role.USER, ""),
    ("operator", Role.OPERATOR, ""),
    ("admin", Role.ADMIN, ""),
)
"""Somebody of every role; `stranger` is of another tenant than most, `nobody` of the nameless."""


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def handed_over(port: int, path: str, known: Mapping[str, str], more: str = "") -> dict[str, str]:
    """Host and cookie of a browser that was sent from `path` to where an app is shown."""

    def got(where: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=MOST_S)
        with contextlib.closing(connection):
            connection.request("GET", where, headers=dict(headers))
            return {name.lower(): value for name, value in connection.getresponse().getheaders()}

    parts = urlsplit(got(path, known)["location"])
    told = got(f"{parts.path}?{parts.query}", {"host": parts.netloc})
    return {"host": parts.netloc, "cookie": told["set-cookie"].partition(";")[0] + more}


class Guarded:
    """One service; `tokens` by name, where `tokens['']` is none."""

    def __init__(self, state: Path, limits: ConnectionLimits | None = None, **more: Any) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        apart = AppOrigins(more.get("app_url"), "").port
        listeners = [listener, *([socket.create_server(("127.0.0.1", apart))] if apart else ())]
        self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        given = {"state": state, "slots": 2, "allow_root_jobs": "tenants" not in more, **more}
        config = ServeConfig.model_validate(given)
        self.site, self.desk = open_site(config), desk_of(config, limits)
        self.app = app_of(self.site, self.desk)
        self.tokens: dict[str, str] = {"": ""}
        self.server = server_of(self.app, limits, trusted_proxies=config.trusted_proxies)
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": listeners})
        self._thread.start()

    def let_in(self, name: str, role: Role, tenant: str = "", **more: Any) -> str:
        made = self.desk.tokens.create(user=name, role=role, tenant=tenant, **more)
        self.tokens[name] = made[1]
        return made[0].id

    def let_people_in(self) -> Guarded:
        """A token for each of them, by name."""
        for name, role, tenant in PEOPLE:
            self.let_in(name, role, tenant)
        return self

    def ask(self, method: str, path: str, who: str = "", body: Any = None, **headers: str) -> Reply:
        if self.tokens[who]:
            headers["authorization"] = f"Bearer {self.tokens[who]}"
        if body is not None:
            headers["content-type"] = "application/json"
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        return self.send(method, path, data, headers)

    def opened(self, path: str, who: str, more: str = "") -> dict[str, str]:
        """Headers with which a browser that has logged in is shown an app's page."""
        known = {"cookie": f"wattherd_session=s; wattherd_token={self.tokens[who]}"}
        return handed_over(self.port, path, known, more)

    def send(self, method: str, path: str, data: Any, headers: Mapping[str, str]) -> Reply:
        """As it is, without a token."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=MOST_S)
        with contextlib.closing(connection):
            connection.request(method, path, data, dict(headers))
            answer = connection.getresponse()
            told: dict[str, str] = {}
            for name, value in answer.getheaders():
                before = told.get(name.lower())
                told[name.lower()] = value if before is None else f"{before}, {value}"
            return Reply(answer.status, told, answer.read().decode())

    def submit(self, who: str, run: str = "true", **more: Any) -> str:
        reply = self.ask("POST", "/api/v1/jobs", who, {"run": run, **more})
        assert reply.status == 201, reply.text
        return str(reply.json["id"])

    def until(self, true: Callable[[], object]) -> None:
        end_s = time.monotonic() + MOST_S
        while not true():
            assert time.monotonic() < end_s, "waited in vain"
            time.sleep(0.05)

    def close(self) -> None:
        self.server.should_exit = True
        self._thread.join()
        self.site.close()
        for folder in self.site.config.state.glob("jobs/*/run-*"):
            end_stray(folder)

"""An API server of tests that knows objects, and rights: what is refused, and what was asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import yaml

Json = dict[str, Any]
KINDS = ("podgroups", "powerdomains", "powerbudgets", "queues")
"""Those that are asked for by name in discovery."""
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Asked(NamedTuple):
    """A request, as rights speak of it: `pods/status` of group `` is patched."""

    verb: str
    group: str
    resource: str


class _Place(NamedTuple):
    """Where a path leads: kind, name and part of an object, empty where it names none."""

    group: str
    plural: str
    name: str
    part: str

    @property
    def resource(self) -> str:
        return f"{self.plural}/{self.part}" if self.part else self.plural


def rules_of(manifest: Path) -> list[Json]:
    """What all roles of a manifest allow."""
    found = yaml.safe_load_all(manifest.read_text())
    roles = [one for one in found if one["kind"] in ("ClusterRole", "Role")]
    return [rule for one in roles for rule in one["rules"]]


@dataclass
class RightsApi:
    """Every kind is served; `objects` are by plural; `rules` say what may be done, and no more."""

    rules: list[Json]
    objects: dict[str, list[Json]] = field(default_factory=dict)
    asked: set[Asked] = field(default_factory=set)
    refused: set[Asked] = field(default_factory=set)
    over: Event = field(default_factory=Event)

    def allows(self, asked: Asked, name: str) -> bool:
        return any(
            asked.verb in rule["verbs"]
            and asked.group in rule["apiGroups"]
            and asked.resource in rule["resources"]
            and (not rule.get("resourceNames") or name in rule["resourceNames"])
            for rule in self.rules
        )

    def without(self, *plurals: str) -> None:
        """These may not be read, nor anything else be done with them."""
        for rule in self.rules:
            kept = [one for one in rule["resources"] if one.partition("/")[0] not in plurals]
            rule["resources"] = kept

    def named(self, plural: str, name: str) -> Json | None:
        every = self.objects.get(plural, [])
        return next((one for one in every if one["metadata"]["name"] == name), None)


@contextmanager
def served(api: RightsApi, kubeconfig: Path) -> Iterator[Path]:
    """The file says where it is."""

    class Handler(_Handler):
        serves = api

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    text = {
        "current-context": "one",
        "clusters": [{"name": "one", "cluster": {"server": url}}],
        "users": [{"name": "one", "user": {}}],
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
    }
    kubeconfig.write_text(yaml.safe_dump(text))
    try:
        yield kubeconfig
    finally:
        api.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    serves: RightsApi

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._take
        raise AttributeError(name)

    def _take(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        where = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(where.query).items()}
        parts = where.path.strip("/").split("/")
        if parts[0] not in ("api", "apis"):  # of another test, which had this port before
            return self._answer(404, {"kind": "Status", "code": 404, "reason": "NotFound"})
        at = 2 if parts[0] == "api" else 3
        if len(parts) == at:
            every = [{"name": one, "verbs": ["create", "list"]} for one in KINDS]
            return self._answer(200, {"resources": every})
        place = _place(parts, at)
        listing = self.command == "GET" and not place.name
        verb = ("watch" if "watch" in query else "list") if listing else VERBS[self.command]
        fields = dict(one.split("=", 1) for one in query.get("fieldSelector", "").split(",") if one)
        asked = Asked(verb, place.group, place.resource)
        name = place.name or fields.get("metadata.name", "")
        self.serves.asked.add(asked)
        if not self.serves.allows(asked, name):
            self.serves.refused.add(asked)
            return self._answer(403, _forbidden(asked))
        if verb == "watch":
            return self._hang()
        if listing:
            items = self.serves.objects.get(place.plural, [])
            return self._answer(200, {"metadata": {"resourceVersion": "7"}, "items": items})
        known = self.serves.named(place.plural, place.name)
        if verb in ("get", "delete") and known is None:
            return self._answer(404, {"kind": "Status", "code": 404, "reason": "NotFound"})
        return self._answer(200, known if verb != "update" and known else json.loads(body or b"{}"))

    def _answer(self, status: int, told: Json) -> None:
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _hang(self) -> None:
        """A watch that has nothing to tell."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        self.serves.over.wait(60)
        self.close_connection = True

    def log_message(self, *told: object) -> None:
        """Nothing."""


def _place(parts: list[str], at: int) -> _Place:
    group = "" if parts[0] == "api" else parts[1]
    rest = parts[at:]
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    plural, name, part = (*rest, "", "")[:3]
    return _Place(group, plural, name, part)


def _forbidden(asked: Asked) -> Json:
    said = (
        f'{asked.resource}.{asked.group} is forbidden: User "tests" cannot {asked.verb} resource '
        f'"{asked.resource}" in API group "{asked.group}" at the cluster scope'
    )
    return {"kind": "Status", "code": 403, "reason": "Forbidden", "message": said}

"""Rows of NetBox or Nautobot: from its web server, page by page, or from a file of its answers.

A page names the next one. Only the path and query of that address are used, so that a token goes
to no other server (a proxy in front often makes servers name themselves wrongly). A server that
asks to be left alone for a while (429, 503 with `Retry-After`) is left alone, within a limit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from wattherd.devices.wire import web
from wattherd.devices.wire.credentials import Credentials, read_credentials
from wattherd.devices.wire.device_errors import DeviceError
from wattherd.devices.wire.http_client import HttpClient, HttpRequest, HttpRules, NoAnswer, Origin
from wattherd.devices.wire.uri import Uri, parse
from wattherd.errors import UserError
from wattherd.workload.dcim.rest import LISTS, Answers

OPTIONS = web.OPTIONS | {"timeout"}
PAGE = 200
"""Rows asked for at once; servers may give fewer."""
MOST_PAGES = 5000
MOST_BYTES = 32_000_000
TIMEOUT_S = 60.0
"""For a page: servers take seconds to put one together."""
MOST_PATIENCE_S = 300.0
"""Waited in all for a server that asks for patience."""
USUAL_PATIENCE_S = 2.0
_BUSY = (429, 503)
Sleep = Callable[[float], None]


@dataclass(slots=True)
class FetchedLists:
    """Rows by list, and the lists of which pages disagreed about how many rows there are."""

    answers: dict[str, list[Any]]
    moved: list[str]


def is_address(source: str) -> bool:
    """Whether a source is a web server rather than a file."""
    return source.startswith(("http://", "https://"))


# --- files ---------------------------------------------------------------------------------------


def read_answers(path: Path) -> Answers:
    """Rows of a JSON file, `{"power-feeds": [...]}`, or of a folder with `power-feeds.json`.

    A list may be rows, a page as the server gave it (`{"results": [...]}`), or a list of pages.

    Raises:
        UserError: not there, no JSON, or another form.
    """
    if path.is_dir():
        content: Any = {one.stem: _json(one) for one in sorted(path.glob("*.json"))}
    else:
        content = _json(path)
    if not isinstance(content, Mapping):
        hint = 'write {"power-feeds": [...], "devices": [...], ...}'
        raise UserError("is no mapping of lists", where=str(path), hint=hint)
    found = {_list_name(name): _rows(rows, str(path), name) for name, rows in content.items()}
    if not set(found) & set(LISTS):
        raise UserError("has none of the lists", where=str(path), hint=", ".join(LISTS))
    return found


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(error.strerror or "cannot be read", where=str(path)) from None
    except (ValueError, RecursionError):
        raise UserError("is no JSON", where=str(path)) from None


def _list_name(name: str) -> str:
    """`dcim/power_feeds`, `/api/dcim/power-feeds/` and `dcim_power-feeds` are one list."""
    last = name.strip("/").rpartition("/")[2].replace("_", "-")
    return last.removeprefix("dcim-")


def _rows(content: Any, where: str, name: str) -> list[Any]:
    if isinstance(content, Mapping) and isinstance(content.get("results"), list):
        return list(content["results"])
    if isinstance(content, list):
        pages = [one for one in content if isinstance(one, Mapping) and "results" in one]
        if pages and len(pages) == len(content):
            return [row for page in pages for row in _rows(page, where, name)]
        return content
    raise UserError("is no list of rows", where=where, field=name)


# --- servers -------------------------------------------------------------------------------------


def fetch(source: str, *, nautobot: bool, sleep: Sleep = time.sleep) -> FetchedLists:
    """All lists of a server; `?credentials=FILE` names the file with its `token`.

    Raises:
        UserError: an address that cannot be used, or answers of another form.
        DeviceError: no answer, or none for us.
    """
    uri = parse(source)
    uri.allow(OPTIONS)
    return _Session(uri, nautobot, sleep).all()


class _Session:
    """One server; nothing is kept open between pages."""

    def __init__(self, uri: Uri, nautobot: bool, sleep: Sleep) -> None:  # noqa: FBT001
        self._server = web.server(uri, _header(nautobot))
        self._base = uri.path.rstrip("/").removesuffix("/api") + "/api/dcim/"
        self._uri, self._nautobot, self._sleep = uri, nautobot, sleep
        self._timeout_s = uri.seconds("timeout", TIMEOUT_S)
        self._patience_s = MOST_PATIENCE_S
        self._moved: list[str] = []

    def all(self) -> FetchedLists:
        found: dict[str, list[Any]] = {}
        for name in LISTS:
            if name == "cables" and not _lacks_ends(found["power-ports"]):
                continue
            found[name] = self._list(name)
        return FetchedLists(found, self._moved)

    def _list(self, name: str) -> list[Any]:
        """All pages of a list; empty where this server has no such list."""
        depth = "&depth=1" if self._nautobot else ""
        target = f"{self._base}{name}/?limit={PAGE}&offset=0{depth}"
        rows: list[Any] = []
        seen: set[str] = set()
        counts: set[int] = set()
        for _ in range(MOST_PAGES):
            seen.add(target)
            page = self._page(target, name)
            if page is None:
                return []
            rows += page["results"]
            if isinstance(page.get("count"), int):
                counts.add(page["count"])
            following = page.get("next")
            if not following:
                break
            target = _path_of(str(following))
            if target in seen:
                raise UserError("a page names one before it as the next", where=target)
        else:
            raise UserError(f"has more than {MOST_PAGES} pages", where=name)
        keys = {one.get("id") for one in rows if isinstance(one, Mapping)}
        if len(counts) > 1 or len(keys) < len(rows) or (counts and max(counts) != len(rows)):
            self._moved.append(name)
        return rows

    def _page(self, target: str, name: str) -> Any:
        while True:
            answer = self._ask(target)
            if answer.status not in _BUSY:
                break
            pause_s = _pause_s(answer.headers.get("retry-after", ""))
            self._patience_s -= pause_s
            if self._patience_s < 0:
                problem = f"HTTP {answer.status} for longer than {MOST_PATIENCE_S:g} s"
                raise UserError(problem, where=target, hint="try again later")
            self._sleep(pause_s)
        if answer.status == 404 and name in ("sites", "locations"):
            return None  # Nautobot 2 has no sites, NetBox before 2.11 no locations
        if not 200 <= answer.status < 300:
            raise web.no_answer(target, answer)
        try:
            page = json.loads(answer.body)
        except (ValueError, RecursionError):
            page = None
        if not isinstance(page, Mapping) or not isinstance(page.get("results"), list):
            hint = "name the address of the web interface, without /api"
            raise UserError("is no page of a list", where=target, hint=hint)
        return page

    def _ask(self, target: str) -> Any:
        head = {
            "Accept": "application/json",
            **self._server.login(read_credentials(self._server.secrets)),
        }
        scheme = "http" if self._server.tls is None else "https"
        origin = Origin(scheme, self._server.host, self._server.port)
        rules = HttpRules(
            timeout_s=self._timeout_s, most_bytes=MOST_BYTES, tls=self._server.tls, again=True
        )
        try:
            return HttpClient(origin, rules).ask(HttpRequest("GET", target, head))
        except NoAnswer as failure:
            raise DeviceError(failure.trouble, failure.problem, source=target) from None


def _header(nautobot: bool) -> web.Login:  # noqa: FBT001
    """`Token ...`; NetBox' second generation of tokens, which begin with nbt_, goes by `Bearer`."""

    def login(credentials: Credentials) -> Mapping[str, str]:
        token = credentials.token.get_secret_value().strip()
        if not token:
            return web.basic(credentials)
        kind = "Bearer" if token.startswith("nbt_") and not nautobot else "Token"
        return {"Authorization": f"{kind} {token}"}

    return login


def _path_of(address: str) -> str:
    parts = urlsplit(address)
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def _pause_s(said: str) -> float:
    """Seconds of `Retry-After`; dates and nonsense are taken for the usual pause."""
    try:
        return min(max(float(said), 0.1), MOST_PATIENCE_S)
    except ValueError:
        return USUAL_PATIENCE_S


def _lacks_ends(ports: list[Any]) -> bool:
    """Whether a port has a cable and does not say where it leads."""
    ends = ("connected_endpoints", "connected_endpoint", "link_peers", "cable_peer")
    return any(
        isinstance(one, Mapping) and one.get("cable") and not any(one.get(end) for end in ends)
        for one in ports
    )

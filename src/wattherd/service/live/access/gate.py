"""The gate in front of all addresses: who calls, may they, not too often; and it is written down.

It stands around the whole application, so that no route can be forgotten: an address without a
rule (`access.rules`) is not there.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.cookies import CookieError, SimpleCookie
from typing import Any, Protocol

from starlette.datastructures import Headers, QueryParams
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wattherd.errors import ClusterError
from wattherd.service.live.access.audit import Audit
from wattherd.service.live.access.caller import Caller, Role
from wattherd.service.live.access.rates import Held, Rates, retry_after
from wattherd.service.live.access.rules import V1, Free, Rule, RuleBook, is_app, is_stream
from wattherd.service.live.access.tokens import TokenFile

COOKIE = "wattherd_token"
"""The dashboard's. It opens pages; of the API it opens only what changes nothing."""
ALONE = (b"cross-origin-opener-policy", b"same-origin")
"""Pages that jobs serve may open ours, but get no hold of them."""
MOST_BODY = 1 << 20
SAFE = ("GET", "HEAD")
FAILURES_PER_S, FAILURES_BURST = 2.0, 20.0
"""How often one address may show tokens that open nothing, and be told so. More of them are not
written down one by one."""
ASKING = 4
STREAMS, STREAMS_IN_ALL = 50, 200
"""Answers without an end that one caller may have at once: events, logs that are followed, and
WebSockets, of which a notebook takes two."""
PASSED_ON, PASSED_ON_IN_ALL = 50, 200
"""Requests to pages of jobs that one caller may have under way."""
GONE = 499
"""Nobody waits for the answer (nginx's number for it)."""
MOST_UNKNOWN_BODY = 1 << 16
"""Of those whom nobody has let in yet."""
_log = logging.getLogger("wattherd.access")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A login under way: where to send the browser, and what it is to bring back in a cookie."""

    url: str
    cookie: str


class Login(Protocol):
    """Somebody else whose word is taken for who a caller is, and where browsers log in."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def public_url(self) -> str | None:
        """Where browsers find this service, if they are not to be asked."""
        ...

    def caller(self, shown: str) -> Caller | None:
        """Who shows that token; None if it is not theirs or not valid.

        Raises:
            ClusterError: that cannot be told at the moment.
        """
        ...

    def begin(self, site: str, there: str) -> Begun:
        """Begin a login that is to lead to the path `there` of `site`.

        Raises:
            ClusterError: it cannot be begun.
        """
        ...

    def finish(self, cookie: str, query: Mapping[str, str]) -> tuple[Caller, str, str]:
        """The caller, what their browser is to show from now on, and where to go.

        Raises:
            NotLoggedIn: it did not succeed.
            ClusterError: it cannot be finished.
        """
        ...

    def end(self, shown: str) -> None:
        """Log a browser out."""
        ...


@dataclass(slots=True)
class Desk:
    """What the gate asks. Without tokens and issuer, every caller is the admin."""

    tokens: TokenFile
    audit: Audit
    rates: Rates
    issuer: Login | None = None
    rules: RuleBook = field(default_factory=RuleBook)
    told: Callable[[Denied, Scope], Response] | None = None
    """How people are told that they go no further, on addresses that are not the API's."""
    failures: Rates = field(default_factory=lambda: Rates(FAILURES_PER_S, FAILURES_BURST))
    streams: Held = field(default_factory=lambda: Held(STREAMS, STREAMS_IN_ALL))
    passed_on: Held = field(default_factory=lambda: Held(PASSED_ON, PASSED_ON_IN_ALL))
    asking: Executor = field(
        default_factory=lambda: ThreadPoolExecutor(ASKING, thread_name_prefix="issuer")
    )
    """Threads that look at an issuer's tokens, which may have to wait for it."""

    @property
    def open(self) -> bool:
        """Whether no token is asked for."""
        return self.issuer is None and not self.tokens.asked_for


class Denied(Exception):
    """The request goes no further."""

    def __init__(self, status: int, error: str, hint: str = "", **headers: str) -> None:
        """`headers` with `_` for `-`."""
        super().__init__(error)
        self.status, self.error, self.hint = status, error, hint
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def response(self) -> JSONResponse:
        """In the shape of every refusal."""
        body = {"error": self.error, "where": "", "field": "", "hint": self.hint}
        return JSONResponse(body, status_code=self.status, headers=self.headers)


@dataclass(slots=True)
class _Visit:
    """One request on its way."""

    scope: Scope
    rule: Rule | None
    headers: Headers
    caller: Caller | None = None
    status: int = 0
    taken: int = 0
    too_long: bool = False
    held: list[Held] = field(default_factory=list)
    begun_s: float = field(default_factory=time.monotonic)

    @property
    def method(self) -> str:
        return str(self.scope.get("method", "GET"))

    @property
    def app(self) -> bool:
        """Whether it is passed on to a job: of any length, and not ours to write down."""
        return is_app(self.scope["path"])

    @property
    def key(self) -> str:
        """What limits by caller go by."""
        return "" if self.caller is None else self.caller.token or self.caller.by

    @property
    def most_body(self) -> int:
        """How long the body may be."""
        return MOST_UNKNOWN_BODY if self.rule is Free.ANYONE else MOST_BODY

    @property
    def address(self) -> str:
        return str((self.scope.get("client") or ("",))[0])


class Gate:
    """ASGI middleware; leaves the caller at `request.state.caller`."""

    def __init__(self, app: ASGIApp, desk: Desk) -> None:
        """Stand in front of `app`."""
        self._app, self._desk = app, desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        method = str(scope.get("method", "GET"))
        visit = _Visit(scope, self._desk.rules.rule(method, scope["path"]), Headers(scope=scope))
        try:
            await self._admit(visit)
            self._hold(visit)
            scope.setdefault("state", {})["caller"] = visit.caller
            await self._app(scope, _measured(visit, receive), _noted(visit, send))
        except Denied as denied:
            if visit.status:
                raise
            visit.status = denied.status
            await self._deny(denied, scope, receive, send)
        except ClientDisconnect:
            visit.status = GONE  # in the middle of its body: there is nobody to tell
        finally:
            for held in visit.held:
                held.give_back(visit.key)
            self._write_down(visit)

    def _hold(self, visit: _Visit) -> None:
        """Count what goes on for long.

        Raises:
            Denied: this caller, or all together, have enough of it.
        """
        kinds = ((is_stream(visit.scope), self._desk.streams), (visit.app, self._desk.passed_on))
        for goes_on, held in kinds:
            if not goes_on:
                continue
            if not held.take(visit.key):
                hint = "close some, or wait until others do"
                raise Denied(429, "too many answers under way", hint, retry_after="30")
            visit.held.append(held)

    async def _admit(self, visit: _Visit) -> None:
        desk, path = self._desk, visit.scope["path"]
        if _length(visit.headers) > visit.most_body and not visit.app:
            raise _too_long(visit)
        if isinstance(visit.rule, Free):
            return
        visit.caller = await self._caller(visit)
        wait_s = desk.rates.wait_s(visit.caller.token, time.monotonic())
        if wait_s and visit.caller.token:
            raise Denied(429, "too many requests", retry_after=retry_after(wait_s))
        if visit.rule is None:
            methods = desk.rules.methods(path)
            if methods:
                raise Denied(405, f"not by {visit.method}", allow=", ".join(methods))
            raise Denied(404, f"no address {path}", hint=f"{V1}/openapi.json lists all")
        if not visit.caller.role.covers(visit.rule):
            hint = "ask an admin for another token"
            raise Denied(403, f"needs an {visit.rule}; this token is a {visit.caller.role}'s", hint)

    async def _caller(self, visit: _Visit) -> Caller:
        if self._desk.open:
            _from_here(visit.headers)
            user = QueryParams(visit.scope.get("query_string", b"")).get("user", "")
            return Caller(user=user, role=Role.ADMIN)
        shown = _shown(visit)
        try:
            caller = await self._known(shown) if shown else None
        except ClusterError as unreadable:
            raise Denied(503, str(unreadable)) from None
        if caller is None:
            raise self._unknown(visit, shown)
        return caller

    async def _known(self, shown: str) -> Caller | None:
        known = self._desk.tokens.caller(shown)
        if known is None and self._desk.issuer is not None:
            asked = functools.partial(self._desk.issuer.caller, shown)
            loop = asyncio.get_running_loop()
            known = await loop.run_in_executor(self._desk.asking, asked)
        return known

    def _unknown(self, visit: _Visit, shown: str) -> Denied:
        """What a caller is told whose token opens nothing.

        Only such ones are slowed down: many people may be behind one address, and whoever shows
        wrong tokens there must not keep the others out. Looking at a token costs no more than
        counting it would.
        """
        if shown:
            wait_s = self._desk.failures.wait_s(visit.address, time.monotonic())
            if wait_s:
                return Denied(429, "too many wrong tokens", retry_after=retry_after(wait_s))
        error = "this token opens nothing" if shown else "needs a token"
        hint = "set WATTHERD_TOKEN; an admin makes one by `wattherd token create`"
        return Denied(401, error, hint, www_authenticate="Bearer")

    async def _deny(self, denied: Denied, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": denied.error})
        elif self._desk.told is None or not _is_page(scope):
            await denied.response()(scope, receive, send)
        else:
            await self._desk.told(denied, scope)(scope, receive, send)

    def _write_down(self, visit: _Visit) -> None:
        """In the audit what changed something or was not allowed; in the log everything."""
        who = visit.caller.by if visit.caller else ""
        line = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "by": who,
            "token": visit.caller.token if visit.caller else "",
            "address": visit.address,
            "method": visit.method,
            "path": visit.scope["path"],
            "status": visit.status or 500,
            "result": _result(visit.status),
        }
        changes = visit.method not in SAFE and visit.rule is not Free.OWN and not visit.app
        if visit.status in (401, 403) or (changes and visit.status != 429):
            self._desk.audit.add(line)
        if _log.isEnabledFor(logging.INFO):
            took_s = round(time.monotonic() - visit.begun_s, 6)
            _log.info("%s %s", visit.method, line["path"], extra={**line, "took_s": took_s})


def _result(status: int) -> str:
    if status in (401, 403, 429):
        return "refused"
    return "done" if 0 < status < 400 else "failed"


def _shown(visit: _Visit) -> str:
    """The token of the header; or that of the cookie, where another site cannot make use of it."""
    kind, _, token = visit.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return token.strip()
    if visit.scope["path"].startswith(V1) and visit.method not in SAFE:
        return ""
    try:
        morsel = SimpleCookie(visit.headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel else ""


def _from_here(headers: Headers) -> None:
    """Without tokens, pages of other sites must not be able to speak through a browser.

    A name that was made to point at this machine shows in `Host`, a foreign page in `Origin`.

    Raises:
        Denied: it comes from elsewhere.
    """
    for header in ("host", "origin"):
        named = headers.get(header, "").rpartition("//")[2]
        if named and not is_loopback(_host(named)):
            hint = "make a token by `wattherd token create` and show it"
            raise Denied(403, f"{header.capitalize()} {named!r} is not this machine", hint)


def _host(named: str) -> str:
    """Without the port."""
    return named[1:].partition("]")[0] if named.startswith("[") else named.partition(":")[0]


@functools.lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Whether the name or address can only mean this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_page(scope: Scope) -> bool:
    """Whether a person asks, not a program."""
    wants = Headers(scope=scope).get("accept", "")
    return "text/html" in wants and not scope["path"].startswith(V1)


def _length(headers: Headers) -> int:
    text = headers.get("content-length", "0")
    return int(text) if text.isdigit() else 0


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


def _too_long(visit: _Visit) -> Denied:
    return Denied(413, f"more than {visit.most_body:,} bytes", connection="close")


def _measured(visit: _Visit, receive: Receive) -> Receive:
    """Bodies without a length are measured as they come."""

    async def measured() -> Message:
        message = await receive()
        visit.taken += len(message.get("body", b""))
        if visit.taken > visit.most_body and not visit.app:
            visit.too_long = True
            raise _too_long(visit)
        return message

    return measured


def _noted(visit: _Visit, send: Callable[[Any], Awaitable[None]]) -> Send:
    async def noted(message: Message) -> None:
        if visit.too_long and visit.status in (0, 413):
            if not visit.status:  # whoever read the body has made something else of it
                visit.status = 413
                await _too_long(visit).response()(visit.scope, _nothing, send)
            return
        if message["type"] == "http.response.start":
            visit.status = message["status"]
            if not visit.app:
                message = {**message, "headers": [*message.get("headers", ()), ALONE]}
        elif message["type"] == "websocket.accept":
            visit.status = 101
        await send(message)

    return noted

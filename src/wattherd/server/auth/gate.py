"""The gate in front of all addresses: who calls, may they, not too often; and it is written down.

It stands around the whole application, so that no route can be forgotten: an address without a
rule (`access.rules`) is not there.
"""

from __future__ import annotations

import asyncio
import contextlib
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

from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wattherd.errors import ClusterError
from wattherd.server.auth.app_origin import ENTER, SESSION_S, AppHost, AppOrigins
from wattherd.server.auth.audit import Audit
from wattherd.server.auth.caller import Caller, Role
from wattherd.server.auth.rates import HeldRequests, RequestRates, retry_after
from wattherd.server.auth.rules import V1, OpenAddresses, Rule, RuleBook, app_of, is_app, is_stream
from wattherd.server.auth.tokens import TokenFile
from wattherd.server.problems import problem

COOKIE = "wattherd_token"
"""The dashboard's. It opens pages; of the API it opens only what changes nothing."""
ALONE = (
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
"""Of all answers but those of apps: other pages get no hold of ours, and cannot show them."""
MOST_BODY = 1 << 20
DRAINED = 8 << 20
DRAINED_S = 2.0
"""Of a body that is refused for its length so much is read, so long, that its sender is told."""
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
class LoginBegun:
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

    def begin(self, site: str, there: str) -> LoginBegun:
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
class AccessDesk:
    """What the gate asks. Without tokens and issuer, every caller is the admin."""

    tokens: TokenFile
    audit: Audit
    rates: RequestRates
    issuer: Login | None = None
    rules: RuleBook = field(default_factory=RuleBook)
    told: Callable[[Denied, Scope], Response] | None = None
    """How people are told that they go no further, on addresses that are not the API's."""
    origins: AppOrigins = field(default_factory=lambda: AppOrigins(None, ""))
    """Where pages that jobs serve are shown."""
    failures: RequestRates = field(
        default_factory=lambda: RequestRates(FAILURES_PER_S, FAILURES_BURST)
    )
    streams: HeldRequests = field(default_factory=lambda: HeldRequests(STREAMS, STREAMS_IN_ALL))
    passed_on: HeldRequests = field(
        default_factory=lambda: HeldRequests(PASSED_ON, PASSED_ON_IN_ALL)
    )
    asking: Executor = field(
        default_factory=lambda: ThreadPoolExecutor(ASKING, thread_name_prefix="issuer")
    )
    """Threads that look at an issuer's tokens, which may have to wait for it."""

    @property
    def open(self) -> bool:
        """Whether no token is asked for."""
        return self.issuer is None and not self.tokens.asked_for

    async def known(self, shown: str) -> Caller | None:
        """Who shows that token; None if it opens nothing.

        Raises:
            ClusterError: that cannot be told at the moment.
        """
        found = self.tokens.caller(shown)
        if found is None and self.issuer is not None:
            asked = functools.partial(self.issuer.caller, shown)
            found = await asyncio.get_running_loop().run_in_executor(self.asking, asked)
        return found


class Denied(Exception):
    """The request goes no further."""

    def __init__(self, status: int, error: str, hint: str = "", **headers: str) -> None:
        """`headers` with `_` for `-`."""
        super().__init__(error)
        self.status, self.error, self.hint = status, error, hint
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def response(self, path: str) -> JSONResponse:
        """In the shape of every error; `path` is what was asked for."""
        return problem(self.status, self.error, path, hint=self.hint, headers=self.headers)


@dataclass(slots=True)
class _Visit:
    """One request on its way."""

    scope: Scope
    rule: Rule | None
    headers: Mapping[str, str]
    app: bool
    """Whether it is passed on to a job: of any length, and not ours to write down."""
    caller: Caller | None = None
    status: int = 0
    taken: int = 0
    too_long: bool = False
    held: list[HeldRequests] = field(default_factory=list)
    there: AppHost | None = None
    """Where it was asked for, if that is where apps are shown."""
    shown: str = ""
    """What the caller has shown, to be asked for again later."""
    begun_s: float = field(default_factory=time.monotonic)

    @property
    def method(self) -> str:
        return str(self.scope.get("method", "GET"))

    @property
    def key(self) -> str:
        """What limits by caller go by."""
        return "" if self.caller is None else self.caller.token or self.caller.by

    @property
    def tenant(self) -> str:
        """Whose share of what all may have this comes from; empty for the site's own callers."""
        caller = self.caller
        return "" if caller is None or caller.of_site else caller.tenant

    @property
    def most_body(self) -> int:
        """How long the body may be."""
        return MOST_UNKNOWN_BODY if self.rule is OpenAddresses.ANYONE else MOST_BODY

    @property
    def bearer(self) -> str:
        """The token of the header, which no browser sends by itself."""
        kind, _, token = self.headers.get("authorization", "").partition(" ")
        return token.strip() if kind.lower() == "bearer" else ""

    @property
    def address(self) -> str:
        return str((self.scope.get("client") or ("",))[0])


class Gate:
    """ASGI middleware; leaves the caller at `request.state.caller`."""

    def __init__(self, app: ASGIApp, desk: AccessDesk) -> None:
        """Stand in front of `app`."""
        self._app, self._desk = app, desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        method, path = str(scope.get("method", "GET")), scope["path"]
        rule = self._desk.rules.rule(method, path)
        visit = _Visit(scope, rule, _headers(scope), app=is_app(path))
        visit.there = self._desk.origins.of(visit.headers.get("host", ""))
        try:
            if visit.there is not None and scope["path"] == ENTER:
                await self._enter(visit)(scope, receive, _noted(visit, send))
                return
            await self._admit(visit)
            self._hold(visit)
            scope.setdefault("state", {}).update(
                caller=visit.caller, shown=visit.shown, app_host=visit.there, bearer=visit.bearer
            )
            await self._app(scope, _measured(visit, receive), _noted(visit, send))
        except Denied as denied:
            if visit.status:
                raise
            visit.status = denied.status
            if denied.status == 413:
                await _drain(receive)
            await self._deny(denied, scope, receive, send)
        except ClientDisconnect:
            visit.status = GONE  # in the middle of its body: there is nobody to tell
        finally:
            for held in visit.held:
                held.give_back(visit.key, visit.tenant)
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
            if not held.take(visit.key, visit.tenant):
                hint = "close some, or wait until others do"
                raise Denied(429, "too many answers under way", hint, retry_after="30")
            visit.held.append(held)

    async def _admit(self, visit: _Visit) -> None:
        desk, path = self._desk, visit.scope["path"]
        if _length(visit.headers) > visit.most_body and not visit.app:
            raise _too_long(visit)
        if visit.there is not None:
            await self._admit_to_app(visit, visit.there)
            return
        if isinstance(visit.rule, OpenAddresses):
            return
        _from_own_pages(visit)
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

    async def _admit_to_app(self, visit: _Visit, there: AppHost) -> None:
        """At an address of apps nothing counts but the app's own cookie, and only the app is there.

        Raises:
            Denied: the cookie is missing, or what it was given for opens nothing any more.
        """
        job_id = app_of(visit.scope["path"])
        if job_id is None or not there.shows(job_id):
            raise Denied(404, "nothing here but the pages of a job")
        _from_own_pages(visit)
        secure = visit.scope["scheme"] in ("https", "wss")
        name, _ = self._desk.origins.cookie(job_id, secure=secure)
        shown = self._desk.origins.shown(_cookie(visit, name), job_id)
        caller = None
        if shown is not None and self._desk.open:
            caller = Caller(user="", role=Role.ADMIN)
        elif shown:
            try:
                caller = await self._desk.known(shown)
            except ClusterError as unreadable:
                raise Denied(503, str(unreadable)) from None
        if caller is None or not isinstance(visit.rule, Role):
            hint = "open it from the job's page in wattherd"
            raise Denied(401, "this browser was not handed over here, or too long ago", hint)
        visit.caller = caller

    def _enter(self, visit: _Visit) -> Response:
        """Take a ticket, and have the browser keep the app's cookie."""
        query = QueryParams(visit.scope.get("query_string", b""))
        job_id, there = query.get("job", ""), query.get("next", "")
        secure, origins = visit.scope["scheme"] == "https", self._desk.origins
        known = visit.there is not None and visit.there.shows(job_id)
        session = origins.redeem(query.get("ticket", ""), job_id) if known else None
        if session is None or app_of(there.partition("?")[0]) != job_id:
            hint = "open it from the job's page in wattherd"
            raise Denied(403, "this link was used before, or is too old", hint)
        answer = RedirectResponse(there, status_code=303)
        name, path = origins.cookie(job_id, secure=secure)
        answer.set_cookie(
            name, session, max_age=int(SESSION_S), path=path, httponly=True, samesite="lax",
            secure=secure,
        )  # fmt: skip
        answer.headers["Cache-Control"] = "no-store"
        return answer

    async def _caller(self, visit: _Visit) -> Caller:
        if self._desk.open:
            _from_here(visit.headers)
            user = QueryParams(visit.scope.get("query_string", b"")).get("user", "")
            return Caller(user=user, role=Role.ADMIN)
        shown = visit.shown = _shown(visit)
        try:
            caller = await self._desk.known(shown) if shown else None
        except ClusterError as unreadable:
            raise Denied(503, str(unreadable)) from None
        if caller is None:
            raise self._unknown(visit, shown)
        return caller

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
            if scope["path"].startswith(V1):
                await turn_away(denied.response(scope["path"]), scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008, "reason": denied.error})
        elif self._desk.told is None or not _is_page(scope):
            await denied.response(scope["path"])(scope, receive, send)
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
        changes = visit.method not in SAFE and visit.rule is not OpenAddresses.OWN and not visit.app
        if visit.status in (401, 403) or (changes and visit.status != 429):
            self._desk.audit.add(line)
        if _log.isEnabledFor(logging.INFO):
            took_s = round(time.monotonic() - visit.begun_s, 6)
            _log.info("%s %s", visit.method, line["path"], extra={**line, "took_s": took_s})


async def turn_away(answer: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer who wants a WebSocket, and gets none, in words."""
    if "websocket.http.response" in scope.get("extensions", {}):
        await answer(scope, receive, send)
        await asyncio.sleep(0)  # uvicorn complains of an answer whose connection is not closed yet
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": ""})


def _result(status: int) -> str:
    if status in (401, 403, 429):
        return "refused"
    return "done" if 0 < status < 400 else "failed"


def _shown(visit: _Visit) -> str:
    """The token of the header; or that of the cookie, where another site cannot make use of it."""
    if visit.bearer or "authorization" in visit.headers:
        return visit.bearer
    if visit.scope["path"].startswith(V1) and visit.method not in SAFE:
        return ""
    return _cookie(visit, COOKIE)


def _cookie(visit: _Visit, name: str) -> str:
    try:
        morsel = SimpleCookie(visit.headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return morsel.value if morsel else ""


def _from_own_pages(visit: _Visit) -> None:
    """What a browser sends cookies with must come from pages of the same origin.

    Links from elsewhere may be followed; nothing else is theirs to ask for, be they of the same
    site (Fetch Metadata, `Sec-Fetch-Site`). A token in the header is sent by programs alone.

    Raises:
        Denied: it comes from another page.
    """
    asked_by = visit.headers.get("sec-fetch-site", "none")
    if visit.bearer or asked_by in ("same-origin", "none"):
        return
    follows = visit.headers.get("sec-fetch-mode") == "navigate"
    alone = visit.headers.get("sec-fetch-dest") == "document"
    if not (follows and alone and visit.method in SAFE):
        raise Denied(403, "a page of another site has asked for this")


def _from_here(headers: Mapping[str, str]) -> None:
    """Without tokens, pages of other sites must not be able to speak through a browser.

    A name that was made to point at this machine shows in `Host`, a foreign page in `Origin`.

    Raises:
        Denied: it comes from elsewhere.
    """
    for header in ("host", "origin"):
        named = headers.get(header, "").rpartition("//")[2]
        if named and not is_loopback(host_of(named)):
            hint = "make a token by `wattherd token create` and show it"
            raise Denied(403, f"{header.capitalize()} {named!r} is not this machine", hint)


def host_of(named: str) -> str:
    """The name or address in a `Host`, without its port."""
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
    wants = _headers(scope).get("accept", "")
    return "text/html" in wants and not scope["path"].startswith(V1)


def _headers(scope: Scope) -> dict[str, str]:
    """By name in small letters; of several the first counts, as in Starlette's `Headers`.

    Those look through all headers, and encode the name, whenever one is asked for.
    """
    pairs = reversed(scope["headers"])
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}


def _length(headers: Mapping[str, str]) -> int:
    text = headers.get("content-length", "0")
    return int(text) if text.isdigit() else 0


async def _drain(receive: Receive) -> None:
    """Take in what is still sent of a body that is too long, for a while, and forget it.

    A connection that is closed while bytes lie unread is reset, and the answer is lost with it.
    """
    taken = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAINED_S):
            while taken < DRAINED:
                message = await receive()
                taken += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return


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
                refusal = _too_long(visit).response(visit.scope["path"])
                await refusal(visit.scope, _nothing, send)
            return
        if message["type"] == "http.response.start":
            visit.status = message["status"]
            if not visit.app:
                given = list(message.get("headers", ()))
                known = {name.lower() for name, _ in given}
                message = {**message, "headers": [*given, *(h for h in ALONE if h[0] not in known)]}
        elif message["type"] == "websocket.accept":
            visit.status = 101
        elif message["type"] == "websocket.http.response.start":
            visit.status = message["status"]
        await send(message)

    return noted

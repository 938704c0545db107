"""Addresses by which a browser goes to the issuer, and comes back logged in."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response

from wattherd.errors import ClusterError
from wattherd.server.auth.caller import Caller
from wattherd.server.auth.gate import COOKIE, AccessDesk, Login
from wattherd.server.auth.oidc import CALLBACK, NotLoggedIn
from wattherd.server.web.forms import keep
from wattherd.server.web.pages import PageProblem, frame, html, own_path
from wattherd.server.web.render import render

UNDER_WAY = "wattherd_login"
KEPT_S = 600
BEGIN = "/login/oidc"


def routes(app: FastAPI) -> None:
    """Each has its rule in `access.rules`."""
    app.add_api_route(BEGIN, _begin, methods=["GET"], include_in_schema=False)
    app.add_api_route(CALLBACK, _finish, methods=["GET"], include_in_schema=False)


def _login_of(request: Request) -> tuple[AccessDesk, Login]:
    """Who can log browsers in.

    Raises:
        PageProblem: nobody; only tokens open this service.
    """
    desk: AccessDesk | None = getattr(request.app.state, "desk", None)
    if desk is None or desk.issuer is None:
        raise PageProblem(404, "Not there", "There is no single sign-on here; log in by a token.")
    return desk, desk.issuer


async def _begin(request: Request) -> Response:
    _, login = _login_of(request)
    site = login.public_url or f"{request.url.scheme}://{request.headers.get('host', '')}"
    try:
        begun = await asyncio.to_thread(login.begin, site.rstrip("/"), own_path(request))
    except ClusterError as down:
        raise PageProblem(503, "Single sign-on is down", _advice(down)) from None
    answer = RedirectResponse(begun.url, status_code=303)
    # Not strict: the browser comes back from another site.
    answer.set_cookie(
        UNDER_WAY,
        begun.cookie,
        max_age=KEPT_S,
        path=BEGIN,
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )
    answer.headers["Cache-Control"] = "no-store"
    return answer


def _advice(down: ClusterError) -> str:
    return f"{down}. Try again soon, or log in by a token; who is logged in stays so."


async def _finish(request: Request) -> Response:
    desk, login = _login_of(request)
    cookie = request.cookies.get(UNDER_WAY, "")
    try:
        caller, shown, there = await asyncio.to_thread(
            login.finish, cookie, dict(request.query_params)
        )
    except NotLoggedIn as refusal:
        raise PageProblem(403, "Not logged in", str(refusal)) from None
    except ClusterError as down:
        raise PageProblem(503, "Single sign-on is down", _advice(down)) from None
    _write_down(desk, request, caller)
    # A redirect would still count as the other site's, so that strict cookies stay at home.
    text = render("logged_in.html.j2", **frame(request, None), there=quote(there, safe="/?&=%"))
    answer = html(request, text)
    keep(request, answer, COOKIE, shown)
    answer.delete_cookie(UNDER_WAY, path=BEGIN)
    return answer


def _write_down(desk: AccessDesk, request: Request, caller: Caller) -> None:
    """A login changes who may do what; the gate sees only that a page was looked at."""
    line = {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "by": caller.by,
        "token": caller.token,
        "address": request.client.host if request.client else "",
        "method": request.method,
        "path": request.url.path,
        "status": 200,
        "result": "done",
    }
    desk.audit.add(line)

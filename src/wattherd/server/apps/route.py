"""`/jobs/ID/app/`: pages that a job serves, for those who may open them."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from wattherd.local.apps import App, base_of
from wattherd.server.apps import sockets
from wattherd.server.apps.headers import is_foreign
from wattherd.server.apps.passing import Passing, Silent
from wattherd.server.auth.app_origin import AppOrigins
from wattherd.server.auth.caller import Caller
from wattherd.server.auth.gate import host_of, is_loopback
from wattherd.server.auth.rules import APP_METHODS, APP_PATH
from wattherd.server.documents.documents import SiteView
from wattherd.server.site.site import LiveSite
from wattherd.server.web.app_access import opens
from wattherd.server.web.pages import PageProblem, viewer
from wattherd.server.web.render import render

SAFE = ("GET", "HEAD", "OPTIONS")
RETRY_S = 2
REFUSED = 1008
"""Close code of a WebSocket that may not be opened (RFC 6455: policy violation)."""


def routes(app: FastAPI) -> None:
    """Add these addresses to an application that serves a site."""
    app.add_api_route("/jobs/{job_id}/app", _outside, methods=["GET"], include_in_schema=False)
    pages = Route(APP_PATH, _Pages(), methods=list(APP_METHODS), include_in_schema=False)
    app.router.routes.append(pages)
    app.router.routes.append(WebSocketRoute(APP_PATH, _socket))


async def _outside(job_id: str) -> Response:
    return RedirectResponse(base_of(job_id), status_code=307)


def _opened(look: SiteView, caller: Caller, job_id: str) -> int:
    """The attempt under way whose app the caller may open.

    Raises:
        PageProblem: there is none, or it is not for the caller.
    """
    past = look.history.get(job_id)
    if past is None or not caller.sees(past.spec) or not past.paper.get("app"):
        raise PageProblem(404, "Nothing here", f"{job_id} serves no pages, or is not for you.")
    if not opens(caller, past):
        whose = past.spec.user or "somebody else"
        raise PageProblem(403, "Permission denied", f"{job_id} belongs to {whose}.")
    record = look.core.jobs.get(job_id)
    if record is None:
        raise PageProblem(410, "Over", f"{job_id} has ended: {past.state}.")
    if not record.active:
        text = f"{job_id} is not running: `wattherd explain {job_id}` tells why."
        raise PageProblem(503, "Not yet", text)
    return record.attempt


async def _found(request: Request | WebSocket, caller: Caller, job_id: str) -> App:
    site: LiveSite = request.app.state.site
    attempt = await asyncio.to_thread(site.look, lambda look: _opened(look, caller, job_id))
    try:
        found = App.read(site.config.state / "jobs" / job_id / f"run-{attempt}")
    except OSError as error:
        raise PageProblem(503, "Not now", f"{job_id} cannot be read: {error.strerror}.") from None
    if found is None:
        raise PageProblem(503, "Not yet", f"{job_id} is being started.")
    if not await asyncio.to_thread(found.is_its_own):
        text = f"Somebody else listens where {job_id} was to: nothing is sent there."
        raise PageProblem(502, "Not its own", text)
    site.idle.used(job_id)
    return found


async def _handed_over(request: Request, job_id: str) -> Response:
    """Send a browser on to where the app is shown, if it may open it.

    Raises:
        PageProblem: it may not, or it asks for more than to be sent there.
    """
    caller = viewer(request)
    await _found(request, caller, job_id)
    if request.method not in ("GET", "HEAD"):
        text = "Pages of jobs are shown at an address of their own; programs show a token."
        raise PageProblem(403, "Not here", text)
    origins: AppOrigins = request.app.state.desk.origins
    host = request.headers.get("host", "")
    here = is_loopback(host_of(host))
    address = origins.address(job_id, request.url.scheme, host, here=here)
    if address is None:
        text = "Pages of jobs need an address of their own: an operator sets `app_url`."
        raise PageProblem(503, "Not set up", text)
    there = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    entry = origins.entry(address, job_id, request.state.shown, there, caller=caller.by)
    headers = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    return RedirectResponse(entry, status_code=303, headers=headers)


class _Pages:
    """An ASGI application: an app's answer, or a page that says that there is none yet."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find the app, and pass the request on.

        Raises:
            PageProblem: there is none, or not for the caller.
        """
        request = Request(scope)
        job_id = request.path_params["job_id"]
        state = request.state
        if state.app_host is None and not state.bearer:
            await (await _handed_over(request, job_id))(scope, receive, send)
            return
        if request.method not in SAFE and is_foreign(scope["headers"]):
            raise PageProblem(403, "Not accepted", "A page of another site has asked for this.")
        caller = viewer(request)
        app = await _found(request, caller, job_id)
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await Passing(app, caller)(scope, receive, noted)
        except Silent as silent:
            if begun:
                raise  # half an answer must not look like a whole one
            await _waiting(job_id, str(silent))(scope, receive, send)


def _waiting(job_id: str, why: str) -> Response:
    text = render("app_waiting.html.j2", job_id=job_id, why=why, retry_s=RETRY_S)
    headers = {
        "Retry-After": str(RETRY_S),
        "Cache-Control": "no-store",
        "Content-Security-Policy": "default-src 'none'",
    }
    return Response(text, 503, headers, media_type="text/html")


async def _socket(socket: WebSocket) -> None:
    caller: Caller = socket.state.caller
    job_id = socket.path_params["job_id"]
    if socket.state.app_host is None and not socket.state.bearer:
        await socket.close(REFUSED, "apps are shown at an address of their own")
        return
    if is_foreign(socket.scope["headers"]):
        await socket.close(REFUSED, "a page of another site")
        return
    try:
        app = await _found(socket, caller, job_id)
        site: LiveSite = socket.app.state.site
        await sockets.pass_on(socket, app, caller, lambda: site.idle.used(job_id))
    except PageProblem as problem:
        await socket.close(REFUSED, problem.title)
    except Silent:
        await socket.close(sockets.BROKEN, "the app does not take it")

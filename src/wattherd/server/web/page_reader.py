"""Pages without a service: for a folder of one, or for simulated runs, on this machine alone."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from wattherd.server.auth.caller import Caller, Role
from wattherd.server.web.offline_site import still_scene
from wattherd.server.web.pages import add_pages
from wattherd.store.store import ClusterStore


class PageReader:
    """Whoever can start this can read the files: there is nobody to ask for a token."""

    def __init__(self, app: ASGIApp) -> None:
        """Before `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on (ASGI 3), from one who may see all."""
        scope.setdefault("state", {})["caller"] = Caller(user="", role=Role.ADMIN)
        await self._app(scope, receive, send)


def view_of(store: ClusterStore, state: Path, runs: Path) -> FastAPI:
    """An application that shows what a service left in `state`; nothing can be changed by it.

    Raises:
        UserError: there is nothing to show.
        StoreFailure: the store cannot be read.
    """
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    add_pages(app, still_scene(store, state, runs))
    app.add_middleware(PageReader)
    return app

"""Pages without a service: for a folder of one, or for simulated runs, on this machine alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from wattherd.errors import UserError
from wattherd.local.devices import Device, Machine
from wattherd.server.auth.caller import Caller, Role
from wattherd.server.documents.documents import SiteView
from wattherd.server.hardware.draw import DrawBook
from wattherd.server.recovery.recovery import (
    bills_of_ended,
    book_of,
    joules_of_ended,
    remembered,
    take_bills,
)
from wattherd.server.recovery.replay import resumed, settings_of
from wattherd.server.web.page_source import PageSource
from wattherd.server.web.pages import add_pages
from wattherd.store.store import ClusterStore

# --- What a service has left behind, looked at without one: the store lived through once more.


def still_scene(store: ClusterStore, state: Path, runs: Path) -> PageSource:
    """The pages' view of a store as its last entry left it; `state` is the service's folder.

    Raises:
        UserError: nothing was ever decided on it, or it is damaged.
        StoreFailure: it cannot be read.
    """
    settings = settings_of(store.snapshots)
    if not settings:
        raise UserError("no service has decided anything here", where=store.database.url)
    replay, _ = resumed(store.journal, store.snapshots, settings, store.projection)
    chronicle = remembered(
        store, replay.state.standing.seq, [one.name for one in replay.blueprint.nodes]
    )
    for lived in replay.live(store.journal.entries(replay.state.standing.seq)):
        chronicle.note(lived.entry, lived.commands)
    replay.arrive(store.journal.last_seq)
    book = book_of(store)
    book.energy_j.update(joules_of_ended(store, replay.history))
    take_bills(book, bills_of_ended(store, replay.history))
    blueprint = replay.blueprint
    devices = tuple(
        Device(model=one.gpu_model) for one in blueprint.nodes for _ in range(one.gpu_count)
    )
    stated = book.samples[-1].stated if book.samples else "model"
    machine = Machine(
        node=blueprint.node,
        devices=devices,
        gpu=blueprint.gpu,
        stated=stated,
        parts=blueprint.parts,
    )
    epoch = float(store.journal.known_fact("epoch") or 0.0)
    core, history = replay.state.core, replay.history

    def look(of: Callable[[SiteView], Any]) -> Any:
        return of(SiteView(core, history, book, machine, epoch))

    return PageSource(
        look=look,
        now_s=lambda: _last_s(book, core.now_s),
        chronicle=chronicle,
        projection=store.projection,
        state=state,
        runs=runs,
    )


def _last_s(book: DrawBook, now_s: float) -> float:
    """The last that is known of: an entry or a sample."""
    return max(now_s, book.samples[-1].at_s if book.samples else 0.0)


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

"""What a service has left behind, looked at without one: the store lived through once more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from wattherd.errors import UserError
from wattherd.local.devices import Device, Machine
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
from wattherd.server.web.scene import Scene
from wattherd.store.store import ClusterStore


def still_scene(store: ClusterStore, state: Path, runs: Path) -> Scene:
    """The pages' view of a store as its last entry left it; `state` is the service's folder.

    Raises:
        UserError: nothing was ever decided on it, or it is damaged.
        StoreFailure: it cannot be read.
    """
    settings = settings_of(store.snapshots)
    if not settings:
        raise UserError("no service has decided anything here", where=store.database.url)
    replay, _ = resumed(store.journal, store.snapshots, settings, store.projection)
    chronicle = remembered(store, replay.state.standing.seq, [replay.blueprint.node.name])
    for lived in replay.live(store.journal.entries(replay.state.standing.seq)):
        chronicle.note(lived.entry, lived.commands)
    replay.arrive(store.journal.last_seq)
    book = book_of(store)
    book.energy_j.update(joules_of_ended(store, replay.history))
    take_bills(book, bills_of_ended(store, replay.history))
    blueprint = replay.blueprint
    devices = (Device(model=blueprint.node.gpu_model or ""),) * blueprint.node.gpu_count
    stated = book.samples[-1].stated if book.samples else "model"
    machine = Machine(node=blueprint.node, devices=devices, gpu=blueprint.gpu, stated=stated)
    epoch = float(store.journal.known_fact("epoch") or 0.0)
    core, history = replay.state.core, replay.history

    def look(of: Callable[[SiteView], Any]) -> Any:
        return of(SiteView(core, history, book, machine, epoch))

    return Scene(
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

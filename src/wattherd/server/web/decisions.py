"""The page Decisions: what happened, what was ordered, and why; searchable."""

from __future__ import annotations

from typing import Any

from wattherd.server.auth.caller import Caller
from wattherd.server.documents.documents import SiteView
from wattherd.server.documents.privacy import of_decisions, seen_by
from wattherd.server.documents.sentences import told
from wattherd.server.journal.timeline import DecisionEntry
from wattherd.server.web.page_source import PageSource
from wattherd.server.web.paging import paged

LISTED = 50


def decisions_view(
    scene: PageSource, caller: Caller, text: str, page: int, seq: int | None
) -> dict[str, Any]:
    """All that the page shows; the page that entry `seq` is on, if it is asked for."""
    found, epoch = scene.look(lambda look: _found(look, scene, caller))
    names = [node.name for node in epoch.core.config.cluster.nodes]
    found = [
        one for one in reversed(found) if one.mentions(text) or told(one, names).mentions(text)
    ]
    if seq is not None:
        place = next((at for at, one in enumerate(found) if one.seq == seq), 0)
        page = place // LISTED + 1
    cut = paged(found, page, LISTED)
    rows = [(one, epoch.time(one.at_s), told(one, names)) for one in cut.items]
    return {"rows": rows, "cut": cut, "text": text, "seq": seq}


def _found(
    look: SiteView, scene: PageSource, caller: Caller
) -> tuple[list[DecisionEntry], SiteView]:
    found = list(scene.chronicle.decisions)
    if caller.of_site:
        return found, look
    seen = seen_by(look, caller)
    return (found if caller.of_site else of_decisions(found, seen)), look

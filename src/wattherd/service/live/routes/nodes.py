"""Nodes: taken out of use and back."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI

from wattherd.errors import UserError
from wattherd.model.event import NodeLost, NodeReturned
from wattherd.service.live import documents
from wattherd.service.live.http import NotFound, TheCaller, TheSite, look_up
from wattherd.service.live.site import Site

ACTIONS = {"drain": NodeLost, "return": NodeReturned}


def routes(app: FastAPI) -> None:
    """Add these addresses to an application that serves a site."""

    @app.post("/api/v1/nodes/{node}/{action}")
    async def act(site: TheSite, caller: TheCaller, node: str, action: str) -> dict[str, Any]:
        """Drain a node: its jobs checkpoint and queue again; or return it to use."""
        known = await look_up(site, lambda look: [n.name for n in look.core.config.cluster.nodes])
        if node not in known:
            raise NotFound(f"no node {node!r}", hint="`wattherd nodes` lists all")
        if action not in ACTIONS:
            raise NotFound(f"no action {action!r}", hint=", ".join(ACTIONS))
        if action == "return" and await _still_stopping(site):
            raise UserError("jobs on it are still being stopped", where=node, hint="try again soon")
        event = ACTIONS[action](at_s=0.0, node=node, cause=f"{action} by {caller.by}")
        await asyncio.wrap_future(site.keeper.post(event, by=caller.by))
        return await look_up(site, documents.nodes_document)


async def _still_stopping(site: Site) -> bool:
    """Whether runs are left that a drained node was to end."""
    lost = await look_up(site, lambda look: bool(look.core.lost))
    return lost and bool(site.executor.usage())

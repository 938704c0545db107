"""Queues, tenants and search groups: what jobs have in common."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI

from wattherd.errors import UserError
from wattherd.model.event import JobCancelled, QueueStarted, QueueStopped
from wattherd.service.live.access.caller import Caller
from wattherd.service.live.documents import Look
from wattherd.service.live.groupings import group_document, queues_document, tenants_document
from wattherd.service.live.http import NotFound, TheCaller, TheSite, look_up
from wattherd.workload.scenario import QueueSpec

QUEUE_ACTIONS = {"stop": QueueStopped, "start": QueueStarted}


def routes(app: FastAPI) -> None:
    """Add these addresses to an application that serves a site."""
    _queue_routes(app)
    _group_routes(app)

    @app.get("/api/v1/tenants")
    async def tenants(site: TheSite, caller: TheCaller) -> dict[str, Any]:
        """Tenants with live jobs, and what they hold; others than operators see their own."""
        return await look_up(site, lambda look: tenants_document(look, caller))


def _queue_routes(app: FastAPI) -> None:
    @app.get("/api/v1/queues")
    async def queues(site: TheSite) -> dict[str, Any]:
        """Queues as a list, parents first: promised, allowed and used, stopped since when."""
        root = site.config.queues
        return await look_up(site, lambda look: queues_document(look, root))

    @app.post("/api/v1/queues/{queue}/{action}")
    async def act(site: TheSite, caller: TheCaller, queue: str, action: str) -> dict[str, Any]:
        """Stop a queue (what runs goes on, nothing more is started), or start it again."""
        root = site.config.queues
        if root is None:
            hint = "give `serve` a file with `queues`"
            raise UserError("this site has no queues of its own", field="queue", hint=hint)
        if queue not in _names(root) or action not in QUEUE_ACTIONS:
            hint = f"queues: {', '.join(_names(root))}; actions: {', '.join(QUEUE_ACTIONS)}"
            raise NotFound(f"no queue {queue!r} or no action {action!r}", hint=hint)
        event = QUEUE_ACTIONS[action](at_s=0.0, queue=queue)
        await asyncio.wrap_future(site.keeper.post(event, by=caller.by))
        return await look_up(site, lambda look: queues_document(look, root))


def _names(root: QueueSpec) -> list[str]:
    return [root.name, *(name for child in root.children for name in _names(child))]


def _group_routes(app: FastAPI) -> None:
    @app.get("/api/v1/groups/{name}")
    async def group(site: TheSite, caller: TheCaller, name: str) -> dict[str, Any]:
        """The trials of a search group, and the one with the least loss."""
        return await look_up(site, lambda look: _group(look, caller, name))

    @app.post("/api/v1/groups/{name}/cancel")
    async def cancel(site: TheSite, caller: TheCaller, name: str) -> dict[str, Any]:
        """Cancel all trials that are not over, as far as they are the caller's."""

        def mine(look: Look) -> list[str]:
            _group(look, caller, name)
            specs = (record.spec for record in look.core.jobs.values())
            return [one.id for one in specs if one.group == name and caller.touches(one)]

        for job_id in await look_up(site, mine):
            event = JobCancelled(at_s=0.0, job_id=job_id)
            await asyncio.wrap_future(site.keeper.post(event, by=caller.by))
        return await look_up(site, lambda look: _group(look, caller, name))


def _group(look: Look, caller: Caller, name: str) -> dict[str, Any]:
    found = group_document(look, caller, name)
    if not found["trials"]:
        raise NotFound(f"no search group {name!r}", hint="`group:` of a job file names one")
    return found

"""The site: its health, its nodes, who did what."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import FastAPI, Query
from fastapi.responses import JSONResponse

from wattherd import __version__
from wattherd.server.api.http import Since, TheCaller, TheSite, look_up
from wattherd.server.api.schemas.power import NodesDocument
from wattherd.server.api.schemas.shape import answers
from wattherd.server.api.schemas.site import AuditDocument, CallerDocument, HealthDocument
from wattherd.server.documents import documents
from wattherd.server.documents.privacy import of_nodes, seen_by
from wattherd.server.site.listing import audit_document
from wattherd.server.site.site import LiveSite

_HEALTH = {**answers(HealthDocument), **answers(HealthDocument, 503, "It is not")}


def _broken(site: LiveSite) -> str:
    return "" if site.keeper.broken is None else f"the core has stopped: {site.keeper.broken}"


def routes(app: FastAPI) -> None:
    """Add these addresses to an application that serves a site."""

    @app.get("/api/v1/health", responses=_HEALTH)
    async def get_health(site: TheSite) -> JSONResponse:
        """Whether the service is ready: it decides, and keeps what it is told; 503 if it does not.

        A store that refused something is tried again every second, so that it is ready again by
        itself.
        """
        problem = site.keeper.store_problem or _broken(site) or site.scribe.problem
        problem = problem or site.not_returning()
        noted = "" if site.store.journal.head is None else site.store.journal.head.problem
        noted = noted or site.failing()
        found = {"version": __version__, "ok": not problem, "problem": problem or noted}
        return JSONResponse(found, status_code=503 if problem else 200)

    @app.get("/api/v1/alive", responses=_HEALTH)
    async def get_alive(site: TheSite) -> JSONResponse:
        """Whether the service lives; 503 where only another start helps, as the core has stopped.

        A store that takes nothing is no reason: running jobs are looked after meanwhile.
        """
        problem = _broken(site)
        found = {"version": __version__, "ok": not problem, "problem": problem}
        return JSONResponse(found, status_code=503 if problem else 200)

    @app.get("/api/v1/whoami", responses=answers(CallerDocument))
    async def get_caller(caller: TheCaller) -> dict[str, Any]:
        """Whom the service takes the caller for."""
        return {
            "schema": "wattherd.caller/1",
            "user": caller.user,
            "role": str(caller.role),
            "tenant": caller.tenant,
            "token": caller.token,
        }

    @app.get("/api/v1/audit", responses=answers(AuditDocument))
    async def list_acts(
        site: TheSite,
        by: Annotated[str, Query(description="tenant and user")] = "",
        about: Annotated[str, Query(description="a job, node, queue or tenant")] = "",
        what: Annotated[str, Query(description="such as BudgetChanged")] = "",
        since: Since = None,
        before: Annotated[
            int, Query(ge=0, le=(1 << 63) - 1, description="as the last page said")
        ] = 0,
        limit: Annotated[int, Query(ge=1, le=10_000, description="the most of them")] = 100,
    ) -> dict[str, Any]:
        """Who did what, the latest first; `about` is a job, node, queue or tenant."""
        return await asyncio.to_thread(
            audit_document,
            site,
            by=by or None,
            about=about or None,
            what=what or None,
            since=since,
            before=before or None,
            limit=limit,
        )

    @app.get("/api/v1/nodes", responses=answers(NodesDocument))
    async def list_nodes(site: TheSite, caller: TheCaller) -> dict[str, Any]:
        """Nodes, their devices, and who is on them."""
        return await look_up(
            site, lambda look: of_nodes(documents.nodes_document(look), seen_by(look, caller))
        )

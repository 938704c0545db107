"""Tenants and search groups: what jobs have in common."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import FastAPI, Path, Request
from pydantic import BaseModel, ConfigDict, Field

from wattherd.model.event import TenantLimited
from wattherd.server.api.http import TheCaller, TheSite, done, look_up
from wattherd.server.api.routes.jobs import ACTIONS, Action
from wattherd.server.api.schemas.groupings import GroupDocument, GroupsDocument, TenantsDocument
from wattherd.server.api.schemas.shape import answers
from wattherd.server.auth.caller import Caller
from wattherd.server.auth.gate import AccessDesk
from wattherd.server.documents.documents import SiteView
from wattherd.server.problems import NotFound
from wattherd.server.site.groupings import group_document, groups_document, tenants_document
from wattherd.server.site.site import LiveSite

MOST_GPUS = 1_000_000
Tenant = Annotated[str, Path(max_length=80, pattern=r"^[\w.@-]+$", examples=["vision"])]
GroupName = Annotated[str, Path(description="`group` of its jobs", examples=["lr-sweep"])]


class TenantLimit(BaseModel):
    """The most GPUs that a tenant's jobs may hold together; null is no limit, 0 starts nothing."""

    model_config = ConfigDict(extra="forbid")

    most_gpus: Annotated[int, Field(strict=True, ge=0, le=MOST_GPUS)] | None = Field(examples=[8])


def routes(app: FastAPI) -> None:
    """Add these addresses to an application that serves a site."""
    _tenant_routes(app)
    _group_routes(app)


def _tenant_routes(app: FastAPI) -> None:
    @app.get("/api/v1/tenants", responses=answers(TenantsDocument))
    async def list_tenants(request: Request, site: TheSite, caller: TheCaller) -> dict[str, Any]:
        """Tenants, what they hold and may hold; others than operators see their own."""
        desk: AccessDesk = request.app.state.desk
        known = {one.tenant for one in desk.tokens.all() if one.tenant} if caller.of_site else ()
        return await look_up(site, lambda look: tenants_document(look, caller, known))

    async def limit(
        site: LiveSite, caller: Caller, tenant: str, most: int | None
    ) -> dict[str, Any]:
        event = TenantLimited(at_s=0.0, tenant=tenant, most_gpus=most)
        await done(site.keeper.post(event, by=caller.by))
        return await look_up(site, lambda look: tenants_document(look, caller))

    @app.put("/api/v1/tenants/{tenant}", responses=answers(TenantsDocument))
    async def limit_tenant(
        site: TheSite, caller: TheCaller, tenant: Tenant, asked: TenantLimit
    ) -> dict[str, Any]:
        """Limit what a tenant's jobs hold together, in force at once; what runs goes on."""
        return await limit(site, caller, tenant, asked.most_gpus)

    @app.delete("/api/v1/tenants/{tenant}", responses=answers(TenantsDocument))
    async def unlimit_tenant(site: TheSite, caller: TheCaller, tenant: Tenant) -> dict[str, Any]:
        """Lift the limit of a tenant."""
        if tenant not in await look_up(site, lambda look: dict(look.core.limits)):
            hint = "`wattherd tenants` lists them"
            raise NotFound(f"tenant {tenant!r} has no limit", hint=hint)
        return await limit(site, caller, tenant, None)


def _group_routes(app: FastAPI) -> None:
    @app.get("/api/v1/groups", responses=answers(GroupsDocument))
    async def list_groups(site: TheSite, caller: TheCaller) -> dict[str, Any]:
        """Search groups with trials that the caller may see."""
        return await asyncio.to_thread(groups_document, site, caller)

    @app.get("/api/v1/groups/{name}", responses=answers(GroupDocument))
    async def get_group(site: TheSite, caller: TheCaller, name: GroupName) -> dict[str, Any]:
        """The trials of a search group, and the one with the least loss."""
        return await asyncio.to_thread(_group, site, caller, name)

    @app.post("/api/v1/groups/{name}/{action}", responses=answers(GroupDocument))
    async def act_on_group(
        site: TheSite, caller: TheCaller, name: GroupName, action: Action
    ) -> dict[str, Any]:
        """Cancel, pause or resume all trials that are not over, as far as they are the caller's."""

        def mine(look: SiteView) -> list[str]:
            specs = (record.spec for record in look.core.jobs.values())
            return [one.id for one in specs if one.group == name and caller.touches(one)]

        await asyncio.to_thread(_group, site, caller, name)
        found = await look_up(site, mine)
        if action not in ACTIONS:
            raise NotFound(f"no action {action!r}", hint=", ".join(ACTIONS))
        for job_id in found:
            event = ACTIONS[action](at_s=0.0, job_id=job_id)
            await done(site.keeper.post(event, by=caller.by))
        return await asyncio.to_thread(_group, site, caller, name)


def _group(site: LiveSite, caller: Caller, name: str) -> dict[str, Any]:
    found = group_document(site, caller, name)
    if not found["trials"]:
        raise NotFound(f"no search group {name!r}", hint="`group:` of a job file names one")
    return found

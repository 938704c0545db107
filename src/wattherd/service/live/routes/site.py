"""The site: its health, nodes and watts."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import Body, FastAPI, Query
from pydantic import BaseModel, ConfigDict, Field

from wattherd import __version__
from wattherd.errors import UserError
from wattherd.model.event import BudgetAnnounced, BudgetChanged
from wattherd.service.live import documents
from wattherd.service.live.http import TheCaller, TheSite, look_up
from wattherd.service.live.listing import audit_document
from wattherd.service.live.privacy import of_nodes, of_power, seen_by
from wattherd.units import seconds, watts

FARTHEST_S = 366 * 86_400.0
Number = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


class Budget(BaseModel):
    """A budget: `40kW`, a number of watts, or null for none."""

    model_config = ConfigDict(extra="forbid")

    budget: str | Number | None = Field(examples=["40kW"])
    within: str | Number | None = Field(
        default=None, alias="in", examples=["10m"], description="from then on, not at once"
    )

    def event(self, now_s: float) -> BudgetChanged | BudgetAnnounced:
        """What is to happen.

        Raises:
            UserError: neither watts nor time, or no limit for a time to come.
        """
        budget_w = None if self.budget is None else watts(str(self.budget), field="budget")
        if self.within is None:
            return BudgetChanged(at_s=0.0, budget_w=budget_w)
        if budget_w is None:
            raise UserError("no limit cannot be announced", field="in", hint="leave it out")
        ahead_s = seconds(str(self.within), field="in")
        if not 0 <= ahead_s <= FARTHEST_S:
            raise UserError(f"{self.within} is out of range", field="in", hint="a year at most")
        return BudgetAnnounced(at_s=0.0, begins_s=now_s + ahead_s, budget_w=budget_w)


def routes(app: FastAPI) -> None:
    """Add these addresses to an application that serves a site."""
    _power_routes(app)

    @app.get("/api/v1/health")
    async def health(site: TheSite) -> dict[str, Any]:
        """Whether the service decides and keeps what it is told."""
        problem = site.keeper.store_problem or str(site.keeper.broken or "") or site.scribe.problem
        return {"version": __version__, "ok": not problem, "problem": problem}

    @app.get("/api/v1/whoami")
    async def whoami(caller: TheCaller) -> dict[str, Any]:
        """Whom the service takes the caller for."""
        return {
            "schema": "wattherd.caller/1",
            "user": caller.user,
            "role": str(caller.role),
            "tenant": caller.tenant,
            "token": caller.token,
        }

    @app.get("/api/v1/audit")
    async def audit(
        site: TheSite,
        by: str = "",
        about: str = "",
        before: Annotated[int, Query(ge=0, le=(1 << 63) - 1)] = 0,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    ) -> dict[str, Any]:
        """Who did what, the latest first; `about` is a job, node or queue."""
        return await asyncio.to_thread(
            audit_document,
            site,
            by=by or None,
            about=about or None,
            before=before or None,
            limit=limit,
        )

    @app.get("/api/v1/nodes")
    async def nodes(site: TheSite, caller: TheCaller) -> dict[str, Any]:
        """Nodes, their devices, and who is on them."""
        return await look_up(
            site, lambda look: of_nodes(documents.nodes_document(look), seen_by(look, caller))
        )


def _power_routes(app: FastAPI) -> None:
    @app.get("/api/v1/power")
    async def power(
        site: TheSite, caller: TheCaller, last: Annotated[int, Query(ge=0, le=7200)] = 1
    ) -> dict[str, Any]:
        """Budget, draw and headroom, and the last samples."""
        return await look_up(
            site,
            lambda look: of_power(documents.power_document(look, last=last), seen_by(look, caller)),
        )

    @app.put("/api/v1/power")
    async def set_power(
        site: TheSite, caller: TheCaller, budget: Annotated[Budget, Body()]
    ) -> dict[str, Any]:
        """Another budget, from now on or announced for later: then it is met when it comes."""
        event = budget.event(site.clock.now_s())
        await asyncio.wrap_future(site.keeper.post(event, by=caller.by))
        return await look_up(site, documents.power_document)

"""What was decided, from the journal."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import FastAPI, Query

from wattherd.server.api.http import TheCaller, TheSite, the_job
from wattherd.server.api.schemas.shape import answers
from wattherd.server.api.schemas.site import DecisionsDocument
from wattherd.server.auth.gate import Denied
from wattherd.server.documents.documents import time_of
from wattherd.store.decisions import decisions

DECISIONS = "wattherd.decisions/1"
SYSTEM = "system"


def routes(app: FastAPI) -> None:
    """Add these addresses to an application that serves a site."""

    @app.get("/api/v1/decisions", responses=answers(DecisionsDocument))
    async def list_decisions(
        site: TheSite,
        caller: TheCaller,
        job: Annotated[str, Query(description="one job; all for operators")] = "",
        after: Annotated[int, Query(ge=0, le=(1 << 63) - 1, description="a number")] = 0,
        limit: Annotated[int, Query(ge=1, le=10_000, description="the most of them")] = 100,
    ) -> dict[str, Any]:
        """Entries of the journal and the orders they led to, oldest first.

        `after` of the answer asks for the next page. Those of the whole site are the operators' to
        see; of a job of one's own everybody sees what concerns it.
        """
        if job:
            await the_job(site, caller, job)
        elif not caller.of_site:
            raise Denied(403, "the whole log is the operators'", "name one of your jobs: ?job=j-1")
        site_log = site.store.database
        await asyncio.to_thread(site.catch_up)
        found = await asyncio.to_thread(
            decisions, site_log, after=after, job=job or None, limit=limit
        )
        for one in found:
            one["at"] = time_of(site.clock.epoch, one.pop("at_s"))
            if not caller.of_site and one["by"] not in (SYSTEM, caller.by):
                one["by"] = "another"
        more = found[-1]["number"] if len(found) == limit else None
        return {"schema": DECISIONS, "decisions": found, "after": more}

"""REST API v1 of a live site. The OpenAPI document is at /api/v1/openapi.json."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from fastapi import Body, Depends, FastAPI, Header, Query, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from wattherd import __version__
from wattherd.errors import ClusterError, UserError
from wattherd.model.event import BudgetChanged, JobCancelled, JobHeld, JobReleased
from wattherd.service.live import documents, trainer_status
from wattherd.service.live.documents import Look
from wattherd.service.live.dry_run import dry_run
from wattherd.service.live.explanation import explanation
from wattherd.service.live.listing import audit_document, job_list
from wattherd.service.live.logs import grown, log_path, tail
from wattherd.service.live.site import Site
from wattherd.store.entry import StoreDoubt, StoreFailure
from wattherd.store.projection import JobFilter
from wattherd.units import watts
from wattherd.workload.job_file import JobFile

Answer = TypeVar("Answer")
POLL_S = 0.3
ACTIONS = {"cancel": JobCancelled, "pause": JobHeld, "resume": JobReleased}


class Refusal(BaseModel):
    """What every error looks like."""

    error: str
    where: str = ""
    field: str = ""
    hint: str = ""


class NotFound(UserError):
    """There is no such thing; 404."""


class Budget(BaseModel):
    """A budget: `40kW`, a number of watts, or null for none."""

    model_config = ConfigDict(extra="forbid")

    budget: str | float | None = Field(examples=["40kW"])


def app_of(site: Site) -> FastAPI:
    """The application that serves one site."""
    app = FastAPI(
        title="wattherd",
        version=__version__,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        responses={code: {"model": Refusal} for code in (400, 404, 503)},
    )
    app.state.site = site
    app.add_exception_handler(UserError, _refused)
    app.add_exception_handler(ClusterError, _unavailable)
    _submission_routes(app)
    trainer_status.routes(app)  # before the actions of jobs, whose address would hold it, too
    _job_routes(app)
    _site_routes(app)
    return app


async def _refused(request: Request, error: Exception) -> JSONResponse:
    del request
    assert isinstance(error, UserError)  # noqa: S101 - registered for nothing else
    refusal = Refusal(error=error.problem, where=error.where, field=error.field, hint=error.hint)
    code = 404 if isinstance(error, NotFound) else 400
    return JSONResponse(refusal.model_dump(), status_code=code)


async def _unavailable(request: Request, error: Exception) -> JSONResponse:
    del request
    hint = "nothing was changed; try again" if isinstance(error, StoreFailure) else ""
    if isinstance(error, StoreDoubt):
        hint = "it may have been kept: look, or ask again with the same Idempotency-Key"
    return JSONResponse(Refusal(error=str(error), hint=hint).model_dump(), status_code=503)


def _site(request: Request) -> Site:
    site: Site = request.app.state.site
    return site


TheSite = Annotated[Site, Depends(_site)]


async def _look(site: Site, of: Callable[[Look], Answer]) -> Answer:
    return await asyncio.to_thread(site.look, of)


async def _known(site: Site, job_id: str) -> None:
    if not await _look(site, lambda look: job_id in look.history):
        raise NotFound(f"no job {job_id!r}", hint="`wattherd history` lists all")


def _submission_routes(app: FastAPI) -> None:
    @app.post("/api/v1/jobs", status_code=201)
    async def submit(
        site: TheSite,
        job: JobFile,
        user: str = "",
        idempotency_key: Annotated[str, Header(max_length=200)] = "",
    ) -> dict[str, Any]:
        """Hand a job in; it is on disk when this answers.

        Whoever did not hear the answer may ask again with the same `Idempotency-Key`.
        """
        spec = job.spec(user=user, at=datetime.now(UTC))
        done = site.keeper.submit(spec, job.paper(), user or "anonymous", idempotency_key)
        job_id = await asyncio.wrap_future(done)
        return await _look(site, lambda look: documents.job_document(look, job_id))

    @app.post("/api/v1/dry-run")
    async def try_out(site: TheSite, job: JobFile, user: str = "") -> dict[str, Any]:
        """What would happen to a job now; nothing is changed."""
        spec = job.spec(user=user, at=datetime.now(UTC))
        now_s = site.clock.now_s()
        return await _look(site, lambda look: dry_run(look, spec, now_s))


def _job_routes(app: FastAPI) -> None:
    @app.get("/api/v1/jobs")
    async def jobs(
        site: TheSite,
        *,
        over: Annotated[bool, Query(description="those that ended, too")] = False,
        limit: Annotated[int, Query(ge=1, le=100_000)] = 10_000,
        state: Annotated[list[str] | None, Query(description="one of these")] = None,
        user: str | None = None,
        tenant: str | None = None,
        queue: str | None = None,
        text: Annotated[str, Query(description="in id or name")] = "",
        before: Annotated[int | None, Query(description="as the last page said")] = None,
    ) -> dict[str, Any]:
        """Jobs in order of submission: of many that ended, the newest."""
        asked = JobFilter(
            states=tuple(state or ()),
            owner=user,
            tenant=tenant,
            queue=queue,
            text=text,
            before=before,
            limit=limit,
        )
        return await asyncio.to_thread(job_list, site, asked, over=over)

    @app.get("/api/v1/jobs/{job_id}")
    async def job(site: TheSite, job_id: str) -> dict[str, Any]:
        """One job, all of it."""
        await _known(site, job_id)
        return await _look(site, lambda look: documents.job_document(look, job_id))

    @app.get("/api/v1/jobs/{job_id}/explain")
    async def explain(site: TheSite, job_id: str) -> dict[str, Any]:
        """Why it waits, what would help, and what was decided about it."""
        await _known(site, job_id)
        return await _look(site, lambda look: explanation(look, job_id))

    @app.post("/api/v1/jobs/{job_id}/{action}")
    async def act(site: TheSite, job_id: str, action: str, user: str = "") -> dict[str, Any]:
        """Cancel, pause or resume a job."""
        await _known(site, job_id)
        if action not in ACTIONS:
            raise NotFound(f"no action {action!r}", hint=", ".join(ACTIONS))
        event = ACTIONS[action](at_s=0.0, job_id=job_id)
        await asyncio.wrap_future(site.keeper.post(event, by=user or "anonymous"))
        return await _look(site, lambda look: documents.job_document(look, job_id))

    @app.get("/api/v1/jobs/{job_id}/logs")
    async def logs(
        site: TheSite,
        job_id: str,
        *,
        rank: Annotated[int, Query(ge=0)] = 0,
        attempt: Annotated[int | None, Query(ge=1)] = None,
        lines: Annotated[int | None, Query(ge=0)] = None,
        follow: bool = False,
    ) -> StreamingResponse:
        """What a task printed; with `follow` also what it goes on to print."""
        await _known(site, job_id)
        latest = await _look(site, lambda look: look.history[job_id].attempts)
        chosen = latest if attempt is None else attempt
        path = log_path(site.config.state / "jobs", job_id, chosen, rank)
        first, offset = tail(path, lines)

        async def stream() -> AsyncIterator[bytes]:
            yield first
            at = offset
            while follow:
                over = await _look(site, lambda look: documents.run_is_over(look, job_id, chosen))
                for chunk in grown(path, at):
                    at += len(chunk)
                    yield chunk
                if over:
                    return
                await asyncio.sleep(POLL_S)

        return StreamingResponse(stream(), media_type="text/plain; charset=utf-8")


def _site_routes(app: FastAPI) -> None:
    @app.get("/api/v1/health")
    async def health(site: TheSite) -> dict[str, Any]:
        """Whether the service decides and keeps what it is told."""
        problem = site.keeper.store_problem or str(site.keeper.broken or "") or site.scribe.problem
        return {"version": __version__, "ok": not problem, "problem": problem}

    @app.get("/api/v1/audit")
    async def audit(
        site: TheSite,
        by: str | None = None,
        about: str | None = None,
        before: int | None = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    ) -> dict[str, Any]:
        """Who did what, the latest first; `about` is a job, node or queue."""
        return await asyncio.to_thread(
            audit_document, site, by=by, about=about, before=before, limit=limit
        )

    @app.get("/api/v1/nodes")
    async def nodes(site: TheSite) -> dict[str, Any]:
        """Nodes, their devices, and who is on them."""
        return await _look(site, documents.nodes_document)

    @app.get("/api/v1/power")
    async def power(
        site: TheSite, last: Annotated[int, Query(ge=0, le=7200)] = 1
    ) -> dict[str, Any]:
        """Budget, draw and headroom, and the last samples."""
        return await _look(site, lambda look: documents.power_document(look, last=last))

    @app.put("/api/v1/power")
    async def set_power(
        site: TheSite, budget: Annotated[Budget, Body()], user: str = ""
    ) -> dict[str, Any]:
        """Another budget, from now on."""
        asked = budget.budget
        budget_w = None if asked is None else watts(str(asked), field="budget")
        event = BudgetChanged(at_s=0.0, budget_w=budget_w)
        await asyncio.wrap_future(site.keeper.post(event, by=user or "anonymous"))
        return await _look(site, documents.power_document)

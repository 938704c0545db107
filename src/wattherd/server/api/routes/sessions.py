"""`/jobs/ID/sessions`: who is inside a job, and (as a WebSocket) the way in."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI
from starlette.responses import Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from wattherd.engine.jobs.lifecycle import State
from wattherd.errors import ClusterError, UserError
from wattherd.model.event import JobEntered
from wattherd.server.api.http import (
    JobId,
    TheCaller,
    TheSite,
    done,
    job_called,
    look_up,
    the_job,
)
from wattherd.server.api.schemas.jobs import SessionsDocument
from wattherd.server.api.schemas.shape import answers
from wattherd.server.auth.caller import Caller, Role
from wattherd.server.auth.gate import AccessDesk, Denied, turn_away
from wattherd.server.auth.rules import V1
from wattherd.server.documents.documents import SiteView, time_of
from wattherd.server.documents.job_sessions import (
    SHOWN,
    OpenSession,
    SessionBook,
    SessionEnded,
    SessionRelay,
    begun,
    check_account,
    hang_up,
    request_of,
    tell,
)
from wattherd.server.journal.job_history import PastJob
from wattherd.server.problems import Conflict, problem, problem_of
from wattherd.server.site.site import LiveSite
from wattherd.units import seconds

PATH = f"{V1}/jobs/{{job_id}}/sessions"


def routes(app: FastAPI) -> None:
    """Add these addresses to an application that serves a site."""
    book = SessionBook()

    @app.get(PATH, responses=answers(SessionsDocument))
    async def list_job_sessions(site: TheSite, caller: TheCaller, job_id: JobId) -> dict[str, Any]:
        """Who runs commands inside a job or gives it input now; as a WebSocket, the way in.

        The guide tells what is said on the WebSocket. It is for the job's user and for admins, and
        for programs alone: no cookie opens it, and no page of a browser.
        """
        await the_job(site, caller, job_id, touch=True)
        here = [one for one in book.open.values() if one.job_id == job_id]
        return {
            "schema": "wattherd.sessions/1",
            "allowed": site.config.exec,
            "sessions": [
                {"by": one.by, "since": time_of(one.since_s, 0.0), "rank": one.rank,
                 "command": one.command}
                for one in here
            ],
        }  # fmt: skip

    async def enter(client: WebSocket) -> None:
        await _enter(client, book)

    app.router.routes.append(WebSocketRoute(PATH, enter))


def enters(caller: Caller, past: PastJob) -> bool:
    """Whether the caller may act as the job: its own user, or an admin; an operator may not."""
    own = caller.role.covers(Role.USER) and caller.user == past.spec.user
    return caller.role is Role.ADMIN or (own and caller.tenant == past.spec.tenant)


async def _enter(client: WebSocket, book: SessionBook) -> None:
    """From the handshake to the end of a session."""
    site: LiveSite = client.app.state.site
    job_id = client.path_params["job_id"]
    try:
        past, attempt = await _let_in(client, site, job_id)
        job_id = past.spec.id
    except (Denied, UserError, ClusterError) as refused:
        await turn_away(
            _refusal(refused, client.scope["path"]), client.scope, client.receive, client.send
        )
        return
    await client.accept()
    caller: Caller = client.state.caller
    try:
        wanted = await request_of(client)
        of_input = not wanted.command
        tenant = "" if caller.of_site else caller.tenant
        with book.place(job_id, caller.by, of_input=of_input, tenant=tenant) as name:
            run = site.config.state / "jobs" / job_id / f"run-{attempt}"
            await asyncio.to_thread(check_account, site.accounts, past, run)
            wire, shown = await begun(run, name, wanted)
            with wire:
                entered = OpenSession(
                    job_id=job_id, by=caller.by, rank=wanted.rank, command=shown[:SHOWN],
                    since_s=time.time(),
                )  # fmt: skip
                await _write_down(client, site, entered, attempt)
                book.open[name] = entered
                await asyncio.get_running_loop().sock_sendall(wire, b'{"go": true}')
                await tell(client, ready=True)
                relay = SessionRelay(
                    client, wire, idle_s=seconds(site.config.exec_idle),
                    may=lambda: _may_stay(client, past),
                )  # fmt: skip
                try:
                    await relay.carry()
                finally:
                    _note_end(client, entered, relay.last)
    except SessionEnded as ended:
        await tell(client, **ended.told)
    except UserError as error:
        await tell(client, problem=error.problem, hint=error.hint)
    except (ClusterError, OSError) as error:
        await tell(client, problem=str(error))
    await hang_up(client)


async def _let_in(client: WebSocket, site: LiveSite, job_id: str) -> tuple[PastJob, int]:
    """The job and its run under way, if the caller may go into it.

    Raises:
        Denied, NotFound, UserError: why not.
        ClusterError: that cannot be told at the moment.
    """
    if "origin" in client.headers or client.headers.get("sec-fetch-site", "none") != "none":
        raise Denied(403, "a page in a browser has asked for this", "use `wattherd exec`")
    if client.state.shown and not client.state.bearer:
        raise Denied(403, "a cookie does not open this", "show a token in the header")
    if client.state.app_host is not None:
        raise Denied(404, "nothing here but the pages of a job")
    caller: Caller = client.state.caller
    job_id = await job_called(site, caller, job_id)
    past = await the_job(site, caller, job_id)
    if not enters(caller, past):
        whose = past.spec.user or "somebody else"
        raise Denied(403, f"{job_id} belongs to {whose}", "its user and admins may go into it")
    if not site.config.exec:
        hint = "an operator has switched that off (`exec: false`)"
        raise Denied(403, "no command may be run inside jobs here", hint)
    return past, await look_up(site, lambda look: _attempt(look, job_id))


def _attempt(look: SiteView, job_id: str) -> int:
    record = look.core.jobs.get(job_id)
    if record is None:
        past = look.history.get(job_id)
        raise Conflict(f"is over: {past.state if past else 'gone'}", where=job_id)
    if record.state is not State.RUNNING:
        hint = f"`wattherd explain {job_id}` tells why"
        raise Conflict(f"does not run: {record.state}", where=job_id, hint=hint)
    return record.attempt


def _refusal(refused: Denied | UserError | ClusterError, path: str) -> Response:
    if isinstance(refused, Denied):
        return refused.response(path)
    if isinstance(refused, UserError):
        return problem_of(refused, path)
    return problem(503, str(refused), path, hint="try again")


async def _write_down(
    client: WebSocket, site: LiveSite, entered: OpenSession, attempt: int
) -> None:
    """In the journal, and so in the job's story, and in the audit: before anything is run.

    Raises:
        ClusterError: the journal takes nothing; so nothing is run.
    """
    event = JobEntered(
        at_s=0.0,
        cause=f"by {entered.by}",
        job_id=entered.job_id,
        attempt=attempt,
        rank=entered.rank,
        command=entered.command,
    )
    await done(site.keeper.post(event, by=entered.by))
    _audit(client, {"session": "begins", "command": entered.command or "(input)"})


def _note_end(client: WebSocket, entered: OpenSession, last: dict[str, Any]) -> None:
    lasted_s = round(time.time() - entered.since_s, 3)
    ended = {"session": "ends", "command": entered.command or "(input)", "lasted_s": lasted_s}
    _audit(client, {**ended, "exit_code": last.get("exit_code")})


def _audit(client: WebSocket, more: dict[str, Any]) -> None:
    desk: AccessDesk = client.app.state.desk
    caller: Caller = client.state.caller
    address = (client.scope.get("client") or ("",))[0]
    desk.audit.add({
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"), "by": caller.by,
        "token": caller.token, "address": str(address), "method": "GET",
        "path": client.scope["path"], "status": 101, "result": "done", **more,
    })  # fmt: skip


async def _may_stay(client: WebSocket, past: PastJob) -> bool:
    """Whether the token still opens it; where that cannot be told, what was holds."""
    desk: AccessDesk = client.app.state.desk
    if desk.open:
        return True
    try:
        caller = await desk.known(client.state.shown) if client.state.shown else None
    except ClusterError:
        return True
    return caller is not None and enters(caller, past)

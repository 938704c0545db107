"""What all routes share: the site and the caller, what an error looks like, looking things up."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import AwareDatetime, BeforeValidator
from starlette.exceptions import HTTPException

from wattherd.errors import ClusterError, UserError
from wattherd.server.auth.caller import Caller
from wattherd.server.auth.gate import Denied
from wattherd.server.documents.arrays import Array, array_of, one_task
from wattherd.server.documents.documents import SiteView
from wattherd.server.journal.job_history import PastJob
from wattherd.server.problems import NotFound, problem, problem_of
from wattherd.server.site.site import LiveSite
from wattherd.store.entry import StoreDoubt, StoreFailure
from wattherd.validation import fault_within
from wattherd.workload.job_array import tasks_called

Answer = TypeVar("Answer")
_DAY = re.compile(r"\d{4}-\d\d-\d\dT")
PATIENCE_S = 30.0


async def _site(request: Request) -> LiveSite:
    site: LiveSite = request.app.state.site
    return site


async def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


TheSite = Annotated[LiveSite, Depends(_site)]
TheCaller = Annotated[Caller, Depends(_caller)]


async def _job_id(
    site: TheSite,
    caller: TheCaller,
    job_id: Annotated[
        str, Path(description="given at submission; of a task also a-7[3]", examples=["j-12"])
    ],
) -> str:
    return await job_called(site, caller, job_id)


async def job_called(site: LiveSite, caller: Caller, job_id: str) -> str:
    """The job that is meant: also one that is named as a task of its array.

    Raises:
        UserError: the array has no such task, or more than one is meant.
    """
    called = tasks_called(job_id)
    if called is None:
        return job_id

    def found(look: SiteView) -> str | None:
        array = array_of(look.history, called.array)
        if array is None or not caller.sees(array.first.spec):
            return None
        return one_task(array, called)

    return await look_up(site, found) or job_id


def _written_out(text: object) -> object:
    """Numbers would be taken for seconds or milliseconds, whichever looks likelier."""
    if isinstance(text, str) and not _DAY.match(text):
        raise ValueError("is no date and time, such as 2026-11-21T08:00:00Z")
    return text


Since = Annotated[
    AwareDatetime | None,
    BeforeValidator(_written_out),
    Query(description="ISO 8601 with zone"),
]
JobId = Annotated[str, Depends(_job_id)]
ArrayId = Annotated[str, Path(description="given at submission", examples=["a-7"])]


def action_of(actions: Iterable[str]) -> Any:
    """What a path may end in; others are not there."""
    known = list(actions)
    return Path(description="what to do", examples=known, json_schema_extra={"enum": list(known)})


async def look_up(site: LiveSite, of: Callable[[SiteView], Answer]) -> Answer:
    """Something of the state between two turns.

    Raises:
        ClusterError: the core thinks for too long.
    """
    found = await answer_within(PATIENCE_S, site.asking(of))
    if found is None:
        raise ClusterError(f"the core has not answered within {PATIENCE_S:.0f} s")
    return found[0]


async def answer_within(patience_s: float, asked: Future[Answer]) -> tuple[Answer] | None:
    """An answer of the core, or None if it takes longer."""
    try:
        async with asyncio.timeout(patience_s):
            return (await asyncio.wrap_future(asked),)
    except TimeoutError:
        return None


async def done(asked: Future[str]) -> str:
    """What was asked of the keeper has happened; the id of the job that it is about.

    Raises:
        StoreFailure: it was not kept.
        ClusterError: nobody can tell within the time, or the core has stopped.
    """
    try:
        async with asyncio.timeout(PATIENCE_S):
            # What times out here may happen yet: its future is not cancelled.
            return await asyncio.shield(asyncio.wrap_future(asked))
    except TimeoutError:
        raise ClusterError(f"it has not been done within {PATIENCE_S:.0f} s") from None


async def the_job(site: LiveSite, caller: Caller, job_id: str, *, touch: bool = False) -> PastJob:
    """A job of the caller's; with `touch` one that the caller may do something to.

    Raises:
        NotFound: there is none, or it is another tenant's: which of the two is not told.
        Denied: it may be looked at only.
    """
    past = await look_up(site, lambda look: look.history.get(job_id))
    if past is None or not caller.sees(past.spec):
        hint = "`wattherd history` lists all"
        if job_id.startswith("a-"):
            hint = f"of an array name one task: {job_id}[0]"
        raise NotFound(f"no job {job_id!r}", hint=hint)
    if touch and not caller.touches(past.spec):
        raise Denied(403, f"{job_id} belongs to {past.spec.user or 'somebody else'}")
    return past


async def the_array(site: LiveSite, caller: Caller, name: str, *, touch: bool = False) -> Array:
    """An array of the caller's; with `touch` one that the caller may do something to.

    Raises:
        NotFound: there is none, or it is another tenant's: which of the two is not told.
        Denied: it may be looked at only.
    """
    found = await look_up(site, lambda look: array_of(look.history, name))
    if found is None or not caller.sees(found.first.spec):
        raise NotFound(f"no array {name!r}", hint="`wattherd queue` lists those that wait")
    if touch and not caller.touches(found.first.spec):
        raise Denied(403, f"{name} belongs to {found.first.spec.user or 'somebody else'}")
    return found


def add_errors(app: FastAPI) -> None:
    """Every error as problem details."""
    app.add_exception_handler(UserError, _refused)
    app.add_exception_handler(ClusterError, _unavailable)
    app.add_exception_handler(Denied, _denied)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _defect)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, UserError)  # noqa: S101 - registered for nothing else
    return problem_of(error, request.scope["path"])


UNSURE = "it may have been done: look, or ask again with the same Idempotency-Key"


async def _unavailable(request: Request, error: Exception) -> JSONResponse:
    """503: nothing was changed. 504: that is all that can be told."""
    if request.method in ("GET", "HEAD"):
        code, hint = 503, "try again"
    elif isinstance(error, StoreFailure) and not isinstance(error, StoreDoubt):
        code, hint = 503, "nothing was changed; try again"
    else:
        code, hint = 504, UNSURE
    return problem(code, str(error), request.scope["path"], hint=hint)


async def _denied(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Denied)  # noqa: S101 - registered for nothing else
    return error.response(request.scope["path"])


async def _http(request: Request, error: Exception) -> JSONResponse:
    """What the framework itself refuses, such as a body that cannot be decoded."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for nothing else
    path, headers = request.scope["path"], error.headers
    return problem(error.status_code, str(error.detail), path, headers=headers)


async def _defect(request: Request, error: Exception) -> JSONResponse:
    """What nobody has foreseen: its words may hold anything, and stay in the log."""
    del error  # the server raises it once more, and logs it
    return problem(500, "the service has a defect", request.scope["path"], hint="its log has more")


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """The first field that is wrong."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for nothing else
    found = error.errors()
    source = found[0]["loc"][0]
    known = {"body": error.body, "query": request.query_params, "path": request.path_params}
    errors = [{**one, "loc": one["loc"][1:]} for one in found if one["loc"][0] == source]
    field, fault = fault_within(errors, known.get(source))
    return problem(422, fault.problem, request.scope["path"], field=field, hint=fault.hint)

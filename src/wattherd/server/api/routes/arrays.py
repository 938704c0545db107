"""Arrays: many jobs handed in as one, looked at, changed and ended together."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, cast

from fastapi import Body, FastAPI, Header, Query
from fastapi.responses import JSONResponse

from wattherd.errors import UserError
from wattherd.model.event import Event, JobEdited, JobSubmitted
from wattherd.server.api.http import (
    ArrayId,
    TheCaller,
    TheSite,
    answer_within,
    done,
    look_up,
    the_array,
)
from wattherd.server.api.routes.jobs import ACTIONS, FAILED, Action, all_handed_in
from wattherd.server.api.schemas.jobs import ArrayDocument, ArrayExplanation
from wattherd.server.api.schemas.shape import answers
from wattherd.server.documents.arrays import (
    Array,
    array_document,
    array_explanation,
    array_of,
    chosen_of,
    new_array_document,
    states,
)
from wattherd.server.documents.documents import SiteView
from wattherd.server.documents.job_checks import check_edit, check_queue, was_done
from wattherd.server.documents.privacy import check_priority, seen_by
from wattherd.server.journal.journal_writer import EventWish
from wattherd.server.problems import Conflict, NotFound
from wattherd.server.site.site import LiveSite
from wattherd.workload.job_array import PAPER
from wattherd.workload.job_edit import ArrayEdit
from wattherd.workload.job_file import JobFile, validated_job
from wattherd.workload.resubmission import tasks_rerun

THINKING_S = 0.5
"""How long the answer to a submission, which is on disk, waits for what the core makes of it."""
TheArrayFile = Annotated[
    JobFile,
    Body(examples=[{"run": "python train.py --lr {lr}", "grid": {"lr": [0.1, 0.01]}}]),
]
TheEdit = Annotated[ArrayEdit, Body(examples=[{"most": 5}, {"priority": "high"}])]
Key = Annotated[str, Header(max_length=200, description="anything; the same gives the same array")]
Chosen = Annotated[str, Query(description="indices of tasks, such as 0-4; all if none")]


def routes(app: FastAPI) -> None:
    """Add these addresses to an application that serves a site."""
    _submission_routes(app)

    @app.get("/api/v1/arrays/{array_id}", responses=answers(ArrayDocument))
    async def get_array(site: TheSite, caller: TheCaller, array_id: ArrayId) -> dict[str, Any]:
        """An array as a whole, and where each of its tasks stands."""
        found = await the_array(site, caller, array_id)
        return await look_up(site, lambda look: array_document(look, found))

    @app.patch("/api/v1/arrays/{array_id}", responses=answers(ArrayDocument))
    async def edit_array(
        site: TheSite, caller: TheCaller, array_id: ArrayId, changes: TheEdit, tasks: Chosen = ""
    ) -> dict[str, Any]:
        """Change what its waiting tasks ask for, or `most`, how many of them run at a time.

        Of running ones the time limit may be lowered.
        """
        found = await the_array(site, caller, array_id, touch=True)
        if changes.priority is not None:
            check_priority(caller, site.config.priority_ceiling, changes.priority)
        if changes.queue is not None:
            check_queue(site.keeper.core.config, changes.queue)
        now, now_s = datetime.now(UTC), site.clock.now_s()
        limit = changes.limit(array_id, by=caller.by, now_s=now_s)
        if limit is not None:
            await look_up(site, lambda look: _check_limit(look, found, tasks))
        events = [
            changes.event(job_id, by=caller.by, now=now, now_s=now_s)
            for job_id in (chosen_of(found, tasks) if changes.of_tasks else [])
        ]
        events = await look_up(site, lambda look: _possible(look, events))
        limits: list[Event] = [] if limit is None else [limit]
        await done(site.keeper.post_all([*limits, *events], by=caller.by))
        if events and not await look_up(
            site, lambda look: any(was_done(look, one) for one in events)
        ):
            raise Conflict("began or changed meanwhile", where=array_id, hint="look at it again")
        return await look_up(site, lambda look: array_document(look, found))

    @app.get("/api/v1/arrays/{array_id}/explain", responses=answers(ArrayExplanation))
    async def explain_array(site: TheSite, caller: TheCaller, array_id: ArrayId) -> dict[str, Any]:
        """Which of its tasks is next, why that one waits, and what would help."""
        found = await the_array(site, caller, array_id)
        return await look_up(
            site,
            lambda look: array_explanation(look, found, site.chronicle, seen_by(look, caller)),
        )

    @app.post("/api/v1/arrays/{array_id}/{action}", responses=answers(ArrayDocument))
    async def act_on_array(
        site: TheSite, caller: TheCaller, array_id: ArrayId, action: Action, tasks: Chosen = ""
    ) -> dict[str, Any]:
        """Cancel, pause or resume its tasks that are not over, all at once."""
        found = await the_array(site, caller, array_id, touch=True)
        if action not in ACTIONS:
            raise NotFound(f"no action {action!r}", hint=", ".join(ACTIONS))
        chosen = chosen_of(found, tasks)
        live = await look_up(site, lambda look: [one for one in chosen if one in look.core.jobs])
        if live:
            # The last first, so that none begins in the place of one that is ended before it.
            events: list[Event] = [ACTIONS[action](at_s=0.0, job_id=one) for one in reversed(live)]
            await done(site.keeper.post_all(events, by=caller.by))
        return await look_up(site, lambda look: array_document(look, found))


def _check_limit(look: SiteView, array: Array, tasks: str) -> None:
    """Whether the array may be told how many of its tasks run at a time.

    Raises:
        UserError: only some tasks are meant, or all are over.
    """
    if tasks:
        hint = f"wattherd edit {array.id} --at-a-time 3"
        raise UserError("is of the whole array", where=array.id, field="most", hint=hint)
    if not any(look.core.waits.tasks(array.id)):
        hint = f"`wattherd rerun {array.id}` hands its tasks in once more"
        raise Conflict("is over", where=array.id, hint=hint)


def _possible(look: SiteView, events: list[JobEdited]) -> list[JobEdited]:
    """Those edits that would be done.

    Raises:
        UserError: none would.
    """
    first: UserError | None = None
    found = []
    for event in events:
        try:
            check_edit(look, event)
        except UserError as error:
            first = first or error
        else:
            found.append(event)
    if first is not None and not found:
        raise first
    return found


def _submission_routes(app: FastAPI) -> None:
    @app.post("/api/v1/arrays", status_code=201, responses=answers(ArrayDocument, 201))
    async def submit_array(
        site: TheSite, caller: TheCaller, job: TheArrayFile, idempotency_key: Key = ""
    ) -> JSONResponse:
        """Hand an array or a grid in, all of it or nothing; it is on disk when this answers.

        Whoever did not hear the answer may ask again with the same `Idempotency-Key`.
        """
        if not job.is_array:
            hint = "POST /api/v1/jobs takes it; `array: 0-9` would make it many"
            raise UserError("describes a single job", field="array", hint=hint)
        wish = await all_handed_in(site, caller, job, idempotency_key, _document_of)
        return JSONResponse(await _first_document(site, wish), status_code=201)

    @app.post(
        "/api/v1/arrays/{array_id}/rerun", status_code=201, responses=answers(ArrayDocument, 201)
    )
    async def rerun_array(
        site: TheSite,
        caller: TheCaller,
        array_id: ArrayId,
        tasks: Chosen = "",
        failed: Annotated[bool, Query(description="only tasks that failed")] = False,  # noqa: FBT002
        idempotency_key: Key = "",
    ) -> JSONResponse:
        """Hand the same tasks in once more, as the caller's; a label `rerun-of` names the array."""
        array = await the_array(site, caller, array_id, touch=True)
        chosen = set(chosen_of(array, tasks))
        stand = await look_up(site, lambda look: states(look, array))
        again = [
            index
            for index, job_id, state in zip(array.indices, array.jobs(), stand, strict=True)
            if job_id in chosen and (not failed or state in FAILED)
        ]
        if not again:
            raise Conflict("no task has failed", where=array_id, hint="leave out --failed")
        spec, paper = array.first.spec, array.first.paper
        own = (spec.user, spec.tenant) == (caller.user, caller.tenant)
        fields = tasks_rerun(spec, paper, paper[PAPER], again, own=own)
        job = validated_job(fields, array_id)
        wish = await all_handed_in(site, caller, job, idempotency_key, _document_of)
        return JSONResponse(await _first_document(site, wish), status_code=201)


async def _first_document(site: LiveSite, wish: EventWish) -> dict[str, Any]:
    """What the core says to a new array, if it does so soon; else what is known when it is kept."""
    told = await answer_within(THINKING_S, wish.told)
    if told is not None and told[0] is not None:
        return cast("dict[str, Any]", told[0])
    job_id = await done(wish.done)
    if wish.again or not isinstance(wish.event, JobSubmitted):
        return await look_up(site, lambda look: _document_of(look, job_id))
    return new_array_document(site.clock.epoch, wish.event.job, wish.paper or {})


def _document_of(look: SiteView, job_id: str) -> dict[str, Any]:
    """The array of its first job."""
    array = array_of(look.history, look.history[job_id].spec.array)
    if array is None:
        hint = "hand the array in with another `Idempotency-Key`"
        raise Conflict(f"the key was that of {job_id}, a single job", hint=hint)
    return array_document(look, array)

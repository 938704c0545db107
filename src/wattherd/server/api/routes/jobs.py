"""Jobs: hand in, look at, end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from fastapi import Body, FastAPI, Header, Query
from fastapi.responses import JSONResponse, StreamingResponse

from wattherd.engine.jobs.lifecycle import State
from wattherd.errors import UserError
from wattherd.local.accounts import OF_SITE
from wattherd.local.enforcement import asked, check_enforced, unenforced
from wattherd.local.job_folders import own_checkpoint
from wattherd.local.ownership import holds_anything
from wattherd.local.run_plan import user_of
from wattherd.model.event import JobCancelled, JobHeld, JobReleased, JobSubmitted
from wattherd.model.job import JobSpec
from wattherd.server.api.http import (
    JobId,
    Since,
    TheCaller,
    TheSite,
    action_of,
    answer_within,
    done,
    look_up,
    the_array,
    the_job,
)
from wattherd.server.api.schemas.jobs import (
    DryRunDocument,
    ExplanationDocument,
    JobDocument,
    JobsDocument,
    JobSwingsDocument,
)
from wattherd.server.api.schemas.shape import Responses, answers
from wattherd.server.auth.caller import Caller
from wattherd.server.documents import documents
from wattherd.server.documents.arrays import MOST_LIVE, array_of, check_room
from wattherd.server.documents.documents import SHOWN_STATES, SiteView
from wattherd.server.documents.dry_run import dry_run
from wattherd.server.documents.explanation import explanation, last_words
from wattherd.server.documents.job_checks import check_edit, check_names, check_queue, was_done
from wattherd.server.documents.job_swing import captured_document, sampled_document
from wattherd.server.documents.privacy import (
    check_account,
    check_grace,
    check_priority,
    seen_by,
    with_dependencies,
)
from wattherd.server.documents.submission_quota import SMALL_BYTES, ReservedBytes, bytes_of
from wattherd.server.documents.task_logs import LogReader, TaskLog
from wattherd.server.journal.job_history import PastJob
from wattherd.server.journal.journal_writer import EventWish
from wattherd.server.notify.channels import check_notify
from wattherd.server.problems import Conflict, NotFound
from wattherd.server.site.deferral import deferred
from wattherd.server.site.listing import ListPage, job_list
from wattherd.server.site.site import LiveSite
from wattherd.spelling import hint_for
from wattherd.store.projection import JobFilter
from wattherd.units import seconds
from wattherd.workload.counted_cpu import counted
from wattherd.workload.job_array import PAPER
from wattherd.workload.job_edit import JobEdit
from wattherd.workload.job_environment import NONE, words_of
from wattherd.workload.job_file import JobFile, validated_job
from wattherd.workload.resubmission import begin_fresh, begin_from, rerun_of, tasks_rerun

FAILED = ("Failed", "TimedOut")
POLL_S = 0.3
THINKING_S = 0.05
"""How long the answer to a submission, which is on disk, waits for what the core makes of it."""
MOST = (1 << 63) - 1
"""The largest number that a database holds."""
MOST_ASKED = 32
"""Labels or states of one request: each is a search through the texts of all jobs."""
_STATES = {name.casefold(): name for name in (str(SHOWN_STATES.get(one, one)) for one in State)}
ACTIONS = {"cancel": JobCancelled, "pause": JobHeld, "resume": JobReleased}
_TEXT: Responses = {
    200: {
        "description": "What was printed, nothing if there is nothing yet",
        "content": {"text/plain": {"schema": {"type": "string"}, "example": "epoch 1 loss 0.42\n"}},
    }
}
Action = Annotated[str, action_of(ACTIONS)]
TheJobFile = Annotated[
    JobFile, Body(examples=[{"run": "python train.py", "gpus": 2, "name": "resnet"}])
]
TheEdit = Annotated[JobEdit, Body(examples=[{"priority": "high", "time": {"limit": "12h"}}])]

LONGEST_CAPTURE_S, FASTEST_CAPTURE_S = 60.0, 0.02
"""A capture keeps a thread, and asks the meters as often as is said."""


def routes(app: FastAPI) -> None:
    """Add these addresses to an application that serves a site."""
    _submission_routes(app)
    _edit_route(app)
    _look_routes(app)
    _swing_route(app)
    _log_route(app)

    @app.post("/api/v1/jobs/{job_id}/{action}", responses=answers(JobDocument))
    async def act_on_job(
        site: TheSite, caller: TheCaller, job_id: JobId, action: Action
    ) -> dict[str, Any]:
        """Cancel, pause or resume a job."""
        await the_job(site, caller, job_id, touch=True)
        if action not in ACTIONS:
            raise NotFound(f"no action {action!r}", hint=", ".join(ACTIONS))
        event = ACTIONS[action](at_s=0.0, job_id=job_id)
        await done(site.keeper.post(event, by=caller.by))
        return await look_up(site, lambda look: documents.job_document(look, job_id))


def _edit_route(app: FastAPI) -> None:
    @app.patch("/api/v1/jobs/{job_id}", responses=answers(JobDocument))
    async def edit_job(
        site: TheSite, caller: TheCaller, job_id: JobId, changes: TheEdit
    ) -> dict[str, Any]:
        """Change what a waiting job asks for; of a running one the time limit may be lowered."""
        await the_job(site, caller, job_id, touch=True)
        if changes.priority is not None:
            check_priority(caller, site.config.priority_ceiling, changes.priority)
        if changes.queue is not None:
            check_queue(site.keeper.core.config, changes.queue)
        event = changes.event(job_id, by=caller.by, now=datetime.now(UTC), now_s=site.clock.now_s())
        await look_up(site, lambda look: check_edit(look, event))
        await done(site.keeper.post(event, by=caller.by))
        if not await look_up(site, lambda look: was_done(look, event)):
            raise Conflict("began or changed meanwhile", where=job_id, hint="look at it again")
        return await look_up(site, lambda look: documents.job_document(look, job_id))


def _submission_routes(app: FastAPI) -> None:
    @app.post("/api/v1/jobs", status_code=201, responses=answers(JobDocument, 201))
    async def submit_job(
        site: TheSite,
        caller: TheCaller,
        job: TheJobFile,
        idempotency_key: Annotated[
            str, Header(max_length=200, description="anything; the same gives the same job")
        ] = "",
    ) -> JSONResponse:
        """Hand a job in; it is on disk when this answers.

        Whoever did not hear the answer may ask again with the same `Idempotency-Key`.
        """
        if job.is_array:
            field = "grid" if job.array is None else "array"
            raise UserError("makes many jobs", field=field, hint="POST /api/v1/arrays takes it")
        wish = await all_handed_in(site, caller, job, idempotency_key)
        return JSONResponse(await _first_document(site, wish), status_code=201)

    @app.post("/api/v1/jobs/{job_id}/rerun", status_code=201, responses=answers(JobDocument, 201))
    async def rerun_job(
        site: TheSite,
        caller: TheCaller,
        job_id: JobId,
        *,
        checkpoint: Annotated[
            Literal["", "fresh", "last"],
            Query(description="`last`: begin with a copy of the last one; `fresh`: with none"),
        ] = "",
        idempotency_key: Annotated[
            str, Header(max_length=200, description="anything; the same gives the same job")
        ] = "",
    ) -> JSONResponse:
        """Hand the same job in once more, as the caller's; its label `rerun-of` names the first.

        It begins with an empty checkpoint folder, unless its file named one (`checkpoint.dir`).
        """
        past = await the_job(site, caller, job_id, touch=True)
        own = (past.spec.user, past.spec.tenant) == (caller.user, caller.tenant)
        array = await look_up(site, lambda look: array_of(look.history, past.spec.array))
        if array is None:
            fields = rerun_of(past.spec, past.paper, own=own)
        else:  # a task keeps its index
            made_of, index = array.first.paper[PAPER], past.spec.array_index
            fields = tasks_rerun(past.spec, past.paper, made_of, [index], own=own)
        if checkpoint == "fresh":
            begin_fresh(fields)
        elif checkpoint == "last":
            begin_from(fields, await _last_checkpoint(site, caller, past))
        job = validated_job(fields, job_id)
        wish = await all_handed_in(site, caller, job, idempotency_key)
        return JSONResponse(await _first_document(site, wish), status_code=201)

    @app.post("/api/v1/dry-run", responses=answers(DryRunDocument))
    async def try_job(site: TheSite, caller: TheCaller, job: TheJobFile) -> dict[str, Any]:
        """What would happen to a job now, or to the first task of an array; nothing is changed."""
        job, _ = await checked(site, caller, job)
        about: dict[str, Any] = {
            "user": caller.user, "tenant": caller.tenant, "at": datetime.now(UTC)
        }  # fmt: skip
        spec = next((first for first, _ in job.tasks(**about)), None) or job.spec(**about)
        spec = counted(spec, {})
        now_s = site.clock.now_s()
        spec, _ = deferred(spec, job.paper(), site.rates, now_s, site.clock.epoch)
        return await look_up(site, lambda look: dry_run(look, spec, now_s))


async def _last_checkpoint(site: LiveSite, caller: Caller, past: PastJob) -> str:
    """The folder with what a job has saved last, as far as the caller's jobs can see.

    Raises:
        UserError: it still writes there, or there is nothing.
    """
    job_id = past.spec.id
    folder = Path(past.paper.get("checkpoint_dir") or own_checkpoint(site.config.state, job_id))
    if await look_up(site, lambda look: job_id in look.core.jobs and look.core.jobs[job_id].active):
        hint = f"`wattherd pause {job_id}` has it written and kept"
        raise Conflict("still writes its checkpoint", where=job_id, hint=hint)
    account = site.accounts.account_of(
        caller.tenant, caller.user, past.paper.get("user"), of_site=caller.of_site
    )
    if not await asyncio.to_thread(holds_anything, folder, user_of({"user": account})):
        hint = f"`wattherd rerun --fresh {job_id}`"
        raise UserError(f"has left no checkpoint in {folder}", where=job_id, hint=hint)
    return str(folder)


async def all_handed_in(
    site: LiveSite,
    caller: Caller,
    job: JobFile,
    key: str,
    document: Callable[[SiteView, str], dict[str, Any]] = documents.job_document,
) -> EventWish:
    """Check a job, or all tasks of an array, and hand them in; told is the `document` of the first.

    That is done once for each `key` that is not empty.

    Raises:
        UserError: the caller may not hand it in, or it names what is not there.
    """
    job, paper = await checked(site, caller, job)
    about: dict[str, Any] = {
        "user": caller.user, "tenant": caller.tenant, "at": datetime.now(UTC)
    }  # fmt: skip
    made = [(job.spec(**about), paper)]
    if job.is_array:
        made = await asyncio.to_thread(lambda: list(job.tasks(**about)))
    if job.time.defer is not None:
        now_s, epoch = site.clock.now_s(), site.clock.epoch
        made = [deferred(spec, one, site.rates, now_s, epoch) for spec, one in made]
    taken = None
    if (caller.by, key) not in site.keeper.standing.requests:
        taken = await _room_for(site, caller, made)
    made = [(counted(spec, one), one) for spec, one in made]
    if caller.of_site is bool(caller.tenant):  # else it shows by the tenant
        for _, one in made:
            one[OF_SITE] = caller.of_site
    wish = site.keeper.hand_in_all(
        made, caller.by, key, lambda core, job_id: document(site.look_at(core), job_id)
    )
    if taken is not None:
        wish.done.add_done_callback(lambda done: taken.settle(done, len(made)))
    return wish


async def _room_for(
    site: LiveSite, caller: Caller, made: Sequence[tuple[JobSpec, Mapping[str, Any]]]
) -> ReservedBytes | None:
    """Room for so many jobs more of the caller's; what is small is not counted, nor are few.

    Raises:
        UserError: too many, or too large, are not over.
    """
    core, owner = site.keeper.core, (caller.user, caller.tenant)
    if len(core.jobs) + len(made) > MOST_LIVE:
        await look_up(site, lambda look: check_room(look, *owner, len(made)))
    size_bytes = await asyncio.to_thread(bytes_of, made) if len(made) > 1 else bytes_of(made)
    if size_bytes <= SMALL_BYTES:
        return None
    # A job that was handed in a moment ago may be neither, as the core has not heard of it yet.
    return site.room.take(owner, size_bytes, lambda job_id: job_id in core.finished)


async def _first_document(site: LiveSite, wish: EventWish) -> dict[str, Any]:
    """What the core says to a new job, if it does so soon; else what is known when it is kept."""
    told = await answer_within(THINKING_S, wish.told)
    if told is not None and told[0] is not None:
        return cast("dict[str, Any]", told[0])
    job_id = await done(wish.done)
    if wish.again or not isinstance(wish.event, JobSubmitted):
        return await look_up(site, lambda look: documents.job_document(look, job_id))
    return documents.new_job_document(site.clock.epoch, wish.event.job, wish.paper or {})


async def checked(site: LiveSite, caller: Caller, job: JobFile) -> tuple[JobFile, dict[str, Any]]:
    """The job as the caller may hand it in here, what it waits for by ids of jobs; and its paper.

    Raises:
        UserError: why not.
    """
    check_priority(caller, site.config.priority_ceiling, job.priority)
    check_grace(site.config.most_grace, job)
    check_names(site.keeper.core.config, job)
    if words_of(job.export or NONE) != [NONE]:
        hint = "send `environment: {variables: {NAME: VALUE}}`, as `wattherd submit` does"
        raise UserError("the service does not know your shell", field="export", hint=hint)
    paper = job.paper()
    check_account(site.accounts, caller, paper)
    check_notify(site.config.notify, paper.get("notify"))
    if site.config.require_limits and site.executor.support is not None:
        limits = asked(job.spec(), paper)
        check_enforced(unenforced(site.executor.support, limits))
    if job.after_spec().all():  # most jobs need no look at others
        job = await look_up(site, lambda look: with_dependencies(look, caller, job))
    return job, paper


def _look_routes(app: FastAPI) -> None:
    @app.get("/api/v1/jobs", responses=answers(JobsDocument))
    async def list_jobs(
        site: TheSite,
        caller: TheCaller,
        *,
        over: Annotated[bool, Query(description="those that ended, too")] = False,
        limit: Annotated[int, Query(ge=1, le=100_000, description="the most of them")] = 10_000,
        state: Annotated[
            list[str], Query(max_length=MOST_ASKED, description="one of these; all if none")
        ] = [],  # noqa: B006 - FastAPI copies it
        user: Annotated[str, Query(description="whose")] = "",
        tenant: Annotated[str, Query(description="of which; others see their own")] = "",
        queue: Annotated[str, Query(description="where they wait, or waited")] = "",
        text: Annotated[str, Query(description="in id or name")] = "",
        name: Annotated[str, Query(description="in the name")] = "",
        label: Annotated[
            list[str],
            Query(
                max_length=MOST_ASKED,
                description="NAME=VALUE, or NAME with any value; all of these",
            ),
        ] = [],  # noqa: B006 - FastAPI copies it
        array: Annotated[str, Query(description="tasks of this array")] = "",
        grouped: Annotated[
            bool, Query(description="of live jobs: waiting tasks of an array as one row")
        ] = False,
        since: Since = None,
        before: Annotated[
            int, Query(ge=0, le=MOST, description="with `over`: as the last page said")
        ] = 0,
        after: Annotated[
            int, Query(ge=0, le=MOST, description="of live jobs: as the last page said")
        ] = 0,
        count: Annotated[bool, Query(description="say how many there are on all pages")] = False,
    ) -> dict[str, Any]:
        """Jobs in order of submission: of many live ones the first, with `over` the newest.

        With `since` those that were not over at that time.
        """
        asked = JobFilter(
            states=tuple(map(_state, state)),
            owner=user or None,
            tenant=(tenant or None) if caller.of_site else caller.tenant,
            queue=queue or None,
            text=text,
            name=name,
            labels=tuple(_label(one) for one in label),
            numbers=await _numbers(site, caller, array) if array else None,
            since_s=None if since is None else since.timestamp() - site.clock.epoch,
            before=before or None,
            limit=limit,
        )
        page = ListPage(after=after, count=count, grouped=grouped)
        return await asyncio.to_thread(job_list, site, asked, over=over, page=page)

    @app.get("/api/v1/jobs/{job_id}", responses=answers(JobDocument))
    async def get_job(site: TheSite, caller: TheCaller, job_id: JobId) -> dict[str, Any]:
        """One job, all of it."""
        await the_job(site, caller, job_id)
        return await look_up(site, lambda look: documents.job_document(look, job_id))

    @app.get("/api/v1/jobs/{job_id}/explain", responses=answers(ExplanationDocument))
    async def explain_job(site: TheSite, caller: TheCaller, job_id: JobId) -> dict[str, Any]:
        """Why it waits, what would help, and what was decided about it."""
        await the_job(site, caller, job_id)
        chronicle = site.chronicle
        told = await look_up(
            site, lambda look: explanation(look, job_id, chronicle, seen_by(look, caller))
        )
        past = await the_job(site, caller, job_id)
        if told["state"] in FAILED and past.attempts:
            log = TaskLog(site.config.state / "jobs", job_id, past.attempts, 0)
            told["log"] = await asyncio.to_thread(last_words, log)
        return told


def _swing_route(app: FastAPI) -> None:
    capturing = asyncio.Lock()

    @app.get("/api/v1/jobs/{job_id}/swings", responses=answers(JobSwingsDocument))
    async def get_job_swings(
        site: TheSite, caller: TheCaller, job_id: JobId,
        last: Annotated[str, Query(description="of the past, by samples of each second")] = "10min",
        capture: Annotated[
            str | None, Query(alias="for", description="read its devices' meters for so long")
        ] = None,
        every: Annotated[str, Query(description="how often, then")] = "0.1s",
    ) -> dict[str, Any]:  # fmt: skip
        """How unsteady its draw is: swing, ramps, the strongest frequency, what lies in which band.

        What is faster than half of the samples' rate is unseen, not zero.
        """
        await the_job(site, caller, job_id)
        if capture is None:
            last_s = seconds(last, field="last")
            return await look_up(
                site,
                lambda look: sampled_document(
                    list(look.book.samples), job_id, last_s, len(_devices(look, job_id, site))
                ),
            )
        length_s, every_s = seconds(capture, field="for"), seconds(every, field="every")
        if not (LONGEST_CAPTURE_S >= length_s >= every_s >= FASTEST_CAPTURE_S):
            raise UserError(f"cannot capture {capture} with a sample every {every}", field="for",
                            hint="at most 60s, with samples at least 0.02s apart")  # fmt: skip
        numbers = await look_up(site, lambda look: _devices(look, job_id, site))
        if not numbers:
            raise Conflict("does not run", where=job_id, field="for", hint="leave it out")
        meters = [site.machine.devices[number].meter for number in numbers]
        if capturing.locked():
            raise Conflict("another capture goes on", field="for", hint="ask again when it is over")
        async with capturing:
            return await asyncio.to_thread(captured_document, job_id, meters, length_s, every_s)


def _devices(look: SiteView, job_id: str, site: LiveSite) -> tuple[int, ...]:
    """Those that a job holds; none where it does not run."""
    record = look.core.jobs.get(job_id)
    return () if record is None else site.machine.numbers(record.allocations)


async def _numbers(site: LiveSite, caller: Caller, name: str) -> tuple[int, int]:
    array = await the_array(site, caller, name)
    return array.numbers[0], array.numbers[-1]


def _state(text: str) -> str:
    """A state as users see it; of one that is misspelt no job would be found, without a word."""
    if text.casefold() not in _STATES:
        hint = hint_for(text, _STATES.values())
        raise UserError(f"{text!r} is no state of a job", field="state", hint=hint)
    return text


def _label(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    if not name:
        raise UserError(f"{text!r} is no label", field="label", hint="label=NAME=VALUE")
    return name, value if equals else None


def _check_task(past: PastJob, attempt: int, rank: int) -> None:
    """There has been, or may yet be, such a task.

    Raises:
        NotFound: there cannot be one.
    """
    if attempt > past.attempts:
        raise NotFound(f"{past.spec.id} has had {past.attempts} runs, none is number {attempt}")
    tasks = sum(past.spec.counts(number).stop - 1 for number in range(len(past.spec.roles)))
    if rank >= tasks:
        hint = f"ranks are 0 to {tasks - 1}" if tasks > 1 else "its only rank is 0"
        raise NotFound(f"{past.spec.id} has no task {rank}", field="rank", hint=hint)


def _log_route(app: FastAPI) -> None:
    @app.get("/api/v1/jobs/{job_id}/logs", response_class=StreamingResponse, responses=_TEXT)
    async def get_job_logs(
        site: TheSite,
        caller: TheCaller,
        job_id: JobId,
        *,
        rank: Annotated[int, Query(ge=0, le=100_000, description="of the task")] = 0,
        attempt: Annotated[int, Query(ge=0, le=1_000_000, description="0 is the last")] = 0,
        lines: Annotated[int, Query(ge=-1, le=1_000_000, description="-1 is all")] = -1,
        follow: Annotated[bool, Query(description="go on until the run is over")] = False,
    ) -> StreamingResponse:
        """What a task printed; with `follow` also what it goes on to print."""
        past = await the_job(site, caller, job_id)
        _check_task(past, attempt, rank)
        chosen = attempt or past.attempts
        log = TaskLog(site.config.state / "jobs", job_id, chosen, rank)
        reader = await asyncio.to_thread(_reader, log, lines)

        async def stream() -> AsyncIterator[bytes]:
            with reader:
                while block := await asyncio.to_thread(reader.read):
                    yield block
                over = not follow
                while not over:
                    over = await look_up(
                        site, lambda look: documents.run_is_over(look, job_id, chosen)
                    )
                    while block := await asyncio.to_thread(reader.read):
                        yield block
                    if not over:
                        await asyncio.sleep(POLL_S)

        return StreamingResponse(stream(), media_type="text/plain; charset=utf-8")


def _reader(log: TaskLog, lines: int) -> LogReader:
    reader = log.reader()
    if lines >= 0:
        reader.skip_to_last(lines)
    return reader

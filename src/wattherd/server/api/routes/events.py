"""What happens, as it happens: server-sent events (WHATWG HTML, section 9.2)."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import FastAPI, Header, Query
from fastapi.responses import StreamingResponse

from wattherd.errors import UserError
from wattherd.server.api.http import TheCaller, TheSite, the_job
from wattherd.server.auth.caller import Caller
from wattherd.server.auth.gate import Denied
from wattherd.server.documents.documents import time_of
from wattherd.server.documents.event_stream import (
    MOST_LISTENERS,
    Happening,
    HappeningKind,
    Place,
    StreamListener,
)
from wattherd.server.documents.privacy import of_draw
from wattherd.server.site.site import LiveSite

HEARTBEAT_S = 15.0
"""A comment is sent after so long a silence, so that proxies and clients see that it goes on."""
RETRY_MS = 2_000
"""After this a browser that was cut off comes again."""
_ID = re.compile(r"(\d{1,18})(?:\.(\d{1,9})(?:\.([0-9a-f]{8}))?)?$", re.ASCII)
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
_EXAMPLE = (
    "id: 17.1.5747fab1\nevent: job\n"
    'data: {"at": "2026-11-21T08:00:00.000+00:00", "id": "j-3", "user": "ann", "tenant": "",'
    ' "queue": "default", "from": "Queued", "state": "Starting", "attempt": 1, "exit_code": null}'
    "\n\n"
)
_TEXT: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A stream that does not end by itself",
        "content": {"text/event-stream": {"schema": {"type": "string"}, "example": _EXAMPLE}},
    }
}


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a caller wants to hear of, and may."""

    caller: Caller
    kinds: frozenset[HappeningKind]
    job: str

    def wants(self, one: Happening) -> bool:
        """Whether it is told; of jobs only those that the caller sees."""
        if one.kind not in self.kinds:
            return False
        if one.kind is HappeningKind.DECISION:
            return self.caller.of_site
        if one.spec is None:
            return True
        return self.caller.sees(one.spec) and self.job in ("", one.spec.id)


def routes(app: FastAPI) -> None:
    """Add the address to an application that serves a site."""

    @app.get("/api/v1/events", response_class=StreamingResponse, responses=_TEXT)
    async def watch_events(
        site: TheSite,
        caller: TheCaller,
        *,
        kind: Annotated[list[HappeningKind], Query(description="one of these; all if none")] = [],  # noqa: B006 - FastAPI copies it
        job: Annotated[str, Query(description="of jobs, this one only")] = "",
        after: Annotated[str, Query(description="an id; what came after it is told first")] = "",
        follow: Annotated[bool, Query(description="false: end once the past is told")] = True,
        last_event_id: Annotated[str, Header(description="as `after`, sent by browsers")] = "",
    ) -> StreamingResponse:
        """Jobs that change their state, watts, budgets, and (operators only) decisions.

        Every event but those of watts has an id. Who was cut off sends the last one he has as
        `Last-Event-ID` and misses nothing; where that is too long ago, or an event of another
        journal (the store was restored or replaced), an event `gap` says so. A client that does not
        keep up gets an event `dropped` and is let go.
        """
        if HappeningKind.DECISION in kind and not caller.of_site:
            raise Denied(403, "decisions are the operators'", "leave `kind=decision` out")
        if job:
            await the_job(site, caller, job)
        asked = _Asked(caller, frozenset(kind or HappeningKind), job)
        place, mark = _place(last_event_id or after)
        if place is not None and mark:
            digest = await asyncio.to_thread(site.store.journal.digest, place[0])
            if not digest.startswith(mark):
                place = ELSEWHERE
        begun = site.feed.listen(place, asyncio.get_running_loop())
        if begun is None:
            raise Denied(429, f"{MOST_LISTENERS} listen already", retry_after="30")
        return StreamingResponse(
            _stream(site, asked, *begun, follow=follow),
            media_type="text/event-stream",
            headers=_HEADERS,
        )


ELSEWHERE: Place = (1 << 62, 0)
"""After everything: a place of another journal, after which nothing of ours is."""


def _place(text: str) -> tuple[Place | None, str]:
    """Where an id is, and how the digest of its entry begins, if it says so.

    Raises:
        UserError: it is none of ours.
    """
    if not text:
        return None, ""
    found = _ID.match(text)
    if found is None:
        raise UserError(f"{text[:40]!r} is no id of an event", field="after")
    # A number of the journal alone is after everything that its entry led to.
    return (int(found[1]), int(found[2]) if found[2] else 1 << 40), found[3] or ""


async def _stream(
    site: LiveSite,
    asked: _Asked,
    listener: StreamListener,
    missed: list[Happening],
    whole: bool,  # noqa: FBT001 - as `Feed.listen` gives it
    *,
    follow: bool,
) -> AsyncIterator[bytes]:
    try:
        yield f"retry: {RETRY_MS}\n\n".encode()
        if not whole:
            yield _event("gap", {"why": "what came before is no longer kept: look at lists again"})
        for text in _texts(site, asked, missed):
            yield text
        silent_s = time.monotonic()
        while follow and not listener.over:
            news = await listener.next(max(0.0, silent_s + HEARTBEAT_S - time.monotonic()))
            for text in _texts(site, asked, news):
                yield text
                silent_s = time.monotonic()
            # Watts come every second, also to who has not asked for them: silence is his own.
            if time.monotonic() >= silent_s + HEARTBEAT_S:
                yield b": still here\n\n"
                silent_s = time.monotonic()
        if listener.slow:
            yield _event("dropped", {"why": "too much was waiting to be read: come again"})
    finally:
        site.feed.leave(listener)


def _texts(site: LiveSite, asked: _Asked, happenings: Iterable[Happening]) -> Iterable[bytes]:
    for one in happenings:
        if asked.wants(one):
            where = "" if one.place is None else f"{one.place[0]}.{one.place[1]}"
            where += f".{one.mark}" if one.mark else ""
            yield _event(str(one.kind), _document(site.clock.epoch, asked.caller, one), where)


def _document(epoch: float, caller: Caller, one: Happening) -> dict[str, Any]:
    """Times as people write them; watts of others' jobs in one sum."""
    told = dict(one.told)
    document = {"at": time_of(epoch, told.pop("at_s"))}
    if "begins_s" in told:
        document["begins"] = time_of(epoch, told.pop("begins_s"))
    if one.kind is HappeningKind.POWER and not caller.of_site:
        seen = {job_id for job_id, spec in one.specs.items() if caller.sees(spec)}
        told["by_job"] = of_draw(told["by_job"], seen)
    return {**document, **told}


def _event(kind: str, data: Mapping[str, Any], where: str = "") -> bytes:
    name = f"id: {where}\n" if where else ""
    return f"{name}event: {kind}\ndata: {json.dumps(data)}\n\n".encode()

"""The site itself: its health, its callers and their tokens, its records."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from wattherd.server.api.schemas.jobs import MORNING
from wattherd.server.api.schemas.shape import ApiShape, told, version
from wattherd.server.auth.caller import Role


class HealthDocument(ApiShape):
    """Whether the service decides, and keeps what it is told."""

    version: str = told("of wattherd", "0.1.0")
    ok: bool = told("whether all is well", True)  # noqa: FBT003 - an example
    problem: str = told("what is not", "")


class CallerDocument(ApiShape):
    """Whom the service takes the caller for."""

    schema_: Literal["wattherd.caller/1"] = version("wattherd.caller/1")
    user: str = told("by name", "ann")
    role: Role = told("what he may do", "user")
    tenant: str = told("whose jobs he sees", "vision")
    token: str = told("id of the token shown; empty: none was needed", "ea33b0a3")


class TokenRow(ApiShape):
    """A token without its secret."""

    id: str = told("of the token", "ea33b0a3")
    name: str = told("what it is for", "laptop")
    user: str = told("whose it is", "ann")
    role: Role = told("what it may do", "user")
    tenant: str = told("whose jobs it sees", "vision")
    created: str = told("a time", "2026-11-21T08:00:00+00:00")
    expires: str | None = told("null: never", None)


class TokensDocument(ApiShape):
    """All tokens."""

    schema_: Literal["wattherd.tokens/1"] = version("wattherd.tokens/1")
    tokens: list[TokenRow] = told("without their secrets")


class TokenDocument(TokenRow):
    """One token, without its secret."""

    schema_: Literal["wattherd.tokens/1"] = version("wattherd.tokens/1")


class NewTokenDocument(TokenDocument):
    """A new token; nothing else ever shows it."""

    token: str = told(
        "what callers send; kept as a hash only",
        "wh_ea33b0a3_B7ERLYswHxqMXQwM2COJPWgEDqQXpwQMkmPHWHDX_nk",
    )


class Act(ApiShape):
    """Something that somebody did."""

    number: int = told("in the journal", 41)
    at: str = told("a time", MORNING)
    by: str = told("tenant and user", "vision/ann")
    what: str = told("the event", "JobSubmitted")
    about: str = told("a job, node, queue or tenant", "j-12")
    detail: dict[str, Any] = told("what matters of the event", {"gpus": 2, "queue": "default"})


class JournalHead(ApiShape):
    """The end of the journal: whoever keeps it elsewhere can tell whether the end was cut off."""

    store: str = told("identity of the store", "5b0f0c6f7f2b4f7a9a3e0a1d0c9b8a77")
    entry: int = told("number of the last entry; 0: there is none", 4711)
    digest: str = told("its digest, for `wattherd store verify --head`", "9f86d081884c7d65")


class AuditDocument(ApiShape):
    """Who did what, the latest first."""

    schema_: Literal["wattherd.audit/1"] = version("wattherd.audit/1")
    acts: list[Act] = told("a page of them")
    before: int | None = told("asks for the page before; null: there is none", None)
    head: JournalHead = told("the end of the journal now")


class RequestLine(ApiShape):
    """A request that changed something, or was refused."""

    at: str = told("a time", MORNING)
    by: str = told("tenant and user; empty: nobody known", "vision/ann")
    token: str = told("id of the token shown", "ea33b0a3")
    address: str = told("where it came from", "127.0.0.1")
    method: str = told("of HTTP", "POST")
    path: str = told("what was asked for", "/api/v1/jobs")
    status: int = told("of the answer", 201)
    result: Literal["done", "refused", "failed"] = told("what came of it", "done")
    session: Literal["begins", "ends"] | None = Field(
        default=None, description="somebody went into a job, or left it", examples=[None]
    )
    command: str | None = Field(
        default=None, description="that they ran there, without secrets of the job", examples=[None]
    )
    lasted_s: float | None = Field(
        default=None, description="how long they were there", examples=[None]
    )
    exit_code: int | None = Field(default=None, description="of that command", examples=[None])


class RequestsDocument(ApiShape):
    """Requests that changed something or were refused, the latest first."""

    schema_: Literal["wattherd.requests/1"] = version("wattherd.requests/1")
    requests: list[RequestLine] = told("the last ones")


class Decision(ApiShape):
    """An entry of the journal and what followed. Each event and order has a `type`."""

    number: int = told("in the journal", 41)
    at: str = told("a time", MORNING)
    by: str = told("who caused it; `system`: the service itself", "vision/ann")
    event: dict[str, Any] = told(
        "what happened; of what is about others the type and time alone",
        {"type": "JobExited", "at_s": 3600.0, "job_id": "j-12", "attempt": 1, "exit_code": 0},
    )
    commands: list[dict[str, Any]] = told(
        "orders that followed",
        [{"type": "FinishJob", "job_id": "j-12", "state": "Succeeded"}],
    )


class DecisionsDocument(ApiShape):
    """Entries of the journal, oldest first."""

    schema_: Literal["wattherd.decisions/1"] = version("wattherd.decisions/1")
    decisions: list[Decision] = told("a page of them")
    after: int | None = told("asks for the next page; null: there is none", None)

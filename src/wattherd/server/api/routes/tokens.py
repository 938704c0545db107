"""Tokens, and who asked for what: the admins' part."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from wattherd.server.api.http import Since
from wattherd.server.api.schemas.shape import answers
from wattherd.server.api.schemas.site import (
    NewTokenDocument,
    RequestsDocument,
    TokenDocument,
    TokensDocument,
)
from wattherd.server.auth.caller import Role
from wattherd.server.auth.gate import AccessDesk
from wattherd.server.auth.tokens import SCHEMA
from wattherd.server.problems import NotFound
from wattherd.units import seconds

REQUESTS = "wattherd.requests/1"
TokenId = Annotated[str, Path(description="as lists show it", examples=["ea33b0a3"])]


class NewToken(BaseModel):
    """Whose a new token is and what it may do; `expires` is a time from now: 90d."""

    model_config = ConfigDict(extra="forbid")

    user: str = Field(min_length=1, max_length=80, pattern=r"^[\w.@-]+$", examples=["ann"])
    role: Role = Role.USER
    tenant: str = Field(default="", max_length=80, pattern=r"^[\w.@-]*$")
    name: str = Field(default="", max_length=80, description="what it is for")
    expires: str | None = Field(default=None, max_length=40, examples=["90d"])


def routes(app: FastAPI) -> None:
    """Add these addresses to an application that serves a site."""

    @app.get("/api/v1/tokens", responses=answers(TokensDocument))
    async def list_tokens(request: Request) -> dict[str, Any]:
        """All tokens, without their secrets."""
        return {"schema": SCHEMA, "tokens": [one.row() for one in _desk(request).tokens.all()]}

    @app.post("/api/v1/tokens", status_code=201, responses=answers(NewTokenDocument, 201))
    async def create_token(request: Request, asked: NewToken) -> dict[str, Any]:
        """A new token; the answer alone shows it. From the first one on, everybody needs one."""
        ttl_s = None if asked.expires is None else seconds(asked.expires, field="expires")
        wanted = asked.model_dump(exclude={"expires"})
        token, text = await asyncio.to_thread(_desk(request).tokens.create, **wanted, ttl_s=ttl_s)
        return {"schema": SCHEMA, **token.row(), "token": text}

    @app.delete("/api/v1/tokens/{token_id}", responses=answers(TokenDocument))
    async def revoke_token(request: Request, token_id: TokenId) -> dict[str, Any]:
        """Make a token worthless at once."""
        token = await asyncio.to_thread(_desk(request).tokens.revoke, token_id)
        if token is None:
            raise NotFound(f"no token {token_id!r}", hint="`wattherd token list` shows all")
        return {"schema": SCHEMA, **token.row()}

    @app.get("/api/v1/audit/requests", responses=answers(RequestsDocument))
    async def list_requests(
        request: Request,
        by: Annotated[str, Query(description="tenant and user")] = "",
        result: Annotated[str, Query(description="`done`, `refused` or `failed`")] = "",
        method: Annotated[str, Query(description="such as PUT")] = "",
        since: Since = None,
        limit: Annotated[int, Query(ge=1, le=10_000, description="the most of them")] = 100,
    ) -> dict[str, Any]:
        """Requests that changed something or were refused, the latest first."""
        audit = _desk(request).audit
        lines = await asyncio.to_thread(
            audit.lines,
            limit,
            since=since,
            by=by or None,
            result=result or None,
            method=method.upper() or None,
        )
        return {"schema": REQUESTS, "requests": lines}


def _desk(request: Request) -> AccessDesk:
    desk: AccessDesk = request.app.state.desk
    return desk

"""What every error of the REST API looks like: problem details, as RFC 9457 has them.

The members `error`, `where`, `field` and `hint` are ours. They were the whole body before the
standard's own came beside them, and programs read them: they stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from wattherd.errors import UserError

PROBLEM_JSON = "application/problem+json"
PAGE = "https://github.com/wattherd/wattherd/blob/main/docs/reference/api.md"
"""Where each type is told of, under its name."""
NO_TYPE = "about:blank"
"""Of what the status alone says (RFC 9457, section 4.2.1)."""


class NotFound(UserError):
    """There is no such thing, or it is not for this caller; 404."""


class Conflict(UserError):
    """Things are not as the request takes them to be; at another time it may be done; 409."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemType:
    """One kind of error: its name is the last part of `type`, its title the same in all cases."""

    name: str
    title: str
    meaning: str
    """When it comes, for the reference page."""

    @property
    def uri(self) -> str:
        """As `type` has it."""
        return f"{PAGE}#{self.name}"


PROBLEM_TYPES: Mapping[int, ProblemType] = {
    400: ProblemType(
        name="bad-request",
        title="The request makes no sense",
        meaning="What was asked for makes no sense",
    ),
    401: ProblemType(
        name="unknown-caller",
        title="The caller is not known",
        meaning="No token, or one that opens nothing",
    ),
    403: ProblemType(
        name="not-allowed",
        title="The caller may not do this",
        meaning="The token may not do this",
    ),
    404: ProblemType(
        name="not-found",
        title="There is no such thing",
        meaning="There is no such thing, or it is another tenant's",
    ),
    405: ProblemType(
        name="wrong-method",
        title="The address is not asked by this method",
        meaning="Not by this method; `Allow` says by which",
    ),
    409: ProblemType(
        name="conflict",
        title="Things are not as the request takes them to be",
        meaning="Not as things are now: it is over, runs, or has changed meanwhile; look again",
    ),
    413: ProblemType(
        name="too-long",
        title="The body is too long",
        meaning="The body is too long",
    ),
    422: ProblemType(
        name="wrong-field",
        title="A field is missing or wrong",
        meaning="A field is missing or wrong; `field` names it",
    ),
    429: ProblemType(
        name="too-many-requests",
        title="Too many requests",
        meaning="Too many requests; `Retry-After` says when to come again",
    ),
    500: ProblemType(
        name="defect",
        title="The service has a defect",
        meaning="A defect of ours: its log has the particulars",
    ),
    503: ProblemType(
        name="not-now",
        title="Not possible at the moment",
        meaning="The store takes nothing, or the core is not heard: nothing was changed; ask again",
    ),
    504: ProblemType(
        name="not-known",
        title="It is not known whether it was done",
        meaning="It is not known whether it was done: look, or ask again with the same key",
    ),
}
"""By status: there is one type of each."""


class ProblemDetails(BaseModel):
    """What every error looks like (RFC 9457); sent as `application/problem+json`."""

    # Members that are named here alone would be lost by whoever passes the details on.
    model_config = ConfigDict(extra="allow")

    type: str = Field(
        description="kind of error, an address on this page; `about:blank` if the status says all",
        examples=[PROBLEM_TYPES[404].uri],
    )
    title: str = Field(
        description="the kind in words, the same in all cases", examples=[PROBLEM_TYPES[404].title]
    )
    status: int = Field(description="status of the answer", examples=[404])
    detail: str = Field(description="what is wrong here", examples=["no job 'j-99'"])
    instance: str = Field(description="path that was asked for", examples=["/api/v1/jobs/j-99"])
    error: str = Field(
        description="the same as `detail`, under its older name", examples=["no job 'j-99'"]
    )
    where: str = Field(default="", description="file or thing", examples=[""])
    field: str = Field(default="", description="field at fault", examples=[""])
    hint: str = Field(
        default="", description="what to do", examples=["`wattherd history` lists all"]
    )


def problem(
    status: int,
    detail: str,
    path: str,
    *,
    where: str = "",
    field: str = "",
    hint: str = "",
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """An answer that tells an error; `path` is what was asked for, percent signs decoded."""
    kind = PROBLEM_TYPES.get(status)
    told = ProblemDetails(
        type=NO_TYPE if kind is None else kind.uri,
        title=HTTPStatus(status).phrase if kind is None else kind.title,
        status=status,
        detail=detail,
        instance=quote(path, safe="/:@!$&'()*+,;=~"),
        error=detail,
        where=where,
        field=field,
        hint=hint,
    )
    return JSONResponse(told.model_dump(), status, headers, PROBLEM_JSON)


def problem_of(error: UserError, path: str) -> JSONResponse:
    """What a caller is told who has asked for what cannot be."""
    status = 404 if isinstance(error, NotFound) else 409 if isinstance(error, Conflict) else 400
    return problem(
        status, error.problem, path, where=error.where, field=error.field, hint=error.hint
    )

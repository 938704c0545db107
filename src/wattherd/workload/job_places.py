"""The parts of a job file that say where data, code and results are, and how to get there."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from wattherd.devices.wire import file_places as places
from wattherd.workload.job_parts import SHARED


def _is_place(uri: str) -> str:
    places.parse(uri)
    return uri


def _is_target(uri: str) -> str:
    if isinstance(places.parse(uri), places.GitPlace):
        raise ValueError(f"{uri!r}: results cannot be taken to a git repository")  # noqa: TRY004
    return uri


Place = Annotated[str, AfterValidator(_is_place)]
Target = Annotated[str, AfterValidator(_is_target)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class OutputSpec(_Strict):
    """Where a result is taken, and when: after success only, or also at stops."""

    to: Target
    when: Literal["success", "checkpoint"] = Field(
        default="success", description="`checkpoint`: also whenever it stops with its state saved"
    )


class S3Spec(_Strict):
    """How to reach s3:// places. Keys come as secrets (AWS_ACCESS_KEY_ID, ...) or by profile."""

    model_config = SHARED

    endpoint: str | None = Field(
        default=None, pattern=r"^https?://[^/@\s]+/?$", description="of a store that is not AWS's"
    )
    region: str | None = None
    profile: str | None = Field(default=None, description="of the credentials file")
    credentials: str | None = Field(default=None, description="file, if not ~/.aws/credentials")
    ca: str | None = Field(default=None, description="file of the authority of its certificate")
    addressing: Literal["auto", "path", "virtual"] = "auto"
    anonymous: bool = Field(default=False, description="public buckets, asked without credentials")
    tries: int = Field(default=6, ge=1, le=100, description="of each request, pauses growing")

"""Whom a job tells of what becomes of it: a program by a webhook, a person by e-mail."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

What = Literal["started", "preempted", "succeeded", "failed", "timed_out", "cancelled"]
ENDINGS: tuple[What, ...] = ("succeeded", "failed", "timed_out", "cancelled")
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*")


def _webhook(url: str) -> str:
    parts = urlsplit(url)
    try:
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        whole = False
    if not whole or parts.username is not None or re.search(r"[\s\x00-\x1f\x7f]", url):
        raise ValueError("is no address such as https://hooks.example.org/jobs")
    return url


def _address(text: str) -> str:
    if not _ADDRESS.fullmatch(text):
        raise ValueError("is no e-mail address")
    return text


class NotifySpec(BaseModel):
    """Who is told, and of what."""

    model_config = ConfigDict(extra="forbid")

    on: tuple[What, ...] = Field(default=ENDINGS, min_length=1, description="else all endings")
    webhook: Annotated[str, Field(max_length=2000), AfterValidator(_webhook)] | None = Field(
        default=None, description="gets a POST with JSON"
    )
    email: Annotated[str, Field(max_length=254), AfterValidator(_address)] | None = None

    @model_validator(mode="after")
    def _somebody(self) -> NotifySpec:
        if self.webhook is None and self.email is None:
            raise ValueError("needs `webhook` or `email`")
        return self

"""What an operator says of notifications: mail server, secret of webhooks, addresses allowed."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator


class SmtpSettings(BaseModel):
    """The server that takes mail; `credentials` is a YAML file with `username` and `password`."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    host: str = Field(description="name or address of the mail server")
    port: int = Field(default=587, ge=1, le=65535, description="its port")
    tls: Literal["starttls", "tls", "none"] = Field(
        default="starttls", description="`none` only for a server of this machine"
    )
    ca_file: Path | None = Field(default=None, description="authorities, else the system's")
    sender: str = Field(alias="from", description="address that mail comes from")
    credentials: Path | None = Field(
        default=None, description="YAML file with `username` and `password`"
    )
    domains: tuple[str, ...] = Field(
        default=(), description="mail goes to addresses of these only; all if none"
    )


class NotifySettings(BaseModel):
    """`notify` in the configuration of the service."""

    model_config = ConfigDict(extra="forbid")

    smtp: SmtpSettings | None = Field(default=None, description="without it no e-mail is sent")
    allow: tuple[str, ...] = Field(
        default=(), description="networks and names that webhooks may reach beside public addresses"
    )
    secret_file: Path | None = Field(default=None, description="signs webhooks (HMAC-SHA256)")
    timeout_s: float = Field(default=10.0, gt=0, le=120, description="for a whole answer")
    give_up_s: float = Field(default=3600.0, ge=0, description="for retries of one notification")
    url: str = Field(default="", description="this service, as links in messages have it")

    @field_validator("allow")
    @classmethod
    def _networks_or_names(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for one in given:
            if "/" in one:
                ipaddress.ip_network(one, strict=False)
        return given

"""Which issuer is believed, and what its claims make of a caller here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from wattherd import units
from wattherd.errors import UserError
from wattherd.server.auth.caller import Role

ANY = "*"
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]
"""Those with a key pair: a secret that is shared could be used by whoever can check it."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def _is_safe(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK):
        return url
    raise ValueError(f"{url!r} is not https://")


def _is_time(text: str) -> str:
    try:
        found = units.seconds(text)
    except UserError as error:
        raise ValueError(error.line()) from None
    if not 60 <= found <= 31 * 86_400:
        raise ValueError(f"{text!r} is out of range (1m to 31d)")
    return text


Url = Annotated[str, AfterValidator(_is_safe)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ClaimRule(_Strict):
    """Whoever has this value in that claim has this role, in this tenant."""

    claim: str = Field(min_length=1, description="such as groups, or realm_access.roles")
    value: str = Field(min_length=1, description="one of its values; * is any")
    role: Role = Field(description="what callers with that value may do")
    tenant: str = Field(
        default="",
        max_length=80,
        pattern=r"^[\w.@-]*$",
        description="whose jobs they see and hand in",
    )
    tenant_claim: str = Field(default="", description="a claim whose value is the tenant, instead")

    @model_validator(mode="after")
    def _belongs_somewhere(self) -> ClaimRule:
        if self.tenant and self.tenant_claim:
            raise ValueError("has both `tenant` and `tenant_claim`")
        if self.role.covers(Role.OPERATOR) and (self.tenant or self.tenant_claim):
            raise ValueError(f"the role {self.role} is for the whole site: leave the tenant out")
        return self


class OidcSettings(_Strict):
    """Fields of `oidc` in the service's configuration."""

    issuer: Url = Field(description="address of the OpenID provider, as its tokens name it")
    client_id: str = Field(
        min_length=1, description="name under which the provider knows this service"
    )
    client_secret: str | None = Field(
        default=None, description="where the client's secret is: file:/PATH or env:NAME"
    )
    audience: str | None = Field(
        default=None,
        description="audience that bearer tokens must name; the client if none is given",
    )
    scopes: list[str] = Field(
        default=["openid", "profile", "email"], description="what a login asks the provider for"
    )
    algorithms: list[Algorithm] = Field(
        default=["RS256", "ES256"], min_length=1, description="signatures that are accepted"
    )
    user_claim: str = Field(
        default="preferred_username", description="the claim whose value is the user's name"
    )
    rules: list[ClaimRule] = Field(
        min_length=1, description="which claim gives which role; the first rule that fits counts"
    )
    public_url: Url | None = Field(
        default=None, description="address of this service as browsers see it, behind a proxy"
    )
    name: str = Field(
        default="single sign-on", max_length=60, description="what the login page calls it"
    )
    session: Annotated[str, AfterValidator(_is_time)] = Field(
        default="8h", description="how long a login lasts"
    )
    ca: Path | None = Field(default=None, description="certificate of the issuer's authority")

    @property
    def session_s(self) -> float:
        """How long a login lasts."""
        return units.seconds(self.session)

    def secret(self) -> str | None:
        """The client's secret.

        Raises:
            UserError: it cannot be read.
        """
        if self.client_secret is None:
            return None
        kind, _, where = self.client_secret.partition(":")
        try:
            if kind == "file":
                return Path(where).read_text(encoding="utf-8").strip()
            if kind == "env":
                return os.environ[where]
        except (OSError, KeyError, UnicodeDecodeError):
            problem = f"cannot read {self.client_secret!r}"
            raise UserError(problem, field="oidc.client_secret") from None
        hint = "file:/PATH or env:NAME"
        raise UserError("is no place of a secret", field="oidc.client_secret", hint=hint)


Claims = dict[str, Any]

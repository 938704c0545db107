"""From what an issuer says of somebody to who they are here; who fits no rule is nobody."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from wattherd.server.auth.caller import Caller
from wattherd.server.auth.oidc.settings import ANY, ClaimRule, OidcSettings

_USER = re.compile(r"[\w.@+-]{1,80}")
_TENANT = re.compile(r"[\w.@-]{1,80}")


class Unmapped(Exception):
    """The issuer vouches for them, but nothing says what they may do here."""


def caller_of(claims: Mapping[str, Any], settings: OidcSettings) -> Caller:
    """Who somebody with these claims is.

    Raises:
        Unmapped: no rule fits, or the claims name no user or tenant.
    """
    user = _text(claims, settings.user_claim)
    if user is None or not _USER.fullmatch(user):
        raise Unmapped(f"the claim {settings.user_claim!r} names no user")
    rule = next((one for one in settings.rules if _fits(claims, one)), None)
    if rule is None:
        raise Unmapped(f"{user} has no role here")
    tenant = rule.tenant
    if rule.tenant_claim:
        tenant = _text(claims, rule.tenant_claim) or ""
        if not _TENANT.fullmatch(tenant):
            raise Unmapped(f"the claim {rule.tenant_claim!r} names no tenant")
    return Caller(user=user, role=rule.role, tenant=tenant, token=f"oidc:{claims['sub']}")


def _fits(claims: Mapping[str, Any], rule: ClaimRule) -> bool:
    values = list(_values(claim_of(claims, rule.claim)))
    return bool(values) if rule.value == ANY else rule.value in values


def claim_of(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name, or by a path of names with dots between; None if it is not there."""
    if name in claims:  # names that are URLs have dots of their own
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _text(claims: Mapping[str, Any], name: str) -> str | None:
    found = claim_of(claims, name)
    return found if isinstance(found, str) else None


def _values(found: Any) -> Iterator[str]:
    """One or several; true and numbers are written as JSON writes them."""
    if isinstance(found, bool):
        yield str(found).lower()
    elif isinstance(found, str | int | float):
        yield str(found)
    elif isinstance(found, Iterable) and not isinstance(found, Mapping):
        for one in found:
            if isinstance(one, str | int | float):
                yield from _values(one)

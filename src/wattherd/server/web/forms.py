"""Forms that only our own pages can send.

A browser keeps a random number in a cookie that no script can read and no other site can send.
Forms carry what follows from it and from a secret of this process (double submit, signed).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

SESSION = "wattherd_session"
KEPT_S = 12 * 3600


@dataclass(frozen=True, slots=True)
class Forms:
    """Signs forms, and knows its own signature."""

    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))

    def signature(self, session: str) -> str:
        """What forms of this session carry."""
        return hmac.new(self.secret, session.encode(), hashlib.sha256).hexdigest()

    def is_ours(self, request: Request, given: str) -> bool:
        """Whether a form was made for the session that sends it, and comes from our own pages."""
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
            return False
        session = session_of(request)
        return bool(session) and hmac.compare_digest(self.signature(session), given)


def session_of(request: Request) -> str:
    """The number in the cookie, empty if there is none."""
    return request.cookies.get(SESSION, "")


def keep(request: Request, response: Response, name: str, value: str) -> None:
    """Have the browser keep something for this site alone, out of reach of scripts."""
    secure = request.url.scheme == "https"
    response.set_cookie(
        name, value, max_age=KEPT_S, httponly=True, samesite="strict", secure=secure
    )

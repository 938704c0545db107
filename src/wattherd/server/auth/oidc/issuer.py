"""What an issuer publishes (OpenID Connect Discovery 1.0) and signs: addresses, keys, tokens.

Keys are kept for an hour, and asked for again when a token names one that is not known, but not
more often than every half minute, so that made-up tokens cannot make us a nuisance. While the
issuer does not answer, the keys that were known go on for a day.
"""

from __future__ import annotations

import json
import math
import ssl
import threading
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import jwt

from wattherd.devices.wire.http_client import (
    HttpClient,
    HttpRequest,
    HttpRules,
    NoAnswer,
    origin_of,
)
from wattherd.errors import ClusterError, UserError
from wattherd.server.auth.oidc.settings import Claims, OidcSettings, Url

WELL_KNOWN = "/.well-known/openid-configuration"
TIMEOUT_S = 5.0
MOST_BYTES = 1 << 20
FRESH_S, RETRY_S, STALE_S = 3600.0, 30.0, 86_400.0
LEEWAY_S = 30.0
"""Clocks of two machines differ."""
MOST_TOKEN = 16_384
DOWN_S, PATIENCE_S = 5.0, 0.5
"""Between two attempts while nothing is known, and for another's attempt to end: whoever shows
tokens must not hold the service up."""
Jwk = Mapping[str, Any]
"""A key as it is published (RFC 7517)."""
TYPES = (None, "jwt", "at+jwt", "application/at+jwt")
"""Of tokens that say who somebody is; there are others, such as of logouts (RFC 8725, 3.11)."""


class IssuerDown(ClusterError):
    """The issuer does not answer, or says something else than an issuer would."""


class BadToken(Exception):
    """Not a token of the issuer's that is valid here and now."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses that the issuer publishes; `userinfo` may be empty."""

    authorization: str
    token: str
    keys: str
    userinfo: str
    posts_secret: bool
    """Whether it takes the client's secret in the body alone, not by Basic."""


@dataclass(frozen=True, slots=True)
class _Known:
    endpoints: Endpoints
    keys: Mapping[str, Jwk]
    at_s: float


class Issuer:
    """Checks tokens, from any thread; asks the issuer as seldom as can be."""

    def __init__(self, settings: OidcSettings) -> None:
        """Nothing is asked yet.

        Raises:
            UserError: the authority's certificate cannot be used.
        """
        self._settings = settings
        try:
            tls = ssl.create_default_context(cafile=settings.ca and str(settings.ca))
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"cannot be used: {error}", field="oidc.ca") from None
        # Whoever we were told to ask is the one who answers: redirects are not followed.
        self._rules = HttpRules(timeout_s=TIMEOUT_S, most_bytes=MOST_BYTES, tls=tls, proxies=True)
        self._known: _Known | None = None
        self._tried_s = -math.inf
        self._failure = "it is being asked"
        self._asking = threading.Lock()

    # Tokens -------------------------------------------------------------------------------------

    def claims(self, token: str, audience: str) -> Claims:
        """What a token says, once signature, issuer, audience and times are as they must be.

        Raises:
            BadToken: they are not.
            IssuerDown: its keys are not known, and cannot be asked for.
        """
        if len(token) > MOST_TOKEN:
            raise BadToken("longer than tokens are")
        try:
            header = jwt.get_unverified_header(token)
            key = self._key(header)
            claims: Claims = jwt.decode(
                token,
                key,
                algorithms=[header["alg"]],
                audience=audience,
                issuer=self._settings.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as error:
            raise BadToken(str(error)) from None
        return claims

    def _key(self, header: Mapping[str, Any]) -> jwt.PyJWK:
        """The key that the header names; the algorithm is looked at before anything is asked.

        Raises:
            BadToken: another algorithm or type than is allowed, or no such key.
            IssuerDown: as `claims`.
        """
        algorithm, kind, kid = header.get("alg"), header.get("typ"), header.get("kid")
        if algorithm not in self._settings.algorithms:
            raise BadToken(f"signed by {algorithm!r}")
        if (kind.lower() if isinstance(kind, str) else kind) not in TYPES:
            raise BadToken(f"of type {kind!r}")
        found = _chosen(self._fresh().keys, kid) or _chosen(self._renewed().keys, kid)
        if found is None:
            raise BadToken(f"signed by a key {kid!r} that the issuer does not have")
        if found.get("alg", algorithm) != algorithm or found.get("use", "sig") != "sig":
            raise BadToken(f"the key {kid!r} is not for {algorithm}")
        return jwt.PyJWK.from_dict(dict(found), algorithm)

    # What the issuer publishes ------------------------------------------------------------------

    @property
    def endpoints(self) -> Endpoints:
        """Where to send whom.

        Raises:
            IssuerDown: that is not known.
        """
        return self._fresh().endpoints

    def _fresh(self) -> _Known:
        known = self._known
        if known is not None and time.monotonic() - known.at_s < FRESH_S:
            return known
        return self._renewed()

    def _renewed(self) -> _Known:
        """Ask again, unless that was done just now; what was known before goes on for a while."""
        if self._asking.acquire(timeout=PATIENCE_S):
            try:
                self._ask_if_due(time.monotonic())
            finally:
                self._asking.release()
        known = self._known
        if known is None or time.monotonic() - known.at_s > STALE_S:
            raise IssuerDown(f"the issuer {self._settings.issuer} cannot be asked: {self._failure}")
        return known

    def _ask_if_due(self, now_s: float) -> None:
        if now_s - self._tried_s < (DOWN_S if self._known is None else RETRY_S):
            return
        try:
            self._known, self._failure = self._asked(), ""
        except IssuerDown as error:
            self._failure = str(error)
        self._tried_s = time.monotonic()

    def _asked(self) -> _Known:
        document = self.fetch(self._settings.issuer.rstrip("/") + WELL_KNOWN)
        if document.get("issuer") != self._settings.issuer:
            raise IssuerDown(f"it calls itself {document.get('issuer')!r}")
        methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        endpoints = Endpoints(
            authorization=_address(document, "authorization_endpoint"),
            token=_address(document, "token_endpoint"),
            keys=_address(document, "jwks_uri"),
            userinfo=str(document.get("userinfo_endpoint") or ""),
            posts_secret="client_secret_basic" not in methods,
        )
        return _Known(endpoints, _keys(self.fetch(endpoints.keys)), time.monotonic())

    def fetch(
        self, url: str, form: Mapping[str, str] | None = None, **headers: str
    ) -> dict[str, Any]:
        """A JSON object of the issuer's; `form` is posted.

        Raises:
            IssuerDown: it is not to be had.
        """
        told = {"accept": "application/json", **headers}
        data = None
        if form is not None:
            told["content-type"] = "application/x-www-form-urlencoded"
            data = urllib.parse.urlencode(form).encode()
        parts = urllib.parse.urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        request = HttpRequest("GET" if data is None else "POST", target, told, data)
        try:
            answer = HttpClient(origin_of(url), self._rules).ask(request)
            if answer.status != HTTPStatus.OK:
                raise IssuerDown(f"{url} says {answer.status}{_reason(answer.body)}")
            found = json.loads(answer.body)
        except (NoAnswer, ValueError) as error:
            raise IssuerDown(f"{url}: {error}") from None
        if not isinstance(found, dict):
            raise IssuerDown(f"{url} gives no object")
        return found


def _reason(body: bytes) -> str:
    """What an issuer says in an error's body (RFC 6749, section 5.2), as far as it is plain."""
    try:
        said = json.loads(body).get("error", "")
    except (ValueError, AttributeError):
        return ""
    return f" ({said})" if isinstance(said, str) and said.isascii() and said.isprintable() else ""


def _address(document: Mapping[str, Any], name: str) -> str:
    from pydantic import TypeAdapter, ValidationError

    try:
        found: str = TypeAdapter(Url).validate_python(document.get(name))
    except ValidationError:
        raise IssuerDown(f"its {name} is no safe address") from None
    return found


def _keys(document: Mapping[str, Any]) -> dict[str, Jwk]:
    """Keys by their ids."""
    listed = document.get("keys")
    keys = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    found: dict[str, Jwk] = {str(one.get("kid", "")): one for one in keys}
    if not found:
        raise IssuerDown("it publishes no key that can be used")
    return found


def _chosen(keys: Mapping[str, Jwk], kid: Any) -> Jwk | None:
    """The key of that name; without a name the only one there is."""
    if kid is None:
        return next(iter(keys.values())) if len(keys) == 1 else None
    return keys.get(str(kid))

"""Single sign-on: bearer tokens of the issuer, and logins by authorization code with PKCE.

The code flow is that of OpenID Connect Core 1.0, section 3.1, with RFC 7636 (PKCE, S256). What has
to be known when the browser comes back is in a cookie of that browser, signed: so a login that was
begun elsewhere cannot be ended here.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from wattherd.server.auth.caller import Caller
from wattherd.server.auth.gate import LoginBegun
from wattherd.server.auth.oidc import CALLBACK, NotLoggedIn
from wattherd.server.auth.oidc.issuer import BadToken, Issuer, IssuerDown
from wattherd.server.auth.oidc.settings import ANY, ClaimRule, Claims, OidcSettings

# --- From what an issuer says of somebody to who they are here; who fits no rule is nobody.

_USER = re.compile(r"[\w.@+-]{1,80}")
_TENANT = re.compile(r"[\w.@-]{1,80}")


class NoRoleMapped(Exception):
    """The issuer vouches for them, but nothing says what they may do here."""


def caller_of(claims: Mapping[str, Any], settings: OidcSettings) -> Caller:
    """Who somebody with these claims is.

    Raises:
        Unmapped: no rule fits, or the claims name no user or tenant.
    """
    user = _text(claims, settings.user_claim)
    if user is None or not _USER.fullmatch(user):
        raise NoRoleMapped(f"the claim {settings.user_claim!r} names no user")
    rule = next((one for one in settings.rules if _fits(claims, one)), None)
    if rule is None:
        raise NoRoleMapped(f"{user} has no role here")
    tenant = rule.tenant
    if rule.tenant_claim:
        tenant = _text(claims, rule.tenant_claim) or ""
        if not _TENANT.fullmatch(tenant):
            raise NoRoleMapped(f"the claim {rule.tenant_claim!r} names no tenant")
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


# --- Logins of browsers: a random number each, of which only a hash is kept, in memory.
#
# They end by themselves, by logging out, or with the service; the issuer is not asked again.

PREFIX = "ws_"
MOST = 10_000
"""Beyond that the oldest ends."""


class BrowserSessions:
    """Callers by what their browsers show."""

    def __init__(self, lasts_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Nobody is logged in."""
        self._lasts_s, self._clock = lasts_s, clock
        self._callers: dict[str, tuple[Caller, float]] = {}
        self._changing = threading.Lock()

    def begin(self, caller: Caller) -> str:
        """Log somebody in; what their browser is to show."""
        shown = PREFIX + secrets.token_urlsafe(32)
        with self._changing:
            now_s = self._clock()
            self._callers = {
                key: (one, until_s)
                for key, (one, until_s) in self._callers.items()
                if until_s > now_s
            }
            while len(self._callers) >= MOST:
                del self._callers[next(iter(self._callers))]
            self._callers[_hash(shown)] = caller, now_s + self._lasts_s
        return shown

    def caller(self, shown: str) -> Caller | None:
        """Who shows that, if they are still logged in."""
        caller, until_s = self._callers.get(_hash(shown), (None, 0.0))
        return caller if until_s > self._clock() else None

    def end(self, shown: str) -> None:
        """Log out."""
        with self._changing:
            self._callers.pop(_hash(shown), None)


def _hash(shown: str) -> str:
    return hashlib.sha256(shown.encode("utf-8", "replace")).hexdigest()


PATIENCE_S = 600.0
"""For people to type their password at the issuer's."""


class SignIn:
    """Implements `gate.Issuer`, and logs browsers in."""

    def __init__(self, settings: OidcSettings) -> None:
        """Nothing is asked of the issuer yet.

        Raises:
            UserError: the client's secret or the authority's certificate cannot be read.
        """
        self.settings, self.sessions = settings, BrowserSessions(settings.session_s)
        self._issuer, self._secret = Issuer(settings), settings.secret()
        self._own = secrets.token_bytes(32)

    @property
    def name(self) -> str:
        """What the login page calls it."""
        return self.settings.name

    @property
    def public_url(self) -> str | None:
        """Where browsers find this service, if they are not to be asked."""
        return self.settings.public_url

    # What is shown ------------------------------------------------------------------------------

    def caller(self, shown: str) -> Caller | None:
        """Who shows a session or a token of the issuer; None if it is neither, or not valid.

        Raises:
            IssuerDown: that cannot be told at the moment.
        """
        if shown.startswith(PREFIX):
            return self.sessions.caller(shown)
        if shown.count(".") != 2:
            return None
        try:
            audience = self.settings.audience or self.settings.client_id
            return caller_of(self._issuer.claims(shown, audience), self.settings)
        except (BadToken, NoRoleMapped):
            return None

    def end(self, shown: str) -> None:
        """Log a browser out."""
        self.sessions.end(shown)

    # Logging in ---------------------------------------------------------------------------------

    def begin(self, site: str, there: str) -> LoginBegun:
        """Begin a login that is to lead to the path `there` of `site`.

        Raises:
            IssuerDown: nobody knows where to send the browser.
        """
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
        query = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": site + CALLBACK,
            "scope": " ".join(self.settings.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge.rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        kept = {
            "state": state,
            "nonce": nonce,
            "verifier": verifier,
            "site": site,
            "next": there,
            "until_s": time.time() + PATIENCE_S,
        }
        address = self._issuer.endpoints.authorization
        joint = "&" if "?" in address else "?"
        return LoginBegun(url=f"{address}{joint}{urlencode(query)}", cookie=self._signed(kept))

    def finish(self, cookie: str, query: Mapping[str, str]) -> tuple[Caller, str, str]:
        """The caller, what their browser is to show from now on, and where to go.

        Raises:
            NotLoggedIn: the browser brings nothing, or not what it was sent away with.
            IssuerDown: the issuer does not answer.
        """
        kept = self._read(cookie)
        if not hmac.compare_digest(kept["state"], query.get("state", "")):
            raise NotLoggedIn("This is not the login that was begun in this browser.")
        if query.get("iss", self.settings.issuer) != self.settings.issuer:  # RFC 9207
            raise NotLoggedIn("The answer is another issuer's.")
        if "code" not in query:
            raise NotLoggedIn(f"The issuer says: {query.get('error', 'nothing')[:80]}.")
        try:
            claims = self._claims(kept, query["code"])
            caller = caller_of(claims, self.settings)
        except BadToken as error:
            raise NotLoggedIn(f"The issuer's word does not hold: {error}.") from None
        except NoRoleMapped as error:
            hint = "Whoever runs this service gives roles out."
            raise NotLoggedIn(f"{str(error)[:1].upper()}{str(error)[1:]}. {hint}") from None
        return caller, self.sessions.begin(caller), kept["next"]

    def _claims(self, kept: Mapping[str, str], code: str) -> Claims:
        """What the issuer says of whoever has just logged in there."""
        told = self._exchanged(kept, code)
        claims = self._issuer.claims(str(told.get("id_token", "")), self.settings.client_id)
        if not hmac.compare_digest(str(claims.get("nonce", "")), kept["nonce"]):
            raise BadToken("it is of another login")
        if claims.get("azp", self.settings.client_id) != self.settings.client_id:
            raise BadToken("it was made for another client")
        more = self._userinfo(str(told.get("access_token", "")), claims["sub"])
        return {**more, **claims}

    def _exchanged(self, kept: Mapping[str, str], code: str) -> Claims:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": kept["site"] + CALLBACK,
            "client_id": self.settings.client_id,
            "code_verifier": kept["verifier"],
        }
        headers: dict[str, str] = {}
        endpoints = self._issuer.endpoints
        if self._secret is not None and endpoints.posts_secret:
            form["client_secret"] = self._secret
        elif self._secret is not None:
            pair = f"{quote(self.settings.client_id, safe='')}:{quote(self._secret, safe='')}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return self._issuer.fetch(endpoints.token, form, **headers)

    def _userinfo(self, access_token: str, subject: str) -> Claims:
        """Claims that are not in the token; none where the issuer tells none."""
        url = self._issuer.endpoints.userinfo
        if not url or not access_token:
            return {}
        try:
            found = self._issuer.fetch(url, authorization=f"Bearer {access_token}")
        except IssuerDown:
            return {}  # what is in the token may do
        return found if found.get("sub") == subject else {}

    # The cookie of a login under way --------------------------------------------------------------

    def _signed(self, kept: Mapping[str, object]) -> str:
        body = base64.urlsafe_b64encode(json.dumps(kept).encode()).decode()
        return f"{body}.{self._signature(body)}"

    def _read(self, cookie: str) -> dict[str, str]:
        body, _, signature = cookie.rpartition(".")
        if not body or not hmac.compare_digest(self._signature(body), signature):
            raise NotLoggedIn("This browser has begun no login here, or takes no cookies.")
        kept = json.loads(base64.urlsafe_b64decode(body))
        if kept["until_s"] < time.time():
            raise NotLoggedIn("That took too long.")
        return {name: str(value) for name, value in kept.items()}

    def _signature(self, body: str) -> str:
        return hmac.new(self._own, body.encode(), hashlib.sha256).hexdigest()

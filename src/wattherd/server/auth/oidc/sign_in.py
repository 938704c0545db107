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
import secrets
import time
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from wattherd.server.auth.caller import Caller
from wattherd.server.auth.gate import Begun
from wattherd.server.auth.oidc import CALLBACK, NotLoggedIn
from wattherd.server.auth.oidc.issuer import BadToken, Issuer, IssuerDown
from wattherd.server.auth.oidc.mapping import Unmapped, caller_of
from wattherd.server.auth.oidc.sessions import PREFIX, BrowserSessions
from wattherd.server.auth.oidc.settings import Claims, OidcSettings

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
        except (BadToken, Unmapped):
            return None

    def end(self, shown: str) -> None:
        """Log a browser out."""
        self.sessions.end(shown)

    # Logging in ---------------------------------------------------------------------------------

    def begin(self, site: str, there: str) -> Begun:
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
        return Begun(url=f"{address}{joint}{urlencode(query)}", cookie=self._signed(kept))

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
        except Unmapped as error:
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

"""OAuth 2 client credentials (RFC 6749, section 4.4): a token that is fetched, kept and renewed.

Authlib writes the request and reads the answer; it is sent by `devices.wire.http_client`, by the
same rules as every other question. A token is renewed a minute before it expires, or after a tenth
of its life where that is shorter, and once where a server refuses it.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from wattherd.devices.wire.clock import SYSTEM, Clock
from wattherd.devices.wire.credentials import Credentials
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.http_client import (
    HttpClient,
    HttpRequest,
    HttpRules,
    NoAnswer,
    origin_of,
)

LEEWAY_S = 60.0
EARLY = 0.9
"""Of its life, after which a token is renewed at the latest."""
MOST_LIFE_S = 3600.0
"""For tokens that do not say how long they live."""
MOST_BYTES = 200_000


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer as Authlib reads it."""

    status_code: int
    body: bytes

    def json(self) -> Any:
        """The content."""
        return json.loads(self.body)

    def raise_for_status(self) -> None:
        """Refuse a failure of the server's."""
        if self.status_code >= 500:
            raise DeviceError(DeviceErrorKind.UNREACHABLE, f"token: HTTP {self.status_code}")


class ClientCredentials:
    """The tokens of one client at one server."""

    def __init__(
        self,
        find_url: Callable[[Credentials], str],
        *,
        tls: ssl.SSLContext | None,
        timeout_s: float,
        clock: Clock = SYSTEM,
    ) -> None:
        """Nothing is asked yet; `find_url` names the token endpoint when it is needed."""
        self._find_url, self._tls, self._timeout_s, self._clock = find_url, tls, timeout_s, clock
        self._lock = threading.Lock()
        self._token = ""
        self._until_s = 0.0

    def header(self, credentials: Credentials) -> Mapping[str, str]:
        """The header with a token that is good for now.

        Raises:
            DeviceError: no token can be had.
        """
        with self._lock:
            if not self._token or self._clock.steady_s() >= self._until_s:
                self._renew(credentials)
            return {"Authorization": f"Bearer {self._token}"}

    def forget(self) -> None:
        """A server refused the token: the next header brings another."""
        with self._lock:
            self._token = ""

    def _renew(self, credentials: Credentials) -> None:
        try:
            from authlib.oauth2 import OAuth2Client, OAuth2Error
        except ImportError:
            problem = "authlib is not installed: pip install 'wattherd[grid]'"
            raise DeviceError(DeviceErrorKind.REFUSED, problem) from None
        url = self._find_url(credentials)
        secret = credentials.client_secret.get_secret_value()
        client = OAuth2Client(
            session=_Session(self._tls, self._timeout_s, credentials.client_id, secret),
            client_id=credentials.client_id,
            client_secret=secret,
            scope=credentials.scope or None,
            token_endpoint_auth_method="none",  # noqa: S106 - the session sends both, see there
        )
        try:
            token = client.fetch_token(url, grant_type="client_credentials")
        except OAuth2Error as error:
            said = ": ".join(filter(None, (error.error, error.description)))
            raise DeviceError(DeviceErrorKind.REFUSED, f"no token from {url}: {said}") from None
        except (ValueError, TypeError, AttributeError):
            raise DeviceError(
                DeviceErrorKind.GARBAGE, f"no token from {url}: no JSON object"
            ) from None
        self._keep(token, url)

    def _keep(self, token: Mapping[str, Any], url: str) -> None:
        text = token.get("access_token")
        if not isinstance(text, str) or not text or not text.isprintable():
            raise DeviceError(DeviceErrorKind.GARBAGE, f"no token from {url}: none in the answer")
        try:
            life_s = float(token.get("expires_in") or MOST_LIFE_S)
        except (TypeError, ValueError):
            life_s = MOST_LIFE_S
        self._token = text
        self._until_s = self._clock.steady_s() + max(EARLY * life_s, life_s - LEEWAY_S)


@dataclass(frozen=True, slots=True)
class _Session:
    """Sends what Authlib has written.

    A client says who it is by the Authorization header (RFC 6749, 2.3.1: every server has to know
    that way), or, where that is refused, in the form.
    """

    tls: ssl.SSLContext | None
    timeout_s: float
    client_id: str
    secret: str

    def post(self, url: str, data: Mapping[str, str], **_: Any) -> _Answer:
        """One exchange, or two where the first way is refused."""
        form = {name: value for name, value in data.items() if name != "client_id"}
        pair = f"{quote(self.client_id, safe='')}:{quote(self.secret, safe='')}"
        basic = {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}
        answer = self._send(url, form, basic)
        if answer.status_code not in (400, 401, 403):
            return answer
        named = {**form, "client_id": self.client_id, "client_secret": self.secret}
        return self._send(url, named, {})

    def _send(self, url: str, form: Mapping[str, str], head: Mapping[str, str]) -> _Answer:
        parts = urlsplit(url)
        target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        head = {
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
            **head,
        }
        rules = HttpRules(timeout_s=self.timeout_s, most_bytes=MOST_BYTES, tls=self.tls)
        try:
            raw = HttpClient(origin_of(url), rules).ask(
                HttpRequest("POST", target, head, urlencode(form).encode())
            )
        except NoAnswer as failure:
            raise DeviceError(failure.trouble, f"token: {failure.problem}") from None
        except ValueError:
            raise DeviceError(DeviceErrorKind.GARBAGE, f"token: {url!r} is no address") from None
        return _Answer(raw.status, raw.body)

"""Talks to a service: JSON over HTTP, standard library only, so that the base install suffices."""

from __future__ import annotations

import getpass
import json
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

from wattherd.errors import UserError

DEFAULT_SERVER = "http://127.0.0.1:8700"
TIMEOUT_S = 30.0
CHUNK = 65_536


class NotThere(UserError):
    """What was asked for does not exist."""

    exit_code = 3


class Unreachable(UserError):
    """Nobody answers."""

    exit_code = 4


class Refused(UserError):
    """The service does not let this user do this."""

    exit_code = 5


class Client:
    """One service, as one user; server and token from the environment unless given."""

    def __init__(self, server: str | None = None) -> None:
        """`WATTHERD_SERVER` names the service, `WATTHERD_TOKEN` holds the token.

        `WATTHERD_TOKEN_FILE` names a file that does instead, `WATTHERD_CA` one with the certificate
        of whoever vouches for the service's, where the system does not know it.

        Raises:
            UserError: the address is none, or a file cannot be used.
        """
        self.server = (server or os.environ.get("WATTHERD_SERVER") or DEFAULT_SERVER).rstrip("/")
        if urllib.parse.urlsplit(self.server).scheme not in ("http", "https"):
            hint = f"write {DEFAULT_SERVER}"
            raise UserError(f"{self.server!r} is no address", field="--server", hint=hint)
        self._headers = {"content-type": "application/json", **_credentials()}
        self._tls = _authority() if self.server.startswith("https:") else None

    def get(self, path: str, **query: object) -> Any:
        """A document.

        Raises:
            UserError: refused, not there, or nobody answers.
        """
        return self._json("GET", path, query)

    def post(self, path: str, body: Any = None, **query: object) -> Any:
        """Ask for something to be done; as `get`."""
        return self._json("POST", path, query, body)

    def put(self, path: str, body: Any) -> Any:
        """Set something; as `get`."""
        return self._json("PUT", path, {}, body)

    def delete(self, path: str, **query: object) -> Any:
        """Do away with something; as `get`."""
        return self._json("DELETE", path, query)

    def stream(self, path: str, **query: object) -> Iterator[bytes]:
        """A text as it comes; as `get`."""
        with self._open("GET", path, query, None, timeout_s=None) as answer:
            while chunk := answer.read1(CHUNK):
                yield chunk

    def _json(self, method: str, path: str, query: dict[str, object], body: Any = None) -> Any:
        if method != "GET":  # where no token says who it is, the name of the account does
            query = {"user": getpass.getuser(), **query}
        with self._open(method, path, query, body, timeout_s=TIMEOUT_S) as answer:
            return json.load(answer)

    def _open(
        self,
        method: str,
        path: str,
        query: dict[str, object],
        body: Any,
        *,
        timeout_s: float | None,
    ) -> Any:
        given = {name: _text(value) for name, value in query.items() if value is not None}
        url = f"{self.server}/api/v1/{path}?{urllib.parse.urlencode(given, doseq=True)}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, self._headers, method=method)  # noqa: S310 - checked
        try:
            return urllib.request.urlopen(request, timeout=timeout_s, context=self._tls)  # noqa: S310 - checked
        except urllib.error.HTTPError as error:
            raise _refusal(error) from None
        except (urllib.error.URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            hint = "start one with `wattherd serve`, or name it by --server or WATTHERD_SERVER"
            raise Unreachable(f"no answer: {reason}", where=self.server, hint=hint) from None


def _text(value: object) -> str | list[str]:
    if isinstance(value, list | tuple):
        return [str(one) for one in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


def _credentials() -> dict[str, str]:
    token = os.environ.get("WATTHERD_TOKEN") or _token_file()
    return {"authorization": f"Bearer {token}"} if token else {}


def _token_file() -> str:
    path = os.environ.get("WATTHERD_TOKEN_FILE")
    try:
        return Path(path).read_text(encoding="utf-8").strip() if path else ""
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {error}", where="WATTHERD_TOKEN_FILE") from None


def _authority() -> ssl.SSLContext:
    """Certificates are always checked; `WATTHERD_CA` adds one to those of the system."""
    context = ssl.create_default_context()
    path = os.environ.get("WATTHERD_CA")
    try:
        if path:
            context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"{path} cannot be used: {error}", where="WATTHERD_CA") from None
    return context


_KINDS = {
    HTTPStatus.NOT_FOUND: NotThere,
    HTTPStatus.UNAUTHORIZED: Refused,
    HTTPStatus.FORBIDDEN: Refused,
    HTTPStatus.TOO_MANY_REQUESTS: Refused,
    HTTPStatus.SERVICE_UNAVAILABLE: Unreachable,
}


def _refusal(error: urllib.error.HTTPError) -> UserError:
    """The service's own words; fields that it could not read are named."""
    kind = _KINDS.get(HTTPStatus(error.code), UserError)
    try:
        told = json.load(error)
    except ValueError:
        return kind(f"{error.code} {error.reason}")
    if isinstance(told.get("detail"), list):
        first = told["detail"][0]
        field = ".".join(str(part) for part in first["loc"][1:])
        return kind(str(first["msg"]), field=field)
    named = {name: str(told.get(name, "")) for name in ("where", "field", "hint")}
    return kind(str(told.get("error") or told.get("detail") or error.reason), **named)

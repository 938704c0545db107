"""Tokens at rest: one file that its owner alone may read, with hashes and never a secret.

A token reads `wh_ID_SECRET`. Its secret holds 256 random bits, so that a keyed SHA-256 is enough
of a hash: there is nothing to guess, unlike with passwords.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from wattherd.errors import ClusterError, UserError, words
from wattherd.local.ownership import make_passage
from wattherd.server.auth.caller import Caller, Role

SCHEMA = "wattherd.tokens/1"
FILE = "tokens.json"
_PREFIX = "wh"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessToken:
    """What is kept of a token; times are Unix seconds, `expires_s` None is for ever."""

    id: str
    name: str
    user: str
    role: Role
    tenant: str
    salt: str
    hash: str
    created_s: float
    expires_s: float | None = None

    def opens(self, secret: str, now_s: float) -> bool:
        """Whether `secret` is the one; compared in constant time."""
        same = hmac.compare_digest(_hash(self.salt, secret), self.hash)
        return same and (self.expires_s is None or now_s < self.expires_s)

    def caller(self) -> Caller:
        """Whoever shows it."""
        return Caller(user=self.user, role=self.role, tenant=self.tenant, token=self.id)

    def row(self) -> dict[str, Any]:
        """What of it may be shown."""
        return {
            "id": self.id,
            "name": self.name,
            "user": self.user,
            "role": str(self.role),
            "tenant": self.tenant,
            "created": _time(self.created_s),
            "expires": None if self.expires_s is None else _time(self.expires_s),
        }


_TOKENS: TypeAdapter[list[AccessToken]] = TypeAdapter(list[AccessToken])
_NOBODY = AccessToken(
    id="", name="", user="", role=Role.VIEWER, tenant="", salt="", hash="0" * 64, created_s=0.0
)


class TokenFile:
    """The tokens of a service; may be changed by other processes meanwhile.

    Once there was a file, tokens are asked for: deleting it locks everybody out, not in.
    """

    def __init__(self, path: Path) -> None:
        """Use the file at `path`; it is made with the first token."""
        self.path = path
        self._known: dict[str, AccessToken] = {}
        self._stamp: tuple[int, int, int] | None = None
        self._name = os.fspath(path)
        self._asked_for = path.exists()
        self._reading = threading.Lock()

    @property
    def asked_for(self) -> bool:
        """Whether callers need a token."""
        # With every request: a `Path` would take twice as long to say.
        self._asked_for = self._asked_for or os.path.exists(self._name)  # noqa: PTH110
        return self._asked_for

    def caller(self, shown: str) -> Caller | None:
        """Who shows that token; None if it opens nothing.

        Raises:
            ClusterError: the file cannot be read.
        """
        kind, _, rest = shown.partition("_")
        token_id, _, secret = rest.partition("_")
        known = self._current().get(token_id) if kind == _PREFIX else None
        # An unknown id takes as long as a wrong secret.
        opened = (known or _NOBODY).opens(secret, time.time())
        return known.caller() if known is not None and opened else None

    def all(self) -> list[AccessToken]:
        """Every token, in order of creation.

        Raises:
            ClusterError: the file cannot be read.
        """
        return list(self._current().values())

    def create(
        self, *, user: str, role: Role, tenant: str = "", name: str = "", ttl_s: float | None = None
    ) -> tuple[AccessToken, str]:
        """A new token, and the text of it that is never to be seen again.

        Raises:
            UserError: no user, a tenant for an operator or admin, or the file cannot be written.
        """
        if not user:
            raise UserError("a token belongs to somebody", field="user")
        if tenant and role.covers(Role.OPERATOR):
            hint = "leave the tenant out, or make it a user's"
            raise UserError(f"the role {role} is for the whole site", field="tenant", hint=hint)
        secret, salt, now_s = secrets.token_urlsafe(32), secrets.token_hex(16), time.time()
        with self._changing() as tokens:
            token = AccessToken(
                id=_new_id(tokens),
                name=name,
                user=user,
                role=role,
                tenant=tenant,
                salt=salt,
                hash=_hash(salt, secret),
                created_s=now_s,
                expires_s=None if ttl_s is None else now_s + ttl_s,
            )
            tokens[token.id] = token
        return token, f"{_PREFIX}_{token.id}_{secret}"

    def revoke(self, token_id: str) -> AccessToken | None:
        """Make a token worthless at once; None if there is none.

        Raises:
            UserError: the file cannot be written.
        """
        with self._changing() as tokens:
            return tokens.pop(token_id, None)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, AccessToken]]:
        """The tokens, to be changed by one process at a time; written when the block is left."""
        try:
            if not self.path.parent.is_dir():
                make_passage(self.path.parent)
            with self.path.with_suffix(".lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                tokens = dict(self._current())
                yield tokens
                self._write(tokens)
        except (OSError, ClusterError) as error:
            raise UserError(f"cannot be changed: {words(error)}", where=str(self.path)) from None

    def _write(self, tokens: dict[str, AccessToken]) -> None:
        document = {"schema": SCHEMA, "tokens": [asdict(one) for one in tokens.values()]}
        fresh = self.path.with_suffix(f".{os.getpid()}.new")
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:  # noqa: PTH123 - the mode is set before anything is in it
            json.dump(document, stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(self.path)
        self._asked_for = True

    def _current(self) -> dict[str, AccessToken]:
        """What the file says, read again when it has changed."""
        with self._reading:
            stamp = self._stamped()
            if stamp is None:
                self._known, self._stamp = {}, None
            elif stamp != self._stamp:
                self._known, self._stamp = self._read(), stamp
            return self._known

    def _stamped(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    def _read(self) -> dict[str, AccessToken]:
        try:
            tokens = _TOKENS.validate_python(json.loads(self.path.read_bytes())["tokens"])
        except (OSError, ValueError, KeyError, TypeError, ValidationError):
            raise ClusterError(f"the tokens in {self.path} cannot be read") from None
        return {one.id: one for one in tokens}


def _new_id(known: dict[str, AccessToken]) -> str:
    while (found := secrets.token_hex(4)) in known:
        pass
    return found


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")


def _hash(salt: str, secret: str) -> str:
    return hmac.new(salt.encode(), secret.encode(), hashlib.sha256).hexdigest()

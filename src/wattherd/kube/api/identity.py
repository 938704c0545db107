"""Who we are to an API server: a token, a token file that is renewed, or a program that is asked.

Service account tokens expire within the hour and are replaced on disk; programs of cloud providers
(`exec` in a kubeconfig, client.authentication.k8s.io/v1) tell when what they gave expires. Nothing
of this is ever printed or logged.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wattherd.errors import UserError

REREAD_S = 10.0
"""How long what was read from a token file is good for."""

EARLY_S = 30.0
"""How long before its end a token is renewed: it must outlive the request that carries it."""

_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class Identity(Protocol):
    """Gives the bearer token to use now, None where a certificate says who we are."""

    def token(self, *, renewed: bool) -> str | None:
        """May read a file or run a program; with `renewed`, what was given before was refused."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """A token for ever, or none."""

    given: str | None = field(default=None, repr=False)

    def token(self, *, renewed: bool) -> str | None:
        """Always the same."""
        del renewed
        return self.given


@dataclass(slots=True)
class IdentityTokenFile:
    """A token on disk, read again every `REREAD_S` and whenever it was refused."""

    path: Path
    _given: str = field(default="", repr=False)
    _read_s: float = -REREAD_S

    def token(self, *, renewed: bool) -> str:
        """What the file holds; while it cannot be read, what it held last.

        Raises:
            UserError: it cannot be read, and never could: we would be anonymous.
        """
        now_s = time.monotonic()
        if renewed or now_s - self._read_s >= REREAD_S:
            self._given, self._read_s = _token_in(self.path) or self._given, now_s
        if not self._given:
            raise UserError("no token in it", where=str(self.path))
        return self._given


def _token_in(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


@dataclass(slots=True)
class Program:
    """A program that prints an ExecCredential, asked again when that ends or was refused.

    A certificate it gives is put into `tls`, from which every new connection takes it.
    """

    command: tuple[str, ...]
    environment: dict[str, str]
    api_version: str
    cluster: dict[str, object] | None
    tls: ssl.SSLContext | None
    hint: str = ""
    timeout_s: float = 60.0
    _given: str | None = field(default=None, repr=False)
    _until_s: float = 0.0

    def token(self, *, renewed: bool) -> str | None:
        """What the program gave, as long as it is good.

        Raises:
            UserError: the program is absent, fails, or says nothing that can be used.
        """
        if renewed or time.time() >= self._until_s:
            status = self._ask()
            self._given, self._until_s = status.token, _until_s(status)
            if status.certificate and status.key and self.tls is not None:
                load_certificate(self.tls, status.certificate.encode(), status.key.encode())
        return self._given

    def _ask(self) -> _ExecStatus:
        wish = {"interactive": False, **({"cluster": self.cluster} if self.cluster else {})}
        info = {"apiVersion": self.api_version, "kind": "ExecCredential", "spec": wish}
        told = {**os.environ, **self.environment, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        try:
            done = subprocess.run(  # noqa: S603 - the user's own kubeconfig names it
                self.command,
                env=told,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self.timeout_s,
                check=True,
            )
            answer = _ExecCredential.model_validate_json(done.stdout)
        except OSError as error:
            raise self._unusable(f"cannot be run: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise self._unusable(f"gave no answer within {self.timeout_s:g} s") from None
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip()[-300:]
            raise self._unusable(f"ended with {error.returncode}: {said}") from None
        except ValidationError:
            raise self._unusable("printed no ExecCredential") from None
        if answer.api_version != self.api_version:
            raise self._unusable(f"answered as {answer.api_version}, not {self.api_version}")
        if not answer.status.token and not (answer.status.certificate and answer.status.key):
            raise self._unusable("gave neither a token nor a certificate")
        return answer.status

    def _unusable(self, problem: str) -> UserError:
        return UserError(problem, where=self.command[0], field="exec", hint=self.hint)


class _ExecStatus(BaseModel):
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    token: str | None = None
    certificate: str | None = Field(default=None, alias="clientCertificateData")
    key: str | None = Field(default=None, alias="clientKeyData")
    expires: datetime | None = Field(default=None, alias="expirationTimestamp")


class _ExecCredential(BaseModel):
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    api_version: str = Field(alias="apiVersion")
    status: _ExecStatus


def _until_s(status: _ExecStatus) -> float:
    return status.expires.timestamp() - EARLY_S if status.expires else float("inf")


def known_exec(version: str) -> bool:
    """Whether we speak this version of the exec protocol."""
    return version in _EXEC_VERSIONS


def load_certificate(tls: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Let new connections of `tls` show a certificate.

    Raises:
        UserError: certificate and key are none, or do not belong together.
    """
    # Python loads certificates from files only; this one is readable by us alone and soon gone.
    with tempfile.TemporaryDirectory(prefix="wattherd-") as folder:
        file = Path(folder) / "client.pem"
        file.touch(mode=0o600)
        file.write_bytes(certificate + b"\n" + key)
        try:
            tls.load_cert_chain(file)
        except ssl.SSLError as error:
            raise UserError(f"client certificate and key: {error.reason}") from None

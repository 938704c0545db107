"""Kubeconfig files as kubectl reads them: several merged, paths relative to the file they stand in.

Only what a program without a terminal can use; a user that needs more is refused by name.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from wattherd.errors import UserError

T = TypeVar("T", bound="NamedEntry")


class NamedEntry(BaseModel):
    """One entry; fields that we do not know are left alone."""

    model_config = ConfigDict(
        extra="ignore", frozen=True, hide_input_in_errors=True, populate_by_name=True
    )


class ClusterEntry(NamedEntry):
    """Where an API server is, and who it must be."""

    server: str
    authority: Path | None = Field(default=None, alias="certificate-authority")
    authority_data: str = Field(default="", alias="certificate-authority-data")
    insecure: bool = Field(default=False, alias="insecure-skip-tls-verify")
    tls_name: str = Field(default="", alias="tls-server-name")
    proxy: str = Field(default="", alias="proxy-url")


class ExecEntry(NamedEntry):
    """A program that knows who we are."""

    command: str
    args: tuple[str, ...] | None = ()
    env: tuple[dict[str, str], ...] | None = ()
    api_version: str = Field(alias="apiVersion")
    hint: str = Field(default="", alias="installHint")
    mode: str = Field(default="IfAvailable", alias="interactiveMode")
    tells_cluster: bool = Field(default=False, alias="provideClusterInfo")


class UserEntry(NamedEntry):
    """Who we are."""

    token: SecretStr = SecretStr("")
    token_file: Path | None = Field(default=None, alias="tokenFile")
    certificate: Path | None = Field(default=None, alias="client-certificate")
    certificate_data: SecretStr = Field(default=SecretStr(""), alias="client-certificate-data")
    key: Path | None = Field(default=None, alias="client-key")
    key_data: SecretStr = Field(default=SecretStr(""), alias="client-key-data")
    exec: ExecEntry | None = None
    acts_as: str = Field(default="", alias="as")
    acts_in: tuple[str, ...] = Field(default=(), alias="as-groups")
    username: str = ""
    provider: dict[str, object] | None = Field(default=None, alias="auth-provider")


class ContextEntry(NamedEntry):
    """Which user of which cluster."""

    cluster: str
    user: str
    namespace: str = "default"


class _NamedCluster(NamedEntry):
    name: str
    cluster: ClusterEntry


class _NamedUser(NamedEntry):
    name: str
    user: UserEntry | None = None


class _NamedContext(NamedEntry):
    name: str
    context: ContextEntry


class _File(NamedEntry):
    current: str = Field(default="", alias="current-context")
    clusters: tuple[_NamedCluster, ...] | None = ()
    users: tuple[_NamedUser, ...] | None = ()
    contexts: tuple[_NamedContext, ...] | None = ()


@dataclass(frozen=True, slots=True)
class PlacedEntry(Generic[T]):
    """An entry and the file it stands in."""

    entry: T
    file: Path

    def path(self, named: Path) -> Path:
        """A path of the entry; relative ones begin at the file's folder."""
        return self.file.parent / named.expanduser()

    def content(self, named: Path | None, data: str, field: str) -> bytes:
        """What a file holds that is named or given as base64; the data wins, as in kubectl.

        Raises:
            UserError: the file cannot be read, or the data is no base64.
        """
        try:
            if data:
                return base64.b64decode(data, validate=True)
            return self.path(named).read_bytes() if named else b""
        except binascii.Error:
            raise UserError("no base64", where=str(self.file), field=f"{field}-data") from None
        except OSError as error:
            problem = f"cannot read {named}: {error.strerror}"
            raise UserError(problem, where=str(self.file), field=field) from None


@dataclass(frozen=True, slots=True)
class ChosenContext:
    """One context with its parts."""

    name: str
    namespace: str
    cluster: PlacedEntry[ClusterEntry]
    user: PlacedEntry[UserEntry]


def choose(files: Iterable[Path], context: str | None = None) -> ChosenContext:
    """The context that is named, else the current one, of files merged as kubectl merges them.

    The first file that defines a name, or a current context, wins.

    Raises:
        UserError: a file cannot be read, or what it names is nowhere.
    """
    read = [(path, _read(path)) for path in files]
    where = ", ".join(str(path) for path, _ in read)
    name = context or next((text.current for _, text in read if text.current), "")
    if not name:
        hint = "choose one of them with kubectl config use-context"
        raise UserError("no current context", where=where, hint=hint)
    contexts = _first(
        (c.name, PlacedEntry(c.context, p)) for p, f in read for c in f.contexts or ()
    )
    clusters = _first(
        (c.name, PlacedEntry(c.cluster, p)) for p, f in read for c in f.clusters or ()
    )
    users = _first(
        (u.name, PlacedEntry(u.user or UserEntry(), p)) for p, f in read for u in f.users or ()
    )
    chosen = _named(contexts, name, "contexts", where).entry
    return ChosenContext(
        name,
        chosen.namespace,
        _named(clusters, chosen.cluster, "clusters", where),
        _named(users, chosen.user, "users", where),
    )


def context_names(files: Iterable[Path]) -> list[str]:
    """Of all contexts, in the order of the files.

    Raises:
        UserError: a file cannot be read.
    """
    return list(dict.fromkeys(c.name for path in files for c in _read(path).contexts or ()))


def _read(path: Path) -> _File:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return _File.model_validate(content or {})
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise UserError("no YAML", where=str(path)) from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise UserError(first["msg"].lower(), where=str(path), field=field) from None


def _first(pairs: Iterable[tuple[str, PlacedEntry[T]]]) -> dict[str, PlacedEntry[T]]:
    found: dict[str, PlacedEntry[T]] = {}
    for name, placed in pairs:
        found.setdefault(name, placed)
    return found


def _named(found: dict[str, PlacedEntry[T]], name: str, field: str, where: str) -> PlacedEntry[T]:
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise UserError(f"no {name!r}", where=where, field=field, hint=f"there are: {known}")
    return found[name]

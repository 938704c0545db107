"""How to reach an API server, and as whom: from a kubeconfig, or from inside a pod.

The order is kubectl's: the file that was named, those of KUBECONFIG, ~/.kube/config, and where
there is none of them, the service account of the pod we run in.
"""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from wattherd.errors import UserError
from wattherd.kube.api.identity import (
    Fixed,
    Identity,
    IdentityTokenFile,
    Program,
    known_exec,
    load_certificate,
)
from wattherd.kube.api.kubeconfig import (
    ChosenContext,
    ClusterEntry,
    ExecEntry,
    PlacedEntry,
    UserEntry,
    choose,
    context_names,
)

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Access:
    """One API server as one user.

    `server` is `https://HOST:PORT` with the path it may be behind; `tls` is None for plain HTTP;
    `tls_name` is the name its certificate must bear, if another than the host's.
    """

    server: str
    tls: ssl.SSLContext | None
    identity: Identity
    namespace: str = "default"
    tls_name: str = ""
    proxy: str = ""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)


def find_access(kubeconfig: Path | None = None, context: str | None = None) -> Access:
    """The cluster that is named, else the one kubectl would talk to, else the one we run in.

    Raises:
        UserError: there is none, or its description cannot be used.
    """
    files = [kubeconfig] if kubeconfig else _usual_files()
    if files:
        return of_kubeconfig(choose(files, context))
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(os.environ)
    raise UserError(
        "no cluster: neither a kubeconfig nor a service account",
        hint="name one with --kubeconfig FILE",
    )


def known_contexts(kubeconfig: Path | None = None) -> list[str]:
    """Contexts of the file that is named, else of those that kubectl reads.

    Raises:
        UserError: a file cannot be read.
    """
    return context_names([kubeconfig] if kubeconfig else _usual_files())


def _usual_files() -> list[Path]:
    named = [Path(each) for each in os.environ.get("KUBECONFIG", "").split(os.pathsep) if each]
    usual = [each for each in named or [Path.home() / ".kube" / "config"] if each.is_file()]
    if named and not usual:
        raise UserError("no such file", where=os.environ["KUBECONFIG"], field="KUBECONFIG")
    return usual


def in_cluster(environment: Mapping[str, str], account: Path = ACCOUNT) -> Access:
    """As the service account of the pod we run in.

    Raises:
        UserError: its token or its authority is not mounted; nobody is anonymous by mistake.
    """
    host, port = (environment.get(f"KUBERNETES_SERVICE_{each}", "") for each in ("HOST", "PORT"))
    identity = IdentityTokenFile(account / "token")
    identity.token(renewed=True)
    try:
        tls = ssl.create_default_context(cafile=account / "ca.crt")
        namespace = (account / "namespace").read_text(encoding="utf-8").strip()
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"cannot be used: {error}", where=str(account)) from None
    name = f"[{host}]" if ":" in host else host
    return Access(f"https://{name}:{port or 443}", tls, identity, namespace)


def of_kubeconfig(chosen: ChosenContext) -> Access:
    """As a kubeconfig's context says.

    Raises:
        UserError: a field cannot be used.
    """
    cluster, user = chosen.cluster, chosen.user
    where = urlsplit(cluster.entry.server)
    if where.scheme not in ("http", "https") or not where.hostname:
        problem = f"{cluster.entry.server!r} is no https://HOST:PORT"
        raise UserError(problem, where=str(cluster.file), field="server")
    tls = _tls(cluster, user) if where.scheme == "https" else None
    return Access(
        server=cluster.entry.server.rstrip("/"),
        tls=tls,
        identity=_identity(user, cluster, tls),
        namespace=chosen.namespace,
        tls_name=cluster.entry.tls_name,
        proxy=cluster.entry.proxy,
        headers=_impersonation(user.entry),
    )


def _tls(cluster: PlacedEntry[ClusterEntry], user: PlacedEntry[UserEntry]) -> ssl.SSLContext:
    entry, ours = cluster.entry, user.entry
    authority = cluster.content(entry.authority, entry.authority_data, "certificate-authority")
    try:
        tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
    except (ssl.SSLError, UnicodeDecodeError):
        field = "certificate-authority"
        raise UserError("no certificate", where=str(cluster.file), field=field) from None
    if entry.insecure:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    data = ours.certificate_data.get_secret_value()
    certificate = user.content(ours.certificate, data, "client-certificate")
    key = user.content(ours.key, ours.key_data.get_secret_value(), "client-key")
    if certificate:
        load_certificate(tls, certificate, key)
    return tls


def _identity(
    user: PlacedEntry[UserEntry], cluster: PlacedEntry[ClusterEntry], tls: ssl.SSLContext | None
) -> Identity:
    entry = user.entry
    if entry.provider or entry.username:
        field = "auth-provider" if entry.provider else "username"
        hint = "API servers no longer know it; use exec, a token or a certificate"
        raise UserError("not supported", where=str(user.file), field=field, hint=hint)
    if entry.exec:
        return _program(user, entry.exec, cluster, tls)
    if entry.token_file:  # wins over the token beside it, as in kubectl
        return IdentityTokenFile(user.path(entry.token_file))
    return Fixed(entry.token.get_secret_value() or None)


def _program(
    user: PlacedEntry[UserEntry],
    entry: ExecEntry,
    cluster: PlacedEntry[ClusterEntry],
    tls: ssl.SSLContext | None,
) -> Program:
    if not known_exec(entry.api_version):
        problem = f"{entry.api_version} is not spoken"
        raise UserError(problem, where=str(user.file), field="exec.apiVersion")
    if entry.mode == "Always":
        problem = "the program needs a terminal"
        raise UserError(problem, where=str(user.file), field="exec.interactiveMode")
    # As kubectl: with a slash it is a path beside the file, without one a program of PATH.
    command = str(user.path(Path(entry.command))) if "/" in entry.command else entry.command
    return Program(
        command=(command, *(entry.args or ())),
        environment={each["name"]: each["value"] for each in entry.env or ()},
        api_version=entry.api_version,
        cluster=_told(cluster) if entry.tells_cluster else None,
        tls=tls,
        hint=entry.hint,
    )


def _told(cluster: PlacedEntry[ClusterEntry]) -> dict[str, object]:
    """What a program is told of the cluster: its authority as data, whichever way we were."""
    entry = cluster.entry
    authority = cluster.content(entry.authority, entry.authority_data, "certificate-authority")
    told = entry.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    told.pop("certificate-authority", None)
    if authority:
        told["certificate-authority-data"] = base64.b64encode(authority).decode()
    return told


def _impersonation(user: UserEntry) -> tuple[tuple[str, str], ...]:
    if not user.acts_as:
        return ()
    groups = (("Impersonate-Group", group) for group in user.acts_in)
    return (("Impersonate-User", user.acts_as), *groups)

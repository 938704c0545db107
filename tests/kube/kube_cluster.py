"""A cluster as tests see it: where it is, who we are there, and a client."""

from __future__ import annotations

import base64
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from control_plane import ControlPlane
from kube_api import KubeApi


@dataclass(frozen=True, slots=True)
class Cluster:
    """Either a plane of our own or one that was named."""

    kubeconfig: Path
    api: KubeApi


def of_plane(plane: ControlPlane) -> Cluster:
    return Cluster(plane.kubeconfig, plane.api)


def of_kubeconfig(path: Path) -> Cluster:
    """The cluster of a kubeconfig's current context, known by token or certificate."""
    text = yaml.safe_load(path.read_text())
    context = _named(text["contexts"], text["current-context"])["context"]
    cluster = _named(text["clusters"], context["cluster"])["cluster"]
    user = _named(text["users"], context["user"])["user"]
    tls = ssl.create_default_context(cafile=_file(cluster, "certificate-authority", path))
    certificate = _file(user, "client-certificate", path)
    if certificate:
        tls.load_cert_chain(certificate, _file(user, "client-key", path))
    secure = cluster["server"].startswith("https")
    return Cluster(path, KubeApi(cluster["server"], tls if secure else None, user.get("token")))


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(each for each in entries if each["name"] == name)


def _file(entry: dict[str, Any], field: str, beside: Path) -> str | None:
    """A file that is named, or one made of the data that is given instead."""
    if f"{field}-data" in entry:
        with tempfile.NamedTemporaryFile(prefix="wattherd-kube-", delete=False) as made:
            made.write(base64.b64decode(entry[f"{field}-data"]))
        return made.name
    return str(beside.parent / entry[field]) if field in entry else None

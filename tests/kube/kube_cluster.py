"""A cluster as tests see it: where it is, who we are there, what runs beside it.

`ControlPlane` is one that was made for the tests; `NamedCluster` is somebody else's.
"""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kube_binaries
import pytest
import yaml
from kube_api import KubeApi, Object
from kube_server import Server, free_ports


class Cluster:
    """What tests may ask of any cluster.

    Args:
        folder: for files of ours; `ca.crt` there is the authority of the API server.
        url: the API server's.
        token: ours.
    """

    api: KubeApi
    kubeconfig: Path
    programs: Path
    """The folder of the binaries."""

    def __init__(self, folder: Path, url: str, token: str) -> None:
        self.folder = folder
        self.url = url
        self.token = token
        self._schedulers: list[Server] = []

    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.folder / "ca.crt"))

    def kubeconfig_of(self, token: str, name: str = "admin") -> Path:
        """A kubeconfig file for the holder of a token."""
        return self.write_kubeconfig(name, {"token": token})

    def write_kubeconfig(self, name: str, user: Mapping[str, object]) -> Path:
        """A kubeconfig file with these credentials."""
        cluster = {"server": self.url, "certificate-authority": str(self.folder / "ca.crt")}
        path = self.folder / f"{name}.kubeconfig"
        text = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": name, "user": dict(user)}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
        }
        path.write_text(yaml.safe_dump(text))
        path.chmod(0o600)
        return path

    def scheduler(
        self, *, config: Object | None = None, name: str = "scheduler", flags: tuple[str, ...] = ()
    ) -> Server:
        """A stock kube-scheduler, not started yet; it is stopped with the tests at the latest.

        Args:
            config: fields of its KubeSchedulerConfiguration (profiles, extenders...).
            name: of its log and configuration file.
            flags: further ones, such as `GANGS`.
        """
        connection = {"kubeconfig": str(self.kubeconfig), "qps": 2000, "burst": 4000}
        port = free_ports(1)[0]
        text = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": connection,
            **(config or {}),
        }
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(text))
        arguments = [
            *(f"--config={path}", "--bind-address=127.0.0.1", f"--secure-port={port}", *flags)
        ]
        tls = ssl._create_unverified_context()  # it makes its own certificate
        ready = lambda: healthy(f"https://127.0.0.1:{port}/readyz", tls)  # noqa: E731
        server = Server(self.programs / "kube-scheduler", arguments, self.log(name), ready=ready)
        self._schedulers.append(server)
        return server

    def stop_schedulers(self) -> None:
        for server in self._schedulers:
            server.resume()
            server.kill()

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


class NamedCluster(Cluster):
    """That of a kubeconfig's current context, where we are known by token or certificate.

    Tests that kill, freeze or read parts of it are skipped once they try to.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        text = yaml.safe_load(path.read_text())
        context = _named(text["contexts"], text["current-context"])["context"]
        cluster = _named(text["clusters"], context["cluster"])["cluster"]
        user = _named(text["users"], context["user"])["user"]
        super().__init__(folder, cluster["server"], user.get("token", ""))
        self.kubeconfig = path
        authority = _file(cluster, "certificate-authority", path)
        if authority is not None:
            (folder / "ca.crt").write_bytes(Path(authority).read_bytes())
        tls = ssl.create_default_context(cafile=authority)
        certificate = _file(user, "client-certificate", path)
        if certificate:
            tls.load_cert_chain(certificate, _file(user, "client-key", path))
        secure = self.url.startswith("https")
        self.api = KubeApi(self.url, tls if secure else None, self.token or None)

    def __getattr__(self, part: str) -> Any:
        """Binaries, should there be any; what else is not here, only a plane of our own has."""
        if part.startswith("_"):
            raise AttributeError(part)
        if part == "programs":
            try:
                return kube_binaries.folder()
            except kube_binaries.NoBinaries as absent:
                pytest.skip(str(absent))
        pytest.skip(f"needs `{part}` of a control plane: not of that in WATTHERD_KUBECONFIG")

    def close(self) -> None:
        self.stop_schedulers()
        self.api.close()


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(each for each in entries if each["name"] == name)


def _file(entry: dict[str, Any], field: str, beside: Path) -> str | None:
    """A file that is named, or one made of the data that is given instead."""
    if f"{field}-data" in entry:
        with tempfile.NamedTemporaryFile(prefix="wattherd-kube-", delete=False) as made:
            made.write(base64.b64decode(entry[f"{field}-data"]))
        return made.name
    return str(beside.parent / entry[field]) if field in entry else None


def healthy(url: str, tls: ssl.SSLContext | None = None) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2, context=tls) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False

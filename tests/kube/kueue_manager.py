"""Kueue's own manager beside a control plane of the tests, without its webhooks.

Its objects are defined as it ships them, served in their newest version only, so that it is never
asked to convert one. Jobs are suspended by whoever makes them, which its webhook would do.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trustme
import yaml
from control_plane import ControlPlane
from kube_api import KubeApi, Object
from kube_binaries import REPOSITORY, NoBinaries
from kube_server import Server, free_ports, wait_until

PATIENCE_S = 240.0
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
_SECRETS = "/api/v1/namespaces/default/secrets"
_SECRET = "kueue-webhook-server-cert"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def folder() -> Path:
    """Where `kueue` and the definitions of its objects are.

    Raises:
        NoBinaries: it was not built.
    """
    script = REPOSITORY / "scripts" / "kube-binaries.sh"
    done = subprocess.run(
        [script, "--where-kueue"], capture_output=True, text=True, timeout=60, check=True
    )
    found = Path(os.environ.get("WATTHERD_KUEUE_BIN") or done.stdout.strip())
    if not os.access(found / "kueue", os.X_OK):
        raise NoBinaries(f"no kueue in {found}: `make kube-binaries` builds it (needs Go)")
    return found


@contextmanager
def at_work(plane: ControlPlane) -> Iterator[Server]:
    """Kueue with its definitions; they and all objects of its kinds are gone afterwards."""
    made = [_definition(path) for path in sorted((folder() / "crds").iterdir())]
    plane.api.create(_SECRETS, {"metadata": {"name": _SECRET}})
    for one in made:
        plane.api.create(_CRDS, one)
    for kind in ("workloads", "admissionchecks", "clusterqueues", "localqueues"):
        wait_until(lambda kind=kind: _is_served(plane.api, kind), f"{kind} are served")
    server = _manager(plane)
    server.start()
    try:
        yield server
    finally:
        server.kill()
        for one in made:
            plane.api.delete(f"{_CRDS}/{one['metadata']['name']}")
        plane.api.delete(f"{_SECRETS}/{_SECRET}")


@contextmanager
def a_queue(api: KubeApi, namespace: str) -> Iterator[str]:
    """A queue with quota for everything, whose workloads must pass our check.

    It goes once its workloads and their pods are gone, which is for others to see to.
    """
    api.create(f"{KUEUE}/resourceflavors", {**_kind("ResourceFlavor"), **_named("any")})
    check = {"controllerName": "wattherd.dev/power"}
    api.create(
        f"{KUEUE}/admissionchecks", {**_kind("AdmissionCheck"), **_named("power"), "spec": check}
    )
    resources = [
        {"name": name, "nominalQuota": amount}
        for name, amount in (("cpu", "1000"), ("memory", "1000Gi"), ("nvidia.com/gpu", "1000"))
    ]
    spec = {
        "namespaceSelector": {},
        "resourceGroups": [
            {
                "coveredResources": [one["name"] for one in resources],
                "flavors": [{"name": "any", "resources": resources}],
            }
        ],
        "admissionChecksStrategy": {"admissionChecks": [{"name": "power"}]},
    }
    api.create(f"{KUEUE}/clusterqueues", {**_kind("ClusterQueue"), **_named("gpus"), "spec": spec})
    local = {**_kind("LocalQueue"), **_named("gpus"), "spec": {"clusterQueue": "gpus"}}
    api.create(f"{KUEUE}/namespaces/{namespace}/localqueues", local)
    try:
        yield "gpus"
    finally:
        pods, works = f"/api/v1/namespaces/{namespace}/pods", workloads
        wait_until(lambda: not works(api, namespace), "workloads are gone", within_s=PATIENCE_S)
        wait_until(lambda: not api.get(pods)["items"], "pods are gone", within_s=PATIENCE_S)
        for kind in ("clusterqueues/gpus", "admissionchecks/power", "resourceflavors/any"):
            api.call("DELETE", f"{KUEUE}/{kind}")


def workloads(api: KubeApi, namespace: str) -> list[Object]:
    found: list[Object] = api.get(f"{KUEUE}/namespaces/{namespace}/workloads")["items"]
    return found


def _kind(kind: str) -> Object:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind}


def _named(name: str) -> Object:
    return {"metadata": {"name": name}}


def _definition(path: Path) -> Object:
    """With a converter: Kueue writes its certificate there before it begins."""
    made: Object = yaml.safe_load(path.read_text())
    for version in made["spec"]["versions"]:
        version["served"] = version["storage"]
    client = {"url": "https://127.0.0.1:9/nobody-is-asked"}
    webhook = {"conversionReviewVersions": ["v1"], "clientConfig": client}
    made["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
    return made


def _is_served(api: KubeApi, kind: str) -> bool:
    return api.call("GET", f"{KUEUE}/{kind}")[0] == 200


def _manager(plane: ControlPlane) -> Server:
    health, webhook = free_ports(2)
    certificates = plane.folder / "kueue-certs"
    certificates.mkdir(exist_ok=True)
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(certificates / "tls.key")
    issued.cert_chain_pems[0].write_to_path(certificates / "tls.crt")
    config: Object = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": "default",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": webhook, "host": "127.0.0.1", "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": True, "webhookSecretName": _SECRET},
        "clientConnection": {"qps": 500, "burst": 1000},
        "integrations": {"frameworks": ["batch/job"]},
        "featureGates": {"VisibilityOnDemand": False},
    }
    path = plane.folder / "kueue.json"
    path.write_text(json.dumps(config))
    arguments = [f"--config={path}", f"--kubeconfig={plane.kubeconfig}"]
    ready = lambda: _healthy(f"http://127.0.0.1:{health}/readyz")  # noqa: E731
    return Server(folder() / "kueue", arguments, plane.log("kueue"), ready=ready)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False

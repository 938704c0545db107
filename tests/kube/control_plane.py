"""A real control plane on loopback: etcd, kube-apiserver, controllers, KWOK, schedulers.

Everything is made for one run and thrown away: certificates, keys, tokens, data. RBAC is on, the
admin is the one with `token`; others are service accounts that tests make.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from kube_api import KubeApi, Object
from kube_cluster import Cluster, healthy
from kube_server import Server, free_ports

STAGES = Path(__file__).with_name("kwok_stages.yaml")
PREFIX = "wattherd-kube-"
LOCK = "lock"
"""A file that a run holds locked as long as it lives."""

FREE_BYTES = 1 << 30
"""Room that data in memory must leave."""

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {
            "level": "Metadata",
            "verbs": ["create", "delete", "patch"],
            "resources": [{"group": "", "resources": ["pods", "pods/binding", "pods/eviction"]}],
        },
        {"level": "None"},
    ],
}
GANGS = "--feature-gates=GenericWorkload=true,GangScheduling=true"
POD_GROUPS = (
    f"{GANGS},WorkloadAwarePreemption=true",
    "--runtime-config=scheduling.k8s.io/v1alpha2=true",
)
"""Flags of an API server that serves native pod groups, which 1.36 does not by itself.

The last gate lets groups have priorities.
"""

LEASE_S = 40
"""Of nodes; KWOK renews four times as often, which costs large fleets more than all else."""


@dataclass(frozen=True, slots=True)
class Calm:
    """Of a plane whose nodes never fail: nobody renews their leases, nobody looks at them.

    Without the controller that takes the first taint from a node, none may be put on it either.
    """

    lease_s: int = 24 * 3600
    controllers: tuple[str, ...] = (
        "--controllers=namespace-controller,garbage-collector-controller,serviceaccount-controller",
    )
    apiserver: tuple[str, ...] = ("--disable-admission-plugins=TaintNodesByCondition",)


CALM = Calm()


class ControlPlane(Cluster):
    """One plane in a folder of its own; its parts can be killed and started again.

    Args:
        programs: the folder of the binaries.
        apiserver: further flags of the API server, such as `POD_GROUPS`.
        controllers: further flags of the controller manager.
        lease_s: how long the lease of a node lasts.
    """

    def __init__(
        self,
        programs: Path,
        *,
        apiserver: tuple[str, ...] = (),
        controllers: tuple[str, ...] = (),
        lease_s: int = LEASE_S,
    ) -> None:
        remove_abandoned()
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_place()))
        self._ports = dict(zip(("etcd", "peer", "api", "kwok"), free_ports(4), strict=True))
        url = f"https://127.0.0.1:{self._ports['api']}"
        super().__init__(folder, url, secrets.token_hex(16))
        self.programs = programs
        self._ours = (self.folder / "new").open("w")
        fcntl.flock(self._ours, fcntl.LOCK_EX)
        (self.folder / "new").rename(self.folder / LOCK)  # never there without being locked
        self._make_secrets()
        self.api = KubeApi(self.url, self.tls(), self.token)
        self.kubeconfig = self.kubeconfig_of(self.token)
        self.etcd = self._etcd()
        self.apiserver = self._apiserver(apiserver)
        self.controllers = self._controllers(controllers)
        self.kwok = self._kwok(lease_s)

    @classmethod
    def calm(cls, programs: Path) -> ControlPlane:
        """For thousands of nodes."""
        return cls(
            programs,
            apiserver=(*POD_GROUPS, *CALM.apiserver),
            controllers=CALM.controllers,
            lease_s=CALM.lease_s,
        )

    def start(self) -> None:
        self.etcd.start()
        self.apiserver.start()
        self.controllers.begin()
        self.kwok.start()

    def close(self) -> None:
        self.api.close()
        self.stop_schedulers()
        for server in (self.kwok, self.controllers, self.apiserver, self.etcd):
            server.resume()
            server.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._ours.close()

    # --- who may talk to it --------------------------------------------------------------------

    def _make_secrets(self) -> None:
        authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
        server = authority.issue_cert("127.0.0.1", "kubernetes.default.svc")
        authority.cert_pem.write_to_path(self.folder / "ca.crt")
        server.private_key_and_cert_chain_pem.write_to_path(self.folder / "api.pem")
        admin = authority.issue_cert(
            "admin.test", common_name="test-admin", organization_name="system:masters"
        )
        admin.cert_chain_pems[0].write_to_path(self.folder / "admin.crt")
        admin.private_key_pem.write_to_path(self.folder / "admin.key")
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        (self.folder / "accounts.key").write_bytes(pem)
        (self.folder / "tokens.csv").write_text(f"{self.token},test,test,system:masters\n")
        (self.folder / "audit.json").write_text(json.dumps(AUDIT_POLICY))

    # --- its parts -----------------------------------------------------------------------------

    def _etcd(self) -> Server:
        client, peer = (f"http://127.0.0.1:{self._ports[each]}" for each in ("etcd", "peer"))
        self.etcd_url = client
        arguments = [
            *("--data-dir", str(self.folder / "etcd"), "--unsafe-no-fsync", "--log-level=warn"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}", "--quota-backend-bytes", str(4 << 30)),
        ]
        ready = lambda: healthy(f"{client}/health")  # noqa: E731
        return Server(self.programs / "etcd", arguments, self.log("etcd"), ready=ready)

    def _apiserver(self, further: tuple[str, ...]) -> Server:
        folder = self.folder
        arguments = [
            f"--etcd-servers={self.etcd_url}",
            *("--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"),
            *(f"--secure-port={self._ports['api']}", "--service-cluster-ip-range=10.0.0.0/24"),
            f"--tls-cert-file={folder}/api.pem",
            f"--tls-private-key-file={folder}/api.pem",
            f"--client-ca-file={folder}/ca.crt",
            f"--token-auth-file={folder}/tokens.csv",
            *("--authorization-mode=RBAC", "--anonymous-auth=false"),
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder}/accounts.key",
            f"--service-account-signing-key-file={folder}/accounts.key",
            *(f"--audit-policy-file={folder}/audit.json", f"--audit-log-path={self.audit_log}"),
            *("--endpoint-reconciler-type=none", "--profiling=false"),
            *further,
        ]
        log = self.log("apiserver")
        return Server(self.programs / "kube-apiserver", arguments, log, ready=self.api.ready)

    def _controllers(self, further: tuple[str, ...]) -> Server:
        arguments = [
            *(f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--secure-port=0"),
            f"--service-account-private-key-file={self.folder}/accounts.key",
            f"--root-ca-file={self.folder}/ca.crt",
            *("--kube-api-qps=2000", "--kube-api-burst=4000", "--concurrent-gc-syncs=20"),
            *further,
        ]
        program = self.programs / "kube-controller-manager"
        return Server(program, arguments, self.log("controllers"), ready=lambda: True)

    def _kwok(self, lease_s: int) -> Server:
        address = f"127.0.0.1:{self._ports['kwok']}"
        arguments = [
            *(f"--kubeconfig={self.kubeconfig}", f"--config={STAGES}"),
            *(f"--server-address={address}", f"--node-lease-duration-seconds={lease_s}"),
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        ]
        ready = lambda: healthy(f"http://{address}/healthz")  # noqa: E731
        return Server(self.programs / "kwok", arguments, self.log("kwok"), ready=ready)

    # --- what is left to read ------------------------------------------------------------------

    @property
    def audit_log(self) -> Path:
        return self.folder / "audit.log"

    def audit(self) -> Iterator[Object]:
        """What clients did to pods, in the order in which the API server answered."""
        with self.audit_log.open() as lines:
            for line in lines:
                yield json.loads(line)


def remove_abandoned() -> None:
    """The folders of runs that were killed: their locks are free, and memory is dear."""
    for lock in Path(_place()).glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError), lock.open("a") as held:  # another user's, or in use
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent)


def _place() -> str:
    """Memory for the data, where there is enough: tests wait less for it than for a disk."""
    shared = Path("/dev/shm")
    fits = shared.is_dir() and shutil.disk_usage(shared).free > FREE_BYTES
    return str(shared) if fits else tempfile.gettempdir()

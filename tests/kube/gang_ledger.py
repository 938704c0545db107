"""Gangs for tests, and a ledger of all that happens to their pods, in the API server's order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from kube_api import KubeApi, Object, a_pod
from kube_server import wait_until
from kube_watch import Watch

GROUPS_API = "scheduling.k8s.io/v1alpha2"
GANG = "test.wattherd.dev/gang"
"""The label by which the ledger knows gangs, whatever they are to schedulers."""
_END = "end-of-ledger"


@dataclass(frozen=True, slots=True)
class Gang:
    """`size` pods of one GPU that run for `runs` once bound; `native` or by Kueue's label."""

    name: str
    size: int
    runs: str
    native: bool

    def group(self) -> Object:
        """The native pod group."""
        return {
            "apiVersion": GROUPS_API,
            "kind": "PodGroup",
            "metadata": {"name": self.name},
            "spec": {"schedulingPolicy": {"gang": {"minCount": self.size}}},
        }

    def pods(self, scheduler: str) -> list[Object]:
        labels, annotations, spec = {GANG: self.name}, {}, {}
        if self.native:
            spec = {"schedulingGroup": {"podGroupName": self.name}}
        else:
            labels["kueue.x-k8s.io/pod-group-name"] = self.name
            annotations["kueue.x-k8s.io/pod-group-total-count"] = str(self.size)
        return [
            a_pod(
                f"{self.name}-{n}",
                gpus=1,
                scheduler=scheduler,
                runs=self.runs,
                spec=spec,
                labels=labels,
                annotations=annotations,
            )
            for n in range(self.size)
        ]


def create(api: KubeApi, namespace: str, gang: Gang, scheduler: str, *, all_but: int = 0) -> None:
    """The gang's group if it is native, and its pods; the last ones are left out if so asked."""
    if gang.native:
        api.create(f"/apis/{GROUPS_API}/namespaces/{namespace}/podgroups", gang.group())
    made = gang.pods(scheduler)
    api.create_all(f"/api/v1/namespaces/{namespace}/pods", made[: gang.size - all_but], threads=4)


@dataclass(slots=True)
class Account:
    """What is known of one gang: its pods that were ever bound, ended, or taken away unfinished."""

    size: int
    bound: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    began_at: int = 0
    """Number of the change that bound its first pod; 0 before."""
    first_s: float = 0.0
    whole_s: float = 0.0

    @property
    def whole(self) -> bool:
        return len(self.bound) == self.size

    @property
    def over(self) -> bool:
        return len(self.ended) == self.size

    def claims(self) -> int:
        """GPUs that it has, or is sure to get: all of it, from its first pod on."""
        return self.size - len(self.ended) if self.began_at else 0


class Ledger:
    """Accounts by gang, kept by a thread that watches; `most_claimed` at any one time."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self.told: dict[str, set[str]] = {}
        """What pods that waited were told, by gang."""
        self.moved: list[str] = []
        """Pods that were on more than one node, which nobody may be."""
        self.most_claimed = 0
        self._claimed = 0
        self._node_of: dict[str, str] = {}
        self._changes = 0
        self._lock = threading.Lock()

    def open(self, gang: Gang) -> None:
        """Before its first pod is made."""
        with self._lock:
            self.accounts[gang.name] = Account(gang.size)

    def all(self) -> dict[str, Account]:
        """As of now, for those who look while it is being kept."""
        with self._lock:
            return dict(self.accounts)

    def keep(self, watch: Watch) -> None:
        """Until the pod comes that says it is over."""
        for kind, pod in watch.changes():
            if pod["metadata"]["name"] == _END:
                return
            self._changes += 1
            with self._lock:
                self._note(kind, pod)

    def _note(self, kind: str, pod: Object) -> None:
        gang = pod["metadata"]["labels"][GANG]
        account, uid = self.accounts[gang], pod["metadata"]["uid"]
        before = account.claims()
        node = pod["spec"].get("nodeName")
        if node:
            self._seat(account, uid, node)
        if pod["status"].get("phase") == "Succeeded":
            account.ended.add(uid)
        if kind == "DELETED" and uid not in account.ended:
            account.removed.add(uid)
        for each in pod["status"].get("conditions", ()):
            if each["type"] == "PodScheduled" and each["status"] == "False":
                self.told.setdefault(gang, set()).add(each.get("message", ""))
        self._claimed += account.claims() - before
        self.most_claimed = max(self.most_claimed, self._claimed)

    def _seat(self, account: Account, uid: str, node: str) -> None:
        if self._node_of.setdefault(uid, node) != node:
            self.moved.append(uid)
        if uid not in account.bound:
            account.bound.add(uid)
            if not account.began_at:
                account.began_at, account.first_s = self._changes, time.monotonic()
            if account.whole:
                account.whole_s = time.monotonic()


@contextmanager
def kept(api: KubeApi, namespace: str, *, silence_s: float) -> Iterator[Ledger]:
    """A ledger of a namespace in which all pods are of gangs; complete when this is left."""
    ledger, path = Ledger(), f"/api/v1/namespaces/{namespace}/pods"
    with Watch(api, path, silence_s=silence_s) as watch, ThreadPoolExecutor(1) as pool:
        keeping = pool.submit(ledger.keep, watch)
        try:
            yield ledger
        finally:
            api.create(path, a_pod(_END, scheduler="nobody"))
            wait_until(keeping.done, "the ledger has seen everything", within_s=2 * silence_s)
    keeping.result()

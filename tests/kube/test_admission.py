"""`wattherd kube admit` on a real control plane, with a stock kube-scheduler that binds."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kube_ledger
import pytest
import safe_copies
import yaml
from control_plane import ControlPlane
from kube_api import KubeApi, Object, Refused, a_node, a_pod
from kube_server import end, wait_until
from shipped_rights import kind_path
from term_fence import fenced

from promises import promise

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
POLICIES = "/apis/admissionregistration.k8s.io/v1"
GATED = {"wattherd.dev/admission": "gate"}
IDLE_W, RISE_W = 10, 60
"""Of a T4 that is free, and what it adds in use, by the catalog."""
EVERY_S = 0.2
PATIENCE_S = 240.0


@pytest.fixture(scope="module")
def gate(plane: ControlPlane) -> Iterator[None]:
    """The shipped policy in force."""
    made = list(yaml.safe_load_all((DEPLOY / "chart" / "files" / "gate-policy.yaml").read_text()))
    for one in made:
        plane.api.create(kind_path(one), one)
    wait_until(
        lambda: _gates(_tried(plane.api)) == ["wattherd.dev/power"], "the policy is in force"
    )
    yield
    for one in made:
        plane.api.delete(f"{kind_path(one)}/{one['metadata']['name']}")


def _tried(api: KubeApi, **more: Any) -> Object:
    """What would be made of a pod, without making it."""
    labels = more.pop("labels", GATED)
    made = a_pod("tried", labels=labels, **more)
    return api.as_made("default", made)


def _gates(pod: Object) -> list[str]:
    return [one["name"] for one in pod["spec"].get("schedulingGates", ())]


@pytest.fixture
def binds(plane: ControlPlane) -> Iterator[None]:
    """A stock kube-scheduler at work."""
    scheduler = plane.scheduler(name="admission-scheduler")
    scheduler.start()
    yield
    scheduler.kill()


@contextmanager
def admitting(
    kubeconfig: Path, *options: str, health: str = "127.0.0.1:0"
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "wattherd.cli.main", "kube", "admit"]
    given = [f"--kubeconfig={kubeconfig}", f"--health={health}", *options]
    with subprocess.Popen([*command, *given], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = [process.stderr.readline() for _ in range(2)]
            assert "wattherd.dev/power" in lines[1], [*lines, process.stderr.read()]
            yield process
        finally:
            end(process)


@contextmanager
def racks(api: KubeApi, prefix: str, *, count: int, gpus: int = 8) -> Iterator[list[str]]:
    """Nodes of T4s, half of them in each of two power domains."""
    product = {"nvidia.com/gpu.product": "Tesla-T4"}
    nodes = [
        a_node(
            f"{prefix}-{row}",
            gpus=gpus,
            labels=product | {"wattherd.dev/power-domain": f"{prefix}-{row % 2}"},
        )
        for row in range(count)
    ]
    names = api.fleet(nodes)
    try:
        yield names
    finally:
        api.remove_nodes(names)


def pods_of(api: KubeApi, namespace: str) -> list[Object]:
    found: list[Object] = api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return found


def released(api: KubeApi, namespace: str) -> dict[str, str]:
    """Domains of the pods that are not gated any more."""
    return {
        pod["metadata"]["name"]: pod["metadata"]["annotations"]["wattherd.dev/power-domain"]
        for pod in pods_of(api, namespace)
        if not _gates(pod)
    }


def bound(api: KubeApi, namespace: str) -> dict[str, str]:
    return {
        pod["metadata"]["name"]: pod["spec"]["nodeName"]
        for pod in pods_of(api, namespace)
        if pod["spec"].get("nodeName")
    }


class Sampled:
    """Released pods of each domain, and those bound to its nodes, again and again."""

    def __init__(self, api: KubeApi, namespace: str, domain_of: dict[str, str]) -> None:
        self.most: dict[str, int] = {}
        self.most_together = 0
        self.looks = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(api, namespace, domain_of))
        self._thread.start()

    def _look(self, api: KubeApi, namespace: str, domain_of: dict[str, str]) -> None:
        while not self._over.wait(EVERY_S):
            self.looks += 1
            counts: dict[str, int] = {}
            for pod in pods_of(api, namespace):
                if _gates(pod):
                    continue
                domain = pod["metadata"]["annotations"]["wattherd.dev/power-domain"]
                node = pod["spec"].get("nodeName")
                assert node is None or domain_of[node] == domain
                counts[domain] = counts.get(domain, 0) + 1
            self.most_together = max(self.most_together, sum(counts.values()))
            for domain, count in counts.items():
                self.most[domain] = max(self.most.get(domain, 0), count)

    def close(self) -> None:
        self._over.set()
        self._thread.join()


def test_the_policy_gates_what_is_meant_and_nothing_else(plane: ControlPlane, gate: None) -> None:
    del gate
    api = plane.api
    assert _gates(_tried(api)) == ["wattherd.dev/power"]
    assert _gates(_tried(api, labels={})) == []
    assert _gates(_tried(api, labels={"wattherd.dev/admission": "claim"})) == []
    other = {"schedulingGates": [{"name": "example.com/other"}]}
    assert sorted(_gates(_tried(api, spec=other))) == ["example.com/other", "wattherd.dev/power"]


def test_a_namespace_asks_for_its_gpu_pods(plane: ControlPlane, namespace: str, gate: None) -> None:
    del gate
    api = plane.api
    api.merge(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": GATED}})
    gated = lambda **pod: _gates(api.as_made(namespace, a_pod("tried", **pod)))  # noqa: E731
    wait_until(lambda: gated(gpus=1) == ["wattherd.dev/power"], "the namespace's label is seen")
    assert gated(gpus=0) == []
    evading = {
        "wattherd.dev/admission": "none"
    }  # who makes pods does not decide whether they count
    assert gated(gpus=1, labels=evading) == ["wattherd.dev/power"]


SITE, DOMAINS = 19, {"gate-0": 12, "gate-1": 8}
"""So many GPUs have watts, in both domains and in each."""
GATE_NODES, GATE_GPUS = 6, 8


@pytest.fixture
def domain_of(plane: ControlPlane) -> Iterator[dict[str, str]]:
    """Of each node of two domains."""
    with racks(plane.api, "gate", count=GATE_NODES, gpus=GATE_GPUS) as nodes:
        yield {name: f"gate-{row % 2}" for row, name in enumerate(nodes)}


def scarce(namespace: str) -> list[str]:
    """Options of who hands out these watts."""
    idle_w = GATE_NODES // 2 * GATE_GPUS * IDLE_W
    budgets = [f"--budget={name}={idle_w + fit * RISE_W}W" for name, fit in DOMAINS.items()]
    site = f"--budget={2 * idle_w + SITE * RISE_W}W"
    return [f"--lease={namespace}/wattherd", *budgets, site]


@contextmanager
def keeps_budgets(api: KubeApi, namespace: str, domain_of: dict[str, str]) -> Iterator[None]:
    """Whatever happens meanwhile; all that is to spend is spent."""
    seen = Sampled(api, namespace, domain_of)
    try:
        yield
    finally:
        seen.close()
    assert seen.looks > 5
    promise(all(seen.most[name] <= fit for name, fit in DOMAINS.items()), seen.most)
    assert seen.most_together == SITE


def make_200(api: KubeApi, namespace: str) -> None:
    made = [a_pod(f"r-{n}", gpus=1, labels=GATED) for n in range(200)]
    api.create_all(f"/api/v1/namespaces/{namespace}/pods", made)


def wait_full(api: KubeApi, namespace: str, why: str) -> None:
    wait_until(lambda: len(bound(api, namespace)) == SITE, why, within_s=PATIENCE_S)


def end_five_and_wait(api: KubeApi, namespace: str, health: str) -> None:
    """Others follow, by whoever answers at `health` and counts what there is, no more."""
    for name in sorted(bound(api, namespace))[:5]:
        api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", gracePeriodSeconds=0)
    wait_full(api, namespace, "others follow")
    for domain in DOMAINS:
        kube_ledger.wait_nothing_leaked(api, health, domain)


def test_no_budget_is_exceeded_by_200_pods_two_copies_and_a_killed_leader(
    plane: ControlPlane, namespace: str, gate: None, binds: None, domain_of: dict[str, str]
) -> None:
    """Watts of 12 in one domain and 8 in the other, of 19 together; then the leader is killed."""
    del gate, binds
    api, options = plane.api, scarce(namespace)
    health = [kube_ledger.an_address() for _ in range(2)]
    with (
        fenced(api, namespace, "wattherd", "admit"),
        admitting(plane.kubeconfig, *options, health=health[0]) as one,
        admitting(plane.kubeconfig, *options, health=health[1]) as other,
        keeps_budgets(api, namespace, domain_of),
    ):
        make_200(api, namespace)
        wait_full(api, namespace, "all that fit run")
        copies = [one, other]
        leader = _leader(api, namespace, copies)
        leader.kill()
        leader.wait()
        end_five_and_wait(api, namespace, health[1 - copies.index(leader)])


def test_no_budget_is_exceeded_when_it_is_killed_in_a_race_and_started_again(
    plane: ControlPlane, namespace: str, gate: None, binds: None, domain_of: dict[str, str]
) -> None:
    """Released pods that nobody bound yet count for who comes next, too."""
    del gate, binds
    api, options, health = plane.api, scarce(namespace), kube_ledger.an_address()
    with keeps_budgets(api, namespace, domain_of):
        with admitting(plane.kubeconfig, *options):
            safe_copies.kill_holder_amid(
                api, namespace, "wattherd",
                lambda: make_200(api, namespace), lambda: released(api, namespace),
            )  # fmt: skip
        with admitting(plane.kubeconfig, *options, health=health):
            wait_full(api, namespace, "all that fit run")
            end_five_and_wait(api, namespace, health)


def _leader(
    api: KubeApi, namespace: str, copies: list[subprocess.Popen[str]]
) -> subprocess.Popen[str]:
    lease = api.get(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/wattherd")
    holder = lease["spec"]["holderIdentity"]
    return next(copy for copy in copies if f"-{copy.pid}-" in holder)


def test_gangs_are_released_whole_and_who_waits_is_told_why(
    plane: ControlPlane, namespace: str, gate: None, binds: None
) -> None:
    del gate, binds
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    budget_w = 2 * 4 * IDLE_W + 3 * RISE_W
    with (
        racks(api, "gang", count=2, gpus=4),
        admitting(plane.kubeconfig, f"--budget={budget_w}W"),
    ):
        api.create_all(pods, gang("two", 2))
        wait_until(lambda: len(bound(api, namespace)) == 2, "the gang runs")
        api.create_all(pods, gang("other", 2))
        wait_until(lambda: _why(api, namespace, "other-0"), "told why")
        assert set(released(api, namespace)) == {"two-0", "two-1"}
        for name in ("two-0", "two-1"):
            api.delete(f"{pods}/{name}", gracePeriodSeconds=0)
        wait_until(lambda: set(bound(api, namespace)) == {"other-0", "other-1"}, "its turn comes")


def gang(name: str, count: int) -> list[Object]:
    labels = GATED | {"kueue.x-k8s.io/pod-group-name": name}
    size = {"kueue.x-k8s.io/pod-group-total-count": str(count)}
    return [a_pod(f"{name}-{n}", gpus=1, labels=labels, annotations=size) for n in range(count)]


def _why(api: KubeApi, namespace: str, name: str) -> str:
    conditions = api.pod(namespace, name)["status"].get("conditions", ())
    said = {one["type"]: one for one in conditions}.get("PodScheduled", {})
    assert said.get("reason", "SchedulingGated") == "SchedulingGated"
    message: str = said.get("message", "")
    return message if "Waiting" in message else ""


def test_wishes_of_a_pod_are_kept_and_narrowed(
    plane: ControlPlane, namespace: str, gate: None
) -> None:
    """Each of its terms gets the domain and the model; what it said before stays."""
    del gate
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    own = {"key": "type", "operator": "In", "values": ["kwok"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [own]}]}
    spec = {
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required},
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname"}}
                ]
            },
        }
    }
    with racks(api, "wish", count=1), admitting(plane.kubeconfig):
        api.create(pods, a_pod("one", gpus=1, labels=GATED, spec=spec))
        wait_until(lambda: released(api, namespace), "it is released")
        affinity = api.pod(namespace, "one")["spec"]["affinity"]
        assert affinity["podAntiAffinity"] == spec["affinity"]["podAntiAffinity"]
        [term] = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        keys = [each["key"] for each in term["matchExpressions"]]
        assert keys == ["type", "wattherd.dev/power-domain", "nvidia.com/gpu.product"]
        with pytest.raises(Refused, match="may not change fields"):
            api.merge(f"{pods}/one", {"spec": {"nodeSelector": {"a": "b"}}})

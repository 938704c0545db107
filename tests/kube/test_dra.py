"""`wattherd kube dra` on a real control plane: a stock kube-scheduler keeps the power budgets."""

from __future__ import annotations

import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safe_copies
import yaml
from control_plane import ControlPlane
from kube_api import KubeApi, Object, a_pod
from kube_server import end, wait_until
from shipped_rights import kind_path
from t4_racks import RISE_W, Racks

from promises import promise

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
DRA = "/apis/resource.k8s.io/v1"
CLAIMS = {"wattherd.dev/admission": "claim"}
RACKS = Racks("dra", nodes=6)
EVERY_S = 0.2
PATIENCE_S = 240.0


@pytest.fixture(scope="module")
def claims(plane: ControlPlane) -> Iterator[None]:
    """The shipped class and policy in force."""
    made = list(yaml.safe_load_all((DEPLOY / "chart" / "files" / "claim-policy.yaml").read_text()))
    for one in made:
        plane.api.create(kind_path(one), one)
    wait_until(lambda: template_of(tried(plane.api, gpus=1)), "the policy is in force")
    yield
    for one in made:
        plane.api.delete(f"{kind_path(one)}/{one['metadata']['name']}")


@pytest.fixture
def binds(plane: ControlPlane) -> Iterator[None]:
    """A stock kube-scheduler at work."""
    scheduler = plane.scheduler(name="dra-scheduler")
    scheduler.start()
    yield
    scheduler.kill()


def tried(api: KubeApi, **more: Any) -> Object:
    """What would be made of a pod, without making it."""
    labels = more.pop("labels", CLAIMS)
    return api.as_made("default", a_pod("tried", labels=labels, **more))


def template_of(pod: Object) -> str:
    named = pod["spec"].get("resourceClaims", [{"resourceClaimTemplateName": ""}])
    return str(named[0]["resourceClaimTemplateName"])


@contextmanager
def publishing(kubeconfig: Path, *options: str) -> Iterator[str]:
    """The command at work; where its metrics are."""
    command = [sys.executable, "-m", "wattherd.cli.main", "kube", "dra"]
    given = [f"--kubeconfig={kubeconfig}", "--health=127.0.0.1:0", *options]
    with subprocess.Popen([*command, *given], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert line.startswith("health on "), line + process.stderr.read()
            yield line.removeprefix("health on ").strip()
        finally:
            end(process)


@pytest.fixture
def racks(plane: ControlPlane) -> Iterator[dict[str, str]]:
    """Power domains by node."""
    with RACKS.made(plane.api) as domains:
        yield domains


def bound(api: KubeApi, namespace: str) -> dict[str, str]:
    items = api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return {
        pod["metadata"]["name"]: pod["spec"]["nodeName"]
        for pod in items
        if pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp")
    }


def claimed_w(api: KubeApi, namespace: str) -> dict[str, int]:
    """Watts that the claims of bound pods hold, by pool."""
    pods = bound(api, namespace)
    found: dict[str, int] = {}
    for claim in api.get(f"{DRA}/namespaces/{namespace}/resourceclaims")["items"]:
        users = {one["name"] for one in claim.get("status", {}).get("reservedFor", ())}
        if users & pods.keys():
            for one in claim["status"]["allocation"]["devices"]["results"]:
                watts = int(one["consumedCapacity"]["watts"])
                found[one["pool"]] = found.get(one["pool"], 0) + watts
    return found


def wait_nothing_leaked(api: KubeApi, namespace: str, url: str, racks: dict[str, str]) -> None:
    """Until what it counts as claimed is that of bound pods, in each domain and at the site."""

    def missing() -> list[str]:
        on: Counter[str] = Counter()
        for node in bound(api, namespace).values():
            on.update(["", racks[node]])
        told = metrics(url).splitlines()
        lines = (f'wattherd_kube_claimed_watts{{domain="{name}"}} {on[name] * RISE_W:.1f}'
                 for name in ("", *set(racks.values())))  # fmt: skip
        return [line for line in lines if line not in told]

    wait_until(lambda: not missing(), lambda: f"{missing()} in {metrics(url)}")


class Sampled:
    """The most that was ever seen claimed of each pool, and bound in each domain."""

    def __init__(self, api: KubeApi, namespace: str, domains: dict[str, str]) -> None:
        self.most: dict[str, int] = {}
        self.looks = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(api, namespace, domains))
        self._thread.start()

    def _look(self, api: KubeApi, namespace: str, domains: dict[str, str]) -> None:
        while not self._over.wait(EVERY_S):
            self.looks += 1
            seen = claimed_w(api, namespace)
            nodes = list(bound(api, namespace).values())
            for domain in set(domains.values()):
                on = sum(domains[node] == domain for node in nodes)
                seen[f"bound in {domain}"] = on * RISE_W
            seen["bound"] = len(nodes) * RISE_W
            for name, watts in seen.items():
                self.most[name] = max(self.most.get(name, 0), watts)

    def close(self) -> None:
        self._over.set()
        self._thread.join()


def test_the_policy_writes_claims_for_gpus_and_models(plane: ControlPlane, claims: None) -> None:
    del claims
    api = plane.api
    assert template_of(tried(api, gpus=2)) == "wattherd-2-gpus-any"
    model = {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA_A100.80GB"}}
    assert template_of(tried(api, gpus=1, spec=model)) == "wattherd-1-gpus-nvidia-a100-80gb"
    assert template_of(tried(api)) == ""
    assert template_of(tried(api, gpus=1, labels={})) == ""
    gpu = {"resources": {"limits": {"nvidia.com/gpu": "1"}}, "image": "x"}
    before = [
        {"name": "side", "restartPolicy": "Always", **gpu},
        {"name": "first", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "3"}}},
    ]
    assert template_of(tried(api, gpus=1, spec={"initContainers": before})) == "wattherd-4-gpus-any"


def test_no_budget_is_exceeded_by_200_pods_nor_by_a_restart(
    plane: ControlPlane, namespace: str, claims: None, binds: None, racks: dict[str, str]
) -> None:
    """Watts of 7 and 5 GPUs in the racks, of 10 in both; budgets are raised by a restart."""
    del claims, binds
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    seen = Sampled(api, namespace, racks)
    try:
        with publishing(plane.kubeconfig, *RACKS.budgets(7, 5, 10)) as url:
            api.create_all(pods, [a_pod(f"r-{n}", gpus=1, labels=CLAIMS) for n in range(200)])
            wait_until(lambda: len(bound(api, namespace)) == 10, "all that fit run",
                       within_s=PATIENCE_S)  # fmt: skip
            wait_nothing_leaked(api, namespace, url, racks)
        first = dict(seen.most)
        for name in sorted(bound(api, namespace))[:3]:
            api.delete(f"{pods}/{name}", gracePeriodSeconds=0)
        wait_until(lambda: len(bound(api, namespace)) == 10, "budgets hold with nobody there",
                   within_s=PATIENCE_S)  # fmt: skip
        with publishing(plane.kubeconfig, *RACKS.budgets(7, 5, 12)) as url:
            wait_until(lambda: len(bound(api, namespace)) == 12, "two more run",
                       within_s=PATIENCE_S)  # fmt: skip
            wait_nothing_leaked(api, namespace, url, racks)
    finally:
        seen.close()
    assert first["bound"] == 600
    promise(seen.most["bound in dra-rack-0"] <= 420, seen.most)
    promise(seen.most["bound in dra-rack-1"] <= 300, seen.most)
    promise(seen.most["bound"] <= 720, seen.most)
    assert seen.most["bound"] == seen.most["level-0.site"] == 720
    assert seen.looks > 5


def metrics(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def is_gone(url: str) -> bool:
    try:
        return not metrics(url)
    except OSError:
        return True


def test_a_cut_below_use_evicts_the_least_important(
    plane: ControlPlane, namespace: str, claims: None, binds: None, racks: dict[str, str]
) -> None:
    del claims, binds, racks
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    low = f"{namespace}-low"
    api.create(classes, {"metadata": {"name": low}, "value": -10})
    with publishing(plane.kubeconfig, *RACKS.budgets(4, 4, 6)):
        api.create_all(pods, [a_pod(f"a-{n}", gpus=1, labels=CLAIMS) for n in range(3)])
        less = {"priorityClassName": low}
        api.create_all(pods, [a_pod(f"b-{n}", gpus=1, labels=CLAIMS, spec=less) for n in range(3)])
        wait_until(lambda: len(bound(api, namespace)) == 6, "all run", within_s=PATIENCE_S)
    with publishing(plane.kubeconfig, *RACKS.budgets(4, 4, 3)):
        wait_until(lambda: set(bound(api, namespace)) == {"a-0", "a-1", "a-2"}, "b is ended",
                   within_s=PATIENCE_S)  # fmt: skip
    api.delete(f"{classes}/{low}")


def test_watts_that_pods_without_a_claim_take_are_not_offered(
    plane: ControlPlane, namespace: str, claims: None, binds: None, racks: dict[str, str]
) -> None:
    del claims, binds, racks
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    api.create_all(pods, [a_pod(f"plain-{n}", gpus=1) for n in range(2)])
    wait_until(lambda: len(bound(api, namespace)) == 2, "plain pods run")
    with publishing(plane.kubeconfig, *RACKS.budgets(12, 12, 5)):
        wait_until(lambda: site_w(api) == str(3 * RISE_W), lambda: f"offered: {site_w(api)}")
        api.delete(f"{pods}/plain-0", gracePeriodSeconds=0)
        wait_until(lambda: site_w(api) == str(4 * RISE_W), lambda: f"offered: {site_w(api)}")


def site_w(api: KubeApi) -> str:
    status, found = api.call("GET", f"{DRA}/resourceslices/wattherd.level-0.site")
    return str(found["spec"]["devices"][0]["capacity"]["watts"]["value"]) if status == 200 else ""


@contextmanager
def race(
    api: KubeApi, namespace: str, racks: dict[str, str]
) -> Iterator[tuple[tuple[str, ...], Callable[[], str]]]:
    """Options with watts for 10, and 200 pods amid which the leader is killed; budgets are kept."""
    pods = [a_pod(f"r-{n}", gpus=1, labels=CLAIMS) for n in range(200)]
    path = f"/api/v1/namespaces/{namespace}/pods"
    make, there = partial(api.create_all, path, pods), partial(bound, api, namespace)
    begin = partial(safe_copies.kill_holder_amid, api, namespace, "dra", make, there)
    with closing(Sampled(api, namespace, racks)) as seen:
        yield (*RACKS.budgets(7, 5, 10), f"--lease={namespace}/dra"), begin
    promise(seen.most["bound in dra-rack-0"] <= 420, seen.most)
    promise(seen.most["bound in dra-rack-1"] <= 300, seen.most)
    promise(seen.most["bound"] <= 600, seen.most)
    assert seen.looks > 5


def wait_full(api: KubeApi, namespace: str) -> None:
    wait_until(lambda: len(bound(api, namespace)) == 10, "all that fit run",
               within_s=PATIENCE_S)  # fmt: skip


def test_no_budget_is_exceeded_by_two_copies_whose_leader_is_killed_in_a_race(
    plane: ControlPlane, namespace: str, claims: None, binds: None, racks: dict[str, str]
) -> None:
    del claims, binds
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    with (
        race(api, namespace, racks) as (given, begin),
        publishing(plane.kubeconfig, *given) as one,
        publishing(plane.kubeconfig, *given) as other,
    ):
        killed = begin()
        wait_full(api, namespace)
        safe_copies.wait_succeeded(api, namespace, "dra", killed)
        for name in sorted(bound(api, namespace))[:3]:
            api.delete(f"{pods}/{name}", gracePeriodSeconds=0)
        wait_full(api, namespace)
        wait_nothing_leaked(api, namespace, other if is_gone(one) else one, racks)


def test_no_budget_is_exceeded_when_it_is_killed_in_a_race_and_started_again(
    plane: ControlPlane, namespace: str, claims: None, binds: None, racks: dict[str, str]
) -> None:
    del claims, binds
    api = plane.api
    with race(api, namespace, racks) as (given, begin):
        with publishing(plane.kubeconfig, *given):
            begin()
        with publishing(plane.kubeconfig, *given) as url:
            wait_full(api, namespace)
            wait_nothing_leaked(api, namespace, url, racks)

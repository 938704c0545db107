"""Pages for operators of Kubernetes, each command of them, on a real control plane.

A stock kube-scheduler and wattherd's own are at work; what a release would run as pods is run as a
process beside it. What needs a provider's account or a kubelet is marked as text on the pages. A
page takes minutes where decisions are not compiled yet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import ControlPlane
from foreign_kinds import served
from helm_chart import CHART, Tools
from kube_api import a_node, a_pod
from kube_binaries import NoBinaries
from kube_server import wait_until
from kueue_manager import KUEUE, at_work
from page_walk import followed, one_that, reader
from power_api import DEFINITIONS, shipped
from test_second_scheduler import a_scheduler

NODES = ("gpu-7", "gpu-8", "gpu-9")
T4 = {"nvidia.com/gpu.product": "Tesla-T4"}
VOLCANO = ("scheduling.volcano.sh", "v1beta1", "PodGroup")
RELEASE = ("wattherd", "--namespace=wattherd")


@pytest.fixture(scope="module")
def _cluster(plane: ControlPlane) -> Iterator[None]:
    """Three nodes, Volcano's groups, and who schedules."""
    stock = plane.scheduler(name="pages-scheduler")
    stock.start()
    names = plane.api.fleet(a_node(name, gpus=4, labels=T4) for name in NODES)
    with served(plane.api, {"podgroups": VOLCANO}), a_scheduler(plane, "wattherd"):
        yield
    plane.api.remove_nodes(names)
    stock.kill()


@pytest.fixture
def tools(plane: ControlPlane, tmp_path: Path, _cluster: None) -> Iterator[Tools]:
    """At hand; whatever a page left is taken away, as others use the same control plane."""
    if not (plane.programs / "helm").exists():
        pytest.skip(f"no helm in {plane.programs}: `make kube-binaries` builds it (needs Go)")
    made = reader(plane, tmp_path)
    yield made
    made.run("helm", "uninstall", *RELEASE, "--ignore-not-found")
    made.run("kubectl", "delete", "namespace", "wattherd", "research", "--ignore-not-found")
    for one in shipped():
        plane.api.call("DELETE", f"{DEFINITIONS}/{one['metadata']['name']}")
    gone = lambda: all(  # noqa: E731
        plane.api.call("GET", f"{DEFINITIONS}/{one['metadata']['name']}")[0] == 404
        for one in shipped()
    )
    wait_until(gone, "our kinds are gone")


@pytest.fixture
def installed(tools: Tools) -> Tools:
    """As after the page on installing."""
    values = {"image": {"repository": "registry.example/wattherd"}, "budgets": ["40kW"]}
    given = tools.values(values)
    tools.run("helm", "install", *RELEASE, str(CHART), "--create-namespace", given)
    return tools


@pytest.mark.timeout(1200)
def test_where_clusters_are(tools: Tools) -> None:
    said = followed(tools, "kubernetes-where")
    there = one_that(said, "kubectl get deployments,daemonsets,networkpolicies")
    for name in ("deployment.apps/wattherd-pools", "daemonset.apps/wattherd-agent"):
        assert name in there
    assert "mutatingadmissionpolicies" in one_that(said, "--api-group=admissionregistration")
    assert "resourceslices" in one_that(said, "--api-group=resource.k8s.io")
    assert one_that(said, "auth can-i").strip() == "yes"
    assert "test" in one_that(said, "wattherd kube clusters")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_moving_from_another_scheduler(installed: Tools, plane: ControlPlane) -> None:
    api = plane.api
    try:
        with at_work(plane):
            spec = {"namespaceSelector": {}}
            queue = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue"}
            queue |= {"metadata": {"name": "gpus"}, "spec": spec}
            api.create(f"{KUEUE}/clusterqueues", queue)
            said = followed(installed, "kubernetes-migrate")
            left = api.get(f"{KUEUE}/clusterqueues/gpus")["spec"]
            api.delete(f"{KUEUE}/clusterqueues/gpus")
    except NoBinaries as absent:
        pytest.skip(str(absent))
    pod, node, watts = one_that(said, "custom-columns").splitlines()[1].split()
    assert pod.startswith("trial-")
    assert node in {"gpu-7", "gpu-8"}
    assert watts == "60"
    assert "condition met" in one_that(said, "wait", "worker-0")
    assert not left.get("admissionChecksStrategy")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_trying_it_beside_production(installed: Tools) -> None:
    said = followed(installed, "kubernetes-staging")
    assert "feasible" in one_that(said, "wattherd kube simulate")
    assert "asked" in one_that(said, "wattherd explain")
    assert "wattherd-next" in one_that(said, "kubectl get leases")
    assert json.loads((installed.at / "cluster.json").read_text())
    assert json.loads((installed.at / "tighter.json").read_text())


@pytest.mark.timeout(1200)
def test_operating_it(installed: Tools) -> None:
    installed.run("kubectl", "apply", "-f", str(CHART / "crds"))
    established = ("--for=condition=Established", "--timeout=60s")
    installed.run("kubectl", "wait", *established, "-f", str(CHART / "crds"))
    said = followed(installed, "kubernetes-operate")
    assert "deployment.apps/wattherd" in one_that(said, "kubectl get deployments")
    assert "constant: 75%" in one_that(said, "kubectl get powerbudget heat-wave")
    assert "Rollback was a success" in one_that(said, "helm rollback")
    assert "gpu-7 drained" in one_that(said, "kubectl drain")
    assert "PowerDomain" in (installed.at / "wattherd-objects.yaml").read_text()
    assert "40kW" in (installed.at / "my-values-as-installed.yaml").read_text()


@pytest.mark.timeout(1200)
def test_when_something_is_wrong(installed: Tools, plane: ControlPlane) -> None:
    installed.run("kubectl", "apply", "-f", str(CHART / "crds"))
    plane.api.namespace("research")
    pods = "/api/v1/namespaces/research/pods"
    plane.api.create(pods, a_pod("train-0", gpus=100, scheduler="wattherd"))
    conditions = lambda: plane.api.pod("research", "train-0")["status"].get("conditions")  # noqa: E731
    wait_until(conditions, "the pod is told why it waits")
    said = followed(installed, "kubernetes-troubleshoot")
    assert "NeverFits" in one_that(said, "kubectl describe pod")
    assert "NeverFits" in one_that(said, "wattherd explain")
    assert one_that(said, "auth can-i").strip() == "yes"


def test_what_cannot_be_run_here_is_named() -> None:
    """Providers' commands, a kubelet's logs, Prometheus' own tool: nothing else is left out."""
    left = set()
    for page in ("where", "migrate", "staging", "operate", "troubleshoot"):
        text = (CHART.parents[2] / f"docs/guides/kubernetes-{page}.md").read_text()
        for block in text.split("```text\n")[1:]:
            left |= {line.split()[0] for line in block.split("```")[0].splitlines()}
    assert left == {"gcloud", "aws", "az", "kubectl", "promtool"}

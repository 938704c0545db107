"""The Helm chart on a real control plane: rendered, admitted, installed, at work, gone again."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from control_plane import ControlPlane
from helm_chart import (
    CHART,
    DEPLOY,
    VARIANTS,
    Tools,
    deployed_pod,
    deployed_pods,
    inventory,
    of_kind,
)
from kube_api import KubeApi, Object, Refused, a_node, a_pod
from kube_server import end, free_ports, wait_until
from test_extender import SCHEDULER, a_scheduler, is_ready

MONITORS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
BAD = {
    "a mode there is not": ({"mode": "both"}, "mode"),
    "a budget without a number": ({"budgets": ["much"]}, "budgets"),
    "two budgets of the site": ({"budgets": ["40kW", "30kW"]}, "two for the site"),
    "two budgets of a domain": ({"budgets": ["40kW", "r=3kW", "r=2kW"]}, "two for r"),
    "a digest cut short": ({"image": {"digest": "sha256:12"}}, "digest"),
    "a word misspelt": ({"replica": 3}, "replica"),
    "a deadline past kube-scheduler's": ({"extender": {"deadlineSeconds": 2}}, "deadlineSeconds"),
    "pools without anything to do": ({"pools": {"enabled": True}}, "switchesSecret"),
    "a port there is not": ({"signals": {"ports": [70000]}}, "ports"),
    "patience without a unit": ({"scheduler": {"patience": "10"}}, "patience"),
    "a time without a unit": ({"pools": {"idleAfter": "10"}}, "idleAfter"),
    "an open extender": (
        {"mode": "extender", "extender": {"kubeScheduler": {"enabled": False}}},
        "secretName",
    ),
}


@pytest.fixture
def tools(plane: ControlPlane, tmp_path: Path) -> Tools:
    if not (plane.programs / "helm").exists():
        pytest.skip(f"no helm in {plane.programs}: `make kube-binaries` builds it (needs Go)")
    return Tools(plane.programs, plane.kubeconfig, tmp_path)


@pytest.fixture(scope="module", autouse=True)
def _monitors(plane: ControlPlane) -> Iterator[None]:
    """Monitors as the Prometheus operator defines them, as far as the chart uses them."""
    made = [
        _monitor("ServiceMonitor", "endpoints", required=True),
        _monitor("PodMonitor", "podMetricsEndpoints", required=False),
    ]
    for one in made:
        plane.api.create(MONITORS, one)
        path = f"/apis/{one['spec']['group']}/v1/{one['spec']['names']['plural']}"
        wait_until(lambda path=path: plane.api.call("GET", path)[0] == 200, f"{path} is served")  # type: ignore[misc]
    yield
    for one in made:
        plane.api.delete(f"{MONITORS}/{one['metadata']['name']}")


def _monitor(kind: str, endpoints: str, *, required: bool) -> Object:
    """One of its definitions; `endpoints` is what it calls where to read."""
    text = {"type": "string"}
    labels = {"type": "object", "additionalProperties": text}
    selector = {"type": "object", "properties": {"matchLabels": labels}}
    endpoint = {"type": "object", "properties": {"port": text, "path": text, "interval": text}}
    fields: Any = {"selector": selector, endpoints: {"type": "array", "items": endpoint}}
    needed = ["selector", *([endpoints] if required else [])]
    spec = {"type": "object", "properties": fields, "required": needed}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    single, group = kind.lower(), "monitoring.coreos.com"
    names = {"plural": f"{single}s", "singular": single, "kind": kind}
    about = {"group": group, "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": f"{single}s.{group}"}, "spec": about}


def test_helm_finds_nothing_to_mend(tools: Tools) -> None:
    for values in VARIANTS.values():
        said = tools.run("helm", "lint", "--strict", str(CHART), tools.values(values))
        assert "0 chart(s) failed" in said


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_api_server_would_take_every_object(tools: Tools, namespace: str, variant: str) -> None:
    objects = tools.rendered(VARIANTS[variant], namespace)
    apply = ("kubectl", "apply", "--dry-run=server", "--validate=strict", "--filename=-")
    said = tools.run(*apply, given=yaml.safe_dump_all(objects))
    assert said.count("(server dry run)") == len(objects)


@pytest.mark.parametrize("variant", VARIANTS)
def test_pods_are_admitted_where_security_is_restricted(
    plane: ControlPlane, tools: Tools, namespace: str, variant: str
) -> None:
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    plane.api.merge(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": restricted}})
    pods = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
    for pod in deployed_pods(tools.rendered(VARIANTS[variant], namespace)).values():
        plane.api.token(namespace, pod["spec"]["serviceAccountName"])
        pod["metadata"]["name"] = "pod"
        plane.api.create(pods, pod)
        for at, container in enumerate(pod["spec"]["containers"]):
            assert container["securityContext"]["readOnlyRootFilesystem"]
            laxer: Any = copy.deepcopy(pod)
            laxer["spec"]["containers"][at]["securityContext"]["allowPrivilegeEscalation"] = True
            with pytest.raises(Refused, match="violates PodSecurity"):
                plane.api.create(pods, laxer)


@pytest.mark.parametrize("case", BAD)
def test_values_that_cannot_be_meant_are_refused(tools: Tools, case: str) -> None:
    values, named = BAD[case]
    told = tools.values(values)
    assert named in tools.run("helm", "template", "x", str(CHART), told, fails=True)


def test_its_rights_are_those_of_the_plain_file(tools: Tools) -> None:
    def told(objects: list[Object]) -> dict[tuple[str, str], Any]:
        rights = (one for one in objects if one["kind"] not in ("ServiceAccount", "Lease"))
        return {
            (one["kind"], one["metadata"]["name"]): {
                field: one.get(field) for field in ("rules", "roleRef", "subjects")
            }
            for one in rights
            if one["apiVersion"].startswith("rbac.")
        }

    shipped = list(yaml.safe_load_all((DEPLOY / "rbac.yaml").read_text()))
    assert told(tools.rendered({})) == told(shipped)
    [lease] = of_kind(tools.rendered({}), "Lease")
    [other] = of_kind(shipped, "Lease")
    assert lease["metadata"]["name"] == other["metadata"]["name"]


def test_its_kube_scheduler_is_set_up_like_the_one_that_is_shipped(tools: Tools) -> None:
    [made] = of_kind(tools.rendered({"mode": "extender"}), "ConfigMap")
    config = yaml.safe_load(made["data"]["config.yaml"])
    assert config.pop("leaderElection") == {"leaderElect": False}
    assert config == yaml.safe_load((DEPLOY / "kube-scheduler-extender.yaml").read_text())


def test_plain_manifests_are_what_the_chart_makes(tools: Tools) -> None:
    script = DEPLOY.parents[1] / "scripts" / "kube_manifests.py"
    tools.run(sys.executable, str(script), str(tools.programs / "helm"), "--check")


@dataclass(frozen=True)
class Work:
    """What the chart deploys, at work: whose rights it has, where to ask it, where it extends."""

    account: Path
    health: str
    extender: str


@contextmanager
def at_work(plane: ControlPlane, pod: Object, account: str) -> Iterator[Work]:
    """The pod's first container as a process, with its account's token."""
    [container, *_] = pod["spec"]["containers"]
    arguments = [
        re.sub(r"^--(health|dashboard)=.*", r"--\1=127.0.0.1:0", each) for each in container["args"]
    ]
    [port] = free_ports(1)
    if "extender" in arguments:
        # A loaded machine may be slow; that a late answer fails closed has tests of its own.
        arguments += [f"--port={port}", "--deadline=20"]
    token = plane.api.token(pod["metadata"]["namespace"], account)
    config = plane.kubeconfig_of(token, f"chart-{account}")
    command = [sys.executable, "-m", "wattherd.cli.main", *arguments, f"--kubeconfig={config}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = iter(process.stderr.readline, "")
            line = next((each for each in said if each.startswith("health on ")), "")
            assert line, "it ended"
            health = line.removeprefix("health on ").strip()
            yield Work(config, health, f"http://127.0.0.1:{port}")
        finally:
            end(process)


def asked(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


@pytest.mark.parametrize("mode", ["scheduler", "extender", "admit", "dra"])
def test_what_it_deploys_works_with_the_rights_that_it_has_and_leaves_nothing_behind(
    plane: ControlPlane, tools: Tools, namespace: str, mode: str
) -> None:
    """Kueue's check at work is in `test_kueue`."""
    before = complete(plane.api, namespace)
    values = {"mode": mode, "budgets": ["40kW"], "scheduler": {"dashboard": True}}
    pod = deployed_pod(tools.rendered(values, namespace))
    pod["metadata"]["namespace"] = namespace
    with installed(plane, tools, namespace, values), at_work(plane, pod, "wattherd") as work:
        url = work.health
        wait_until(lambda: asked(f"{url}/readyz")[0] == 200, lambda: asked(f"{url}/readyz")[1])
        wait_until(lambda: "wattherd_kube_leads 1" in asked(f"{url}/metrics")[1], "it leads")
        assert asked(f"{url}/healthz") == (200, "ok\n")
        assert asked(f"{url}/filter")[0] == 404
        _does_its_work(plane, namespace, mode, work)
        if mode == "dra":
            _keeps_its_slices(plane.api, tools, namespace)
    plane.api.delete(f"/api/v1/namespaces/{namespace}/pods", gracePeriodSeconds=0)
    wait_nothing_new(plane.api, namespace, before)


def complete(api: KubeApi, namespace: str) -> set[str]:
    """What is there, once the namespace has what every namespace gets."""
    root = f"configmaps {namespace}/kube-root-ca.crt"
    wait_until(lambda: root in inventory(api, namespace), "the namespace is complete")
    return inventory(api, namespace)


def wait_nothing_new(api: KubeApi, namespace: str, before: set[str]) -> None:
    new = lambda: inventory(api, namespace) - before  # noqa: E731
    wait_until(lambda: not new(), lambda: f"left behind: {new()}")


@contextmanager
def installed(
    plane: ControlPlane, tools: Tools, namespace: str, values: dict[str, object]
) -> Iterator[None]:
    """The chart on a cluster of one node; whatever happens, no policy of it is left to others."""
    install = ("helm", "install", "wattherd", str(CHART), f"--namespace={namespace}")
    tools.run(*install, tools.values(values))
    product = {"nvidia.com/gpu.product": "Tesla-T4"}
    nodes = plane.api.fleet([a_node(f"{namespace}-node", gpus=1, labels=product)])
    try:
        yield
    finally:
        tools.run("helm", "uninstall", "wattherd", f"--namespace={namespace}")
        plane.api.remove_nodes(nodes)


def _does_its_work(plane: ControlPlane, namespace: str, mode: str, work: Work) -> None:
    """What each mode does to a pod."""
    api = plane.api
    pods = f"/api/v1/namespaces/{namespace}/pods"
    if mode == "scheduler":
        api.create(pods, a_pod("job", scheduler="wattherd"))
        wait_until(lambda: api.phase(namespace, "job") == "Running", "it binds")
    elif mode == "extender":
        wait_until(lambda: is_ready(work.extender), "it has seen the cluster")
        with a_scheduler(plane, work.extender, namespace, account=work.account):
            api.create(pods, a_pod("job", gpus=1, scheduler=SCHEDULER))
            wait_until(lambda: api.phase(namespace, "job") == "Running", "it binds")
        assert api.pod(namespace, "job")["metadata"]["annotations"]["wattherd.dev/watts"] == "60"
    elif mode == "admit":
        gated = a_pod("job", gpus=1, labels={"wattherd.dev/admission": "gate"})
        tried = lambda: api.as_made(namespace, gated)["spec"]  # noqa: E731
        wait_until(lambda: tried().get("schedulingGates"), "the policy is in force")
        api.create(pods, gated)
        wait_until(
            lambda: not api.pod(namespace, "job")["spec"].get("schedulingGates"), "it is released"
        )
    elif mode == "dra":
        dra, claiming = "/apis/resource.k8s.io/v1", {"wattherd.dev/admission": "claim"}
        claimed = a_pod("job", gpus=1, labels=claiming)
        tried = lambda: api.as_made(namespace, claimed)["spec"]  # noqa: E731
        wait_until(lambda: tried().get("resourceClaims"), "the policy is in force")
        api.create(pods, claimed)
        claims = f"{dra}/namespaces/{namespace}/resourceclaims"
        wait_until(lambda: api.get(claims)["items"], "its claim is made")


def _keeps_its_slices(api: KubeApi, tools: Tools, namespace: str) -> None:
    """They belong to the class, which an upgrade leaves alone."""
    dra = "/apis/resource.k8s.io/v1"
    a_class = api.get(f"{dra}/deviceclasses/watts.wattherd.dev")["metadata"]["uid"]

    def ours() -> set[str]:
        about = [one["metadata"] for one in api.get(f"{dra}/resourceslices")["items"]]
        owned = [{one["uid"] for one in meta.get("ownerReferences", ())} for meta in about]
        return {meta["uid"] for meta, by in zip(about, owned, strict=True) if by == {a_class}}

    wait_until(ours, "watts are offered")
    before, values = ours(), tools.values({"mode": "dra", "budgets": ["30kW"], "policy": "fgd"})
    tools.run("helm", "upgrade", "wattherd", str(CHART), f"--namespace={namespace}", values)
    assert ours() == before


def test_an_install_is_upgraded_and_leaves_nothing_behind(
    plane: ControlPlane, tools: Tools, namespace: str
) -> None:
    def seen() -> set[str]:
        return inventory(plane.api, namespace)

    before, space = complete(plane.api, namespace), f"--namespace={namespace}"
    tools.run("helm", "install", "wattherd", str(CHART), space)
    pods = f"pods {namespace}/wattherd-"
    wait_until(lambda: any(one.startswith(pods) for one in seen()), "pods are made")
    beside = {"agent": {"enabled": True}, "pools": {"enabled": True, "grow": True}}
    values = tools.values(VARIANTS["extender beside kube-scheduler"] | beside)
    tools.run("helm", "upgrade", "wattherd", str(CHART), space, values)
    assert {
        f"daemonsets {namespace}/wattherd-agent",
        f"leases {namespace}/wattherd-pools",
    } <= seen()
    deployment: Any = _deployment(plane.api, namespace)
    assert "extender" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    check = tools.values(VARIANTS["a check of Kueue"])
    tools.run("helm", "upgrade", "wattherd", str(CHART), space, check)
    deployment = _deployment(plane.api, namespace)
    assert "admission-check" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    tools.run("helm", "uninstall", "wattherd", space)
    wait_nothing_new(plane.api, namespace, before)
    assert seen() == before


def _deployment(api: KubeApi, namespace: str) -> Object:
    found: Object = api.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/wattherd")
    return found

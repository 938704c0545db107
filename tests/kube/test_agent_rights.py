"""What the chart gives the agents of nodes: enough for their work, and nothing of other nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
from agent_parts import APPLIED, AgentNode, running
from control_plane import ControlPlane
from helm_chart import CHART, DEPLOY, Tools
from kube_api import KubeApi, Object, Refused, a_node, a_pod
from kube_server import wait_until
from nvml_driver import COMPILER, Driver

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler to build a driver with")
APPLY = "application/apply-patch+yaml"
LONG = "24h"  # no lease of a scheduler is renewed here


@pytest.fixture
def tools(plane: ControlPlane, tmp_path: Path) -> Tools:
    if not (plane.programs / "helm").exists():
        pytest.skip(f"no helm in {plane.programs}: `make kube-binaries` builds it (needs Go)")
    return Tools(plane.programs, plane.kubeconfig, tmp_path)


@pytest.fixture
def node(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[AgentNode]:
    made = AgentNode(plane, namespace, Driver(tmp_path), tmp_path, silence=LONG)
    yield made
    plane.api.remove_nodes([made.name])


@pytest.fixture
def other(plane: ControlPlane, node: AgentNode) -> Iterator[str]:
    [name] = plane.api.fleet([a_node(f"{node.name}-other")])
    yield name
    plane.api.remove_nodes([name])


@pytest.fixture
def installed(tools: Tools, node: AgentNode) -> Iterator[Object]:
    """The chart with agents on this node; yields the agent's pod."""
    chosen = {"kubernetes.io/hostname": node.name}
    agent = {"enabled": True, "nodeSelector": chosen, "silence": "60s"}
    values = tools.values({"agent": agent, "scheduler": {"replicas": 1}})
    space = f"--namespace={node.namespace}"
    tools.run("helm", "install", "wattherd", str(CHART), space, values)
    liar = a_pod("liar", annotations={APPLIED: "1"})
    dry = f"/api/v1/namespaces/{node.namespace}/pods?dryRun=All"
    wait_until(lambda: node.api.call("POST", dry, liar)[0] == 422, "policies are in force")
    yield the_pod(node)
    tools.run("helm", "uninstall", "wattherd", space)


def the_pod(node: AgentNode) -> Object:
    """The DaemonSet's pod, once it runs; the default scheduler's work is done here."""
    pods = f"/api/v1/namespaces/{node.namespace}/pods"

    def found() -> list[Object]:
        items: list[Object] = node.api.get(pods)["items"]
        return [one for one in items if "agent" in one["metadata"]["name"]]

    wait_until(found, "it is made")
    name = found()[0]["metadata"]["name"]
    target = {"apiVersion": "v1", "kind": "Node", "name": node.name}
    node.api.create(f"{pods}/{name}/binding", {"metadata": {"name": name}, "target": target})
    wait_until(lambda: node.api.phase(node.namespace, name) == "Running", "it runs")
    return node.api.pod(node.namespace, name)


def token(node: AgentNode, pod: Object) -> str:
    """The pod's own, which says on which node it is."""
    about = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    bound = {"apiVersion": "v1", "kind": "Pod", **about}
    accounts = f"/api/v1/namespaces/{node.namespace}/serviceaccounts/wattherd-agent/token"
    spec = {"expirationSeconds": 3600, "boundObjectRef": bound}
    return str(node.api.create(accounts, {"spec": spec})["status"]["token"])


def written(api: KubeApi, path: str, kind: str, about: Any, **more: Any) -> tuple[int, str]:
    body = {"apiVersion": "v1", "kind": kind, "metadata": about, **more}
    query = "?fieldManager=wattherd-agent&force=true"
    status, answer = api.call("PATCH", f"{path}{query}", body, kind=APPLY)
    return status, str(answer.get("message", ""))


def test_with_the_rights_of_the_chart_caps_are_held(node: AgentNode, installed: Object) -> None:
    node.kubeconfig = node.plane.kubeconfig_of(token(node, installed), f"{node.namespace}-agent")
    [container] = installed["spec"]["containers"]
    given = [one for one in container["args"] if one.startswith(("--lease", "--daemonset"))]
    helper, agent = node.helper(), node.agent(*given)
    with running(agent, helper):
        node.pod("both", "0,1", "400")
        wait_until(lambda: node.applied("both") == "400", lambda: f"told: {agent.said}")
        wait_until(lambda: "wattherd.dev/draw-w" in node.about()["annotations"], "watts are told")
        assert not [line for line in agent.said if "orbidden" in line]


def test_an_agent_writes_nothing_of_other_nodes_and_nothing_of_others(
    node: AgentNode, other: str, installed: Object
) -> None:
    me = KubeApi(node.plane.url, node.plane.tls(), token(node, installed))
    pods = f"/api/v1/namespaces/{node.namespace}/pods"
    there = a_pod("there", spec={"nodeName": other})
    node.api.create(pods, there)
    applied, mine = {APPLIED: "100"}, f"/api/v1/nodes/{node.name}/status"
    refusals = {
        "another node": written(
            me, f"/api/v1/nodes/{other}/status", "Node",
            {"name": other, "labels": {"wattherd.dev/agent": "true"}},
        ),
        "a pod elsewhere": written(
            me, f"{pods}/there/status", "Pod", {"name": "there", "annotations": applied}
        ),
        "a label of others": written(
            me, mine, "Node", {"name": node.name, "labels": {"kubernetes.io/hostname": "x"}}
        ),
        "an annotation of others": written(
            me, mine, "Node", {"name": node.name, "annotations": {"example.com/x": "y"}}
        ),
        "a status": written(
            me, mine, "Node", {"name": node.name}, status={"capacity": {"nvidia.com/gpu": "99"}}
        ),
    }  # fmt: skip
    told = {case: said for case, (_, said) in refusals.items()}
    assert all(status == 422 or "denied" in said for status, said in refusals.values()), told
    for verb, path in (("DELETE", f"{pods}/there"), ("GET", "/api/v1/secrets")):
        assert me.call(verb, path)[0] == 403
    spec = {"metadata": {"labels": {"wattherd.dev/agent": "true"}}}
    assert me.call("PATCH", f"/api/v1/nodes/{node.name}", spec,
                   kind="application/merge-patch+json")[0] == 403  # fmt: skip
    me.close()


def test_only_agents_say_what_was_read_back(node: AgentNode, installed: Object) -> None:
    pods = f"/api/v1/namespaces/{node.namespace}/pods"
    with pytest.raises(Refused, match="nobody else writes it"):
        node.api.create(pods, a_pod("liar", annotations={APPLIED: "1"}))
    node.api.create(pods, a_pod("liar", spec={"nodeName": node.name}))
    said = {"metadata": {"annotations": {APPLIED: "1"}}}
    for path in (f"{pods}/liar", f"{pods}/liar/status"):
        with pytest.raises(Refused, match="nobody else writes it"):
            node.api.merge(path, said)
    me = KubeApi(node.plane.url, node.plane.tls(), token(node, installed))
    about = {"name": "liar", "annotations": {APPLIED: "80"}}
    assert written(me, f"{pods}/liar/status", "Pod", about)[0] == 200
    me.close()
    node.api.merge(f"{pods}/liar", {"metadata": {"labels": {"team": "ml"}}})
    assert node.applied("liar") == "80"


def test_the_token_is_the_agents_and_the_devices_are_the_helpers(installed: Object) -> None:
    [agent], helpers = installed["spec"]["containers"], installed["spec"]["initContainers"]
    [helper] = helpers
    mounts = {
        one["name"]: {each["name"] for each in one["volumeMounts"]} for one in (agent, helper)
    }
    assert "token" in mounts["agent"]
    assert "token" not in mounts["cap-helper"]
    assert agent["securityContext"]["runAsNonRoot"]
    assert agent["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert helper["securityContext"]["capabilities"] == {"add": ["SYS_ADMIN"], "drop": ["ALL"]}
    assert not helper["securityContext"].get("privileged")
    assert helper["restartPolicy"] == "Always"


@pytest.mark.parametrize("name", ["agent.yaml", "pools.yaml"])
def test_the_api_server_takes_the_manifests_as_they_are(tools: Tools, name: str) -> None:
    path = DEPLOY / name
    objects = [one for one in yaml.safe_load_all(path.read_text()) if one]
    apply = ("kubectl", "apply", "--dry-run=server", "--validate=strict")
    said = tools.run(*apply, f"--filename={path}")
    assert said.count("(server dry run)") == len(objects)

"""What some values of the chart add to what it makes, and that without them it is not there."""

from __future__ import annotations

from typing import Any

import pytest
from helm_chart import Tools, deployed_pod, deployed_pods, of_kind
from kube_api import Object

from wattherd.server.kube.budgets import SECRETS

NAMES = {("UDP", 53), ("TCP", 53)}
API = {("TCP", 443), ("TCP", 6443)}
POOLS: dict[str, Any] = {"pools": {"enabled": True, "grow": True}}
SIGNALS = {"filesSecret": "grid", "ports": [443, 8443], "cidrs": ["192.0.2.0/24"]}


def let_out(objects: list[Object]) -> dict[str, dict[str, set[tuple[str, int]]]]:
    """By component and addresses, the ports that its network policy lets it call."""
    found: dict[str, dict[str, set[tuple[str, int]]]] = {}
    for one in of_kind(objects, "NetworkPolicy"):
        component = one["metadata"]["labels"]["app.kubernetes.io/component"]
        for rule in one["spec"]["egress"]:
            to = ",".join(each["ipBlock"]["cidr"] for each in rule.get("to", ()))
            ports = {(port["protocol"], port["port"]) for port in rule["ports"]}
            found.setdefault(component, {}).setdefault(to, set()).update(ports)
    return found


def test_nothing_is_let_out_for_signals_that_nobody_asked_for(helm: Tools) -> None:
    made = helm.rendered(POOLS)
    assert let_out(made) == {"scheduler": {"": API}, "pools": {"": API}}
    for pod in deployed_pods(made).values():
        assert _mounted(pod) is None


def test_ports_of_signals_and_of_names_are_let_out_as_narrow_as_asked(helm: Tools) -> None:
    asked = {("TCP", 443), ("TCP", 8443)}
    narrow = {"": API | NAMES, "192.0.2.0/24": asked}
    assert let_out(helm.rendered({"signals": SIGNALS} | POOLS)) == {
        "scheduler": narrow,
        "pools": narrow,
    }
    wide = let_out(helm.rendered({"signals": {"ports": [8443]}}))
    assert wide == {"scheduler": {"": API | NAMES | {("TCP", 8443)}}}


def test_files_of_signals_are_where_budgets_may_name_them(helm: Tools) -> None:
    pods = deployed_pods(helm.rendered({"signals": SIGNALS} | POOLS))
    assert pods.keys() == {"scheduler", "pools"}
    for pod in pods.values():
        assert _mounted(pod) == "grid"


def _mounted(pod: Object) -> str | None:
    """The Secret whose files are there, to be read only."""
    [container] = pod["spec"]["containers"]
    at = [each for each in container["volumeMounts"] if each["mountPath"] == str(SECRETS)]
    if not at:
        return None
    assert at[0]["readOnly"]
    [volume] = [each for each in pod["spec"]["volumes"] if each["name"] == at[0]["name"]]
    name: str = volume["secret"]["secretName"]
    return name


def test_dashboard_and_patience_are_as_asked(helm: Tools) -> None:
    usual = _arguments(helm.rendered({}))
    assert "--patience=10min" in usual
    assert not [each for each in usual if each.startswith("--dashboard")]
    asked = {"scheduler": {"dashboard": True, "patience": "1h"}}
    assert {"--patience=1h", "--dashboard=127.0.0.1:8701"} <= set(_arguments(helm.rendered(asked)))
    others = _arguments(helm.rendered(asked | {"mode": "admit"}))
    assert not [each for each in others if "dashboard" in each or "patience" in each]


def _arguments(objects: list[Object]) -> list[str]:
    found: list[str] = deployed_pod(objects)["spec"]["containers"][0]["args"]
    return found


@pytest.mark.parametrize(("agents", "monitored"), [(True, False), (False, True)])
def test_agents_are_monitored_only_where_both_are_wanted(
    helm: Tools, agents: bool, monitored: bool
) -> None:
    values = {"agent": {"enabled": agents}, "serviceMonitor": {"enabled": monitored}}
    assert not of_kind(helm.rendered(values), "PodMonitor")


def test_every_agent_is_monitored_at_its_own_port(helm: Tools) -> None:
    watched = {"enabled": True, "interval": "5s", "labels": {"release": "prometheus"}}
    made = helm.rendered({"agent": {"enabled": True}, "serviceMonitor": watched})
    [monitor], [agents] = of_kind(made, "PodMonitor"), of_kind(made, "DaemonSet")
    pod = agents["spec"]["template"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    chosen = monitor["spec"]["selector"]["matchLabels"]
    assert chosen.items() <= pod["metadata"]["labels"].items()
    for other in deployed_pods(made).values():
        assert not chosen.items() <= other["metadata"]["labels"].items()
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    ports = {port["name"] for one in pod["spec"]["containers"] for port in one.get("ports", ())}
    assert endpoint == {"port": "health", "path": "/metrics", "interval": "5s"}
    assert endpoint["port"] in ports

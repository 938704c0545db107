"""The extender behind a stock kube-scheduler on a real control plane."""

from __future__ import annotations

import http
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from control_plane import ControlPlane
from kube_api import KubeApi, Object, a_node, a_pod
from kube_server import end, wait_until
from openb_fleet import check, fleet, whole_trace

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
SCHEDULER = "wattherd-extended"
POLICIES = ("fgd", "pwr+fgd:0.1", "wattherd")
BOUND_S = 120.0


@contextmanager
def extender_process(plane: ControlPlane, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`wattherd kube extender` as users start it."""
    command = [sys.executable, "-m", "wattherd.cli.main", "kube", "extender", "--port", "0"]
    # A loaded machine may be slow; that a late answer fails closed has tests of its own.
    slow = ["--deadline", "20", f"--kubeconfig={plane.kubeconfig}", *options]
    with subprocess.Popen([*command, *slow], stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            end(process)


def address_of(process: subprocess.Popen[str]) -> str:
    """Where an extender answers, as it says first."""
    assert process.stderr is not None
    line = process.stderr.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+", line)
    assert found, line + process.stderr.read()
    return found[0]


def wait_ready(process: subprocess.Popen[str]) -> str:
    """The address of an extender that has seen the cluster."""
    address = address_of(process)
    wait_until(lambda: is_ready(address), "it has seen the cluster")
    return address


@contextmanager
def an_extender(plane: ControlPlane, *options: str) -> Iterator[str]:
    """An extender at work; yields its address."""
    with extender_process(plane, *options) as process:
        yield wait_ready(process)


def is_ready(address: str, within_s: float = 10.0) -> bool:
    """Until then pods are told that nothing was seen yet, and are tried again later."""
    try:
        with urllib.request.urlopen(f"{address}/readyz", timeout=within_s) as reply:
            return bool(reply.status == http.HTTPStatus.OK)
    except OSError:
        return False


@contextmanager
def a_scheduler(
    plane: ControlPlane,
    extender: str,
    name: str,
    *flags: str,
    patience: str = "30s",
    account: Path | None = None,
) -> Iterator[None]:
    """A stock kube-scheduler with the configuration that we ship, but for address and patience.

    It has the rights of `account`, a kubeconfig; else all.
    """
    config: Object = yaml.safe_load((DEPLOY / "kube-scheduler-extender.yaml").read_text())
    config["extenders"][0] |= {"urlPrefix": extender, "httpTimeout": patience}
    if account is not None:
        config["clientConnection"] = {"kubeconfig": str(account)}
    server = plane.scheduler(config=config, name=name, flags=flags)
    server.start()
    try:
        yield
    finally:
        server.kill()


@contextmanager
def nodes_of(api: KubeApi, nodes: list[Object]) -> Iterator[list[str]]:
    names = api.fleet(nodes)
    try:
        yield names
    finally:
        api.remove_nodes(names)


@pytest.mark.parametrize("policy", POLICIES)
def test_pods_go_where_the_simulation_puts_them(
    plane: ControlPlane, namespace: str, openb: Path, policy: str
) -> None:
    """A small part of the trace; the whole of it is `test_every_pod_of_the_trace...`."""
    part = fleet(openb, "few", nodes=5, pods=60)
    options = ("--policy", policy, "--history", str(part.history))
    with (
        nodes_of(plane.api, part.nodes()),
        an_extender(plane, *options) as extender,
        a_scheduler(plane, extender, "few"),
    ):
        refused = check(plane.api, namespace, part, policy, SCHEDULER, BOUND_S)
    assert refused


def test_a_budget_takes_exactly_the_pods_that_fit_and_says_why(
    plane: ControlPlane, namespace: str
) -> None:
    """Ten pods race for the watts of four; the annotations of those bound are the account."""
    labels = {
        "nvidia.com/gpu.product": "Tesla-T4", "wattherd.dev/power-domain": "pdu-1",
    }  # fmt: skip
    nodes = [a_node(f"watts-{row}", gpus=4, labels=labels) for row in range(3)]
    # 12 T4s idle at 10 W; one more in use adds 60 W (catalog).
    options = ("--policy", "fgd", "--budget", "pdu-1=370W")
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    with (
        nodes_of(api, nodes),
        an_extender(plane, *options) as extender,
        a_scheduler(plane, extender, "watts"),
    ):
        made = [a_pod(f"racer-{row}", gpus=1, scheduler=SCHEDULER) for row in range(10)]
        api.create_all(pods, made)
        wait_until(lambda: len(_settled(api, namespace)) == 10, "all pods are bound or refused")
        items = api.get(pods)["items"]
    written = [pod["metadata"]["annotations"] for pod in items if pod["spec"].get("nodeName")]
    assert [one["wattherd.dev/watts"] for one in written] == ["60"] * 4
    assert {one["wattherd.dev/power-domain"] for one in written} == {"pdu-1"}
    text = "PowerBudget: power domain pdu-1 may draw 360 W of 370 W, the pod adds 60 W"
    waiting = [_why(pod) for pod in items if not pod["spec"].get("nodeName")]
    assert [why for why in waiting if text not in why] == []


def _why(pod: Object) -> str:
    """What `kubectl describe pod` says of a pod that waits."""
    conditions = pod["status"].get("conditions", ())
    return "".join(each.get("message", "") for each in conditions if each["status"] == "False")


def _settled(api: KubeApi, namespace: str) -> list[str]:
    """Names of pods that are bound, or were told why not."""
    items = api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return [pod["metadata"]["name"] for pod in items if pod["status"].get("conditions")]


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_pod_of_the_trace_goes_where_the_simulation_puts_it(
    kube_programs: Path, openb: Path, policy: str
) -> None:
    """1,213 nodes, every arrival of the default trace in the published order of seed 42."""
    with whole_trace(kube_programs, openb) as (plane, whole):
        options = ("--policy", policy, "--history", str(whole.history))
        with an_extender(plane, *options) as extender, a_scheduler(plane, extender, "openb"):
            assert check(plane.api, "openb", whole, policy, SCHEDULER, BOUND_S)

"""Scores alone: a stock kube-scheduler asks where wattherd would put a pod, and decides itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import kube_ledger
import yaml
from control_plane import ControlPlane
from kube_api import KubeApi, Object, a_node, a_pod
from kube_server import wait_until
from test_extender import extender_process, nodes_of, wait_ready

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
SCHEDULER = "wattherd-scored"
NODES, GPUS = 6, 8
LABELS = {"nvidia.com/gpu.product": "Tesla-T4"}
SEEN = 'pods{state="seen"}'
LONG_S = 120.0


@contextmanager
def asking(plane: ControlPlane, extender: str) -> Iterator[None]:
    """A kube-scheduler with the configuration that we ship, but for address and patience."""
    config: Object = yaml.safe_load((DEPLOY / "kube-scheduler-scores.yaml").read_text())
    config["extenders"][0] |= {"urlPrefix": extender, "httpTimeout": "30s"}
    server = plane.scheduler(config=config, name="scores")
    server.start()
    try:
        yield
    finally:
        server.kill()


def node_of(api: KubeApi, namespace: str, pod: str) -> str:
    return str(api.pod(namespace, pod)["spec"].get("nodeName", ""))


def run(api: KubeApi, namespace: str, name: str) -> str:
    """The node that a pod of one GPU gets."""
    api.create(f"/api/v1/namespaces/{namespace}/pods", a_pod(name, gpus=1, scheduler=SCHEDULER))
    wait_until(lambda: node_of(api, namespace, name), "it is bound", within_s=LONG_S)
    return node_of(api, namespace, name)


def test_pods_go_where_the_scores_are_highest_and_without_scores_where_they_like(
    plane: ControlPlane, namespace: str
) -> None:
    """Best fit fills one node after the other; kube-scheduler by itself spreads."""
    api, health = plane.api, kube_ledger.an_address()
    nodes = [a_node(f"scores-{row}", gpus=GPUS, labels=LABELS) for row in range(NODES)]
    given = ("--policy=best-fit", f"--health={health}")
    with nodes_of(api, nodes), extender_process(plane, *given) as extender:
        address = wait_ready(extender)
        with asking(plane, address):
            before = kube_ledger.counted(health)[SEEN]
            scored = []
            for number in range(GPUS + 2):
                scored.append(run(api, namespace, f"scored-{number}"))
                wait_until(lambda: kube_ledger.counted(health)[SEEN] == before + len(scored),
                           "wattherd has seen it")  # fmt: skip
            assert [len(set(part)) for part in (scored[:GPUS], scored[GPUS:])] == [1, 1], scored
            assert scored[0] != scored[-1]
            extender.kill()
            extender.wait()
            alone = [run(api, namespace, f"alone-{number}") for number in range(NODES)]
    assert len(set(alone)) > 2, alone

"""The objects of a cluster at work, as a release keeps them for the tests of later ones.

With WATTHERD_LEAVE_STATE=FOLDER they are left there: `vX-cluster.tar.xz`, beside what
`scripts/released_state.py` leaves (tests/service/test_released_states.py reads all of it).
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest
from control_plane import ControlPlane
from helm_chart import REPOSITORY
from kube_api import a_node, a_pod
from kube_server import wait_until
from power_api import an_object, defined, there
from test_second_scheduler import T4, a_scheduler, bound, nodes_of, why

from wattherd.kube.facts import cluster_snapshot

IDLE_W, RISE_W = 10, 60
"""Of a T4 that is free, and what it adds in use, by the catalog."""
PATIENCE_S = 120.0


def program() -> ModuleType:
    path = REPOSITORY / "scripts" / "released_state.py"
    spec = importlib.util.spec_from_file_location("released_state", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["released_state"] = module
    spec.loader.exec_module(module)
    return module


def test_a_cluster_at_work_is_kept_and_reads_back(
    plane: ControlPlane, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pods run, one waits for watts, in a domain with a budget, with a queue beside."""
    states = program()
    into = Path(os.environ.get("WATTHERD_LEAVE_STATE", tmp_path)).resolve()
    monkeypatch.setenv("PATH", f"{plane.programs}:{os.environ['PATH']}")
    labels = {**T4, "wattherd.dev/power-domain": namespace}
    pods = f"/api/v1/namespaces/{namespace}/pods"
    objects = [
        an_object("PowerDomain", namespace, limit=f"{4 * (IDLE_W + RISE_W)}W"),
        an_object(
            "PowerBudget", namespace, domain=namespace, constant=f"{4 * IDLE_W + 2 * RISE_W}W"
        ),
        an_object("Queue", namespace, weight=2),
    ]
    with (
        defined(plane.api),
        there(plane.api, objects),
        nodes_of(plane.api, [a_node(f"{namespace}-n", gpus=4, labels=labels)]),
    ):
        for pod in ("one", "two", "three"):
            plane.api.create(pods, a_pod(pod, gpus=1, scheduler=f"kept-{namespace}"))
        with a_scheduler(plane, f"kept-{namespace}", "--power=pause"):
            wait_until(
                lambda: len(bound(plane.api, namespace)) == 2,
                lambda: str(bound(plane.api, namespace)),
                within_s=PATIENCE_S,
            )
            (waits,) = {"one", "two", "three"} - set(bound(plane.api, namespace))
            wait_until(
                lambda: "WaitingForPower" in why(plane.api, namespace, waits),
                lambda: why(plane.api, namespace, waits),
                within_s=PATIENCE_S,
            )
            with states.packed("cluster", into) as folder:
                states.leave_cluster(folder, plane.kubeconfig)
    with tarfile.open(into / states.name_of("cluster")) as kept:
        names = set(kept.getnames())
        member = kept.extractfile("snapshot.json")
        assert member is not None
        text = member.read()
    assert names == {"snapshot.json", *(f"{kind}.json" for kind in states.CLUSTER_KINDS)}
    found = cluster_snapshot.read(text, "snapshot.json")
    ours = [pod for pod in found.pods or () if pod.metadata.namespace == namespace]
    running = [pod for pod in ours if pod.spec.node_name]
    assert (len(ours), len(running)) == (3, 2)
    assert all("wattherd.dev/watts" in (pod.metadata.annotations or {}) for pod in running)
    assert json.loads(text)["budgetsWatts"]

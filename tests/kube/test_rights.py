"""Somebody with the least rights can do all that is ours to do, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from control_plane import ControlPlane
from kube_api import a_node, a_pod
from kube_parts import Picture, a_transport
from kube_server import wait_until

from wattherd.kube.api.binder import Bind, Binder, BindingState
from wattherd.kube.api.lease import Elector, Term, Times
from wattherd.kube.api.objects import Node, ObjectMeta, Pod
from wattherd.kube.api.reflector import Selection
from wattherd.kube.api.transport import RefusedByApi

RBAC = "rbac.authorization.k8s.io"
READS = ["get", "list", "watch"]
RULES: list[dict[str, Any]] = [
    {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": READS},
    {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get", "create", "update"],
    },
]


@pytest.fixture
def account(plane: ControlPlane, namespace: str) -> Iterator[Path]:
    """The kubeconfig of a service account with these rights and no others."""
    token = plane.api.token(namespace, "scheduler")
    about = {"metadata": {"name": namespace}}
    rights = {
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": namespace},
        "subjects": [{"kind": "ServiceAccount", "name": "scheduler", "namespace": namespace}],
    }
    plane.api.create(f"/apis/{RBAC}/v1/clusterroles", {**about, "rules": RULES})
    plane.api.create(f"/apis/{RBAC}/v1/clusterrolebindings", {**about, **rights})
    yield plane.kubeconfig_of(token, f"{namespace}-scheduler")
    plane.api.delete(f"/apis/{RBAC}/v1/clusterrolebindings/{namespace}")
    plane.api.delete(f"/apis/{RBAC}/v1/clusterroles/{namespace}")


def test_reading_binding_and_leading_need_these_rights_only(
    plane: ControlPlane, namespace: str, account: Path
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    node = f"{namespace}-node"
    plane.api.fleet([a_node(node)])
    plane.api.create(pods, a_pod("pod", scheduler="tests"))
    draws = np.random.default_rng(1)
    with a_transport(account, timeout_s=60) as (loop, transport):
        nodes: Picture[Node] = Picture(loop, transport, Selection("/api/v1/nodes", Node))
        waiting: Picture[Pod] = Picture(loop, transport, Selection("/api/v1/pods", Pod))
        wait_until(lambda: node in nodes.names() and waiting.named("pod"), "all is seen")
        about = ObjectMeta(name="leader", namespace=namespace)
        elector = Elector(transport, Term(about=about, identity="one", times=Times()), draws)
        loop.begin(elector.run())
        wait_until(elector.may_act, "it leads")
        binder = Binder(transport, draws, may_bind=elector.may_act)
        uid = waiting.named("pod").metadata.uid
        bind = Bind(namespace=namespace, pod="pod", uid=uid, node=node, decision="d-1")
        assert loop.run(binder.bind(bind)).outcome is BindingState.BOUND
        with pytest.raises(RefusedByApi, match="cannot delete"):
            loop.run(transport.request("DELETE", f"{pods}/pod"))
    plane.api.remove_nodes([node])

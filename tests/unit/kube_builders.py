"""Builders of Kubernetes objects as JSON, the way the API server writes them, and decoded."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from wattherd.engine.placement.placer import Placer
from wattherd.experiments.placement.policies import build_placer, place_policy
from wattherd.kube.account.domains import Domains
from wattherd.kube.account.fleet import NodeFleet
from wattherd.kube.api.api_objects import decoder
from wattherd.kube.api.objects import Node, Pod
from wattherd.kube.decide.extender import Extender
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.job import Request, TracePod
from wattherd.policy.place.registry import PlacePolicy

Json = dict[str, Any]
_POD, _NODE = decoder(Pod), decoder(Node)


def node_json(spec: NodeSpec, name: str = "", **labels: str) -> Json:
    """A node that gives GPUs by our annotation, like `spec`."""
    amounts: Json = {
        "cpu": f"{spec.cpu_milli}m",
        "memory": f"{spec.memory_mib}Mi",
        "pods": "1001",
    }
    own = {"wattherd.dev/gpu-shares": "annotation"}
    if spec.gpu_count:
        amounts["nvidia.com/gpu"] = str(spec.gpu_count)
        own["nvidia.com/gpu.product"] = spec.gpu_model
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name or spec.name, "uid": spec.name, "labels": own | labels},
        "spec": {},
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def pod_json(name: str, request: Request, **spec: Any) -> Json:
    """A pod that asks for `request`, shares by annotation, models by node affinity."""
    asked: Json = {"cpu": f"{request.cpu_milli}m", "memory": f"{request.memory_mib}Mi"}
    annotations = {}
    if request.is_sharing:
        annotations["wattherd.dev/gpu-milli"] = str(request.gpu_milli)
    elif request.gpu_count:
        asked["nvidia.com/gpu"] = str(request.gpu_count)
    if request.gpu_count and request.models:
        spec["affinity"] = {"nodeAffinity": wanted(request.models)}
    container = {"name": "main", "resources": {"requests": asked}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": annotations,
        },
        "spec": {"containers": [container]} | spec,
        "status": {"phase": "Pending"},
    }  # fmt: skip


def wanted(models: Iterable[str]) -> Json:
    """The node affinity that asks for one of `models`."""
    need = {"key": "nvidia.com/gpu.product", "operator": "In", "values": list(models)}
    term = {"nodeSelectorTerms": [{"matchExpressions": [need]}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": term}


def a_pod(made: Json) -> Pod:
    """Decoded as from the API."""
    return _POD.decode(json.dumps(made).encode())


def a_node(made: Json) -> Node:
    """Decoded as from the API."""
    return _NODE.decode(json.dumps(made).encode())


def bound(made: Json, node: str, **annotations: str) -> Json:
    """The same pod, on its node."""
    meta = made["metadata"] | {"annotations": made["metadata"]["annotations"] | annotations}
    return made | {"metadata": meta, "spec": made["spec"] | {"nodeName": node}}


def fleet_of(policy: str | PlacePolicy, history: tuple[TracePod, ...] = ()) -> NodeFleet:
    """The account of a cluster without nodes; `history` tells what pods to expect."""

    def make(cluster: ClusterSpec, asked: list[Request]) -> Placer:
        seen = tuple(TracePod(name=str(n), request=one) for n, one in enumerate(asked))
        draws = np.random.default_rng(0)
        named = place_policy(policy) if isinstance(policy, str) else policy
        return build_placer(cluster, history or seen, named, draws=draws)

    return NodeFleet(make)


def an_extender(
    policy: str | PlacePolicy = "fgd",
    history: tuple[TracePod, ...] = (),
    budgets_mw: dict[str, int] | None = None,
    **options: float,
) -> Extender:
    """An extender without nodes."""
    made = Extender(fleet_of(policy, history), Domains(budgets_mw or {}), holder="test", **options)
    made.synced = True
    return made


async def asked_over_http(app: Any, path: str, body: bytes, method: str = "POST") -> Any:
    """What an ASGI application answers, as JSON where it is JSON, else (status, text)."""
    sent: list[Json] = []

    async def receive() -> Json:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Json) -> None:
        sent.append(message)

    await app({"type": "http", "method": method, "path": path, "headers": []}, receive, send)
    status, text = sent[0]["status"], sent[1]["body"]
    if dict(sent[0]["headers"])[b"content-type"] == b"application/json" and status == 200:
        return json.loads(text)
    return status, text.decode()

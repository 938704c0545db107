"""Growth at work: limits of Karpenter's NodePools, requests to the Cluster Autoscaler.

Written only where something differs from what stands there; a pool's own limit is noted beside ours
before it is changed, so that its owner can have it back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from wattherd.kube.api import names
from wattherd.kube.api.changes import ObjectChange
from wattherd.kube.api.reflector import Selection, Served
from wattherd.kube.api.transport import JSON, MERGE, RefusedByApi
from wattherd.kube.decide.pool_growth import (
    KARPENTER_POOL,
    NodeClaim,
    NodePool,
    PoolLimit,
    Provision,
    ProvisioningRequest,
    limits_of,
    provisions,
)
from wattherd.kube.live.pools import LivePools

KARPENTER = "/apis/karpenter.sh/v1"
AUTOSCALER = "/apis/autoscaling.x-k8s.io/v1"
_PUT_IN = (
    "nodeName",
    "schedulingGates",
    "ephemeralContainers",
    "priority",
    "preemptionPolicy",
)
_TOKEN = "kube-api-access-"  # noqa: S105 (a volume's name)


class Growth:
    """Has pools of others grow within the watts, as part of `live`."""

    def __init__(self, live: LivePools, *, gpu_w: float) -> None:
        """`gpu_w` is what a GPU that the Cluster Autoscaler brings may draw."""
        self._live, self._gpu_w = live, gpu_w
        self._pools: dict[str, NodePool] = {}
        self._claims: dict[str, NodeClaim] = {}
        self._requests: set[tuple[str, str]] = set()
        live.grow, live.remove = self._grow, self._remove
        live.beside.append(self._follow)

    def _follow(self) -> None:
        follow, there = self._live.feed.follow, Served.WHILE_INSTALLED
        pools = Selection(f"{KARPENTER}/nodepools", NodePool, served=there, optional=True)
        claims = Selection(f"{KARPENTER}/nodeclaims", NodeClaim, served=there, optional=True)
        path = f"{AUTOSCALER}/provisioningrequests"
        follow(pools, self._hear_pools)
        follow(claims, self._hear_claims)
        requests = Selection(path, ProvisioningRequest, served=there, optional=True)
        follow(requests, self._hear_requests)

    # News -----------------------------------------------------------------------------------------

    def _hear_pools(self, batch: list[ObjectChange[NodePool]]) -> None:
        for change in batch:
            self._pools.pop(change.key.name, None)
            if change.item is not None:
                self._pools[change.key.name] = change.item

    def _hear_claims(self, batch: list[ObjectChange[NodeClaim]]) -> None:
        for change in batch:
            self._claims.pop(change.key.name, None)
            if change.item is not None:
                self._claims[change.key.name] = change.item
        made = (one.status.node_name for one in self._claims.values())
        self._live.pools.claimed = frozenset(name for name in made if name)

    def _hear_requests(self, batch: list[ObjectChange[ProvisioningRequest]]) -> None:
        for change in batch:
            key = (change.key.namespace, change.key.name)
            self._requests.discard(key)
            if change.item is not None:
                self._requests.add(key)

    # Work -----------------------------------------------------------------------------------------

    def _grow(self) -> Mapping[str, str]:
        limits, wanted, waiting = self._live.feed.turn(self._decided)
        for limit in limits:
            self._limit(limit)
        for one in wanted:
            self._provision(one)
        return waiting

    def _decided(self) -> tuple[list[PoolLimit], list[Provision], dict[str, str]]:
        pools = self._live.pools
        left_w = pools.headroom_w()
        now = pools.gpus_by(KARPENTER_POOL)
        limits, problems = limits_of(self._pools.values(), now, left_w, pools.tree)
        told = {f"NodePool {name}": why for name, why in problems.items()}
        found, waiting = provisions(pools.waiting_pods(), self._requests, left_w, self._gpu_w)
        return limits, found, {**told, **waiting}

    def _limit(self, limit: PoolLimit) -> None:
        body = {
            "metadata": {"annotations": {names.STATED_GPUS: limit.stated}},
            "spec": {"limits": {limit.resource: str(limit.gpus)}},
        }
        self._asked("PATCH", f"{KARPENTER}/nodepools/{limit.pool}", body, kind=MERGE)

    def _remove(self, node: str) -> None:
        """Karpenter empties and ends the machine of a claim that is deleted."""
        claims = [name for name, one in self._claims.items() if one.status.node_name == node]
        for name in claims:
            self._asked("DELETE", f"{KARPENTER}/nodeclaims/{name}", {})

    def _provision(self, one: Provision) -> None:
        namespace, _, pod = one.pod.partition("/")
        raw = json.loads(self._asked("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}", None))
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": raw["metadata"]["uid"]}
        about = {"name": one.name, "ownerReferences": [owner]}
        template = {"metadata": about, "template": _template(raw)}
        self._made(f"/api/v1/namespaces/{namespace}/podtemplates", template)
        sets = [{"count": one.count, "podTemplateRef": {"name": one.name}}]
        request = {
            "apiVersion": "autoscaling.x-k8s.io/v1",
            "kind": "ProvisioningRequest",
            "metadata": about,
            "spec": {"provisioningClassName": one.class_name, "podSets": sets},
        }
        self._made(f"{AUTOSCALER}/namespaces/{namespace}/provisioningrequests", request)

    def _made(self, path: str, body: Mapping[str, Any]) -> None:
        """What is there already was made by us, or by whoever else wants the same."""
        try:
            self._asked("POST", path, body)
        except RefusedByApi as refused:
            if refused.reason != "AlreadyExists":
                raise

    def _asked(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, kind: str = JSON
    ) -> bytes:
        feed = self._live.feed
        data = None if body is None else json.dumps(body).encode()
        return feed.loop.run(feed.transport.request(method, path, body=data, kind=kind)).body


def _template(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A pod like this one: without what admission and schedulers have put into it."""
    spec = {key: value for key, value in raw["spec"].items() if key not in _PUT_IN}
    spec["volumes"] = [one for one in spec.get("volumes", ()) if not _is_token(one)]
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind, ()):
            mounts = container.get("volumeMounts", ())
            container["volumeMounts"] = [one for one in mounts if not _is_token(one)]
    return {"metadata": {"labels": raw["metadata"].get("labels", {})}, "spec": spec}


def _is_token(volume: Mapping[str, Any]) -> bool:
    return str(volume["name"]).startswith(_TOKEN)

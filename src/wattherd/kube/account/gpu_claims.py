"""GPUs that pods hold by resource claims of other drivers, told of with nodes and pods.

Between the news and whoever keeps account: nodes are told with the GPUs that drivers publish there
(`Node.published`), pods with the whole GPUs that count as theirs (`Pod.held`), and both once more
when that changes. A GPU counts once, however many claims, parts (MIG) and pods share it: as that of
the pod on a node whose uid is the least, and when that pod goes, as that of the next one.

What was published counts until something newer is complete, or the node is gone: slices go away
while their driver is restarted, and the GPUs stay. So does what was known of a device that is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from wattherd.kube.api.objects import GpusHeld, GpusPublished, Node, ObjectMeta, Pod
from wattherd.kube.facts.claim_objects import ResourceClaim, ResourceSlice
from wattherd.kube.facts.gpu_devices import (
    DeviceId,
    GpuDevice,
    devices_held,
    gpus_in,
    presumed,
    users_of,
)

Gpu = tuple[str, str]
"""A node, and what tells its GPUs apart."""
_Pool = tuple[str, str]
"""A driver, and the name of a pool of its devices."""


_NOTHING, _GONE = -1, -2
"""Generations of a pool of which nothing was seen yet, and of one whose slices are all gone."""


@dataclass(slots=True)
class _Published:
    """Slices of one generation of a pool, by name: their GPUs by device."""

    generation: int = _NOTHING
    of: int = 0
    slices: dict[str, dict[str, GpuDevice]] = field(default_factory=dict)

    def find(self, device: str) -> GpuDevice | None:
        """What a device is, if it is a GPU."""
        return next((one[device] for one in self.slices.values() if device in one), None)

    def gpus(self) -> Iterable[GpuDevice]:
        """All of them."""
        return (gpu for devices in self.slices.values() for gpu in devices.values())


@dataclass(frozen=True, slots=True)
class _Claim:
    """An allocated claim: its GPUs by device, and who may use them."""

    seen: ResourceClaim
    gpus: dict[DeviceId, GpuDevice]

    @property
    def held(self) -> set[Gpu]:
        """Whole ones."""
        return {(one.node, one.gpu) for one in self.gpus.values()}


_NO_CLAIM = _Claim(ResourceClaim(), {})


class GpuClaims:
    """Tells `node_seen` and `pod_seen` of what it is told, with what claims and slices add."""

    def __init__(
        self, node_seen: Callable[[Node], object], pod_seen: Callable[[Pod], object]
    ) -> None:
        """Nothing is known yet."""
        self._tell_node, self._tell_pod = node_seen, pod_seen
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, Pod] = {}
        """Those that have claims."""
        self._told: dict[str, GpusHeld | None] = {}
        self._pools: dict[_Pool, tuple[_Published, _Published]] = {}
        """What counts, and what is not complete yet."""
        self._slices: dict[str, _Pool] = {}
        """Those that are there, by name."""
        self._pools_on: dict[str, set[_Pool]] = {}
        self._claims: dict[str, _Claim] = {}
        self._claims_in: dict[_Pool, set[str]] = {}
        self._claims_of: dict[str, set[str]] = {}
        """By pod."""
        self._claims_on: dict[Gpu, set[str]] = {}
        """By GPU."""
        self._claims_at: dict[str, set[str]] = {}
        """By node."""

    # Nodes and pods -------------------------------------------------------------------------------

    def node_seen(self, node: Node) -> None:
        """A node is there, or changed."""
        name = node.metadata.name
        published = self._published(name)
        if published != node.published:
            node = replace(node, published=published)
        self._nodes[name] = node
        self._tell_node(node)

    def node_gone(self, name: str) -> None:
        """A node was deleted."""
        self._nodes.pop(name, None)
        for pool in list(self._pools_on.get(name, ())):
            self._forget_if_gone(pool)

    def pod_seen(self, pod: Pod) -> None:
        """A pod is there, or changed."""
        uid = pod.metadata.uid
        by_name = pod.status.extended_resource_claim_status is not None
        if not (pod.spec.resource_claims or by_name or uid in self._pods):
            self._tell_pod(pod)
            return
        self._pods[uid] = pod
        self._tell_one(uid)
        self._tell_who_changed(self._beside(uid))

    def known(self, pod: Pod) -> Pod:
        """The pod, with what it was last told to hold."""
        return replace(pod, held=self._told.get(pod.metadata.uid))

    def pod_gone(self, uid: str) -> None:
        """A pod was deleted, or is over: what it shared with others counts as theirs."""
        if self._pods.pop(uid, None) is not None:
            self._told.pop(uid, None)
            self._tell_who_changed(self._beside(uid))

    # Slices and claims ----------------------------------------------------------------------------

    def slice_seen(self, published: ResourceSlice) -> None:
        """A driver publishes devices; of several generations of a pool the last complete counts."""
        spec, gpus, name = published.spec, gpus_in(published), published.metadata.name
        pool, given = (spec.driver, spec.pool.name), spec.pool.generation
        if not gpus and pool not in self._pools:
            return
        now, coming = self._pools.get(pool, (_Published(), _Published()))
        self._slices[name] = pool
        if given < now.generation or now.generation < given < coming.generation:
            return
        if now.generation == _NOTHING:
            now = _Published(given)
        if given not in (now.generation, coming.generation):
            coming = _Published(given, spec.pool.resource_slice_count)
        (now if given == now.generation else coming).slices[name] = gpus
        nodes = {one.node for one in (*now.gpus(), *coming.gpus())}
        if coming.generation > _NOTHING and len(coming.slices) >= coming.of:
            now, coming = coming, _Published()
        self._pools[pool] = now, coming
        for node in nodes:
            self._pools_on.setdefault(node, set()).add(pool)
        for uid in list(self._claims_in.get(pool, ())):
            self.claim_seen(self._claims[uid].seen)
        for node in nodes:
            self._tell_node_if_changed(node)

    def slice_gone(self, name: str) -> None:
        """A slice was deleted; the driver may be back in a moment, and count from one again."""
        pool = self._slices.pop(name, None)
        if pool is not None and pool not in self._slices.values():
            now, _ = self._pools[pool]
            now.generation = _GONE
            self._pools[pool] = now, _Published()
            self._forget_if_gone(pool)

    def _forget_if_gone(self, pool: _Pool) -> None:
        """A pool without slices, of nodes that are no more."""
        nodes = {one.node for one in self._pools[pool][0].gpus()}
        if self._pools[pool][0].generation == _GONE and nodes.isdisjoint(self._nodes):
            del self._pools[pool]
            for node in [one for one, pools in self._pools_on.items() if pool in pools]:
                self._pools_on[node].discard(pool)
                if not self._pools_on[node]:
                    del self._pools_on[node]

    def claim_seen(self, claim: ResourceClaim) -> None:
        """A claim is there, or changed."""
        uid, held = claim.metadata.uid, devices_held(claim)
        before = self._claims.get(uid, _NO_CLAIM)
        gpus = {one: gpu for one in held if (gpu := self._find(one, claim, before))}
        kept = ResourceClaim(metadata=ObjectMeta(uid=uid), status=claim.status)
        self._put(uid, before, _Claim(kept, gpus) if held else _NO_CLAIM)

    def claim_gone(self, uid: str) -> None:
        """A claim was deleted."""
        self._put(uid, self._claims.get(uid, _NO_CLAIM), _NO_CLAIM)

    def _find(self, device: DeviceId, claim: ResourceClaim, before: _Claim) -> GpuDevice | None:
        now, _ = self._pools.get((device.driver, device.pool), (_Published(), None))
        return now.find(device.device) or before.gpus.get(device) or presumed(device, claim)

    def _put(self, uid: str, before: _Claim, now: _Claim) -> None:
        """A claim is another one than before: whoever shares a GPU with its pods may count anew."""
        touched = {pod for claim in (before, now) for pod in users_of(claim.seen)}
        touched |= {pod for one in touched for pod in self._beside(one)}
        self._index(uid, before, set.discard)
        self._claims.pop(uid, None)
        if now is not _NO_CLAIM:
            self._claims[uid] = now
            self._index(uid, now, set.add)
        touched |= {pod for one in touched for pod in self._beside(one)}
        for node in {node for node, _ in before.held | now.held}:
            self._tell_node_if_changed(node)
        self._tell_who_changed(touched)

    def _index(self, uid: str, claim: _Claim, change: Callable[[set[str], str], None]) -> None:
        """Enter or strike a claim; nothing is left behind of what nobody holds any more."""
        places: list[tuple[dict[Any, set[str]], Any]] = [
            *((self._claims_in, (one.driver, one.pool)) for one in devices_held(claim.seen)),
            *((self._claims_of, pod) for pod in users_of(claim.seen)),
            *((self._claims_on, gpu) for gpu in claim.held),
            *((self._claims_at, node) for node, _ in claim.held),
        ]
        for index, key in places:
            claims = index.setdefault(key, set())
            change(claims, uid)
            if not claims:
                del index[key]

    # What they come to ----------------------------------------------------------------------------

    def _published(self, node: str) -> GpusPublished | None:
        """GPUs that are published on a node, or held there; None where there are none."""
        found = {
            one.gpu: one.product
            for pool in sorted(self._pools_on.get(node, ()))
            for one in self._pools[pool][0].gpus()
            if one.node == node
        }
        held = (self._claims[one].held for one in self._claims_at.get(node, ()))
        there = found.keys() | {gpu for gpus in held for at, gpu in gpus if at == node}
        if not there:
            return None
        products = sorted({product for product in found.values() if product})
        return GpusPublished(gpus=len(there), products=products or None)

    def _held(self, uid: str) -> GpusHeld | None:
        """What counts as a pod's own."""
        pod = self._pods[uid]
        claims = [self._claims[one] for one in self._claims_of.get(uid, ())]
        gpus = {gpu for claim in claims for gpu in claim.held}
        count = sum(self._bearer(gpu) == uid for gpu in gpus)
        by_name = pod.status.extended_resource_claim_status is not None
        return GpusHeld(gpus=count, by_name=by_name) if count or by_name else None

    def _bearer(self, gpu: Gpu) -> str:
        """Of the pods that are on a node and share a GPU, the one as whose it counts."""
        claims = (self._claims[one] for one in self._claims_on[gpu])
        there = (
            uid
            for claim in claims
            for uid in users_of(claim.seen)
            if uid in self._pods and self._pods[uid].spec.node_name
        )
        return min(there, default="")

    def _beside(self, uid: str) -> set[str]:
        """Pods that share a GPU with this one, itself among them."""
        claims = [self._claims[one] for one in self._claims_of.get(uid, ())]
        return {
            pod
            for claim in claims
            for gpu in claim.held
            for other in self._claims_on[gpu]
            for pod in users_of(self._claims[other].seen)
        }

    def _tell_one(self, uid: str) -> None:
        self._told[uid] = held = self._held(uid)
        self._tell_pod(replace(self._pods[uid], held=held))

    def _tell_who_changed(self, uids: Iterable[str]) -> None:
        for uid in sorted(uids):
            if uid in self._pods and self._held(uid) != self._told.get(uid):
                self._tell_one(uid)

    def _tell_node_if_changed(self, name: str) -> None:
        node = self._nodes.get(name)
        if node is not None and node.published != self._published(name):
            self.node_seen(node)


def with_claims(
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    slices: Iterable[ResourceSlice],
    claims: Iterable[ResourceClaim],
) -> tuple[list[Node], list[Pod]]:
    """Of lists of one moment: nodes and pods with what claims hold."""
    told_nodes: dict[str, Node] = {}
    told_pods: dict[str, Pod] = {}

    def note_node(node: Node) -> None:
        told_nodes[node.metadata.name] = node

    def note_pod(pod: Pod) -> None:
        told_pods[pod.metadata.uid] = pod

    known = GpuClaims(note_node, note_pod)
    for published in slices:
        known.slice_seen(published)
    for claim in claims:
        known.claim_seen(claim)
    for node in nodes:
        known.node_seen(node)
    for pod in pods:
        known.pod_seen(pod)
    return list(told_nodes.values()), list(told_pods.values())

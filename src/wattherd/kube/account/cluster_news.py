"""News of nodes, pods and volumes, told one by one to whoever keeps account of them.

A feed hands over batches of changes; those who decide know objects that are there and objects that
are gone. What everybody follows is selected here, so that all see the same cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping
from typing import Any, Protocol, TypeVar

from wattherd.kube.account.gpu_claims import GpuClaims
from wattherd.kube.api.api_objects import PersistentVolume, PersistentVolumeClaim
from wattherd.kube.api.changes import Key, ObjectChange
from wattherd.kube.api.objects import Node, Pod
from wattherd.kube.api.reflector import Selection, Served
from wattherd.kube.facts.claim_objects import API as CLAIMS_API
from wattherd.kube.facts.claim_objects import WATTS_DRIVER, ResourceClaim, ResourceSlice
from wattherd.kube.facts.node_filter import Volumes

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
NODES = Selection("/api/v1/nodes", Node)
PODS = Selection(
    "/api/v1/pods", Pod, fields="status.phase!=Succeeded,status.phase!=Failed"
)  # those that ended hold nothing
_VOLUMES = Selection("/api/v1/persistentvolumes", PersistentVolume)
_CLAIMS = Selection("/api/v1/persistentvolumeclaims", PersistentVolumeClaim)
_SLICES = Selection(
    f"{CLAIMS_API}/resourceslices",
    ResourceSlice,
    fields=f"spec.driver!={WATTS_DRIVER}",
    served=Served.ONCE_INSTALLED,
    optional=True,
)
_GPU_CLAIMS = Selection(
    f"{CLAIMS_API}/resourceclaims", ResourceClaim, served=Served.ONCE_INSTALLED, optional=True
)  # all of them: which hold GPUs, no label says that a tenant could not write
Follow = Callable[[Selection[Any], Callable[[list[ObjectChange[Any]]], None]], None]
"""Has somebody called with what changed of the selected objects (`Feed.follow`)."""


class HearsVolumes(Protocol):
    """Who places pods by their volumes."""

    volumes: Volumes

    def volumes_changed(self) -> None:
        """Somebody changed `volumes`."""
        ...


def each(
    seen: Callable[[T], object], gone: Callable[[Key], object]
) -> Callable[[list[ObjectChange[T]]], None]:
    """Hears a batch: one that is there, or changed, was seen; one that is no more is gone."""

    def hear(batch: list[ObjectChange[T]]) -> None:
        for change in batch:
            if change.item is None:
                gone(change.key)
            else:
                seen(change.item)

    return hear


def kept(
    known: MutableMapping[K, T],
    key_of: Callable[[Key], K],
    changed: Callable[[], object] = lambda: None,
) -> Callable[[list[ObjectChange[T]]], None]:
    """Hears a batch: `known` has the objects that are there, by `key_of` them; then `changed`."""

    def hear(batch: list[ObjectChange[T]]) -> None:
        for change in batch:
            known.pop(key_of(change.key), None)
            if change.item is not None:
                known[key_of(change.key)] = change.item
        changed()

    return hear


def by_name(key: Key) -> str:
    """Of objects without a namespace."""
    return key.name


def by_place(key: Key) -> tuple[str, str]:
    """Of objects in namespaces: which one, and their name there."""
    return key.namespace, key.name


def follow_cluster(
    follow: Follow,
    node_seen: Callable[[Node], object],
    node_gone: Callable[[Key], object],
    pod_seen: Callable[[Pod], object],
    pod_gone: Callable[[Key], object],
) -> GpuClaims:
    """Have nodes and pods told of, with the GPUs of claims where the API server knows claims."""
    claims = GpuClaims(node_seen, pod_seen)

    def without_node(key: Key) -> None:
        node_gone(key)
        claims.node_gone(key.name)

    def without_pod(key: Key) -> None:
        pod_gone(key)
        claims.pod_gone(key.uid)

    follow(NODES, each(claims.node_seen, without_node))
    follow(PODS, each(claims.pod_seen, without_pod))
    follow(_SLICES, each(claims.slice_seen, lambda key: claims.slice_gone(key.name)))
    follow(_GPU_CLAIMS, each(claims.claim_seen, lambda key: claims.claim_gone(key.uid)))
    return claims


def follow_volumes(follow: Follow, hearer: HearsVolumes) -> None:
    """Keep `hearer.volumes` as the API shows volumes and claims to them."""
    known, changed = hearer.volumes, hearer.volumes_changed
    follow(_VOLUMES, kept(known.volumes, by_name, changed))
    follow(_CLAIMS, kept(known.claims, by_place, changed))

"""Nodes a pod may go to at all, as masks: computed once for all pods that wish for the same."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from wattherd.runtime.kube.admissible import (
    Neighbour,
    Volumes,
    host_ports,
    node_check,
    ports_clash,
    repelled,
)
from wattherd.runtime.kube.api_objects import encode
from wattherd.runtime.kube.fleet import Fleet, Mask
from wattherd.runtime.kube.objects import Object, Pod, PodSpec
from wattherd.runtime.kube.refusal import Refusal

_MOST_KEPT = 512


class Eligible:
    """Masks (N,) of `fleet`'s nodes for pods, minding the pods that are there."""

    def __init__(self, fleet: Fleet, volumes: Volumes, pods: Mapping[str, Pod]) -> None:
        """`pods` are all that are known, by uid."""
        self._fleet = fleet
        self._volumes = volumes
        self._pods = pods
        self._version = (-1, -1)
        self._masks: dict[bytes, Mask] = {}

    def mask(self, pod: Pod) -> Mask:
        """Where `pod` may go, room aside; a fresh array."""
        if self._version != (version := (self._fleet.version, len(self._fleet.order))):
            self._version, self._masks = version, {}
        wish = _wish(pod)
        if wish not in self._masks:
            if len(self._masks) >= _MOST_KEPT:
                self._masks.clear()
            check = node_check(pod, self._volumes)
            self._masks[wish] = np.array(
                [check(facts) is None for facts in self._fleet.order], dtype=np.bool_
            )
        mask = self._masks[wish].copy()
        self._mind_ports(pod, mask)
        self._mind_others(pod, mask)
        return mask

    def forget(self) -> None:
        """Volumes changed."""
        self._masks = {}

    def why(self, pod: Pod) -> dict[Refusal, int]:
        """How many nodes are out of the question, by what keeps the pod off them."""
        check = node_check(pod, self._volumes)
        found: dict[Refusal, int] = {}
        for facts in self._fleet.order:
            refusal = check(facts)
            if refusal is not None:
                found[refusal] = found.get(refusal, 0) + 1
        return found

    def _mind_ports(self, pod: Pod, mask: Mask) -> None:
        wanted = host_ports(pod.spec)
        if not wanted:
            return
        for row in np.flatnonzero(mask).tolist():
            name = self._fleet.order[row].name
            taken = {
                port
                for one in self._fleet.held_on(name)
                if one.uid in self._pods
                for port in host_ports(self._pods[one.uid].spec)
            }
            mask[row] = ports_clash(wanted, taken) is None

    def _mind_others(self, pod: Pod, mask: Mask) -> None:
        shy = [
            Neighbour(other, holding.node)
            for uid, other in self._pods.items()
            if _is_shy(other.spec) and (holding := self._fleet.holdings.get(uid)) is not None
        ]
        away = repelled(pod, shy, self._fleet.nodes) if shy else set()
        for row in np.flatnonzero(mask).tolist() if away else ():
            labels = self._fleet.order[row].labels
            mask[row] = not any(labels.get(key) == value for key, value in away)


def _is_shy(spec: PodSpec) -> bool:
    affinity = spec.affinity and spec.affinity.pod_anti_affinity
    return bool(affinity and affinity.required)


class _Wish(Object, frozen=True):
    spec: PodSpec
    namespace: str = ""
    name: str = ""


def _wish(pod: Pod) -> bytes:
    """What `node_check` looks at, as a key; pods with volumes wish for themselves alone."""
    spec = pod.spec
    plain = PodSpec(
        node_selector=spec.node_selector,
        affinity=spec.affinity,
        tolerations=spec.tolerations,
        volumes=spec.volumes,
    )
    meta = pod.metadata
    own = (meta.namespace, meta.name) if spec.volumes else ("", "")
    return encode(_Wish(spec=plain, namespace=own[0], name=own[1]))

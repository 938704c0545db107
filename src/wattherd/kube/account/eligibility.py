"""Nodes a pod may go to at all, as masks: computed once for all pods that wish for the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattherd.kube.account.fleet import Mask, NodeFleet
from wattherd.kube.account.neighbours import Neighbours
from wattherd.kube.api.api_objects import encode
from wattherd.kube.api.objects import (
    NodeAffinity,
    NodeSelector,
    Object,
    Pod,
    PodSpec,
    Toleration,
)
from wattherd.kube.api.selectors import node_matches
from wattherd.kube.facts.node_facts import NodeFacts
from wattherd.kube.facts.node_filter import (
    Neighbour,
    Volumes,
    claim_name,
    has_wishes,
    host_ports,
    node_check,
    ports_clash,
    repelled,
)
from wattherd.kube.facts.refusal import NodeRefusal

_MOST_KEPT = 512
_MOST_PODS = 65_536


class Eligible:
    """Masks (N,) of `fleet`'s nodes for pods, minding the pods that are there."""

    def __init__(self, fleet: NodeFleet, volumes: Volumes, pods: Mapping[str, Pod]) -> None:
        """`pods` are all that are known, by uid."""
        self._fleet = fleet
        self._volumes = volumes
        self._pods = pods
        self._version = (-1, -1)
        self._found: dict[bytes, _Found] = {}
        self._shy: dict[str, Pod] = {}
        self._neighbours = Neighbours(fleet, pods)
        self.wishful: dict[str, None] = {}
        """Pods that ask for places by others: who comes may make room for them."""
        self._wishes: dict[str, tuple[Pod, bytes]] = {}
        self._other: Eligible | None = None

    def note(self, pod: Pod) -> None:
        """A pod is there; some will not have certain others near."""
        if _is_shy(pod.spec):
            self._shy[pod.metadata.uid] = pod
        self._neighbours.note(pod)
        if has_wishes(pod):
            self.wishful[pod.metadata.uid] = None
        if self._other is not None:
            self._other.note(pod)

    def drop(self, uid: str) -> None:
        """A pod is gone."""
        self._shy.pop(uid, None)
        self._neighbours.drop(uid)
        self.wishful.pop(uid, None)
        self._wishes.pop(uid, None)
        if self._other is not None:
            self._other.drop(uid)

    def mask(self, pod: Pod, beside: Sequence[Neighbour] = ()) -> Mask:
        """Where `pod` may go, room aside; a fresh array. `beside` are taken to be there as well."""
        mask = self._look(pod).mask.copy()
        self._mind_ports(pod, mask)
        self._mind_others(pod, mask)
        return self._neighbours.suits(pod, mask, beside)

    def kind(self, pod: Pod) -> bytes | None:
        """Equal for pods of equal masks; None where a mask depends on who is there."""
        if self._shy or has_wishes(pod) or host_ports(pod.spec):
            return None
        return self._wish_of(pod)

    def _wish_of(self, pod: Pod) -> bytes:
        known = self._wishes.get(pod.metadata.uid)
        if known is None or known[0] is not pod:
            if len(self._wishes) >= _MOST_PODS:
                self._wishes.clear()
            known = self._wishes[pod.metadata.uid] = pod, wish_of(pod)
        return known[1]

    def lasting(self, pod: Pod) -> Mask:
        """Where `pod` may go whoever is there; a fresh array."""
        return self._look(pod).mask.copy()

    def preferred(self, pod: Pod) -> tuple[Mask, ...]:
        """Nodes (N,) that `pod` would rather have than others, those first that it likes most.

        By the sum of the weights of its preferred node affinity; none where all are the same to it.
        """
        return self._look(pod).liked

    def beside(self, fleet: NodeFleet) -> Eligible:
        """The same pods, on another account of the same nodes; it hears what this one hears."""
        self._other = other = Eligible(fleet, self._volumes, self._pods)
        for pod in self._pods.values():
            other.note(pod)
        return other

    def why(self, pod: Pod) -> Sequence[tuple[NodeRefusal, int]]:
        """What keeps `pod` off how many nodes, most nodes first."""
        return self._look(pod).refusals

    def forget(self) -> None:
        """Volumes changed."""
        self._found = {}
        if self._other is not None:
            self._other.forget()

    def _look(self, pod: Pod) -> _Found:
        """At every node once, for all pods that wish for the same."""
        if self._version != (version := (self._fleet.version, len(self._fleet.order))):
            self._version, self._found = version, {}
        wish = self._wish_of(pod)
        if wish not in self._found:
            if len(self._found) >= _MOST_KEPT:
                self._found.clear()
            check = node_check(pod, self._volumes)
            order = self._fleet.order
            self._found[wish] = _found([check(facts) for facts in order], _liked(pod, order))
        return self._found[wish]

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
        holdings = self._fleet.holdings
        shy = [
            Neighbour(other, holdings[uid].node)
            for uid, other in self._shy.items()
            if uid in holdings
        ]
        away = repelled(pod, shy, self._fleet.nodes) if shy else set()
        for row in np.flatnonzero(mask).tolist() if away else ():
            labels = self._fleet.order[row].labels
            mask[row] = not any(labels.get(key) == value for key, value in away)


@dataclass(frozen=True, slots=True)
class _Found:
    mask: Mask
    refusals: tuple[tuple[NodeRefusal, int], ...]
    liked: tuple[Mask, ...]


def _found(refusals: list[NodeRefusal | None], liked: tuple[Mask, ...]) -> _Found:
    counts = Counter(refusal for refusal in refusals if refusal is not None)
    mask = np.array([refusal is None for refusal in refusals], dtype=np.bool_)
    return _Found(mask, tuple(counts.most_common()), liked)


def _liked(pod: Pod, order: Sequence[NodeFacts]) -> tuple[Mask, ...]:
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    terms = (affinity.preferred or ()) if affinity else ()
    likes = [
        (one.weight, NodeSelector(node_selector_terms=[one.preference]))
        for one in terms
        if one.preference is not None
    ]
    if not likes:
        return ()
    weights = np.array(
        [
            sum(weight for weight, term in likes if node_matches(term, facts.name, facts.labels))
            for facts in order
        ],
        dtype=np.int64,
    )
    ranks = np.unique(weights)[::-1].tolist()
    return tuple(weights == one for one in ranks) if len(ranks) > 1 else ()


def _is_shy(spec: PodSpec) -> bool:
    affinity = spec.affinity and spec.affinity.pod_anti_affinity
    return bool(affinity and affinity.required)


class _Wish(Object, frozen=True):
    selector: dict[str, str] | None = None
    affinity: NodeAffinity | None = None
    tolerations: list[Toleration] | None = None
    namespace: str = ""
    claims: list[str] | None = None


def wish_of(pod: Pod) -> bytes:
    """All that `node_check` looks at, as a key.

    Of volumes that is their claims: every pod has a volume of its own name for its token, and few
    have another.
    """
    spec, meta = pod.spec, pod.metadata
    claims = [name for one in spec.volumes or () if (name := claim_name(pod, one)) is not None]
    wish = _Wish(
        selector=spec.node_selector,
        affinity=spec.affinity.node_affinity if spec.affinity else None,
        tolerations=spec.tolerations,
        namespace=meta.namespace if claims else "",
        claims=claims or None,
    )
    return encode(wish)

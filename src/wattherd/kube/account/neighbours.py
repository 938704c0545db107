"""Where a pod may go by what it asks of pods that are there: near some, far from others, spread.

As kube-scheduler's InterPodAffinity and PodTopologySpread filter: required affinity wants a pod
that all its terms select in the same place (nodes of equal value of the label `topologyKey`),
unless they select the pod itself and no other; required anti-affinity wants none; a spread
with `DoNotSchedule` allows a place no more than `maxSkew` above the emptiest of those that the pod
may go to. Namespaces that a term selects by label are not known: such a term is taken to select all
of them where that keeps pods apart, and is refused where it would bring them together.

Looked at is what is held, bound or about to be: pods of a gang that got their places a moment ago
count for those that follow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wattherd.kube.account.fleet import Mask, NodeFleet
from wattherd.kube.api.api_objects import decoder, encode
from wattherd.kube.api.objects import (
    LabelSelector,
    NodeSelector,
    Object,
    Pod,
    PodAffinityTerm,
    Requirement,
    Toleration,
    TopologySpreadConstraint,
)
from wattherd.kube.api.selectors import node_matches, selector_matches, untolerated
from wattherd.kube.facts.node_facts import NodeFacts
from wattherd.kube.facts.node_filter import HARD, Neighbour, has_wishes, minds
from wattherd.kube.facts.workload import WorkloadPod

Codes = NDArray[np.int64]
_NOBODY = -1


class _Compared(Object, frozen=True):
    """What a spread looks at of nodes; the same for many pods."""

    selector: dict[str, str] | None = None
    required: NodeSelector | None = None
    tolerations: list[Toleration] | None = None
    by_taints: bool = False

    def suits(self, facts: NodeFacts) -> bool:
        labels = facts.labels
        if any(labels.get(key) != value for key, value in (self.selector or {}).items()):
            return False
        if self.required is not None and not node_matches(self.required, facts.name, labels):
            return False
        return not self.by_taints or untolerated(facts.taints, self.tolerations or ()) is None


@dataclass(slots=True)
class Neighbours:
    """Of pods (by uid) that `fleet` holds; an index by label is made when the first one asks."""

    fleet: NodeFleet
    pods: Mapping[str, Pod]
    _labelled: dict[tuple[str, str, str], set[str]] | None = None
    _labels_of: dict[str, Pod] = field(default_factory=dict)
    _codes: dict[str, tuple[Codes, dict[str, int]]] = field(default_factory=dict)
    _masks: dict[bytes, Mask] = field(default_factory=dict)
    _version: tuple[int, int] = (-1, -1)

    def note(self, pod: Pod) -> None:
        """A pod is there, or changed."""
        if self._labelled is not None:
            self.drop(pod.metadata.uid)
            self._enter(self._labelled, pod)

    def drop(self, uid: str) -> None:
        """A pod is gone."""
        pod = self._labels_of.pop(uid, None)
        if pod is not None and self._labelled is not None:
            for key in _keys(pod):
                self._labelled[key].discard(uid)

    def _enter(self, labelled: dict[tuple[str, str, str], set[str]], pod: Pod) -> None:
        uid = pod.metadata.uid
        self._labels_of[uid] = pod
        for key in _keys(pod):
            labelled.setdefault(key, set()).add(uid)

    def suits(self, pod: Pod, may: Mask, beside: Sequence[Neighbour] = ()) -> Mask:
        """Of the nodes (N,) in `may`, those that suit what a pod asks of others.

        `beside` are pods that are taken to be on nodes as well.
        """
        if not has_wishes(pod):
            return may
        affinity = pod.spec.affinity
        near = affinity.pod_affinity if affinity is not None else None
        far = affinity.pod_anti_affinity if affinity is not None else None
        found = may.copy()
        if near is not None and near.required:
            found &= self._near(near.required, pod, beside)
        for term in (far.required or ()) if far is not None else ():
            codes, counts = self._counts(term, [term], pod, beside)
            found &= (codes == _NOBODY) | (counts[codes] == 0)
        for one in pod.spec.topology_spread_constraints or ():
            if one.when_unsatisfiable == HARD:
                found &= self._spread(one, pod, beside)
        return found

    def _near(
        self, terms: Sequence[PodAffinityTerm], owner: Pod, beside: Sequence[Neighbour]
    ) -> Mask:
        found = [self._counts(term, terms, owner, beside) for term in terms]
        may = np.ones(len(self.fleet.order), dtype=np.bool_)
        alone = not any(counts.any() for _, counts in found)
        first = alone and all(minds(term, owner, owner) for term in terms)
        for codes, counts in found:
            may &= (codes != _NOBODY) & (first | (counts[codes] > 0))
        return may

    def _counts(
        self,
        term: PodAffinityTerm,
        terms: Sequence[PodAffinityTerm],
        owner: Pod,
        beside: Sequence[Neighbour],
    ) -> tuple[Codes, Codes]:
        """Of each node its place (N,), and how many pods all `terms` select in each place."""
        codes, names = self._places(term.topology_key)
        counts = np.zeros(len(names) + 1, dtype=np.int64)  # the last is for nodes without a place
        namespaces = None if term.namespace_selector is not None else (
            set(term.namespaces or ()) or {owner.metadata.namespace}
        )  # fmt: skip
        for one in self._there(term.label_selector, namespaces, beside):
            if all(minds(each, owner, one.pod) for each in terms):
                self._add(counts, names, term.topology_key, one.node)
        counts[_NOBODY] = 0
        return codes, counts

    def _spread(
        self, constraint: TopologySpreadConstraint, pod: Pod, beside: Sequence[Neighbour]
    ) -> Mask:
        codes, names = self._places(constraint.topology_key)
        selector = _with_keys(constraint, pod)
        compared = self._compared(constraint, pod)
        counts = np.zeros(len(names) + 1, dtype=np.int64)
        for one in self._there(selector, {pod.metadata.namespace}, beside):
            ends = one.pod.metadata.deletion_timestamp is not None
            if not ends and selector_matches(selector, one.pod.metadata.labels or {}):
                self._add(counts, names, constraint.topology_key, one.node)
        places = np.unique(codes[compared & (codes != _NOBODY)])
        fewest = int(counts[places].min()) if len(places) else 0
        if len(places) < (constraint.min_domains or 0):
            fewest = 0
        itself = int(selector_matches(selector, pod.metadata.labels or {}))
        roomy = counts[codes] + itself - fewest <= constraint.max_skew
        suits: Mask = (codes != _NOBODY) & roomy
        return suits

    def _compared(self, constraint: TopologySpreadConstraint, pod: Pod) -> Mask:
        """(N,) nodes whose places are compared: those that it selects, by default tainted ones."""
        spec, affinity = pod.spec, pod.spec.affinity and pod.spec.affinity.node_affinity
        by_affinity = constraint.node_affinity_policy != "Ignore"
        by_taints = constraint.node_taints_policy == "Honor"
        key = encode(
            _Compared(
                selector=spec.node_selector if by_affinity else None,
                required=affinity.required if affinity and by_affinity else None,
                tolerations=spec.tolerations if by_taints else None,
                by_taints=by_taints,
            )
        )
        self._places(constraint.topology_key)  # nothing of other nodes is kept
        if key not in self._masks:
            found = decoder(_Compared).decode(key)
            suits = [found.suits(facts) for facts in self.fleet.order]
            self._masks[key] = np.array(suits, dtype=np.bool_)
        return self._masks[key]

    # Places and who is there ----------------------------------------------------------------------

    def _places(self, key: str) -> tuple[Codes, dict[str, int]]:
        """A number for each value of a label, of each node its place (N,); -1 without the label."""
        if self._version != (version := (self.fleet.version, len(self.fleet.order))):
            self._version, self._codes, self._masks = version, {}, {}
        if key not in self._codes:
            names: dict[str, int] = {}
            values = [facts.labels.get(key) for facts in self.fleet.order]
            codes = [
                _NOBODY if one is None else names.setdefault(one, len(names)) for one in values
            ]
            self._codes[key] = np.array(codes, dtype=np.int64), names
        return self._codes[key]

    def _add(self, counts: Codes, names: Mapping[str, int], key: str, node: str) -> None:
        facts = self.fleet.nodes.get(node)
        value = None if facts is None else facts.labels.get(key)
        if value is not None and value in names:
            counts[names[value]] += 1

    def _there(
        self,
        selector: LabelSelector | None,
        namespaces: Collection[str] | None,
        beside: Sequence[Neighbour],
    ) -> Iterator[Neighbour]:
        """Pods that may be selected; those that an equal label rules out are not looked at."""
        yield from beside
        if selector is None:
            return
        assumed = {one.pod.metadata.uid for one in beside}
        for uid in self._narrowest(selector, namespaces):
            holding, pod = self.fleet.holdings.get(uid), self.pods.get(uid)
            if holding is not None and pod is not None and uid not in assumed:
                yield Neighbour(pod, holding.node)

    def _narrowest(
        self, selector: LabelSelector, namespaces: Collection[str] | None
    ) -> Collection[str]:
        if self._labelled is None:
            self._labelled = {}
            for pod in self.pods.values():
                self._enter(self._labelled, pod)
        equal = (selector.match_labels or {}).items()
        if not equal or namespaces is None:
            return list(self.fleet.holdings)
        labelled = self._labelled
        sets = [
            {uid for space in namespaces for uid in labelled.get((space, *pair), ())}
            for pair in equal
        ]
        sets.sort(key=len)
        return sorted(sets[0])


def apart(
    members: Sequence[WorkloadPod],
    open_to: Callable[[WorkloadPod, Sequence[Neighbour]], Mask],
    fleet: NodeFleet,
) -> list[Mask]:
    """For each member of a gang the nodes (N,) of a place that suits it, if the others have theirs.

    One after the other gets the place with the most room left: whoever places them is free within
    it, and does not have to know what they ask of each other. `open_to` are the nodes that take a
    member beside others.
    """
    masks, beside = list[Mask](), list[Neighbour]()
    taken: Counter[str] = Counter()
    for member in members:
        mask = open_to(member, beside)
        keys, places = _place_keys(member.pod), dict[tuple[str | None, ...], list[int]]()
        rooms = fleet.rooms(member.ask, mask)
        for row in np.flatnonzero(rooms).tolist():
            labels = fleet.order[row].labels
            places.setdefault(tuple(labels.get(key) for key in keys), []).append(row)

        def room(rows: list[int], rooms: Codes = rooms) -> int:
            return sum(max(0, int(rooms[row]) - taken[fleet.order[row].name]) for row in rows)

        rows = max(places.values(), key=room, default=[])
        found = np.zeros_like(mask)
        found[rows] = True
        masks.append(found)
        if rows:
            node = fleet.order[max(rows, key=lambda row: room([row]))].name
            taken[node] += 1
            beside.append(Neighbour(member.pod, node))
    return masks


def _place_keys(pod: Pod) -> list[str]:
    """By which labels places are told apart that matter to a pod."""
    affinity = pod.spec.affinity
    parts = () if affinity is None else (affinity.pod_affinity, affinity.pod_anti_affinity)
    keys = [term.topology_key for part in parts if part is not None for term in part.required or ()]
    spread = pod.spec.topology_spread_constraints or ()
    keys += [one.topology_key for one in spread if one.when_unsatisfiable == HARD]
    return list(dict.fromkeys(keys))


def _keys(pod: Pod) -> list[tuple[str, str, str]]:
    about = pod.metadata
    return [(about.namespace, key, value) for key, value in (about.labels or {}).items()]


def _with_keys(constraint: TopologySpreadConstraint, pod: Pod) -> LabelSelector | None:
    """The selector, narrowed to pods that are like this one by `matchLabelKeys`."""
    selector, labels = constraint.label_selector, pod.metadata.labels or {}
    keys = [key for key in constraint.match_label_keys or () if key in labels]
    if selector is None or not keys:
        return selector
    more = [Requirement(key=key, operator="In", values=[labels[key]]) for key in keys]
    return LabelSelector(
        match_labels=selector.match_labels,
        match_expressions=[*(selector.match_expressions or ()), *more],
    )

"""Which nodes a pod may go to at all, by everything that is not room: our own filter.

A stock kube-scheduler filters before it asks an extender; a scheduler of our own must. Honoured
are: unschedulable nodes, taints, node selector and required node affinity, host ports, the node
affinity of bound volumes, and required anti-affinity of pods that are there; what a pod asks of
others itself is minded by `account.neighbours`. Refused loudly, since placing them by half of their
wishes would be wrong: required pod affinity to namespaces that are selected by label, claims that
are not bound, volumes of single attachment in the pod, and claims of dynamic resource allocation.
Gates are waited for by whoever calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from wattherd.kube.api.api_objects import PersistentVolume, PersistentVolumeClaim
from wattherd.kube.api.objects import (
    Container,
    LabelSelector,
    Pod,
    PodAffinityTerm,
    PodSpec,
    Volume,
)
from wattherd.kube.api.selectors import node_matches, selector_matches, untolerated
from wattherd.kube.facts.node_facts import NodeFacts
from wattherd.kube.facts.refusal import NodeRefusal, RefusalToken

Port = tuple[str, str, int]
"""Protocol, address (`0.0.0.0`: all) and number on the host."""
_ALL_ADDRESSES = "0.0.0.0"  # noqa: S104 (read, not bound)
HARD = "DoNotSchedule"
_SINGLE = ("gce_persistent_disk", "aws_elastic_block_store", "azure_disk", "iscsi", "rbd")
_ONE_POD = "ReadWriteOncePod"


@dataclass(slots=True)
class Volumes:
    """Claims by (namespace, name) and volumes by name, as the API shows them."""

    claims: dict[tuple[str, str], PersistentVolumeClaim] = field(default_factory=dict)
    volumes: dict[str, PersistentVolume] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A pod that is on a node, as far as others must mind it."""

    pod: Pod
    node: str


def host_ports(spec: PodSpec) -> set[Port]:
    """Ports on the host that a pod takes; its sidecars' and init containers' count as well."""
    containers: Iterable[Container] = (*(spec.containers or ()), *(spec.init_containers or ()))
    return {
        (port.protocol or "TCP", port.host_ip or _ALL_ADDRESSES, port.host_port)
        for container in containers
        for port in container.ports or ()
        if port.host_port
    }


def ports_clash(wanted: Iterable[Port], taken: Iterable[Port]) -> Port | None:
    """The first port that is wanted and taken; one on all addresses clashes with any."""
    held = list(taken)
    for protocol, address, number in wanted:
        for other in held:
            shared = _ALL_ADDRESSES in (address, other[1]) or address == other[1]
            if (protocol, number) == (other[0], other[2]) and shared:
                return protocol, address, number
    return None


def unsupported(pod: Pod, volumes: Volumes) -> NodeRefusal | None:
    """What we will not do by half, in words that say what would help."""
    spec = pod.spec
    affinity = spec.affinity
    near = affinity.pod_affinity if affinity is not None else None
    for term in (near.required or ()) if near is not None else ():
        if term.namespace_selector not in (None, LabelSelector()):
            what = "required affinity to pods of namespaces that a label selects"
            return _never(what, "name the namespaces")
    if spec.resource_claims:
        return _never("resource claims", "leave the pod to the default scheduler")
    for volume in spec.volumes or ():
        problem = _volume_problem(pod, volume, volumes)
        if problem is not None:
            return problem
    return None


def _never(what: str, hint: str) -> NodeRefusal:
    return NodeRefusal(
        RefusalToken.UNSUPPORTED, f"wattherd does not place pods with {what}; {hint}"
    )


def claim_name(pod: Pod, volume: Volume) -> str | None:
    """The claim behind a volume; that of an ephemeral one is named after pod and volume."""
    if volume.persistent_volume_claim is not None:
        return volume.persistent_volume_claim.claim_name
    return None if volume.ephemeral is None else f"{pod.metadata.name}-{volume.name}"


def _volume_problem(pod: Pod, volume: Volume, volumes: Volumes) -> NodeRefusal | None:
    if any(getattr(volume, kind) is not None for kind in _SINGLE):
        hint = "use a persistent volume claim"
        return _never(f"volume {volume.name} attached by the pod itself", hint)
    name = claim_name(pod, volume)
    if name is None:
        return None
    claim = volumes.claims.get((pod.metadata.namespace, name))
    if claim is None:
        return NodeRefusal(RefusalToken.VOLUME, f"claim {name} does not exist")
    if not claim.spec.volume_name:
        hint = "use a storage class that binds at once"
        return NodeRefusal(RefusalToken.VOLUME, f"claim {name} is not bound; {hint}")
    if claim.spec.volume_name not in volumes.volumes:
        return NodeRefusal(RefusalToken.VOLUME, f"volume {claim.spec.volume_name} does not exist")
    if _ONE_POD in (claim.spec.access_modes or ()):
        return _never(f"claim {name} for a single pod", "use ReadWriteOnce")
    return None


def node_check(pod: Pod, volumes: Volumes) -> Callable[[NodeFacts], NodeRefusal | None]:
    """The first thing about a node that lasts and keeps `pod` off it, or None.

    For pods that `unsupported` lets pass.
    """
    spec = pod.spec
    tolerations = spec.tolerations or ()
    wanted = (spec.node_selector or {}).items()
    affinity = spec.affinity and spec.affinity.node_affinity
    required = affinity.required if affinity else None
    bound = [one for volume in spec.volumes or () if (one := _bound(pod, volume, volumes))]

    def check(facts: NodeFacts) -> NodeRefusal | None:
        if facts.problem:
            return NodeRefusal(RefusalToken.UNSCHEDULABLE, facts.problem)
        taint = untolerated(facts.taints, tolerations)
        if taint is not None:
            text = f"taint {taint.key}={taint.value}:{taint.effect}"
            return NodeRefusal(RefusalToken.TAINT, text.replace("=:", ":"))
        if facts.unschedulable and not _bears_cordon(pod):
            return NodeRefusal(RefusalToken.UNSCHEDULABLE, "the node is cordoned")
        for key, value in wanted:
            if facts.labels.get(key) != value:
                return NodeRefusal(RefusalToken.SELECTOR, f"label {key} is not {value}")
        if required is not None and not node_matches(required, facts.name, facts.labels):
            return NodeRefusal(
                RefusalToken.AFFINITY, "no term of the pod's node affinity selects the node"
            )
        for volume in bound:
            if not _reaches(volume, facts):
                return NodeRefusal(
                    RefusalToken.VOLUME, f"volume {volume.metadata.name} is not reached"
                )
        return None

    return check


_CORDON = "node.kubernetes.io/unschedulable"


def _bears_cordon(pod: Pod) -> bool:
    """Daemons bear the taint that a cordon stands for."""
    return any(
        one.key == _CORDON and one.effect in ("", "NoSchedule") and one.operator == "Exists"
        for one in pod.spec.tolerations or ()
    )


def _bound(pod: Pod, volume: Volume, volumes: Volumes) -> PersistentVolume | None:
    name = claim_name(pod, volume)
    claim = volumes.claims.get((pod.metadata.namespace, name)) if name else None
    return None if claim is None else volumes.volumes.get(claim.spec.volume_name)


def _reaches(volume: PersistentVolume, facts: NodeFacts) -> bool:
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return True
    return node_matches(affinity.required, facts.name, facts.labels)


def has_wishes(pod: Pod) -> bool:
    """Whether a pod asks for, or against, others in the same place."""
    affinity, spread = pod.spec.affinity, pod.spec.topology_spread_constraints or ()
    parts = () if affinity is None else (affinity.pod_affinity, affinity.pod_anti_affinity)
    asks = any(part is not None and part.required for part in parts)
    return asks or any(one.when_unsatisfiable == HARD for one in spread)


def repelled(
    pod: Pod, neighbours: Iterable[Neighbour], nodes: Mapping[str, NodeFacts]
) -> set[tuple[str, str]]:
    """(topology key, value) from which required anti-affinity of pods there keeps `pod` away.

    Of namespace selectors we know only the empty one (all namespaces); any other is taken to
    select the pod's namespace, so that nobody is put beside a pod that will not have it.
    """
    found: set[tuple[str, str]] = set()
    for one in neighbours:
        affinity = one.pod.spec.affinity and one.pod.spec.affinity.pod_anti_affinity
        for term in (affinity.required or ()) if affinity else ():
            facts = nodes.get(one.node)
            value = facts.labels.get(term.topology_key) if facts is not None else None
            if value is not None and minds(term, one.pod, pod):
                found.add((term.topology_key, value))
    return found


def minds(term: PodAffinityTerm, owner: Pod, pod: Pod) -> bool:
    """Whether a term of `owner` selects `pod`."""
    namespace = pod.metadata.namespace
    named = term.namespaces or ()
    own = not named and term.namespace_selector is None and namespace == owner.metadata.namespace
    there = own or namespace in named or term.namespace_selector is not None
    return there and selector_matches(term.label_selector, pod.metadata.labels or {})

"""Pools that others scale: how far they may grow within the watts, in those others' own words.

* Karpenter makes nodes for pods that wait, up to the limits of a NodePool (karpenter.sh/v1,
  `spec.limits`). The limit of GPUs is held to those that its nodes have and those for which the
  pool's power domain has watts left, never above what was stated. A domain's watts are split evenly
  over the pools it feeds, since all of them may grow before we look again.
* The Cluster Autoscaler leaves pods alone that bear `autoscaling.x-k8s.io/consume-provisioning-
  request: NAME`, until a ProvisioningRequest of that name is provisioned (autoscaling.x-k8s.io/v1).
  It is made once the site has the watts for all GPUs of the pods that bear the name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from wattherd.catalog.gpus import GPUS
from wattherd.errors import UserError
from wattherd.kube.api import names
from wattherd.kube.api.objects import Object, ObjectMeta, Pod, Resources
from wattherd.kube.facts.domain_tree import SITE, DomainTree
from wattherd.kube.facts.node_facts import catalog_model
from wattherd.kube.facts.pod_request import ask_of_foreign
from wattherd.units import plain, watts

CONSUMES = "autoscaling.x-k8s.io/consume-provisioning-request"
CLASS = "autoscaling.x-k8s.io/provisioning-class-name"
DEFAULT_CLASS = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
KARPENTER_POOL = "karpenter.sh/nodepool"


class PoolTemplate(Object, frozen=True):
    """What nodes of a pool will be like, as far as it is stated."""

    metadata: ObjectMeta = ObjectMeta()


class NodePoolSpec(Object, frozen=True):
    """How far a pool may grow."""

    limits: Resources | None = None
    template: PoolTemplate = PoolTemplate()


class NodePool(Object, frozen=True):
    """A pool of Karpenter's."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodePoolSpec = NodePoolSpec()


class NodeClaimStatus(Object, frozen=True):
    """Which node came of a claim."""

    node_name: str = ""


class NodeClaim(Object, frozen=True):
    """One node that Karpenter made, or makes."""

    metadata: ObjectMeta = ObjectMeta()
    status: NodeClaimStatus = NodeClaimStatus()


class ProvisioningRequest(Object, frozen=True):
    """What the Cluster Autoscaler was asked for."""

    metadata: ObjectMeta = ObjectMeta()


@dataclass(frozen=True, slots=True)
class PoolLimit:
    """GPUs that a pool may have; `stated` is what its owner wrote, empty for no limit."""

    pool: str
    resource: str
    gpus: int
    stated: str


@dataclass(frozen=True, slots=True)
class Provision:
    """A request to make: for pods like the one that `pod` (namespace/name) names, `count` times."""

    namespace: str
    name: str
    class_name: str
    pod: str
    count: int


def limits_of(
    pools: Iterable[NodePool],
    gpus_now: Mapping[str, int],
    headroom_w: Mapping[str, float],
    tree: DomainTree,
) -> tuple[list[PoolLimit], dict[str, str]]:
    """Limits that differ from what stands there, and what is wrong with other pools, by name.

    Args:
        pools: Karpenter's.
        gpus_now: by pool, of its nodes that are there.
        headroom_w: watts left by domain; a domain that is not named has no limit.
        tree: which domain feeds which.
    """
    known = sorted(pools, key=lambda one: one.metadata.name)
    fed = {one.metadata.name: tree.feeder(_labels(one)) for one in known}
    sharing: dict[str, int] = {}
    for domain in fed.values():
        for above in tree.path(domain):
            sharing[above] = sharing.get(above, 0) + 1
    limits, problems = [], {}
    for pool in known:
        name = pool.metadata.name
        limiting = [one for one in tree.path(fed[name]) if one in headroom_w]
        try:
            gpu_w = _gpu_w(pool)
        except UserError as error:
            problems[name] = error.line()
            continue
        left_w = min((headroom_w[one] / sharing[one] for one in limiting), default=None)
        more = None if left_w is None else int(max(left_w, 0.0) // gpu_w)
        limit = _limit(pool, gpus_now.get(name, 0), more)
        if limit is not None:
            limits.append(limit)
    return limits, problems


def _limit(pool: NodePool, now: int, more: int | None) -> PoolLimit | None:
    """What is to be written; None where it stands there already."""
    stands = {key: str(text) for key, text in (pool.spec.limits or {}).items()}
    resource = next((one for one in names.GPU_RESOURCES if one in stands), names.NVIDIA_GPU)
    noted = pool.metadata.annotation(names.STATED_GPUS)
    stated = stands.get(resource, "") if noted is None else noted
    if more is None:
        return None
    most = now + more
    if stated.isdigit():
        most = min(most, int(stated))
    return None if stands.get(resource) == str(most) else PoolLimit(
        pool.metadata.name, resource, most, stated
    )  # fmt: skip


def _labels(pool: NodePool) -> Mapping[str, str]:
    return pool.spec.template.metadata.labels or {}


def _gpu_w(pool: NodePool) -> float:
    """What a GPU more may draw, its part of the machine included where that is stated.

    Raises:
        UserError: neither stated nor known by the model.
    """
    written = pool.metadata.annotation(names.GPU_W)
    if written is not None:
        stated_w = watts(plain(written), field=names.GPU_W)
        if stated_w > 0:
            return stated_w
    labels = _labels(pool)
    product = next((labels[key] for key in names.PRODUCT_LABELS if key in labels), "")
    model = catalog_model(product) if product else None
    if not model:
        hint = f"write {names.GPU_W}: 900W on the NodePool"
        raise UserError("it is not known what its GPUs draw", field=names.GPU_W, hint=hint)
    return GPUS[model].max_w


def provisions(
    pods: Iterable[Pod],
    made: Iterable[tuple[str, str]],
    headroom_w: Mapping[str, float],
    gpu_w: float,
) -> tuple[list[Provision], dict[str, str]]:
    """Requests that the site has watts for, and why others wait, by namespace/name.

    `made` are those that were made (namespace, name), `gpu_w` what a GPU more may draw.
    """
    left_w = headroom_w.get(SITE)
    groups, known = _consumers(pods), set(made)
    found, waiting = [], {}
    for (namespace, name), members in sorted(groups.items(), key=lambda one: one[0] not in known):
        asks = [ask_of_foreign(pod) for pod in members]
        gpus = sum(one.whole or one.slots or bool(one.share_milli) for one in asks)
        needs_w = gpus * gpu_w
        if (namespace, name) in known:  # its nodes are on their way
            left_w = None if left_w is None else left_w - needs_w
            continue
        if left_w is not None and needs_w > left_w:
            said = f"{gpus} GPUs need {needs_w:.0f} W, the site has {max(left_w, 0.0):.0f} W left"
            waiting[f"{namespace}/{name}"] = said
            continue
        left_w = None if left_w is None else left_w - needs_w
        class_name = members[0].metadata.annotation(CLASS) or DEFAULT_CLASS
        pod = f"{namespace}/{members[0].metadata.name}"
        found.append(Provision(namespace, name, class_name, pod, len(members)))
    return found, waiting


def _consumers(pods: Iterable[Pod]) -> dict[tuple[str, str], Sequence[Pod]]:
    """Pods that wait for a request, by its namespace and name."""
    groups: dict[tuple[str, str], list[Pod]] = {}
    for pod in sorted(pods, key=lambda one: one.metadata.name):
        name = pod.metadata.annotation(CONSUMES)
        if name and not pod.spec.node_name and pod.metadata.deletion_timestamp is None:
            groups.setdefault((pod.metadata.namespace, name), []).append(pod)
    return dict(sorted(groups.items()))

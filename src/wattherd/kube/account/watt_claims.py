"""Claims to watts: which pods have one, and the templates from which Kubernetes makes them.

A policy at admission writes a claim into a pod by the name of a template, which says how many GPUs
and of which model (`wattherd-2-gpus-tesla-t4`); who sees such a pod makes the template in its
namespace. A claim takes the watts that the pod's GPUs add in use, on every level of the tree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from wattherd.catalog.gpus import GPUS
from wattherd.kube.account.binding_mode import ByBinding
from wattherd.kube.account.watt_slices import CAPACITY, CLASS, DRIVER, MANAGED, show_mw
from wattherd.kube.api import names, quantity
from wattherd.kube.api.objects import ObjectMeta, OwnerReference, Pod
from wattherd.kube.facts.claim_objects import (
    CapacityAsked,
    Cel,
    ClaimSpec,
    ClaimTemplateSpec,
    DeviceClaim,
    DeviceRequest,
    ExactRequest,
    ResourceClaim,
    ResourceClaimTemplate,
    Selector,
)
from wattherd.kube.facts.node_facts import catalog_model

CLAIM = "wattherd-watts"
"""What pods call their claim."""
_NAME = re.compile(r"wattherd-(\d{1,4})-gpus-(.+)")
_ANY = "any"


class ByClaim(ByBinding):
    """kube-scheduler places the pods that have a claim; ours is only what a cut of watts does.

    What a claim holds cannot shrink while its pod is bound: watts that a cap saves are kept free,
    and those of a job that is suspended can be claimed again.
    """

    queued = False
    together = False
    unplaced = ""

    def __init__(self) -> None:
        """No scheduler is named: none of its pods is placed by us."""
        super().__init__("")

    def waits(self, pod: Pod) -> bool:
        """Nobody waits for us."""
        del pod
        return False

    def is_ours(self, pod: Pod) -> bool:
        """Whoever says that it has a claim, whatever it claims by."""
        return any(one.name == CLAIM for one in pod.spec.resource_claims or ())

    def is_undeclared(self, pod: Pod) -> bool:
        """Claims say what was granted, not pods (`ClaimCover`)."""
        del pod
        return False


SETTLE_S = 2.0
"""For news of a pod and of its claim, which come by different ways, to agree."""


class ClaimCover:
    """What pods on nodes draw beyond what their claims hold; nothing where Kubernetes made these.

    Only a claim that the pod controls is its own, and only what was allocated counts.
    """

    def __init__(self) -> None:
        """Nothing is claimed yet."""
        self._held_mw: dict[str, dict[str, int]] = {}
        """By pod and claim, what it holds on the level that grants least."""
        self._pod_of: dict[str, str] = {}
        self._since_s: dict[str, float] = {}
        self.beyond_mw: dict[str, int] = {}
        """By pod."""

    def claim_seen(self, claim: ResourceClaim) -> None:
        """A claim is there, or changed."""
        owners = claim.metadata.owner_references or ()
        owner = next((one.uid for one in owners if one.controller and one.kind == "Pod"), "")
        uid = claim.metadata.uid
        self.claim_gone(uid)
        self._pod_of[uid] = owner
        least_mw = min(allocated_mw(claim).values(), default=0)
        self._held_mw.setdefault(owner, {})[uid] = least_mw

    def claim_gone(self, uid: str) -> None:
        """A claim was deleted."""
        held = self._held_mw.get(self._pod_of.pop(uid, ""), {})
        held.pop(uid, None)

    def look(self, drawn_mw: Mapping[str, int], at_s: float) -> None:
        """`drawn_mw` is what pods that say they claim watts add where they are."""
        beyond = {uid: mw - self._mw(uid) for uid, mw in drawn_mw.items() if mw > self._mw(uid)}
        self._since_s = {uid: self._since_s.get(uid, at_s) for uid in beyond}
        self.beyond_mw = {
            uid: mw for uid, mw in beyond.items() if at_s - self._since_s[uid] >= SETTLE_S
        }

    def _mw(self, uid: str) -> int:
        return max(self._held_mw.get(uid, {}).values(), default=0)


@dataclass(frozen=True, slots=True)
class WantedTemplate:
    """A template that a pod names: for `gpus` GPUs that add `gpu_mw` each, of whatever model."""

    name: str
    gpus: int
    gpu_mw: int
    any_model: bool


def template_name(pod: Pod) -> str | None:
    """The template of the pod's claim to watts, or None."""
    claims = pod.spec.resource_claims or ()
    return next((one.resource_claim_template_name for one in claims if one.name == CLAIM), None)


def wanted_of(pod: Pod, hungriest_mw: int) -> WantedTemplate | None:
    """What the template that `pod` names must say, or None where nobody knows.

    Where no model is named, each GPU is taken for the hungriest of the cluster.
    """
    name = template_name(pod)
    form = _NAME.fullmatch(name or "")
    if name is None or form is None:
        return None
    if form[2] == _ANY:
        return WantedTemplate(name, int(form[1]), hungriest_mw, any_model=True)
    selector = pod.spec.node_selector or {}
    product = next((selector[key] for key in names.PRODUCT_LABELS if key in selector), "")
    model = GPUS.get(catalog_model(product) or "")
    if model is None:
        return None
    rise_mw = round(model.max_w * 1000) - round(model.idle_w * 1000)
    return WantedTemplate(name, int(form[1]), rise_mw, any_model=False)


def template_of(
    wanted: WantedTemplate, namespace: str, depth: int, owner: OwnerReference
) -> ResourceClaimTemplate:
    """The template, for a tree of `depth` levels."""
    devices = DeviceClaim(requests=[_request(wanted, level, depth) for level in range(depth)])
    return ResourceClaimTemplate(
        api_version="resource.k8s.io/v1",
        kind="ResourceClaimTemplate",
        metadata=ObjectMeta(
            name=wanted.name,
            namespace=namespace,
            labels=dict(MANAGED),
            owner_references=[owner],
        ),
        spec=ClaimTemplateSpec(
            metadata=ObjectMeta(labels=dict(MANAGED)), spec=ClaimSpec(devices=devices)
        ),
    )


def _request(wanted: WantedTemplate, level: int, depth: int) -> DeviceRequest:
    device = f'device.attributes["{DRIVER}"]'
    needs = [f"{device}.level == {level}"]
    if wanted.any_model and level == depth - 1:
        needs.append(f"{device}.mostGpuMilliwatts <= {wanted.gpu_mw}")
    return DeviceRequest(
        name=f"level-{level}",
        exactly=ExactRequest(
            device_class_name=CLASS,
            selectors=[Selector(cel=Cel(expression=" && ".join(needs)))],
            capacity=CapacityAsked(requests={CAPACITY: show_mw(wanted.gpus * wanted.gpu_mw)}),
        ),
    )


def same_template(one: ResourceClaimTemplate, other: ResourceClaimTemplate) -> bool:
    """Whether claims made of both are the same, the spelling of quantities aside; and owners."""
    owners = one.metadata.owner_references, other.metadata.owner_references
    return owners[0] == owners[1] and _told(one) == _told(other)


def _told(made: ResourceClaimTemplate) -> list[tuple[object, ...]]:
    told: list[tuple[object, ...]] = []
    for one in made.spec.spec.devices.requests or ():
        exact = one.exactly or ExactRequest()
        asked = (exact.capacity or CapacityAsked()).requests or {}
        watts_mw = quantity.milli(asked.get(CAPACITY, "0"))
        told.append((one.name, exact.device_class_name, exact.selectors, watts_mw))
    return told


def allocated_mw(claim: ResourceClaim) -> dict[str, int]:
    """By pool of ours what a claim holds."""
    allocation = claim.status.allocation
    results = (allocation.devices.results or ()) if allocation is not None else ()
    return {
        one.pool: quantity.milli((one.consumed_capacity or {}).get(CAPACITY, "0"))
        for one in results
        if one.driver == DRIVER
    }

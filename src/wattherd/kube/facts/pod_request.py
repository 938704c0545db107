"""What a pod asks for, in our terms: amounts, GPUs whole or in part, and of which models.

GPU models are read where users write them: a node selector or a required node affinity on the
vendor's product label. They are kept out of the rest of the affinity, because policies weigh them
(fragmentation is measured against who may use which model).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from wattherd.errors import UserError
from wattherd.kube.api import names, quantity
from wattherd.kube.api.objects import (
    Container,
    ContainerStatus,
    Pod,
    Requirement,
    ResourceRequirements,
)
from wattherd.kube.facts.amounts import CPU, MEMORY, Amounts, amounts_of
from wattherd.kube.facts.node_facts import PODS, Giving, GpuOffer, catalog_model
from wattherd.kube.facts.refusal import NodeRefusal, PodRefused, RefusalToken
from wattherd.model.cluster import WHOLE_GPU_MILLI
from wattherd.model.job import Request

# --- What a pod takes of its node while it is there, resource by resource.
#
# As the kubelet and kube-scheduler count it (KEP-753 sidecars, KEP-2837 pod-level resources,
# KEP-1287 resize in place): the larger of what runs at last and what any init container needs when
# its turn comes, beside the sidecars begun before it; then the overhead of the runtime class. The
# API server lets no negative amounts pass.

_ALWAYS = "Always"


def pod_amounts(pod: Pod) -> Amounts:
    """What `pod` asks of a node.

    Raises:
        UserError: an amount is no quantity.
    """
    spec, status = pod.spec, pod.status
    running = _sum(_asked(spec.containers, status.container_statuses))
    inits = list(spec.init_containers or ())
    beside: Amounts = {}
    peak: Amounts = {}
    for init, asked in zip(inits, _asked(inits, status.init_container_statuses), strict=True):
        now = _plus(beside, asked)
        if init.restart_policy == _ALWAYS:
            beside = now
        peak = _most(peak, now)
    total = _most(_plus(running, beside), peak)
    if spec.resources is not None and spec.resources.requests:
        total |= amounts_of(spec.resources.requests)
    return _plus(total, amounts_of(spec.overhead))


def _asked(
    containers: list[Container] | None, statuses: list[ContainerStatus] | None
) -> list[Amounts]:
    """Of each container; while it is resized, the most of what it had, has and is to have."""
    given = {status.name: status for status in statuses or ()}
    return [_most_of(one, given.get(one.name)) for one in containers or ()]


def _most_of(container: Container, status: ContainerStatus | None) -> Amounts:
    asked = _requests(container.resources)
    if status is None:
        return asked
    allocated = amounts_of(status.allocated_resources)
    return _most(_most(asked, allocated), _requests(status.resources))


def _requests(resources: ResourceRequirements | None) -> Amounts:
    return {} if resources is None else amounts_of(resources.requests)


def _sum(parts: Iterable[Amounts]) -> Amounts:
    total: Amounts = {}
    for part in parts:
        total = _plus(total, part)
    return total


def _plus(one: Mapping[str, int], other: Mapping[str, int]) -> Amounts:
    return {name: one.get(name, 0) + other.get(name, 0) for name in (*one, *other)}


def _most(one: Mapping[str, int], other: Mapping[str, int]) -> Amounts:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in (*one, *other)}


_OF_REQUEST = frozenset({CPU, MEMORY, *names.GPU_RESOURCES, names.NVIDIA_SHARED})


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """Amounts of one pod; `whole` GPUs, or `slots` of shared ones, or `share_milli` of one.

    `claimed` whole GPUs of its node it holds beside them, by resource claims. `models` are catalog
    names (empty: any), `others` all resources that policies do not look at.
    """

    cpu_milli: int
    memory_mib: int
    whole: int = 0
    slots: int = 0
    share_milli: int | None = None
    claimed: int = 0
    models: tuple[str, ...] = ()
    others: Amounts = field(default_factory=dict)

    @property
    def uses_gpus(self) -> bool:
        """Whether it needs a GPU at all."""
        return bool(self.whole or self.slots or self.share_milli or self.claimed)

    @property
    def devices(self) -> int:
        """GPUs that it takes, slots of shared ones counted like whole ones."""
        return self.whole + self.slots + self.claimed

    @property
    def key(self) -> tuple[object, ...]:
        """The same for asks that are equal."""
        gpus = (self.whole, self.slots, self.share_milli, self.claimed, self.models)
        return self.cpu_milli, self.memory_mib, *gpus, frozenset(self.others.items())

    def on(self, offer: GpuOffer) -> Request | None:
        """What it takes of a node that gives GPUs like that, or None if that is not for it."""
        if not self.uses_gpus:
            return self._request(0, 0)
        match offer.giving:
            case Giving.WHOLE:
                whole = self.whole and not self.slots
                return self._request(self.whole, WHOLE_GPU_MILLI) if whole else None
            case Giving.SLOTS:
                return self._slot(offer.slot_milli)
            case Giving.ANNOTATED:
                if self.share_milli is not None:
                    return None if self.whole else self._request(1, self.share_milli)
                return self._request(self.whole, WHOLE_GPU_MILLI) if self.whole else None
            case Giving.CLAIMS:
                return None

    def without_gpus(self) -> Request:
        """Its processors and memory alone."""
        return self._request(0, 0)

    def _slot(self, slot_milli: int) -> Request | None:
        """One slot that is large enough; whoever asks for a plain GPU must say that less will do.

        Several slots are not given: the plugin may take them from one GPU or from several.
        """
        if self.whole + self.slots != 1 or (self.share_milli or 0) > slot_milli:
            return None
        if self.whole and self.share_milli is None:
            return None
        return self._request(1, slot_milli)

    def _request(self, count: int, milli: int) -> Request:
        return Request(
            cpu_milli=self.cpu_milli,
            memory_mib=self.memory_mib,
            gpu_count=count,
            gpu_milli=milli,
            models=self.models if count else (),
        )


def ask_of_foreign(pod: Pod) -> PodRequest:
    """What a pod that is on its node already takes there, whatever else is written on it."""
    ask, held = _ask_there(pod), pod.held
    if held is None:
        return ask
    if held.by_name:  # its extended resources are what the claims give it
        return replace(ask, whole=0, claimed=max(ask.whole, held.gpus))
    return replace(ask, claimed=held.gpus)


def _ask_there(pod: Pod) -> PodRequest:
    try:
        return ask_of(pod)
    except PodRefused:
        pass
    try:
        amounts = pod_amounts(pod)
    except UserError:
        amounts = {}
    return _ask(amounts, None, ())


def ask_of(pod: Pod) -> PodRequest:
    """Read what `pod` asks for.

    Raises:
        PodRefused: it contradicts itself or cannot be read; the token is `InvalidPod`.
    """
    try:
        amounts = pod_amounts(pod)
        share = _share(pod)
    except UserError as error:
        raise PodRefused(NodeRefusal(RefusalToken.INVALID_POD, error.line())) from None
    _check(amounts, share)
    return _ask(amounts, share, _models(pod))


def _ask(amounts: Amounts, share: int | None, models: tuple[str, ...]) -> PodRequest:
    return PodRequest(
        cpu_milli=amounts.get(CPU, 0),
        memory_mib=quantity.mib_needed(amounts.get(MEMORY, 0)),
        whole=sum(amounts.get(name, 0) for name in names.GPU_RESOURCES),
        slots=amounts.get(names.NVIDIA_SHARED, 0),
        share_milli=share,
        models=models,
        others={
            key: value
            for key, value in amounts.items()
            if value and key not in _OF_REQUEST and key != PODS
        },
    )


def _share(pod: Pod) -> int | None:
    text = pod.metadata.annotation(names.GPU_MILLI)
    if text is None:
        return None
    share = quantity.whole(text)
    if not 0 < share <= WHOLE_GPU_MILLI:
        raise UserError(f"{text} is no share of a GPU", field=names.GPU_MILLI, hint="1 to 1000")
    return share


def _check(amounts: Amounts, share: int | None) -> None:
    """Refuse what would mean two things at once."""
    kinds = [name for name in (*names.GPU_RESOURCES, names.NVIDIA_SHARED) if amounts.get(name)]
    count = sum(amounts[name] for name in kinds)
    problem = ""
    if len(kinds) > 1:
        problem = f"asks for {' and '.join(kinds)} at once"
    elif share is not None and count > 1:
        problem = f"a share of one GPU, but {count} of {kinds[0]}"
    if problem:
        raise PodRefused(NodeRefusal(RefusalToken.INVALID_POD, problem))


def _models(pod: Pod) -> tuple[str, ...]:
    """Catalog names that every way to place the pod allows; empty: any.

    Products outside the catalog stand as they are written: no node has such a model for us.
    """
    wanted = [
        Requirement(key=key, operator="In", values=[value])
        for key, value in (pod.spec.node_selector or {}).items()
    ]
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    terms = (affinity.required.node_selector_terms or ()) if affinity and affinity.required else ()
    chosen = _named(wanted)
    if chosen or not terms:
        return chosen
    by_term = [_named(term.match_expressions or ()) for term in terms]
    if not all(by_term):
        return ()
    return tuple(dict.fromkeys(model for models in by_term for model in models))


def _named(needs: list[Requirement] | tuple[Requirement, ...]) -> tuple[str, ...]:
    for need in needs:
        if need.key in names.PRODUCT_LABELS and need.operator == "In":
            return tuple(catalog_model(value) or value for value in need.values or ())
    return ()


def gpus_of(pod: Pod) -> tuple[int, ...] | None:
    """The GPUs that were written on the pod when it was bound, None if none were."""
    text = pod.metadata.annotation(names.GPUS)
    parts = text.split(",") if text else []
    if not parts or not all(part.isascii() and part.isdigit() and len(part) < 3 for part in parts):
        return None
    return tuple(int(part) for part in parts)

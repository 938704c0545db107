"""What a pod takes of its node while it is there, resource by resource.

As the kubelet and kube-scheduler count it (KEP-753 sidecars, KEP-2837 pod-level resources, KEP-1287
resize in place): the larger of what runs at last and what any init container needs when its turn
comes, beside the sidecars begun before it; then the overhead of the runtime class. The API server
lets no negative amounts pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wattherd.kube.api import quantity
from wattherd.kube.api.objects import (
    Container,
    ContainerStatus,
    Pod,
    ResourceRequirements,
    Resources,
)

Amounts = dict[str, int]
"""By resource: `cpu` in milli-vCPU, all others whole (bytes, devices)."""

CPU, MEMORY, STORAGE = "cpu", "memory", "ephemeral-storage"
_ALWAYS = "Always"


def amounts_of(resources: Resources | None) -> Amounts:
    """Quantities as integers.

    Raises:
        UserError: one of them is no quantity.
    """
    return {
        name: quantity.milli(text) if name == CPU else quantity.whole(text)
        for name, text in (resources or {}).items()
    }


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

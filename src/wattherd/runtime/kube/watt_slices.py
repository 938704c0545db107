"""`watt_devices` as ResourceSlices, and back: of each device one pool with one slice.

A change is a new generation of the pool: kube-scheduler then allocates by the new capacity, and
what was allocated before stays.
"""

from __future__ import annotations

import re
import zlib

from wattherd.runtime.kube import names, quantity
from wattherd.runtime.kube.domain_tree import SITE
from wattherd.runtime.kube.dra_objects import (
    Attribute,
    Capacity,
    Device,
    Pool,
    ResourceSlice,
    SliceSpec,
)
from wattherd.runtime.kube.objects import (
    NodeSelector,
    NodeSelectorTerm,
    ObjectMeta,
    Requirement,
)
from wattherd.runtime.kube.watt_devices import WattDevice

DRIVER = "watts." + names.OURS.rstrip("/")
CAPACITY = "watts"
MANAGED = {"app.kubernetes.io/managed-by": "wattherd"}
_ODD = re.compile(r"[^a-z0-9-]+")


def show_mw(amount_mw: int) -> str:
    """As a quantity of watts."""
    return f"{amount_mw}m" if amount_mw % 1000 else str(amount_mw // 1000)


def pool_name(device: WattDevice) -> str:
    """Unique to domain and level: names of domains are labels, those of pools host names."""
    plain = _ODD.sub("-", device.domain.lower()).strip("-")
    if plain != device.domain:
        plain = f"{plain}-{zlib.crc32(device.domain.encode()):08x}".strip("-")
    return f"level-{device.level}.{plain if device.domain != SITE else 'site'}"


def slice_of(device: WattDevice, generation: int, version: str = "") -> ResourceSlice:
    """What is published; `version` is the one that is replaced."""
    pool = pool_name(device)
    made = Device(
        name=CAPACITY,
        attributes={
            "level": Attribute(int_=device.level),
            "domain": Attribute(string=device.domain),
            "mostGpuMilliwatts": Attribute(int_=device.most_gpu_mw),
        },
        capacity={CAPACITY: Capacity(value=show_mw(device.capacity_mw))},
        allow_multiple_allocations=True,
    )
    return ResourceSlice(
        api_version="resource.k8s.io/v1",
        kind="ResourceSlice",
        metadata=ObjectMeta(
            name=f"wattherd.{pool}", labels=dict(MANAGED), resource_version=version
        ),
        spec=SliceSpec(
            driver=DRIVER,
            pool=Pool(name=pool, generation=generation, resource_slice_count=1),
            all_nodes=True if device.everywhere else None,
            node_selector=None if device.everywhere else _nodes(device.leaves),
            devices=[made],
        ),
    )


def _nodes(leaves: tuple[str, ...]) -> NodeSelector:
    """Nodes that are labelled so; the API takes one term."""
    named = [leaf for leaf in leaves if leaf != SITE]
    need = (
        Requirement(key=names.DOMAIN, operator="In", values=named)
        if named
        else Requirement(key=names.DOMAIN, operator="DoesNotExist")
    )
    return NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=[need])])


def same_slice(one: ResourceSlice, other: ResourceSlice) -> bool:
    """Whether both offer the same; generations and the spelling of quantities aside."""
    return _told(one) == _told(other)


def _told(made: ResourceSlice) -> tuple[object, ...]:
    spec = made.spec
    devices = [
        (one.name, one.attributes, one.allow_multiple_allocations, capacity_mw(one))
        for one in spec.devices or ()
    ]
    return spec.driver, spec.pool.name, spec.all_nodes, spec.node_selector, devices


def capacity_mw(device: Device) -> int:
    """What a device offers."""
    return quantity.milli((device.capacity or {}).get(CAPACITY, Capacity()).value)

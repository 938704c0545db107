"""`watt_devices` as ResourceSlices, and back: of each device one pool with one slice.

A change is a new generation of the pool: kube-scheduler then allocates by the new capacity, and
what was allocated before stays.
"""

from __future__ import annotations

import re
import zlib

from msgspec.structs import replace

from wattherd.kube.account.watt_devices import WattDevice
from wattherd.kube.api import quantity
from wattherd.kube.api.objects import (
    NodeSelector,
    NodeSelectorTerm,
    ObjectMeta,
    OwnerReference,
    Requirement,
)
from wattherd.kube.facts.claim_objects import (
    WATTS_DRIVER,
    Attribute,
    ClaimDevice,
    ClaimPool,
    DeviceCapacity,
    DeviceClass,
    ResourceSlice,
    SliceSpec,
)
from wattherd.kube.facts.domain_tree import SITE

DRIVER = WATTS_DRIVER
CLASS = DRIVER
"""The device class that claims ask for."""
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


def class_as_owner(known: DeviceClass) -> OwnerReference:
    """What all of ours goes with: installed and uninstalled with us, untouched by an upgrade."""
    about = known.metadata
    return OwnerReference(
        api_version="resource.k8s.io/v1", kind="DeviceClass", name=about.name, uid=about.uid
    )


def slice_of(
    device: WattDevice, needs: tuple[Requirement, ...], owner: OwnerReference
) -> ResourceSlice:
    """What is published, for nodes that have all that `needs` say (nothing: for all nodes)."""
    pool = pool_name(device)
    made = ClaimDevice(
        name=CAPACITY,
        attributes={
            "level": Attribute(int_=device.level),
            "domain": Attribute(string=device.domain),
            "mostGpuMilliwatts": Attribute(int_=device.most_gpu_mw),
        },
        capacity={CAPACITY: DeviceCapacity(value=show_mw(device.capacity_mw))},
        allow_multiple_allocations=True,
    )
    return ResourceSlice(
        api_version="resource.k8s.io/v1",
        kind="ResourceSlice",
        metadata=ObjectMeta(
            name=f"wattherd.{pool}", labels=dict(MANAGED), owner_references=[owner]
        ),
        spec=SliceSpec(
            driver=DRIVER,
            pool=ClaimPool(name=pool, generation=1, resource_slice_count=1),
            all_nodes=True if device.everywhere or not needs else None,
            node_selector=None if device.everywhere or not needs else _nodes(needs),
            devices=[made],
        ),
    )


def _nodes(needs: tuple[Requirement, ...]) -> NodeSelector:
    """The API takes one term."""
    return NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=list(needs))])


def after(known: ResourceSlice, wanted: ResourceSlice) -> ResourceSlice:
    """`wanted` in the place of `known`: the next generation, unless somebody else was faster."""
    pool = replace(wanted.spec.pool, generation=known.spec.pool.generation + 1)
    about = replace(wanted.metadata, resource_version=known.metadata.resource_version)
    return replace(wanted, metadata=about, spec=replace(wanted.spec, pool=pool))


def same_slice(one: ResourceSlice, other: ResourceSlice) -> bool:
    """Whether both offer the same, of one owner; generations and the spelling of amounts aside."""
    return _told(one) == _told(other)


def _told(made: ResourceSlice) -> tuple[object, ...]:
    spec = made.spec
    devices = [
        (one.name, one.attributes, one.allow_multiple_allocations, capacity_mw(one))
        for one in spec.devices or ()
    ]
    owners = made.metadata.owner_references
    return owners, spec.driver, spec.pool.name, spec.all_nodes, spec.node_selector, devices


def capacity_mw(device: ClaimDevice) -> int:
    """What a device offers."""
    return quantity.milli((device.capacity or {}).get(CAPACITY, DeviceCapacity()).value)

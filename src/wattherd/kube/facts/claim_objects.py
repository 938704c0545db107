"""Objects of dynamic resource allocation (resource.k8s.io/v1), as far as we read and write them.

Of the same make as `kube.api.objects`. Consumable capacity needs Kubernetes 1.34 with the
feature gate DRAConsumableCapacity, which 1.36 has on by default.
"""

from __future__ import annotations

import msgspec

from wattherd.kube.api import names
from wattherd.kube.api.objects import NodeSelector, Object, ObjectMeta

API = "/apis/resource.k8s.io/v1"
WATTS_DRIVER = "watts." + names.OURS.rstrip("/")
"""Ours, whose devices are watts."""


class DeviceClass(Object, frozen=True):
    """A kind of devices that claims ask for."""

    metadata: ObjectMeta = ObjectMeta()


class Attribute(Object, frozen=True):
    """A fact about a device, of one of these types."""

    int_: int | None = msgspec.field(default=None, name="int")
    string: str | None = None


class DeviceCapacity(Object, frozen=True):
    """How much of something a device has."""

    value: str | int = "0"


class CountersUsed(Object, frozen=True):
    """What a part of something larger takes of it."""

    counter_set: str = ""


class ClaimDevice(Object, frozen=True):
    """A device; one with `allow_multiple_allocations` is shared until its capacity is used up."""

    name: str = ""
    attributes: dict[str, Attribute] | None = None
    capacity: dict[str, DeviceCapacity] | None = None
    allow_multiple_allocations: bool | None = None
    consumes_counters: list[CountersUsed] | None = None
    node_name: str | None = None


class ClaimPool(Object, frozen=True):
    """Devices that are described together; of several generations the highest counts."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class SliceSpec(Object, frozen=True):
    """Devices of a driver, and the nodes that reach them."""

    driver: str = ""
    pool: ClaimPool = ClaimPool()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    devices: list[ClaimDevice] | None = None


class ResourceSlice(Object, frozen=True):
    """What a driver offers."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: SliceSpec = SliceSpec()


class Cel(Object, frozen=True):
    """A condition on a device."""

    expression: str = ""


class Selector(Object, frozen=True):
    """Which devices."""

    cel: Cel = Cel()


class CapacityAsked(Object, frozen=True):
    """How much of each capacity is asked for."""

    requests: dict[str, str | int] | None = None


class ExactRequest(Object, frozen=True):
    """One device of a class."""

    device_class_name: str = ""
    selectors: list[Selector] | None = None
    capacity: CapacityAsked | None = None


class DeviceRequest(Object, frozen=True):
    """One wish of a claim."""

    name: str = ""
    exactly: ExactRequest | None = None


class DeviceClaim(Object, frozen=True):
    """All wishes of a claim, which are met together."""

    requests: list[DeviceRequest] | None = None


class ClaimSpec(Object, frozen=True):
    """What is claimed."""

    devices: DeviceClaim = DeviceClaim()


class ClaimTemplateSpec(Object, frozen=True):
    """What claims are made of, and what is written on them."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ClaimSpec = ClaimSpec()


class ResourceClaimTemplate(Object, frozen=True):
    """From it every pod that names it gets a claim of its own."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: ClaimTemplateSpec = ClaimTemplateSpec()


class ClaimResult(Object, frozen=True):
    """What one wish was given."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    consumed_capacity: dict[str, str | int] | None = None


class Results(Object, frozen=True):
    """What all wishes were given."""

    results: list[ClaimResult] | None = None


class ClaimAllocation(Object, frozen=True):
    """What a claim was given."""

    devices: Results = Results()
    node_selector: NodeSelector | None = None


class ClaimUser(Object, frozen=True):
    """Who may use what a claim holds."""

    resource: str = ""
    uid: str = ""


class ClaimStatus(Object, frozen=True):
    """Where a claim stands."""

    allocation: ClaimAllocation | None = None
    reserved_for: list[ClaimUser] | None = None


class ResourceClaim(Object, frozen=True):
    """A claim."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()

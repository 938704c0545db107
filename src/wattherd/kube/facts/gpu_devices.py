"""GPUs in ResourceSlices of other drivers (resource.k8s.io/v1): which devices are, or share, which.

There is no standard for what says that a device is a GPU, nor of which one it is a part. Read are
the attributes of NVIDIA's driver (github.com/NVIDIA/k8s-dra-driver-gpu, `deviceinfo.go` and
`partitions.go`), of AMD's (github.com/ROCm/k8s-gpu-dra-driver, `docs/driver-attributes.md`), and
what Kubernetes itself defines for parts of devices: counter sets (KEP 4815).
"""

from __future__ import annotations

from typing import NamedTuple

from wattherd.kube.facts.claim_objects import (
    WATTS_DRIVER,
    ClaimDevice,
    ResourceClaim,
    ResourceSlice,
)
from wattherd.kube.facts.node_facts import catalog_model

_DRIVERS = "gpu."
"""How names of drivers begin whose devices are all GPUs: gpu.nvidia.com, gpu.amd.com."""
_TYPES = ("gpu", "mig", "amdgpu")
"""How values of the attribute `type` begin for GPUs and their parts."""
_PRODUCTS = ("productName", "product-name", "model")
_WHICH = (
    ("resource.kubernetes.io/pciBusID", "pciBusID", "pcieBusID", "pciAddr"),
    ("parentUUID",),
    ("uuid",),
)
"""Attributes that parts of one GPU have in common with it, the first that is there."""
_HOST = "metadata.name"


class GpuDevice(NamedTuple):
    """A device that is a GPU, or a part of it: of which `node`, which `gpu` there, what product."""

    node: str
    gpu: str
    product: str = ""


class DeviceId(NamedTuple):
    """What names a device in a cluster."""

    driver: str
    pool: str
    device: str


def gpus_in(published: ResourceSlice) -> dict[str, GpuDevice]:
    """By name of a device, those that are GPUs of one node; devices of many nodes are left out."""
    spec = published.spec
    if spec.driver == WATTS_DRIVER:
        return {}
    found = {}
    for device in spec.devices or ():
        node = device.node_name or spec.node_name
        if node and _is_gpu(spec.driver, device):
            found[device.name] = GpuDevice(node, _which(spec.driver, device), product_of(device))
    return found


def _is_gpu(driver: str, device: ClaimDevice) -> bool:
    if driver.startswith(_DRIVERS) or _text(device, "type").startswith(_TYPES):
        return True
    return catalog_model(product_of(device)) is not None


def product_of(device: ClaimDevice) -> str:
    """Its product in the spelling of a label; empty where none is told."""
    named = (_text(device, name) for name in _PRODUCTS)
    return next((one.replace(" ", "-") for one in named if one), "")


def _which(driver: str, device: ClaimDevice) -> str:
    """The GPU that it is or shares: drivers make one counter set for each that can be parted."""
    sets = sorted(one.counter_set for one in device.consumes_counters or ())
    if sets:
        return f"{driver}/{' '.join(sets)}"
    for names in _WHICH:
        for name in names:
            if text := _text(device, name):
                return text
    return f"{driver}/{device.name}"


def _text(device: ClaimDevice, name: str) -> str:
    """A text attribute, or nothing."""
    attribute = (device.attributes or {}).get(name)
    return (attribute.string if attribute is not None else None) or ""


def devices_held(claim: ResourceClaim) -> list[DeviceId]:
    """What was allocated to a claim, beside watts; who only looks on (`adminAccess`) holds none."""
    allocation = claim.status.allocation
    results = (allocation.devices.results or ()) if allocation is not None else ()
    return [
        DeviceId(one.driver, one.pool, one.device)
        for one in results
        if one.driver != WATTS_DRIVER and not one.admin_access
    ]


def presumed(device: DeviceId, claim: ResourceClaim) -> GpuDevice | None:
    """What a device that no slice describes is taken for: by its driver's name a GPU, or nothing.

    Its node is the one that the allocation allows, else the pool's name, as drivers name pools.
    """
    if not device.driver.startswith(_DRIVERS):
        return None
    allocation = claim.status.allocation
    nodes = allocation.node_selector if allocation is not None else None
    terms = (nodes.node_selector_terms or ()) if nodes is not None else ()
    hosts = [
        host
        for term in terms
        for need in term.match_fields or ()
        if need.key == _HOST and need.operator == "In"
        for host in need.values or ()
    ]
    node = hosts[0] if len(hosts) == 1 else device.pool
    return GpuDevice(node, f"{device.driver}/{device.device}")


def users_of(claim: ResourceClaim) -> tuple[str, ...]:
    """Pods (by uid) for which a claim is reserved: nobody else may use what it holds."""
    reserved = claim.status.reserved_for or ()
    return tuple(one.uid for one in reserved if one.resource == "pods")

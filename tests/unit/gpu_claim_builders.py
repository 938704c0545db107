"""Slices and claims of GPU drivers as the API server writes them, and decoded."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from kube_builders import Json

from wattherd.kube.api.api_objects import decoder
from wattherd.kube.facts.claim_objects import ResourceClaim, ResourceSlice

_SLICE, _CLAIM = decoder(ResourceSlice), decoder(ResourceClaim)
T4, NVIDIA = "Tesla T4", "gpu.nvidia.com"


def a_device(name: str, counters: str = "", **attributes: str) -> Json:
    """A device with text attributes; `counters` names the set that it takes a part of."""
    told = {key.replace("__", "/").replace("_", "."): {"string": text}
            for key, text in attributes.items()}  # fmt: skip
    used = [{"counterSet": counters, "counters": {"memory": {"value": "1"}}}]
    return {"name": name, "attributes": told} | ({"consumesCounters": used} if counters else {})


def gpus(count: int, product: str = T4) -> list[Json]:
    """Whole GPUs as NVIDIA's driver publishes them."""
    return [
        a_device(f"gpu-{at}", type="gpu", uuid=f"GPU-{at}", productName=product)
        for at in range(count)
    ]


def mig(gpu: int, part: int, product: str = T4) -> Json:
    """A part of one."""
    return a_device(
        f"gpu-{gpu}-mig-{part}", type="mig", uuid=f"MIG-{gpu}-{part}", parentUUID=f"GPU-{gpu}",
        productName=product,
    )  # fmt: skip


def slice_json(
    node: str, devices: Iterable[Json], driver: str = NVIDIA, generation: int = 1, **spec: Any
) -> Json:
    """The only slice of a node's pool."""
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": list(devices)} | spec,
    }


def results(node: str, devices: Iterable[str], driver: str = NVIDIA) -> list[Json]:
    """What was allocated to a claim of one request."""
    return [{"request": "gpu", "driver": driver, "pool": node, "device": one} for one in devices]


def claim_json(name: str, held: list[Json], users: Iterable[str], **meta: Any) -> Json:
    """A claim that holds this, reserved for pods of these names."""
    reserved = [{"resource": "pods", "name": user, "uid": f"uid-{user}"} for user in users]
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", **meta},
        "status": {"allocation": {"devices": {"results": held}}, "reservedFor": reserved},
    }


def a_slice(made: Json) -> ResourceSlice:
    """Decoded as from the API."""
    return _SLICE.decode(json.dumps(made).encode())


def a_claim(made: Json) -> ResourceClaim:
    """Decoded as from the API."""
    return _CLAIM.decode(json.dumps(made).encode())

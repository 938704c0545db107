"""GPUs of this machine, whoever told of them, as the devices of a site."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from wattherd.catalog.gpus import GpuModel
from wattherd.local.devices import Device, Machine, memory_mib
from wattherd.model.cluster import NodeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGpu:
    """A GPU as its driver or library describes it: limits in watts; `number` in its order."""

    uuid: str
    name: str
    memory_mib: int
    lowest_w: float
    default_w: float
    number: int = 0
    address: str = ""


def machine_of(
    name: str, found: Sequence[FoundGpu], model: GpuModel, *, maker: str, scheme: str
) -> tuple[Machine, Sequence[str]]:
    """This machine with its GPUs, and what is to be said of them.

    A node has GPUs of one model: where there are several, those of the first one, `model`, are
    managed. `scheme` is of the addresses at which they are metered and capped.
    """
    managed = [one for one in found if one.name == found[0].name]
    left = [one.uuid for one in found if one.name != found[0].name]
    node = NodeSpec(
        name=name,
        cpu_milli=len(os.sched_getaffinity(0)) * 1000,
        memory_mib=memory_mib(),
        gpu_count=len(managed),
        gpu_model=model.name,
    )
    devices = tuple(
        Device(
            model=model.name,
            uuid=one.uuid,
            address=one.address,
            number=one.number,
            maker=maker,
            meter=f"{scheme}://{one.uuid}",
            knob=f"{scheme}://{one.uuid}",
        )
        for one in managed
    )
    notes = [f"GPUs of another model are left alone: {', '.join(left)}"] if left else []
    return Machine(node=node, devices=devices, gpu=model, stated="measured"), notes

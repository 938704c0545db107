"""What jobs are given of this machine: its GPUs or, where there is none, parts of its processor."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from wattherd.catalog.gpus import GpuModel
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import NodeSpec

CPU_SLOT = "CPU"
"""Model name of a part of the processor that is given away as if it were a GPU."""
CORE_IDLE_W, CORE_MAX_W = 1.0, 5.0
"""Estimated, per hardware thread: the 104th part of the 100 W (idle) and 520 W (full load) that are
assumed of a server with two 26-core processors of 205 W. Say so wherever it is shown."""
LEAST_DUTY = 0.1
"""The lowest duty at which a job is worth running."""
DUTY_MARGIN = 0.05
"""Part of a duty that is kept back: the kernel hands processor time out in periods of 0.1 s, and
within the second of a meter up to 4 % more than the mean were seen (docs/guides/budgets.md)."""

PAUSED_PART = 0.1
"""Of what a GPU draws above idle: what is left while its process is stopped, as clocks and context
stay. An H100 drew 123 W then, and 70 W without a process (benchmarks/measured)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device: a GPU, or a slot with so many vCPUs.

    A GPU has its UUID, its PCI `address`, its `number` in its `maker`'s library, and the addresses
    of what measures and limits it.
    """

    model: str
    uuid: str = ""
    address: str = ""
    number: int = 0
    maker: str = ""
    meter: str = ""
    knob: str = ""
    cpus: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """This node as the core sees it, what its devices are, and what one of them draws.

    `stated` says where watts come from: `model` (an estimate) or `measured`.
    """

    node: NodeSpec
    devices: tuple[Device, ...]
    gpu: GpuModel
    stated: str
    parts: tuple[NodeSpec, ...] = ()
    """Where its slots are of several types: a node for each type, in the order of `devices`."""

    @property
    def nodes(self) -> tuple[NodeSpec, ...]:
        """This machine as schedulers see it: one node, or one for each type of slots."""
        return self.parts or (self.node,)

    def number(self, node: int, gpu: int) -> int:
        """Which of `devices` is GPU number `gpu` of node number `node`."""
        return sum(one.gpu_count for one in self.parts[:node]) + gpu

    def numbers(self, allocations: Iterable[Allocation]) -> tuple[int, ...]:
        """Which of `devices` these are."""
        return tuple(self.number(one.node, gpu) for one in allocations for gpu in one.gpus)

    def place(self, number: int) -> tuple[str, int]:
        """Name of the node, and its number there, of one of `devices`."""
        for part in self.parts:
            if number < part.gpu_count:
                return part.name, number
            number -= part.gpu_count
        return self.node.name, number

    def uuids(self, allocations: Iterable[Allocation]) -> tuple[str, ...]:
        """Of the GPUs in these allocations; slots have none."""
        numbers = dict.fromkeys(self.numbers(allocations))
        return tuple(uuid for gpu in numbers if (uuid := self.devices[gpu].uuid))

    def at(self, address: str) -> int | None:
        """Number of the GPU at a PCI address, however it is written; None if none is known.

        Kernels write `0000:3b:00` or `0000:3b:00.0`, drivers `00000000:3B:00.0`.
        """
        wanted = _slot(address)
        known = [_slot(one.address) for one in self.devices]
        found = [at for at, slot in enumerate(known) if slot and slot == wanted]
        return found[0] if len(found) == 1 else None

    def duty(self, cap_w: float | None, full_w: float | None = None) -> float:
        """The part of the time a device may compute so as to stay below `cap_w` in every second.

        `full_w` is what it draws while it computes all of the time; the most it can if not known.
        Of a GPU it may be more than that: what was handed to it is still computed after a pause has
        begun, and reckoned back from a short duty that looks like a higher draw.
        """
        if cap_w is None:
            return 1.0
        most_w = self.gpu.max_w if full_w is None else full_w
        if self._on_slots:
            most_w = min(most_w, self.gpu.max_w)
        paused_w = self._paused_w
        span_w = most_w - paused_w
        if span_w <= 0:
            return 1.0
        part = (cap_w - paused_w) / span_w
        return 1.0 if part >= 1.0 else max(0.0, (1.0 - DUTY_MARGIN) * part)

    def full_w(self, watts: float, duty: float) -> float:
        """What a device would draw all of the time that draws `watts` at a duty above 0."""
        paused_w = self._paused_w
        return paused_w + max(watts - paused_w, 0.0) / duty

    @property
    def _on_slots(self) -> bool:
        return any(one.cpus for one in self.devices)

    @property
    def _paused_w(self) -> float:
        """What a device draws while the job on it is stopped."""
        gpu = self.gpu
        part = 0.0 if self._on_slots else PAUSED_PART
        return gpu.idle_w + part * (gpu.max_w - gpu.idle_w)


def _slot(address: str) -> tuple[int, ...]:
    """Domain, bus and device of a PCI address; nothing where it is none."""
    parts = address.partition(".")[0].split(":")
    try:
        return tuple(int(part, 16) for part in parts) if len(parts) == 3 else ()
    except ValueError:
        return ()


class CapSetter(Protocol):
    """Sets power limits of GPUs."""

    def set(self, uuids: Iterable[str], cap_w: float | None) -> bool:
        """Cap all of them, or put them back as they were found; whether that is so now."""
        ...


def slots(name: str, count: int | Mapping[str, int] | None = None) -> Machine:
    """This machine without GPUs: `count` equal slots of its processor (default: one per vCPU).

    With counts by type there are slots of several types, each a model of its own to schedulers. All
    are equal parts of the processor; what makes them differ is known to whoever named them.
    """
    if isinstance(count, Mapping):
        return _typed(slots(name, sum(count.values())), count)
    cpus = len(os.sched_getaffinity(0))
    count = count or cpus
    each = cpus / count
    gpu = GpuModel(
        name=CPU_SLOT,
        idle_w=CORE_IDLE_W * each,
        max_w=CORE_MAX_W * each,
        min_cap_w=(CORE_IDLE_W + LEAST_DUTY * (CORE_MAX_W - CORE_IDLE_W)) * each,
        memory_mib=memory_mib() // count,
        source="model of watts by processor time",
        note="estimated",
    )
    node = NodeSpec(
        name=name,
        cpu_milli=cpus * 1000,
        memory_mib=memory_mib(),
        gpu_count=count,
        gpu_model=CPU_SLOT,
    )
    devices = (Device(model=CPU_SLOT, cpus=each),) * count
    return Machine(node=node, devices=devices, gpu=gpu, stated="model")


def _typed(machine: Machine, types: Mapping[str, int]) -> Machine:
    node, count = machine.node, len(machine.devices)
    parts = tuple(
        replace(
            node,
            name=f"{node.name}-{name}",
            cpu_milli=node.cpu_milli * own // count,
            memory_mib=node.memory_mib * own // count,
            gpu_count=own,
            gpu_model=name,
        )
        for name, own in types.items()
    )
    devices = tuple(
        replace(machine.devices[0], model=name) for name, own in types.items() for _ in range(own)
    )
    return replace(machine, devices=devices, parts=parts)


def memory_mib() -> int:
    """Memory of this machine."""
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) // 1024
    return 0

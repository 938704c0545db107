"""The devices of a node as its agent works with them: watts in, caps out, in one call.

`Bench` holds meters and knobs itself, and the safety loop that keeps the node's limits goes round
with it; `cap_helper` reaches one in another process, so that only that process need be privileged.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Protocol

from wattherd.devices.knobs.journal import KnobJournal
from wattherd.devices.knobs.leased_caps import CapBeforeRound, LeasedCap, LeasedCaps
from wattherd.devices.meters.contract import Quality
from wattherd.devices.meters.meter import Meter
from wattherd.devices.meters.registry import open_meter
from wattherd.devices.wire.device_errors import DeviceError
from wattherd.engine.safety.loop import SafetyConfig
from wattherd.errors import ClusterError
from wattherd.kube.decide.agent_caps import Assigned, GpuState, NodeRound
from wattherd.kube.decide.node_loop import (
    NO_LIMIT_W,
    GpuRange,
    GpuReading,
    LevelReading,
    NodeLoop,
)
from wattherd.local.devices import Device
from wattherd.server.hardware.discovery import machine_found, packages_found, powercap_of
from wattherd.server.kube.node_around import NodeAround
from wattherd.server.kube.node_memory import NodeMemory, catalog_range
from wattherd.server.settings.config import ServeConfig

JOURNAL = "node-caps.json"
PATIENCE_S = 4.0
"""Knobs may take so long; drivers answer at once, but not all do."""


class AsksKubelet(Protocol):
    """Who has which GPU."""

    def gpus_by_pod(self) -> Mapping[str, Sequence[str]]:
        """Device ids by namespace/name; raises `ClusterError` if that cannot be told."""
        ...


@dataclass(slots=True)
class Bench:
    """Meters and knobs of this machine, and the loop that holds its limits.

    May be used by several threads. `find` looks for devices; those that were found once and are
    not there any more count as GPUs that do not answer.
    """

    caps: LeasedCaps
    memory: NodeMemory
    around: NodeAround = field(default_factory=NodeAround)
    packages: Sequence[Meter] = ()
    kubelet: AsksKubelet | None = None
    find: Callable[[], Sequence[Device]] = tuple
    config: SafetyConfig | None = None
    devices: list[Device] = field(default_factory=list)
    meters: dict[str, Meter] = field(default_factory=dict)
    loop: NodeLoop = field(init=False)
    _limit_w: float = NO_LIMIT_W
    _released: bool = False
    _trouble: str = ""
    _turn: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        """Go on where a predecessor ended, with the limit that it last heard of."""
        self._limit_w = self.memory.limit_w
        self.loop = NodeLoop((), self.around.stated)
        self._take(self.find())

    def hold(
        self, caps_w: Mapping[str, float], lease_s: float, limit_w: float | None = None
    ) -> NodeRound:
        """Order, carry out, and look; without a limit of the node, that of before holds."""
        with self._turn:
            self._released = False
            if limit_w is not None and limit_w != self._limit_w:
                self._limit_w = limit_w
                self.memory.hasten()  # a successor must not know of a higher one
            self.caps.order(caps_w, time.monotonic() + lease_s)
            return self._look()

    def look(self) -> NodeRound:
        """Carry out what was ordered, or what follows from the end of the lease."""
        with self._turn:
            return self._look()

    def search(self) -> None:
        """Take in devices that are new; what is known of the others stays."""
        found = self.find()
        with self._turn:
            self._take(found)

    def put_back(self) -> None:
        """Put back all that was changed; nothing is held until somebody orders again."""
        with self._turn:
            self._released, self._limit_w = True, NO_LIMIT_W
            self.caps.put_back()
            self.memory.forget()

    def close(self) -> None:
        """Let go of all devices; caps stay."""
        with self._turn:
            self._keep(sync=True)
            self.caps.close()
            for meter in (*self.meters.values(), *self.packages):
                meter.close()
            self.around.close()

    def _take(self, found: Sequence[Device]) -> None:
        known = {one.uuid for one in self.devices}
        fresh = [one for one in found if one.uuid not in known]
        if not fresh and self.loop.gpus:
            return
        for one in fresh:
            self.caps.add(one.uuid, one.knob)
            self.meters[one.uuid] = open_meter(one.meter)
            self.devices.append(one)
        if self.loop.gpus:
            self._keep()
        ranges = [self._range(one) for one in self.devices]
        gpus = (*ranges, *self.memory.absent({one.uuid for one in self.devices}))
        self.loop = NodeLoop(
            gpus, self.around.stated, config=self.config, state=self.memory.state_of(gpus)
        )

    def _range(self, device: Device) -> GpuRange:
        """What the knob tells; what was told before, or the catalog's, where it does not answer."""
        knob = self.caps.knobs[device.uuid]
        # Drivers say how far a read-back may be off: half of the step that they round to.
        step_w = 2.0 * knob.driver.step
        try:
            limits = knob.limits()
        except DeviceError:
            known = self.memory.range_of(device.uuid)
            return known or catalog_range(device.uuid, device.model, step_w)
        highest_w, lowest_w = limits.highest, limits.lowest
        return GpuRange(
            uuid=device.uuid,
            floor_w=0.0 if lowest_w is None else lowest_w,
            max_w=NO_LIMIT_W if highest_w is None else highest_w,
            step_w=step_w,
        )

    def _look(self) -> NodeRound:
        now_s, problems = time.monotonic(), list[str]()
        draws = {one.uuid: _watts(self.meters[one.uuid], problems) for one in self.devices}
        # Last: a node that is read before GPUs that rise would seem to draw less beside them.
        self.around.poll()
        node, rack = self.around.readings()

        def decide(found: Sequence[CapBeforeRound]) -> Mapping[str, float]:
            read = {one.device: _reading(one, draws[one.device]) for one in found}
            return self.loop.cycle(now_s, read, limit_w=self._limit_w, node=node, rack=rack)

        kept = self.caps.keep(now_s, None if self._released else decide)
        self._keep_when_due()
        held = {one.device: one for one in kept}
        gpus = tuple(self._gpu(one, held[one.uuid], draws[one.uuid], problems)
                     for one in self.devices)  # fmt: skip
        power = None if self._released else self.loop.power()
        problems += [*(() if power is None else power.problems), *filter(None, [self._trouble])]
        return NodeRound(
            gpus=gpus,
            draw_w=self._drawn_w(gpus, node, problems),
            assigned=self._assigned(problems),
            problems=tuple(problems),
            power=power,
        )

    def _drawn_w(
        self, gpus: Sequence[GpuState], node: LevelReading, problems: list[str]
    ) -> float | None:
        """What the node's own meter says, else all that is metered of it."""
        others = [_watts(meter, problems) for meter in self.packages]
        if not math.isnan(node.watts):
            return node.watts
        known = [w for w in (*(one.draw_w for one in gpus), *others) if w is not None]
        return math.fsum(known) if known else None

    def _gpu(
        self, device: Device, held: LeasedCap, draw_w: float | None, problems: list[str]
    ) -> GpuState:
        if held.problem:
            problems.append(f"cap of {device.uuid}: {held.problem}")
        return GpuState(
            uuid=device.uuid,
            number=device.number,
            draw_w=draw_w,
            cap_w=held.cap_w,
            lowest_w=held.lowest_w,
            highest_w=held.highest_w,
            problem=held.problem,
        )

    def _keep_when_due(self) -> None:
        if not self._released and self.memory.due:
            self._keep()

    def _keep(self, *, sync: bool = False) -> None:
        if self._released or not self.loop.gpus:
            return
        try:
            knobs = {one.uuid: one.knob for one in self.devices}
            self.memory.keep(self.loop, knobs, self._limit_w, sync=sync)
        except OSError as error:
            self._trouble = f"what is known of the node cannot be kept: {error.strerror or error}"
        else:
            self._trouble = ""

    def _assigned(self, problems: list[str]) -> Assigned | None:
        if self.kubelet is None:
            return None
        try:
            told = self.kubelet.gpus_by_pod()
        except ClusterError as error:
            problems.append(str(error))
            return None
        names = {name: one.uuid for one in self.devices for name in _names(one)}
        return {key: [names.get(one.lower(), one) for one in ids] for key, ids in told.items()}


def _reading(found: CapBeforeRound, draw_w: float | None) -> GpuReading:
    return GpuReading(
        cap_w=math.nan if found.cap_w is None else found.cap_w,
        draw_w=math.nan if draw_w is None else draw_w,
        asked_w=found.asked_w,
    )


def _names(device: Device) -> Sequence[str]:
    """As device plugins call a GPU: by UUID (NVIDIA) or PCI address (AMD)."""
    return [each.lower() for each in (device.uuid, device.address) if each]


def _watts(meter: Meter, problems: list[str]) -> float | None:
    try:
        reading = meter.read()
    except ClusterError as error:
        problems.append(str(error))
        return None
    if reading.quality is Quality.STALE:
        problems.append(f"{meter.source}: its last word is too old")
        return None
    return reading.watts


def open_bench(
    config: ServeConfig,
    folder: Path,
    *,
    lease_s: float,
    safe_w: float | None = None,
    kubelet: AsksKubelet | None = None,
    around: NodeAround | None = None,
) -> Bench:
    """The bench of this machine, as a local service finds it; what is found is noted in `folder`.

    Raises:
        UserError: the folder cannot hold a journal, or a device's driver is not installed.
    """

    def find() -> Sequence[Device]:
        machine, _ = machine_found(config)
        return [one for one in machine.devices if one.uuid]

    packages, _ = packages_found(powercap_of(config))
    journal = KnobJournal(folder / JOURNAL)
    caps = LeasedCaps(
        knobs={},
        journal=journal,
        until_s=time.monotonic() + lease_s,
        safe_w=safe_w,
        patience_s=PATIENCE_S,
    )
    return Bench(
        caps=caps,
        memory=NodeMemory(journal.path),
        around=around or NodeAround(),
        packages=[open_meter(uri) for uri in packages],
        kubelet=kubelet,
        find=find,
    )

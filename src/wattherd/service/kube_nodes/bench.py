"""The devices of a node as its agent works with them: watts in, caps out, in one call.

`Bench` holds meters and knobs itself; `bench_client` reaches one in another process, so that only
that process need be privileged.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Protocol

from wattherd.errors import ClusterError
from wattherd.knobs.journal import Journal
from wattherd.knobs.leased import Held, LeasedCaps
from wattherd.knobs.registry import open_knob
from wattherd.meters.contract import Quality
from wattherd.meters.meter import Meter
from wattherd.meters.registry import open_meter
from wattherd.runtime.kube.agent.caps import Assigned, GpuState, Look
from wattherd.runtime.local.devices import Device
from wattherd.service.live.config import ServeConfig
from wattherd.service.live.finding import machine_found, packages_found, powercap_of

JOURNAL = "node-caps.json"


class AsksKubelet(Protocol):
    """Who has which GPU."""

    def gpus_by_pod(self) -> Mapping[str, Sequence[str]]:
        """Device ids by namespace/name; raises `ClusterError` if that cannot be told."""
        ...


@dataclass(slots=True)
class Bench:
    """Meters and knobs of this machine; may be used by several threads."""

    devices: Sequence[Device]
    caps: LeasedCaps
    meters: Mapping[str, Meter]
    packages: Sequence[Meter] = ()
    kubelet: AsksKubelet | None = None
    _turn: Lock = field(default_factory=Lock)

    def hold(self, caps_w: Mapping[str, float], lease_s: float) -> Look:
        """Order, carry out, and look."""
        with self._turn:
            self.caps.order(caps_w, time.monotonic() + lease_s)
            return self._look()

    def look(self) -> Look:
        """Carry out what was ordered, or what follows from the end of the lease."""
        with self._turn:
            return self._look()

    def put_back(self) -> None:
        """Put back all that was changed."""
        with self._turn:
            self.caps.put_back()

    def close(self) -> None:
        """Let go of all devices; caps stay."""
        with self._turn:
            self.caps.close()
            for meter in (*self.meters.values(), *self.packages):
                meter.close()

    def _look(self) -> Look:
        held = {one.device: one for one in self.caps.keep(time.monotonic())}
        problems: list[str] = []
        gpus = tuple(self._gpu(one, held[one.uuid], problems) for one in self.devices)
        others = [_watts(meter, problems) for meter in self.packages]
        known = [w for w in (*(one.draw_w for one in gpus), *others) if w is not None]
        draw_w = math.fsum(known) if known else None
        return Look(
            gpus=gpus, draw_w=draw_w, assigned=self._assigned(problems), problems=tuple(problems)
        )

    def _gpu(self, device: Device, held: Held, problems: list[str]) -> GpuState:
        meter = self.meters.get(device.uuid)
        if held.problem:
            problems.append(f"cap of {device.uuid}: {held.problem}")
        return GpuState(
            uuid=device.uuid,
            number=device.number,
            draw_w=None if meter is None else _watts(meter, problems),
            cap_w=held.cap_w,
            lowest_w=held.lowest_w,
            highest_w=held.highest_w,
            problem=held.problem,
        )

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
) -> Bench:
    """The bench of this machine, as a local service finds it; what is found is noted in `folder`.

    Raises:
        UserError: the folder cannot hold a journal, or a device's driver is not installed.
    """
    machine, _ = machine_found(config)
    devices = [one for one in machine.devices if one.uuid]
    packages, _ = packages_found(powercap_of(config))
    journal = Journal(folder / JOURNAL)
    caps = LeasedCaps(
        knobs={one.uuid: open_knob(one.knob, journal) for one in devices},
        journal=journal,
        until_s=time.monotonic() + lease_s,
        safe_w=safe_w,
    )
    return Bench(
        devices=devices,
        caps=caps,
        meters={one.uuid: open_meter(one.meter) for one in devices},
        packages=[open_meter(uri) for uri in packages],
        kubelet=kubelet,
    )

"""Looks for GPUs, meters and knobs when a service starts: NVML, zeusd, AMD SMI, RAPL.

Slots of the processor are given away where no GPU is found, or where they are asked for. What is
found decides how the machine is described to the core; `SiteInstruments` is what it is run with.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from wattherd.devices.knobs.journal import KnobJournal
from wattherd.devices.knobs.rapl import present_uris
from wattherd.devices.knobs.registry import open_knob
from wattherd.devices.meters.rapl import counters
from wattherd.devices.meters.registry import open_meter
from wattherd.devices.wire.device_errors import DeviceError
from wattherd.errors import ClusterError, UserError
from wattherd.hold.site_file import InstrumentSpec, watts_of
from wattherd.local.devices import (
    CORE_IDLE_W,
    CORE_MAX_W,
    CPU_SLOT,
    LEAST_DUTY,
    Machine,
    slots,
)
from wattherd.server.hardware import amd as amd_gpus
from wattherd.server.hardware.gpu_devices import machine_of
from wattherd.server.hardware.instruments import JOURNAL, SiteInstruments
from wattherd.server.settings.config import ServeConfig

try:
    from wattherd.server.hardware import nvidia as gpus
except ImportError:  # the extra for NVIDIA GPUs is not installed
    gpus = None  # type: ignore[assignment]


IDLE_PART = 0.1
"""Of the highest limit: what a device whose idle watts nobody knows is taken to draw. Estimated."""
MEASURES_ONLY = "limits of devices are left as they are (measure_only)"
POWERCAP, NOWHERE = Path("/sys/class/powercap"), Path("/nonexistent")


@dataclass(frozen=True, slots=True)
class FoundHardware:
    """This machine, what measures and limits it, and what is to be said of it."""

    machine: Machine
    instruments: SiteInstruments
    notes: tuple[str, ...]


def found(config: ServeConfig) -> FoundHardware:
    """Look everywhere; nothing is changed by that.

    Raises:
        UserError: devices that are stated and do not fit, or knobs where none may be used.
    """
    _check_measure_only(config)
    machine, notes = machine_found(config)
    if config.measure_only:
        machine = _without_knobs(machine)
        notes = (*notes, MEASURES_ONLY, *_left_changed(config))
    if config.site is not None and config.site.devices:
        if machine.parts:
            hint = "give `slots` as a number"
            raise UserError(
                "cannot be used with slots of several types", field="site.devices", hint=hint
            )
        machine = _by_site(machine, config.site.devices)
    packages: Sequence[str] = ()
    if not any(device.uuid for device in machine.devices):
        packages, trouble = packages_found(powercap_of(config))
        notes = (*notes, *trouble)
    limits = present_uris(powercap_of(config).absolute()) if packages else []
    if packages:
        machine = _by_rapl(machine, limits)
    if config.measure_only:
        limits = []
    instruments = SiteInstruments(machine, config.state, packages=packages, limits=limits)
    return FoundHardware(machine, instruments, (*instruments.words(), *notes))


def _check_measure_only(config: ServeConfig) -> None:
    """A service that sets no limit is not told by what to set one."""
    if not config.measure_only:
        return
    stated = config.site is not None and config.site.devices
    for field, there in (("zeusd", config.zeusd is not None), ("site.devices", bool(stated))):
        if there:
            raise UserError("names what sets limits, and none are set with measure_only",
                            field=field, hint=f"leave out {field} or measure_only")  # fmt: skip


def _without_knobs(machine: Machine) -> Machine:
    return replace(machine, devices=tuple(replace(one, knob="") for one in machine.devices))


def _left_changed(config: ServeConfig) -> Sequence[str]:
    """What an earlier service of this state folder set, and nobody puts back now."""
    try:
        left = KnobJournal(config.state / JOURNAL).entries
    except ClusterError:
        return ()
    if not left:
        return ()
    return [f"an earlier service left limits of {', '.join(sorted(left))}: they stay as they are"]


def machine_found(config: ServeConfig) -> tuple[Machine, Sequence[str]]:
    """GPUs where a driver shows some and no slots are asked for, else slots."""
    name = socket.gethostname()
    if config.slots is None:
        nvidia = gpus.found_gpus() if gpus is not None else ()
        if gpus is not None and nvidia:
            model = gpus.model_of(nvidia[0])
            machine, notes = machine_of(name, nvidia, model, maker="nvidia", scheme="nvml")
            return _by_zeusd(machine, config.zeusd), notes
        amd = amd_gpus.found_gpus()
        if amd:
            model = amd_gpus.model_of(amd[0])
            return machine_of(name, amd, model, maker="amd", scheme="amdsmi")
    return slots(name, config.slots), ()


def _by_site(machine: Machine, stated: Sequence[InstrumentSpec]) -> Machine:
    """The same GPUs or slots, measured and limited as the configuration says.

    Slots draw what their knobs allow.

    Raises:
        UserError: others than there are, or a knob whose range is not known.
    """
    if len(stated) != len(machine.devices):
        raise UserError(f"names {len(stated)} devices, there are {len(machine.devices)}",
                        field="site.devices", hint="one entry for each GPU or slot")  # fmt: skip
    devices = tuple(
        replace(device, uuid=device.uuid or f"slot-{number}", meter=spec.meter or "",
                knob=spec.knob)
        for number, (device, spec) in enumerate(zip(machine.devices, stated, strict=True))
    )  # fmt: skip
    machine = replace(machine, devices=devices)
    if machine.devices[0].model != CPU_SLOT:
        return machine
    ranges = [_range_of(number, spec) for number, spec in enumerate(stated)]
    max_w = max(most_w for _, most_w in ranges)
    gpu = replace(
        machine.gpu,
        idle_w=IDLE_PART * max_w,
        max_w=max_w,
        min_cap_w=max(least_w for least_w, _ in ranges),
        source="site.devices",
        note="idle: estimated",
    )
    stated_by = "measured" if all(spec.meter for spec in stated) else machine.stated
    return replace(machine, gpu=gpu, stated=stated_by)


def _range_of(number: int, spec: InstrumentSpec) -> tuple[float, float]:
    """Lowest and highest watts of a device, as stated or as its knob tells."""
    told: dict[str, float | None] = {"floor": None, "max": None}
    if spec.floor is None or spec.max is None:
        with contextlib.suppress(ClusterError), open_knob(spec.knob) as knob:
            limits = knob.limits()
            told = {"floor": limits.lowest, "max": limits.highest}
    found = []
    for name, value in (("floor", spec.floor), ("max", spec.max)):
        field = f"site.devices.{number}.{name}"
        watts = told[name] if value is None else watts_of(value, field)
        if watts is None:
            raise UserError("is not known: the knob does not tell it", where=spec.knob,
                            field=field, hint="state it")  # fmt: skip
        found.append(watts)
    return found[0], found[1]


def _by_zeusd(machine: Machine, socket_path: Path | None) -> Machine:
    """The same GPUs, limited through a daemon that may do so where we may not."""
    if socket_path is None:
        return machine
    at = quote(str(socket_path.absolute()))
    devices = tuple(
        replace(device, knob=f"zeusd+unix://{at}?gpu={device.number}") for device in machine.devices
    )
    return replace(machine, devices=devices)


def powercap_of(config: ServeConfig) -> Path:
    """Slots that are asked for are parts of the processor: the whole of it says nothing of them.

    Who names the meters as well wants the whole.
    """
    if config.powercap is not None:
        return config.powercap
    return POWERCAP if config.slots is None else NOWHERE


def packages_found(powercap: Path) -> tuple[Sequence[str], Sequence[str]]:
    """Meters of the processor's packages, or why there are none that could be read."""
    try:
        names = [one.folder.name for one in counters(powercap) if one.name.startswith("package")]
    except DeviceError:
        return (), ()
    uris = [f"rapl:{name}?root={quote(str(powercap.absolute()))}" for name in names]
    try:
        for uri in uris:
            with open_meter(uri) as meter:
                meter.read()
    except ClusterError as error:
        return (), (f"the processor's meters are not used: {error}",)
    return uris, ()


def _by_rapl(machine: Machine, limits: Sequence[str]) -> Machine:
    """Slots that draw what the packages may at most, where these say how much that is."""
    most_w = [_highest_w(uri) for uri in limits]
    known_w = [one for one in most_w if one is not None]
    if not known_w or len(known_w) < len(most_w):
        return replace(machine, stated="measured")
    max_w = sum(known_w) / len(machine.devices)
    idle_w = max_w * CORE_IDLE_W / CORE_MAX_W
    gpu = replace(
        machine.gpu,
        idle_w=idle_w,
        max_w=max_w,
        min_cap_w=idle_w + LEAST_DUTY * (max_w - idle_w),
        source="RAPL",
        note="idle: estimated",
    )
    return replace(machine, gpu=gpu, stated="measured")


def _highest_w(uri: str) -> float | None:
    try:
        with open_knob(uri) as knob:
            return knob.limits().highest
    except ClusterError:
        return None

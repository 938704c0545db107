"""What measures and limits the devices of this machine, one address each, and how that is going.

`DeviceMeters` reads watts; limits of devices are set by the safety loop (`site_hold`), to which
`caps` are wishes; `PackageLimit` has the processor itself keep the budget. Whatever does not answer
is told as a problem, and counted at its worst by others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wattherd.devices.knobs.journal import KnobJournal
from wattherd.devices.knobs.registry import open_knob
from wattherd.devices.meters.contract import Quality
from wattherd.devices.meters.meter import Meter
from wattherd.devices.meters.registry import open_meter
from wattherd.errors import ClusterError
from wattherd.local.devices import Device, Machine
from wattherd.server.hardware.device_use import DeviceUse
from wattherd.server.limits.cap_wishes import WishedCaps

JOURNAL = "caps.json"
MODEL = "model"


class DeviceMeters:
    """Watts of every device, in order; `problems` says by address why one does not tell."""

    def __init__(self, uris: Sequence[str]) -> None:
        """Nothing is asked yet."""
        self._meters: Sequence[Meter] = [open_meter(uri) for uri in uris]
        self.problems: dict[str, str] = {}

    def __call__(self) -> Sequence[float | None]:
        """What each draws; None for those that do not say."""
        return [self._watts(meter) for meter in self._meters]

    def total_w(self) -> float | None:
        """What all draw together; None unless all say so."""
        told = self()
        known = [one for one in told if one is not None]
        return sum(known) if len(known) == len(told) else None

    def _watts(self, meter: Meter) -> float | None:
        try:
            reading = meter.read()
        except ClusterError as error:
            self.problems[meter.source] = str(error)
            return None
        if reading.quality is Quality.STALE:
            self.problems[meter.source] = "its last word is too old"
            return None
        self.problems.pop(meter.source, None)
        return reading.watts

    def close(self) -> None:
        """Let go of the instruments."""
        for meter in self._meters:
            meter.close()


class PackageLimit:
    """The site's budget as the limit of the processor's packages, in equal parts.

    A backstop below the duties that jobs are kept to: it holds also while nobody decides anything.
    """

    def __init__(self, folder: Path, uris: Sequence[str]) -> None:
        """Nothing is changed before the first budget."""
        journal = KnobJournal(folder / JOURNAL) if uris else None
        self._knobs = [open_knob(uri, journal) for uri in uris]
        self._held_w: float | None = None
        self._began = False
        self.problems: dict[str, str] = {}

    def hold(self, budget_w: float | None) -> None:
        """Have the packages keep a budget, or put back what was found for None."""
        if self._began and budget_w == self._held_w:
            return
        self._began, self._held_w = True, budget_w
        for knob in self._knobs:
            outcome = knob.restore() if budget_w is None else knob.set(budget_w / len(self._knobs))
            self.problems.pop(knob.source, None)
            if not outcome.in_force:
                self.problems[knob.source] = outcome.problem or str(outcome.result)

    def close(self) -> None:
        """Put back what was found: nobody is left to follow the budget."""
        self.hold(None)


class SiteInstruments:
    """All of them, and what is to be said of them.

    `packages` are the addresses of meters of the processor, where they tell the site's watts.
    """

    def __init__(
        self, machine: Machine, folder: Path, *,
        packages: Sequence[str] = (), limits: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Those that the machine's devices name; nothing is asked or changed yet."""
        self._machine, self._packages, self._limits = machine, packages, limits
        devices = machine.devices
        metered = all(one.meter for one in devices) and bool(devices)
        knobs = {one.uuid: one.knob for one in devices if one.uuid and one.knob}
        self.meters = DeviceMeters([one.meter for one in devices]) if metered else None
        self.total = DeviceMeters(packages) if packages else None
        self.caps = WishedCaps(knobs) if knobs else None
        self.limit = PackageLimit(folder, limits)
        self.use = DeviceUse(devices)

    def close(self) -> None:
        """Put back what was changed for the whole machine, and let go of all meters."""
        self.limit.close()
        self.use.close()
        for one in (self.meters, self.total):
            if one is not None:
                one.close()

    def rows(self) -> list[dict[str, Any]]:
        """By device: whether its watts are measured, by what, how it is limited, what is wrong."""
        rows = [self._device_row(number, one) for number, one in enumerate(self._machine.devices)]
        return rows + [self._package_row(uri) for uri in (*self._packages, *self._limits)]

    def _device_row(self, number: int, device: Device) -> dict[str, Any]:
        meter = device.meter if self.meters is not None else ""
        shared = self.total is not None and not meter
        return {
            "device": f"GPU {number}",
            "uuid": device.uuid,
            "watts": "measured" if meter else "shared out" if shared else "estimated",
            "meter": meter,
            "control": "caps" if device.knob else "duty",
            "knob": device.knob,
            "problems": self._problems(meter, device.knob),
        }

    def _package_row(self, uri: str) -> dict[str, Any]:
        meters = uri in self._packages
        return {
            "device": "processor",
            "uuid": "",
            "watts": "measured" if meters else "",
            "meter": uri if meters else "",
            "control": "" if meters else "limit",
            "knob": "" if meters else uri,
            "problems": self._problems(uri),
        }

    def _problems(self, *uris: str) -> list[str]:
        sources = (self.meters, self.total, self.caps, self.limit)
        told = (one.problems for one in sources if one is not None)
        return [problems[uri] for problems in told for uri in uris if uri in problems]

    def words(self) -> list[str]:
        """The same in a line or two, for who starts the service."""
        rows = [row for row in self.rows() if row["device"] != "processor"]
        stated = {row["watts"] for row in rows}
        by = sorted({row["meter"].partition(":")[0] for row in rows if row["meter"]})
        ways = sorted({row["knob"].partition(":")[0] or "duty of the processor" for row in rows})
        if self._packages:
            said = "watts of the processor are measured by rapl, and shared out by processor time"
        elif stated == {"measured"}:
            said = f"watts are measured by {', '.join(by)}"
        else:
            said = "watts are estimated from processor time: nothing here measures them"
        limited = "; the processor keeps the budget by rapl, too" if self._limits else ""
        return [f"{said}; jobs are limited by {', '.join(ways)}{limited}"]

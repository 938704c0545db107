"""Power limit of a CPU package by RAPL: `rapl:///sys/class/powercap/intel-rapl:0`.

Linux offers limits ("constraints") of each zone as files (kernel documentation, "Power Capping
Framework"): constraint 0 is the long-term one, a mean over about a second. A zone whose `enabled`
is 0 keeps no limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wattherd.devices.knobs.contract import NO_LIMIT, KnobLimits, KnobSetting, KnobUnit, State
from wattherd.devices.wire import sysfs
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.uri import Uri

OPTIONS = frozenset({"constraint"})
MICRO = 1e-6


@dataclass(frozen=True, slots=True)
class RaplKnob:
    """One constraint of one zone."""

    zone: Path
    constraint: int = 0
    unit = KnobUnit.WATT
    step = 0.25  # the hardware counts eighths of a watt

    def limits(self) -> KnobLimits:
        """The highest limit, where the zone tells it; there is no lowest."""
        highest_uw = self._most_uw()
        return KnobLimits(unit=self.unit, lowest=None, default=highest_uw and highest_uw * MICRO,
                      highest=highest_uw and highest_uw * MICRO, now=self.read().value)  # fmt: skip

    def read(self) -> KnobSetting:
        """The limit in force."""
        limit_uw, enabled = self._number("power_limit_uw"), self._enabled()
        value = limit_uw * MICRO if enabled else NO_LIMIT
        return KnobSetting(value, {"power_limit_uw": limit_uw, "enabled": enabled})

    def write(self, value: float) -> None:
        """Set the limit and put it in force, or lift it."""
        if value == NO_LIMIT:
            self._enable(on=False)
            return
        sysfs.write(self._file("power_limit_uw"), round(value / MICRO))
        self._enable(on=True)

    def put_back(self, state: State) -> None:
        """Set the limit that was found, in force or not."""
        sysfs.write(self._file("power_limit_uw"), state["power_limit_uw"])
        self._enable(on=state["enabled"])

    def close(self) -> None:
        """Nothing is kept open."""

    def _file(self, name: str) -> Path:
        return self.zone / f"constraint_{self.constraint}_{name}"

    def _number(self, name: str) -> int:
        if not self._file(name).exists():
            raise DeviceError(DeviceErrorKind.ABSENT, f"{self._file(name)} does not exist")
        return sysfs.number(self._file(name))

    def _most_uw(self) -> int | None:
        """None where there is no such file, or it says 0 for "unknown"."""
        path = self._file("max_power_uw")
        return (sysfs.number(path) or None) if path.exists() else None

    def _enabled(self) -> bool:
        path = self.zone / "enabled"
        return not path.exists() or sysfs.number(path) != 0

    def _enable(self, *, on: bool) -> None:
        if self._enabled() != on:
            sysfs.write(self.zone / "enabled", int(on))


def driver(uri: Uri) -> RaplKnob:
    """The driver that `uri` names.

    Raises:
        UserError: it names no zone.
    """
    if uri.authority or not uri.path.strip("/"):
        raise uri.error("names no zone", hint="write rapl:///sys/class/powercap/intel-rapl:0")
    constraint = uri.options.get("constraint", "0")
    if not constraint.isdecimal():
        raise uri.error(f"{constraint!r} is no number", field="constraint")
    return RaplKnob(Path(uri.path), int(constraint))


def present_uris(powercap: Path) -> list[str]:
    """Addresses of the CPU packages of this machine that have a limit."""
    zones = sorted(powercap.glob("intel-rapl:*"))
    return [f"rapl://{zone}" for zone in zones
            if zone.name.count(":") == 1 and (zone / "constraint_0_power_limit_uw").exists()
            ]  # fmt: skip

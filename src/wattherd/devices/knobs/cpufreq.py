"""Highest frequency of CPUs: `cpufreq:///sys/devices/system/cpu`, or one policy below it.

Linux groups CPUs into policies, each with a folder (kernel documentation, "CPU Performance
Scaling"); `scaling_max_freq` is the limit in kHz. Of several policies the highest counts; each is
set within its own range, and each is put back to what it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wattherd.devices.knobs.contract import NO_LIMIT, KnobLimits, KnobSetting, KnobUnit, State
from wattherd.devices.wire import sysfs
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.uri import Uri

OPTIONS: frozenset[str] = frozenset()
KILO = 1e3
LIMIT = "scaling_max_freq"


@dataclass(frozen=True, slots=True)
class Cpufreq:
    """The policies in or below a folder."""

    folder: Path
    unit = KnobUnit.HERTZ
    step = 1e6

    def limits(self) -> KnobLimits:
        """From the lowest frequency of any policy to the highest."""
        policies = self._policies()
        highest_hz = KILO * max(sysfs.number(one / "cpuinfo_max_freq") for one in policies)
        return KnobLimits(
            unit=self.unit,
            lowest=KILO * min(sysfs.number(one / "cpuinfo_min_freq") for one in policies),
            highest=highest_hz,
            default=highest_hz,
            now=self.read().value,
        )

    def read(self) -> KnobSetting:
        """The highest limit of any policy."""
        found_khz = {one.name: sysfs.number(one / LIMIT) for one in self._policies()}
        return KnobSetting(KILO * max(found_khz.values()), {"khz": found_khz})

    def write(self, value: float) -> None:
        """Set every policy as near as its own range allows."""
        for policy in self._policies():
            lowest_khz = sysfs.number(policy / "cpuinfo_min_freq")
            highest_khz = sysfs.number(policy / "cpuinfo_max_freq")
            wanted_khz = highest_khz if value == NO_LIMIT else round(value / KILO)
            sysfs.write(policy / LIMIT, min(max(wanted_khz, lowest_khz), highest_khz))

    def put_back(self, state: State) -> None:
        """Set every policy that is still there to what it was."""
        for policy in self._policies():
            if policy.name in state["khz"]:
                sysfs.write(policy / LIMIT, state["khz"][policy.name])

    def close(self) -> None:
        """Nothing is kept open."""

    def _policies(self) -> Sequence[Path]:
        folders = [self.folder, *sorted(self.folder.glob("cpufreq/policy*"))]
        found = [one for one in folders if (one / LIMIT).exists()]
        if not found:
            raise DeviceError(
                DeviceErrorKind.ABSENT, f"no {LIMIT} in {self.folder} or its cpufreq/policy*"
            )
        return found


def driver(uri: Uri) -> Cpufreq:
    """The driver that `uri` names.

    Raises:
        UserError: it names no folder.
    """
    if uri.authority or not uri.path.strip("/"):
        raise uri.error("names no folder", hint="write cpufreq:///sys/devices/system/cpu")
    return Cpufreq(Path(uri.path))

"""CPU and memory power from RAPL energy counters: `rapl:` or `rapl:package-0?root=DIR`.

Linux shows the counters under /sys/class/powercap (kernel documentation, "Power Capping
Framework"): `energy_uj` in microjoules, which wraps at `max_energy_range_uj`. Without a name, all
packages and their memory are added up; `psys` is left out, as it contains them, and so are the
`mmio` doubles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wattherd.devices.meters.contract import MeterSample, Quality
from wattherd.devices.wire import sysfs
from wattherd.devices.wire.clock import Clock
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.uri import Uri
from wattherd.spelling import hint_for

OPTIONS = frozenset({"root", "window"})
ROOT = "/sys/class/powercap"
WINDOW_S = 0.1
"""Of the first reading: a hundred updates of the counter, which come every millisecond."""
LONGEST_S = 60.0
"""Between two readings: a counter of 65 kJ wraps after a minute at 1 kW, and two wraps look like
one."""


@dataclass(frozen=True, slots=True)
class Counter:
    """One energy counter: its folder in sysfs and where it wraps, in microjoules."""

    folder: Path
    name: str
    range_uj: int

    def energy_uj(self) -> int:
        """Microjoules since some moment.

        Raises:
            DeviceError: it cannot be read.
        """
        return sysfs.number(self.folder / "energy_uj")

    def passed_uj(self, before_uj: int, now_uj: int) -> int:
        """Energy between two looks, of which at most one saw the counter wrap."""
        return now_uj - before_uj + (self.range_uj if now_uj < before_uj else 0)


@dataclass(slots=True)
class RaplMeter:
    """Mean power of the named counters since the last reading, or over `window_s` at the first."""

    root: Path
    name: str
    clock: Clock
    window_s: float = WINDOW_S
    quick = True
    _counters: Sequence[Counter] = ()
    _before: tuple[float, Sequence[int]] | None = field(default=None)

    def sample(self) -> MeterSample:
        """Mean watts.

        Raises:
            DeviceError: there are no such counters, or they may not be read.
        """
        if not self._counters:
            self._counters = counters(self.root, self.name)
        before = self._before
        if before is None or not 0 < self.clock.steady_s() - before[0] <= LONGEST_S:
            before = self._look()
            self.clock.sleep(self.window_s)
        now = self._before = self._look()
        passed_s = now[0] - before[0]
        if passed_s <= 0:
            raise DeviceError(
                DeviceErrorKind.GARBAGE, "no time passed between two looks at the counter"
            )
        looks = zip(self._counters, before[1], now[1], strict=True)
        passed_uj = sum(counter.passed_uj(old_uj, new_uj) for counter, old_uj, new_uj in looks)
        return MeterSample(passed_uj * 1e-6 / passed_s, quality=Quality.AVERAGED)

    def close(self) -> None:
        """Forget the counters, which may be others after a reload of the driver."""
        self._counters, self._before = (), None

    def _look(self) -> tuple[float, Sequence[int]]:
        return self.clock.steady_s(), [counter.energy_uj() for counter in self._counters]


def driver(uri: Uri, clock: Clock) -> RaplMeter:
    """The driver that `uri` names.

    Raises:
        UserError: it names a host, or the window is no time.
    """
    if uri.authority:
        raise uri.error("RAPL is read on this machine only", hint="write rapl: or rapl:package-0")
    root = Path(uri.options.get("root", ROOT))
    return RaplMeter(root, uri.path, clock, uri.seconds("window", WINDOW_S))


def counters(root: Path, name: str = "") -> Sequence[Counter]:
    """The counters called `name` (by folder or by what they measure), or those of a whole machine.

    Raises:
        DeviceError: there are none.
    """
    found = [_counter(folder) for folder in sorted(root.glob("intel-rapl:*"))
             if (folder / "energy_uj").exists()]  # fmt: skip
    if not found:
        raise DeviceError(DeviceErrorKind.ABSENT, f"no RAPL counters in {root}")
    chosen = [counter for counter in found if _is_meant(counter, name)]
    if not chosen:
        known = {counter.name for counter in found}
        raise DeviceError(
            DeviceErrorKind.ABSENT, f"no RAPL counter {name!r} ({hint_for(name, known)})"
        )
    return chosen


def _is_meant(counter: Counter, name: str) -> bool:
    if name:
        return name in (counter.name, counter.folder.name)
    return counter.name.startswith("package") or counter.name == "dram"


def _counter(folder: Path) -> Counter:
    name = sysfs.text(folder / "name")
    return Counter(folder, name, sysfs.number(folder / "max_energy_range_uj"))

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

from wattherd.meters.clock import Clock
from wattherd.meters.contract import MeterError, Quality, Sample, Trouble
from wattherd.meters.uri import MeterUri
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
            MeterError: it cannot be read.
        """
        return _number(self.folder / "energy_uj")

    def passed_uj(self, before_uj: int, now_uj: int) -> int:
        """Energy between two looks, of which at most one saw the counter wrap."""
        return now_uj - before_uj + (self.range_uj if now_uj < before_uj else 0)


@dataclass(slots=True)
class Rapl:
    """Mean power of the named counters since the last reading, or over `window_s` at the first."""

    root: Path
    name: str
    clock: Clock
    window_s: float = WINDOW_S
    _counters: Sequence[Counter] = ()
    _before: tuple[float, Sequence[int]] | None = field(default=None)

    def sample(self) -> Sample:
        """Mean watts.

        Raises:
            MeterError: there are no such counters, or they may not be read.
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
            raise MeterError(Trouble.GARBAGE, "no time passed between two looks at the counter")
        looks = zip(self._counters, before[1], now[1], strict=True)
        passed_uj = sum(counter.passed_uj(old_uj, new_uj) for counter, old_uj, new_uj in looks)
        return Sample(passed_uj * 1e-6 / passed_s, quality=Quality.AVERAGED)

    def close(self) -> None:
        """Forget the counters, which may be others after a reload of the driver."""
        self._counters, self._before = (), None

    def _look(self) -> tuple[float, Sequence[int]]:
        return self.clock.steady_s(), [counter.energy_uj() for counter in self._counters]


def driver(uri: MeterUri, clock: Clock) -> Rapl:
    """The driver that `uri` names.

    Raises:
        UserError: it names a host, or the window is no time.
    """
    if uri.authority:
        raise uri.error("RAPL is read on this machine only", hint="write rapl: or rapl:package-0")
    root = Path(uri.options.get("root", ROOT))
    return Rapl(root, uri.path, clock, uri.seconds("window", WINDOW_S))


def counters(root: Path, name: str = "") -> Sequence[Counter]:
    """The counters called `name` (by folder or by what they measure), or those of a whole machine.

    Raises:
        MeterError: there are none.
    """
    found = [_counter(folder) for folder in sorted(root.glob("intel-rapl:*"))
             if (folder / "energy_uj").exists()]  # fmt: skip
    if not found:
        raise MeterError(Trouble.ABSENT, f"no RAPL counters in {root}")
    chosen = [counter for counter in found if _is_meant(counter, name)]
    if not chosen:
        known = {counter.name for counter in found}
        raise MeterError(Trouble.ABSENT, f"no RAPL counter {name!r} ({hint_for(name, known)})")
    return chosen


def _is_meant(counter: Counter, name: str) -> bool:
    if name:
        return name in (counter.name, counter.folder.name)
    return counter.name.startswith("package") or counter.name == "dram"


def _counter(folder: Path) -> Counter:
    name = _text(folder / "name")
    return Counter(folder, name, _number(folder / "max_energy_range_uj"))


def _number(path: Path) -> int:
    text = _text(path)
    if not text.isdecimal():
        raise MeterError(Trouble.GARBAGE, f"{path} says {text!r}")
    return int(text)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except PermissionError:
        # Readable by root alone since CVE-2020-8694 (power side channels).
        problem = f"{path} may not be read: run as root, or let your group read it"
        raise MeterError(Trouble.REFUSED, problem) from None
    except OSError as error:
        raise MeterError(Trouble.UNREACHABLE, f"{path}: {error.strerror}") from None

"""Caps held by a lease: ordered, sunk, set again, put back, taken over from a predecessor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from wattherd.devices.knobs.contract import KnobLimits, KnobSetting, KnobUnit, State
from wattherd.devices.knobs.journal import KnobJournal
from wattherd.devices.knobs.knob import Knob
from wattherd.devices.knobs.leased_caps import LeasedCaps
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind


@dataclass
class Gpu:
    """A driver of one limit, which may be lost."""

    limit_w: float = 300.0
    lost: bool = False
    unit = KnobUnit.WATT
    step = 0.5

    def limits(self) -> KnobLimits:
        self._asked()
        return KnobLimits(
            unit=KnobUnit.WATT, lowest=100.0, highest=350.0, default=300.0, now=self.limit_w
        )

    def read(self) -> KnobSetting:
        self._asked()
        return KnobSetting(self.limit_w, {"limit_w": self.limit_w})

    def write(self, value: float) -> None:
        self._asked()
        self.limit_w = value

    def put_back(self, state: State) -> None:
        self._asked()
        self.limit_w = state["limit_w"]

    def close(self) -> None:
        """Nothing is open."""

    def _asked(self) -> None:
        if self.lost:
            raise DeviceError(DeviceErrorKind.UNREACHABLE, "GPU is lost")


def leased(folder: Path, gpus: dict[str, Gpu], safe_w: float | None = None) -> LeasedCaps:
    journal = KnobJournal(folder / "journal.json")
    knobs = {name: Knob(f"test://{name}", gpu, 0.0, journal) for name, gpu in gpus.items()}
    return LeasedCaps(knobs, journal, until_s=10.0, safe_w=safe_w)


def test_caps_are_held_until_the_lease_ends_and_sink_then(tmp_path: Path) -> None:
    gpus = {"a": Gpu(), "b": Gpu()}
    caps = leased(tmp_path, gpus)
    caps.order({"a": 250.0}, until_s=5.0)
    assert [one.cap_w for one in caps.keep(4.9)] == [250.0, 300.0]
    assert [one.cap_w for one in caps.keep(5.0)] == [100.0, 300.0]
    caps.order({"a": 250.0}, until_s=9.0)
    assert [one.cap_w for one in caps.keep(6.0)] == [250.0, 300.0]


@pytest.mark.parametrize(("asked_w", "sunk_w"), [(250.0, 150.0), (120.0, 120.0)])
def test_the_safe_cap_never_raises(tmp_path: Path, asked_w: float, sunk_w: float) -> None:
    gpus = {"a": Gpu()}
    caps = leased(tmp_path, gpus, safe_w=150.0)
    caps.order({"a": asked_w}, until_s=5.0)
    caps.keep(0.0)
    assert [one.cap_w for one in caps.keep(6.0)] == [sunk_w]


def test_what_nobody_asks_for_any_more_is_as_it_was_found(tmp_path: Path) -> None:
    gpus = {"a": Gpu(limit_w=280.0)}
    caps = leased(tmp_path, gpus)
    caps.order({"a": 200.0}, until_s=5.0)
    caps.keep(0.0)
    caps.order({}, until_s=5.0)
    assert [one.cap_w for one in caps.keep(1.0)] == [280.0]
    assert caps.journal.entries == {}


def test_a_successor_keeps_caps_for_a_lease_and_lets_them_sink_then(tmp_path: Path) -> None:
    gpus = {"a": Gpu(limit_w=280.0), "b": Gpu()}
    first = leased(tmp_path, gpus)
    first.order({"a": 200.0}, until_s=5.0)
    first.keep(0.0)
    second = leased(tmp_path, gpus)
    assert [one.cap_w for one in second.keep(9.0)] == [200.0, 300.0]
    assert [one.cap_w for one in second.keep(10.0)] == [100.0, 300.0]
    second.put_back()
    assert gpus["a"].limit_w == 280.0


def test_a_device_that_was_lost_gets_its_cap_again(tmp_path: Path) -> None:
    gpus = {"a": Gpu()}
    caps = leased(tmp_path, gpus)
    caps.order({"a": 200.0}, until_s=50.0)
    caps.keep(0.0)
    gpus["a"].lost = True
    [held] = caps.keep(1.0)
    assert (held.cap_w, held.problem) == (None, "GPU is lost")
    gpus["a"].lost, gpus["a"].limit_w = False, 300.0  # as drivers do
    assert [one.cap_w for one in caps.keep(2.0)] == [200.0]


def test_limits_are_told_and_orders_stay_within_them(tmp_path: Path) -> None:
    caps = leased(tmp_path, {"a": Gpu()})
    caps.order({"a": 20.0, "elsewhere": 200.0}, until_s=5.0)
    [held] = caps.keep(0.0)
    assert (held.cap_w, held.lowest_w, held.highest_w) == (100.0, 100.0, 350.0)
    assert held.problem == ""

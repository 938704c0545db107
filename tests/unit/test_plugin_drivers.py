"""Drivers of other packages: whatever they do wrong is a device that does not answer."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from wattherd.devices.knobs.contract import KnobLimits, KnobSetting, KnobUnit, OrderResult
from wattherd.devices.knobs.registry import open_knob
from wattherd.devices.meters.contract import MeterSample
from wattherd.devices.meters.registry import open_meter
from wattherd.devices.signals.contract import SignalSite, SourceContact, ToldLimits
from wattherd.devices.signals.plugin_signal import PluggedSignal
from wattherd.devices.signals.registry import open_signal
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.engine.power.limit_timeline import LimitPeriod
from wattherd.errors import UserError


@pytest.fixture
def speaks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """A package that speaks `mine` by a driver."""

    def announce(make: Any) -> None:
        module = SimpleNamespace(OPTIONS=frozenset(), driver=make)
        entry = SimpleNamespace(value="mine", load=lambda: module)
        protocols = "wattherd.devices.wire.protocols"
        monkeypatch.setattr(f"{protocols}.announced", lambda seam: {"mine": entry})
        monkeypatch.setattr(f"{protocols}.loaded", lambda seam, name: module)

    return announce


class Meter:
    def __init__(self, answer: Callable[[], Any], **more: Any) -> None:
        self.answer, self.closed = answer, 0
        for name, value in more.items():
            setattr(self, name, value)

    def sample(self) -> Any:
        return self.answer()

    def close(self) -> None:
        self.closed += 1
        raise OSError("closed already")


def test_a_good_meter_reads_as_ours_do(speaks: Callable[[Any], None]) -> None:
    speaks(lambda uri, clock: Meter(lambda: MeterSample(2.5, 7.0)))
    meter = open_meter("mine://h?unit=kW")
    reading = meter.read()
    assert (reading.watts, reading.at_s, reading.source) == (2500.0, 7.0, "mine://h?unit=kW")
    assert not meter.keeps_samples
    meter.close()  # whose driver raises


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda: None, "it answered with None"),
        (lambda: 3.0, "it answered with 3.0"),
        (lambda: MeterSample("many"), "it answered with 'many'"),  # type: ignore[arg-type]
        (lambda: MeterSample(1.0, "now"), "it answered with 'now'"),  # type: ignore[arg-type]
        (lambda: MeterSample(float("nan")), "answered nan, which is no power"),
        (lambda: MeterSample(1.0, float("nan")), "it answered with nan"),
        (lambda: MeterSample(1.0, float("inf")), "it answered with inf"),
        (lambda: MeterSample(1.0, None, "fine"), "it answered with 'fine'"),  # type: ignore[arg-type]
        (sys.exit, "SystemExit"),
    ],
)
def test_a_meter_that_fails_is_one_that_does_not_answer(
    speaks: Callable[[Any], None], answer: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    speaks(lambda uri, clock: Meter(answer))
    meter = open_meter("mine://h")
    for _ in range(3):
        with pytest.raises(DeviceError) as error:
            meter.read()
        assert error.value.trouble is DeviceErrorKind.GARBAGE
        assert error.value.source == "mine://h"
        assert said in str(error.value)
    assert caplog.text.count("driver 'mine' failed") <= 1


def test_trouble_that_a_driver_tells_is_told_as_it_is(speaks: Callable[[Any], None]) -> None:
    def timeout() -> None:
        raise DeviceError(DeviceErrorKind.TIMEOUT, "no answer")

    speaks(lambda uri, clock: Meter(timeout))
    with pytest.raises(DeviceError, match=r"^mine://h: timeout: no answer$"):
        open_meter("mine://h").read()


def test_a_meter_that_keeps_samples_keeps_them_still(speaks: Callable[[Any], None]) -> None:
    kept: list[Any] = [MeterSample(1.0, 1.0), MeterSample(2.0, 2.0)]

    def since(at_s: float) -> list[Any]:
        return [one for one in kept if not isinstance(one, MeterSample) or one.at_s > at_s]

    more = {"keeps_samples": True, "kept_since": since, "concurrent": True}
    speaks(lambda uri, clock: Meter(lambda: MeterSample(2.0), **more))
    meter = open_meter("mine://h")
    assert meter.keeps_samples
    assert meter.driver.concurrent  # type: ignore[attr-defined]
    assert meter.kept_since(1.0) == [(2.0, 2.0)]
    for nonsense, said in (("a word", "'a word'"), (MeterSample("many", 3.0), "'many'")):  # type: ignore[arg-type]
        kept[2:] = [nonsense]
        with pytest.raises(DeviceError, match=f"answered with {said}"):
            meter.kept_since(0.0)


@pytest.mark.parametrize("open_it", [open_meter, open_knob])
def test_a_driver_that_cannot_be_made_is_an_error_with_its_address(
    speaks: Callable[[Any], None], open_it: Callable[[str], Any]
) -> None:
    def make(*given: Any) -> None:
        raise RuntimeError("no licence")

    speaks(make)
    with pytest.raises(UserError, match="driver 'mine' failed: RuntimeError: no licence") as error:
        open_it("mine://h")
    assert "mine://h" in error.value.line()
    assert "plugins.md" in error.value.hint


@pytest.mark.parametrize("open_it", [open_meter, open_knob])
@pytest.mark.parametrize(
    "driver", [None, SimpleNamespace(), SimpleNamespace(sample=3, close=print, limits=print)]
)
def test_what_is_no_driver_is_an_error_when_it_is_made(
    speaks: Callable[[Any], None], open_it: Callable[[str], Any], driver: Any
) -> None:
    speaks(lambda *given: driver)
    with pytest.raises(UserError, match="driver 'mine' failed: TypeError: it made a") as error:
        open_it("mine://h")
    assert "which has no `" in error.value.problem


@pytest.mark.parametrize("options", [None, 7, ["x", 3]])
def test_options_that_are_none_are_an_error_with_the_entry_point(
    monkeypatch: pytest.MonkeyPatch, options: Any
) -> None:
    module = SimpleNamespace(OPTIONS=options, driver=print, signal=print)
    entry = SimpleNamespace(value="mine:module", load=lambda: module)
    for room in ("wire.protocols", "signals.registry"):
        monkeypatch.setattr(f"wattherd.devices.{room}.announced", lambda seam: {"mine": entry})
        monkeypatch.setattr(f"wattherd.devices.{room}.loaded", lambda seam, name: module)
    with pytest.raises(UserError, match="mine:module has no `driver` and `OPTIONS`"):
        open_meter("mine://h")
    with pytest.raises(UserError, match="mine:module has no `signal` and `OPTIONS`"):
        open_signal("mine://h", SignalSite(base_w=1.0))


class Knob:
    unit, step = KnobUnit.WATT, 1.0

    def __init__(self) -> None:
        self.value, self.broken = 300.0, ""

    def answers(self, name: str) -> None:
        if name == self.broken:
            raise KeyError(name)

    def limits(self) -> KnobLimits:
        self.answers("limits")
        return KnobLimits(unit=self.unit, lowest=100.0, highest=400.0, default=None, now=self.value)

    def read(self) -> KnobSetting:
        self.answers("read")
        return KnobSetting(value=self.value, state={"value": self.value})

    def write(self, value: float) -> None:
        self.answers("write")
        self.value = value

    def put_back(self, state: Any) -> None:
        self.answers("put_back")
        self.value = state["value"]

    def close(self) -> None:
        raise OSError("closed already")


def test_a_knob_that_fails_is_one_that_does_not_answer(speaks: Callable[[Any], None]) -> None:
    driver = Knob()
    speaks(lambda uri: driver)
    knob = open_knob("mine://h?settle=0.01s")
    assert knob.set(250.0).result is OrderResult.TOOK_EFFECT
    assert knob.identity() == ""
    for name in ("read", "write", "limits"):
        driver.broken = name
        knob.forget()
        outcome = knob.set(350.0)
        assert not outcome.in_force
        assert "the driver 'mine' failed: KeyError" in outcome.problem
    driver.broken = ""
    assert knob.set(200.0).in_force
    driver.broken = "put_back"
    assert not knob.restore().in_force
    knob.close()  # whose driver raises


LIMITS = KnobLimits(unit=KnobUnit.WATT, lowest=100.0, highest=400.0, default=None, now=300.0)


@pytest.mark.parametrize(
    "setting",
    [
        KnobSetting(value=float("nan"), state={}),
        KnobSetting(value=-1.0, state={}),  # would count as watts that are free for others
        KnobSetting(value="high", state={}),  # type: ignore[arg-type]
        KnobSetting(value=1.0, state="high"),  # type: ignore[arg-type]
        KnobSetting(value=1.0, state={"device": object()}),
    ],
)
def test_a_limit_that_is_no_number_of_watts_is_no_answer(
    speaks: Callable[[Any], None], setting: KnobSetting
) -> None:
    driver = Knob()
    driver.read = lambda: setting  # type: ignore[method-assign]
    speaks(lambda uri: driver)
    knob = open_knob("mine://h?settle=0.01s")
    found = knob.read()
    assert (found.value, found.trouble) == (None, DeviceErrorKind.GARBAGE)
    assert not knob.set(250.0).in_force
    assert driver.value == 300.0  # nothing is ordered of a device that could not be put back


@pytest.mark.parametrize(
    "wrong",
    [
        {"lowest": float("nan")}, {"highest": "high"}, {"lowest": -5.0}, {"now": float("nan")},
        {"lowest": 500.0}, {"default": -1.0},
    ],
)  # fmt: skip
def test_limits_that_are_none_are_no_answer(
    speaks: Callable[[Any], None], wrong: dict[str, Any]
) -> None:
    driver = Knob()
    driver.limits = lambda: replace(LIMITS, **wrong)  # type: ignore[method-assign]
    speaks(lambda uri: driver)
    with pytest.raises(DeviceError, match="garbage: the driver 'mine' failed: it answered with"):
        open_knob("mine://h").limits()


@pytest.mark.parametrize(("name", "value"), [("unit", "horses"), ("step", -1), ("step", "wide")])
def test_a_knob_without_unit_or_step_is_an_error_when_it_is_made(
    speaks: Callable[[Any], None], name: str, value: Any
) -> None:
    driver = Knob()
    setattr(driver, name, value)
    speaks(lambda uri: driver)
    with pytest.raises(UserError, match="driver 'mine' failed: ValueError"):
        open_knob("mine://h")


class Signal:
    """Says 8 kW first, and then whatever `answer` does."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer, self.asked = answer, 0

    def told(self) -> Any:
        self.asked += 1
        return EIGHT_KW if self.asked == 1 else self.answer()

    def close(self) -> None:
        raise OSError("closed already")


EIGHT_KW = ToldLimits(
    source="mine://h", contact=SourceContact.HEARD, spans=(LimitPeriod(0.0, 1e12, 8000.0),)
)


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """A package that has signals `mine`."""

    def announce(make: Any) -> None:
        module = SimpleNamespace(OPTIONS=frozenset(), signal=make)
        registry = "wattherd.devices.signals.registry"
        monkeypatch.setattr(f"{registry}.announced", lambda seam: {"mine": object()})
        monkeypatch.setattr(f"{registry}.loaded", lambda seam, name: module)

    return announce


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda: None, "it answered with None"),
        (lambda: replace(EIGHT_KW, spans=(9000.0,)), "it answered with 9000.0"),
        (lambda: replace(EIGHT_KW, spans=None), "it answered with None"),
        (lambda: replace(EIGHT_KW, contact="well"), "it answered with 'well'"),
        (lambda: replace(EIGHT_KW, note=None), "it answered with None"),
        (lambda: replace(EIGHT_KW, heard_at_s=float("nan")), "it answered with nan"),
        (lambda: replace(EIGHT_KW, events=(("id", "optIn"),)), "it answered with 2"),
        (lambda: LimitPeriod(float("nan"), 1.0, 5.0), "ends before it begins"),
        (lambda: replace(EIGHT_KW, spans=(LimitPeriod("0", "1", 5.0),)), "it answered with '0'"),  # type: ignore[arg-type]
        (sys.exit, "SystemExit"),
    ],
)
def test_a_signal_that_fails_is_lost_and_its_last_word_counts(
    signals: Callable[[Any], None], answer: Any, said: str
) -> None:
    signals(lambda uri, site, clock: Signal(answer))
    signal = open_signal("mine://h", SignalSite(base_w=10_000.0))
    assert signal.told() == EIGHT_KW
    for _ in range(3):
        told = signal.told()
        assert (told.contact, told.spans) == (SourceContact.LOST, EIGHT_KW.spans)
        assert said in told.note
    signal.close()
    signals(lambda uri, site, clock: 1 / 0)
    with pytest.raises(UserError, match="driver 'mine' failed: ZeroDivisionError"):
        open_signal("mine://h", SignalSite(base_w=10_000.0))


def test_a_signal_that_does_not_return_is_lost_and_its_last_word_counts() -> None:
    """Asked once a second by who holds all other limits, too: nobody may wait for it."""
    goes_on = threading.Event()
    signal = PluggedSignal("mine", "mine://h", Signal(goes_on.wait), patience_s=0.05)
    assert signal.told() == EIGHT_KW
    began_s = time.monotonic()
    for note in ("no answer within 0.05 s", "an earlier call still hangs"):
        told = signal.told()
        assert (told.contact, told.spans) == (SourceContact.LOST, EIGHT_KW.spans)
        assert note in told.note
    signal.close()
    assert time.monotonic() - began_s < 5.0
    goes_on.set()
    while signal._timed.hangs:  # what it logs at last is not of the next test
        time.sleep(0.01)

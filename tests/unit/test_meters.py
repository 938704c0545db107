"""Addresses of meters, readings made of samples, recordings, RAPL counters and the command."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from wattherd.cli.main import COMMANDS
from wattherd.cli.meter import meter as command
from wattherd.devices.meters.contract import MeterReading, MeterSample, Quality
from wattherd.devices.meters.meter import Meter
from wattherd.devices.meters.rapl import Counter
from wattherd.devices.meters.registry import PROTOCOLS, open_meter
from wattherd.devices.meters.watch import rounds
from wattherd.devices.wire import protocols
from wattherd.devices.wire.clock import Clock
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.uri import parse
from wattherd.errors import UserError

UNIX_S = 1_700_000_000.0


@dataclass
class Hand:
    """Time that passes when a test says so, or when the code under test sleeps."""

    now_s: float = 0.0
    slept_s: list[float] = field(default_factory=list)

    def sleep(self, for_s: float) -> None:
        self.slept_s.append(for_s)
        self.now_s += for_s

    def clock(self) -> Clock:
        return Clock(lambda: UNIX_S + self.now_s, lambda: self.now_s, self.sleep)


@dataclass
class Scripted:
    """A driver that gives what it is told to."""

    samples: list[MeterSample | DeviceError]

    def sample(self) -> MeterSample:
        answer = self.samples.pop(0)
        if isinstance(answer, DeviceError):
            raise answer
        return answer

    def close(self) -> None: ...


# --- addresses -------------------------------------------------------------------------------


def test_an_address_has_parts() -> None:
    uri = parse("modbus://[::1]:1502/7/40070?type=int16&order=little")
    assert (uri.scheme, uri.host, uri.port, uri.path) == ("modbus", "::1", 1502, "/7/40070")
    assert uri.options == {"type": "int16", "order": "little"}


def test_a_query_keeps_its_plus_and_equals_signs() -> None:
    uri = parse('prom+http://h/api/v1?query=sum(a{r="1"}) + b%26c')
    assert uri.options["query"] == 'sum(a{r="1"}) + b&c'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("meter:80/x#y", "#"),
        ("/just/a/path", "names no protocol"),
        ("modbus://h:99999/1/1", "bad port"),
        ("modbus://h:x/1/1", "bad port"),
        ("modbus://[h/1/1", "is no address"),
        ("rapl:?window", "has no value"),
        ("rapl:?window=1&window=2", "given twice"),
        ("rapl:?windwo=1s", "did you mean 'window'"),
        ("rapl:?window=soon", "is no time"),
        ("rapl:?window=0s", "above zero"),
        ("rapl:?scale=big", "is no number"),
        ("rapl:?scale=nan", "is no number"),
        ("rapl:?unit=kw", "did you mean 'kW'"),
        ("rapl://host", "this machine only"),
        ("repaly:x.csv", "did you mean 'replay'"),
        ("replay:", "names no file"),
        ("replay:/no/such/file.csv", "cannot be read"),
    ],
)
def test_an_address_that_cannot_be_used_says_why(text: str, problem: str) -> None:
    with pytest.raises(UserError) as error:
        open_meter(text)
    assert problem in error.value.line()


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(UserError) as error:
        parse("redfish+https://admin:hunter2@bmc/redfish/v1")
    assert "credentials=FILE" in error.value.line()
    assert "hunter2" not in error.value.line()


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_a_users_error(text: str) -> None:
    with contextlib.suppress(UserError):
        parse(text)


# --- readings --------------------------------------------------------------------------------


def test_a_sample_becomes_watts_and_is_stamped_when_it_was_asked() -> None:
    hand = Hand()
    meter = Meter(
        "x:", Scripted([MeterSample(2.0), MeterSample(3.0, at_s=5.0)]), 1e3, clock=hand.clock()
    )
    assert meter.read() == MeterReading(2000.0, UNIX_S, "x:", Quality.MEASURED)
    assert meter.read().at_s == 5.0


def test_an_old_reading_is_stale() -> None:
    samples: list[MeterSample | DeviceError] = [
        MeterSample(1.0, UNIX_S - 9),
        MeterSample(1.0, UNIX_S - 11),
    ]
    meter = Meter("x:", Scripted(samples), max_age_s=10, clock=Hand().clock())
    assert [meter.read().quality for _ in range(2)] == [Quality.MEASURED, Quality.STALE]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_no_reading(value: float) -> None:
    with pytest.raises(DeviceError) as error:
        Meter("x:", Scripted([MeterSample(value)])).read()
    assert (error.value.trouble, error.value.source) == (DeviceErrorKind.GARBAGE, "x:")


def test_rounds_keep_their_beat_and_carry_errors_in_place() -> None:
    hand = Hand()
    lost = DeviceError(DeviceErrorKind.UNREACHABLE, "gone")
    meters = [Meter(name, Scripted([MeterSample(1.0), lost, MeterSample(2.0)]), clock=hand.clock())
              for name in "ab"]  # fmt: skip
    seen = list(rounds(meters, 2.0, 3, hand.clock()))
    assert hand.slept_s == [2.0, 2.0]
    assert [[type(one) for one in each] for each in seen] == [
        [MeterReading] * 2, [DeviceError] * 2, [MeterReading] * 2
    ]  # fmt: skip


def test_a_round_that_takes_too_long_is_followed_at_once() -> None:
    hand = Hand()
    seen = [hand.now_s for _ in rounds([], 2.0, 1, hand.clock())]
    for _ in rounds([], 2.0, 4, hand.clock()):
        seen.append(hand.now_s)
        hand.now_s += 5.0 if len(seen) == 3 else 0.5
    assert seen == [0.0, 0.0, 2.0, 7.0, 9.0]


# --- recordings ------------------------------------------------------------------------------


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "node.csv"
    path.write_text("time_s,power_w,other\n100,50,1\n110,70,2\n130,60,3\n")
    return path


def replayed(text: str, at_s: list[float]) -> list[float]:
    hand = Hand()
    meter = open_meter(text, hand.clock())
    meter.read()
    found = []
    for hand.now_s in at_s:
        found.append(meter.read().watts)
    return found


def test_a_row_holds_until_the_next(recording: Path) -> None:
    assert replayed(f"replay:{recording}", [0, 9.9, 10, 29, 30, 49]) == [50, 50, 70, 70, 60, 60]
    assert replayed(f"replay:{recording}?speed=10", [0.9, 1.1, 3]) == [50, 70, 60]
    assert replayed(f"replay:{recording}?column=other&unit=kW", [30]) == [3000]


def test_a_recording_ends_or_begins_again(recording: Path) -> None:
    with pytest.raises(DeviceError, match="is over"):
        replayed(f"replay:{recording}", [50])
    assert replayed(f"replay:{recording}?loop=1", [50, 61, 130]) == [50, 70, 60]


def test_a_replayed_reading_is_stamped_when_its_row_came_up(recording: Path) -> None:
    hand = Hand()
    meter = open_meter(f"replay:{recording}?loop=1&speed=2", hand.clock())
    meter.read()
    hand.now_s = 31.0  # 62 s played: the second round's row of 10 s
    assert meter.read() == MeterReading(70.0, UNIX_S + 30, meter.source, Quality.REPLAYED)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("time_s,power_w\n", "has no rows"),
        ("time_s,watts\n1,2\n", "known: time_s, watts"),
        ("time_s,power_w\n1,2\n1,3\n", ":3: time 1 does not follow 1"),
        ("time_s,power_w\n1,lots\n", ":2: power_w: 'lots' is no number"),
        ("time_s,power_w\n1\n", ":2: power_w"),
        ("time_s,power_w\nnan,1\n2,2\n", ":3: time"),
    ],
)
def test_a_bad_recording_names_the_line(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "bad.csv").write_text(content)
    with pytest.raises(UserError) as error:
        open_meter(f"replay:{tmp_path / 'bad.csv'}")
    assert problem in error.value.line()


# --- RAPL ------------------------------------------------------------------------------------

RANGE_UJ = 262_143_328_850


class Powercap:
    """A tree as in /sys/class/powercap: two packages, memory of the first, psys over it all."""

    NAMES: ClassVar = {
        "intel-rapl:0": "package-0",
        "intel-rapl:0:0": "core",
        "intel-rapl:0:1": "dram",
        "intel-rapl:1": "package-1",
        "intel-rapl:2": "psys",
        "intel-rapl-mmio:0": "package-0",
    }

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder, name in self.NAMES.items():
            (root / folder).mkdir()
            (root / folder / "name").write_text(f"{name}\n")
            (root / folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
            self.set(folder, 0)
        (root / "intel-rapl").mkdir()

    def set(self, folder: str, energy_uj: int) -> None:
        (self.root / folder / "energy_uj").write_text(f"{energy_uj}\n")


@pytest.fixture
def powercap(tmp_path: Path) -> Powercap:
    return Powercap(tmp_path)


def test_rapl_adds_packages_and_memory_once(powercap: Powercap) -> None:
    hand = Hand()
    meter = open_meter(f"rapl:?root={powercap.root}", hand.clock())
    assert meter.read().watts == 0.0
    assert hand.slept_s == [0.1]
    hand.now_s += 2.0
    for n, folder in enumerate(Powercap.NAMES):
        powercap.set(folder, 10**n * 1_000_000)
    reading = meter.read()  # packages 1 and 1000 J, memory 100 J, in 2 s
    assert reading.watts == pytest.approx(1101 / 2)
    assert reading.quality is Quality.AVERAGED


def test_rapl_reads_one_counter_by_either_name(powercap: Powercap) -> None:
    for name in ("dram", "intel-rapl:0:1"):
        hand = Hand()
        powercap.set("intel-rapl:0:1", RANGE_UJ - 3_000_000)
        meter = open_meter(f"rapl:{name}?root={powercap.root}", hand.clock())
        meter.read()
        powercap.set("intel-rapl:0:1", 5_000_000)  # the counter wrapped
        hand.now_s += 4.0
        assert meter.read().watts == pytest.approx(2.0)


def test_after_a_long_silence_rapl_measures_afresh(powercap: Powercap) -> None:
    hand = Hand()
    meter = open_meter(f"rapl:?root={powercap.root}", hand.clock())
    meter.read()
    hand.now_s += 3600.0
    powercap.set("intel-rapl:0", 123)
    assert meter.read().watts == 0.0
    assert len(hand.slept_s) == 2


@given(st.integers(1, 10**12), st.data())
def test_a_counter_tells_any_energy_below_its_range(range_uj: int, data: st.DataObject) -> None:
    before = data.draw(st.integers(0, range_uj - 1))
    passed = data.draw(st.integers(0, range_uj - 1))
    counter = Counter(Path(), "package-0", range_uj)
    assert counter.passed_uj(before, (before + passed) % range_uj) == passed


def trouble(text: str) -> DeviceErrorKind:
    with pytest.raises(DeviceError) as error:
        open_meter(text, Hand().clock()).read()
    return error.value.trouble


def test_rapl_says_what_ails_it(
    powercap: Powercap, tmp_path_factory: pytest.TempPathFactory
) -> None:
    address = f"rapl:?root={powercap.root}"
    assert trouble(f"rapl:?root={tmp_path_factory.mktemp('none')}") is DeviceErrorKind.ABSENT
    assert trouble(f"rapl:gpu?root={powercap.root}") is DeviceErrorKind.ABSENT
    (powercap.root / "intel-rapl:0" / "energy_uj").write_text("-nan")
    assert trouble(address) is DeviceErrorKind.GARBAGE
    (powercap.root / "intel-rapl:0" / "name").unlink()
    assert trouble(address) is DeviceErrorKind.UNREACHABLE


def test_rapl_without_permission_says_so(
    powercap: Powercap, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    meter = open_meter(f"rapl:?root={powercap.root}", Hand().clock())
    monkeypatch.setattr(Path, "read_text", refuse)  # root may read everything
    with pytest.raises(DeviceError, match="run as root") as error:
        meter.read()
    assert error.value.trouble is DeviceErrorKind.REFUSED


# --- the command -----------------------------------------------------------------------------


def test_every_protocol_has_an_example_of_its_own() -> None:
    assert COMMANDS["meter"][0] == "wattherd.cli.meter:meter"
    for scheme, protocol in PROTOCOLS.items():
        assert parse(protocol.example).scheme == scheme


def test_the_guide_has_a_row_for_every_protocol() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "meters.md").read_text()
    rows = "\n".join(line for line in guide.splitlines() if line.startswith("| `"))
    assert [scheme for scheme in PROTOCOLS if f"`{scheme}:" not in rows] == []


def test_a_missing_client_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "find_spec", lambda _: None)
    for scheme, protocol in PROTOCOLS.items():
        if protocol.client:
            with pytest.raises(UserError, match=r"wattherd\[meters\]"):
                open_meter(f"{scheme}://h/1/1")


def test_readings_are_printed_one_a_line(recording: Path) -> None:
    uri = f"replay:{recording}?speed=1000&loop=1"
    done = CliRunner().invoke(
        command, ["read", uri, "--watch", "0.015s", "--count", "3", "-o", "json"],
        standalone_mode=False,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.return_value == 0
    assert [line["schema"] for line in lines] == ["wattherd.reading/1"] * 3
    assert lines[0] == {**lines[0], "meter": uri, "watts": 50.0, "quality": "replayed"}
    assert "50.0 W" in CliRunner().invoke(command, ["read", uri]).stdout


def test_no_reading_is_exit_code_1(tmp_path: Path) -> None:
    uri = f"rapl:?root={tmp_path}"
    done = CliRunner().invoke(command, ["read", uri, "-o", "json"], standalone_mode=False)
    assert done.return_value == 1
    line = json.loads(done.stdout)
    assert (line["meter"], line["trouble"], line["watts"]) == (uri, "absent", None)


def test_probe_tells_watts_latency_and_what_ails(recording: Path, tmp_path: Path) -> None:
    uris = [f"replay:{recording}", f"rapl:?root={tmp_path / 'none'}"]
    done = CliRunner().invoke(command, ["probe", *uris, "-o", "json"], standalone_mode=False)
    document = json.loads(done.stdout)
    assert done.return_value == 1
    well, ill = document["meters"]
    assert well["watts"] == 50.0
    assert 0 <= well["latency_s"] < 5
    assert (ill["watts"], ill["trouble"]) == (None, "absent")
    assert {kind["scheme"] for kind in document["protocols"]} == set(PROTOCOLS)
    assert "absent" in CliRunner().invoke(command, ["probe", *uris]).stdout

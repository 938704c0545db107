"""Knobs without servers: limits kept in files, addresses, journals, and what became of an order."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from wattherd.cli.main import COMMANDS, cli
from wattherd.devices.knobs import probing
from wattherd.devices.knobs import temporary as borrowing
from wattherd.devices.knobs.contract import NO_LIMIT, OrderResult
from wattherd.devices.knobs.ipmi import said_limit
from wattherd.devices.knobs.journal import KnobJournal, owned
from wattherd.devices.knobs.registry import PROTOCOLS, SWITCHES, open_knob, open_switch
from wattherd.devices.meters.registry import open_meter
from wattherd.devices.wire import protocols
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.uri import parse
from wattherd.errors import UserError


def write(folder: Path, **files: int | str) -> Path:
    folder.mkdir(parents=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")
    return folder


@pytest.fixture
def zone(tmp_path: Path) -> Path:
    """A CPU package as Linux shows it."""
    limits = {"constraint_0_power_limit_uw": 165_000_000, "constraint_0_max_power_uw": 205_000_000}
    return write(tmp_path / "intel-rapl:0", name="package-0", enabled=1, **limits)


@pytest.fixture
def cpus(tmp_path: Path) -> Path:
    """Two policies of different range, one limited already; kHz."""
    big = {"cpuinfo_min_freq": 800_000, "cpuinfo_max_freq": 3_800_000}
    small = {"cpuinfo_min_freq": 400_000, "cpuinfo_max_freq": 2_600_000}
    write(tmp_path / "cpu/cpufreq/policy0", scaling_max_freq=3_800_000, **big)
    write(tmp_path / "cpu/cpufreq/policy8", scaling_max_freq=2_000_000, **small)
    return tmp_path / "cpu"


def number(path: Path) -> int:
    return int(path.read_text())


def khz(cpus: Path) -> list[int]:
    return [number(path) for path in sorted(cpus.glob("cpufreq/*/scaling_max_freq"))]


# --- limits in files -------------------------------------------------------------------------


def test_a_package_is_limited_and_put_back(zone: Path) -> None:
    with open_knob(f"rapl://{zone}") as knob:
        limits = knob.limits()
        assert (limits.lowest, limits.highest, limits.now) == (None, 205.0, 165.0)
        assert knob.set(120.0).result is OrderResult.TOOK_EFFECT
        assert number(zone / "constraint_0_power_limit_uw") == 120_000_000
        assert knob.set(1000.0).result is OrderResult.CLAMPED
        assert knob.restore().read_back == 165.0


def test_a_package_whose_limit_was_off_is_left_off(zone: Path) -> None:
    (zone / "enabled").write_text("0\n")
    with open_knob(f"rapl://{zone}") as knob:
        assert knob.read().value == NO_LIMIT
        assert knob.set(120.0).result is OrderResult.TOOK_EFFECT
        assert number(zone / "enabled") == 1
        assert knob.restore().result is OrderResult.TOOK_EFFECT
    assert number(zone / "enabled") == 0
    assert number(zone / "constraint_0_power_limit_uw") == 165_000_000


def test_another_constraint_is_another_limit(zone: Path) -> None:
    (zone / "constraint_1_power_limit_uw").write_text("250000000")
    assert open_knob(f"rapl://{zone}?constraint=1").read().value == 250.0
    missing = open_knob(f"rapl://{zone}?constraint=2").read()
    assert (missing.value, missing.trouble) == (None, DeviceErrorKind.ABSENT)


@pytest.mark.long
def test_every_policy_is_put_back_to_what_it_was(cpus: Path) -> None:
    with open_knob(f"cpufreq://{cpus}") as knob:
        limits = knob.limits()
        assert (limits.lowest, limits.highest, limits.now) == (0.4e9, 3.8e9, 3.8e9)
        outcome = knob.set(3.0e9)
        assert (outcome.result, outcome.read_back) == (OrderResult.TOOK_EFFECT, 3.0e9)
        assert khz(cpus) == [3_000_000, 2_600_000]
        assert knob.set(0.6e9).read_back == 0.8e9  # the highest of both
        assert khz(cpus) == [800_000, 600_000]
        assert knob.restore().result is OrderResult.TOOK_EFFECT
    assert khz(cpus) == [3_800_000, 2_000_000]


def test_one_policy_may_be_named(cpus: Path) -> None:
    with open_knob(f"cpufreq://{cpus}/cpufreq/policy8") as knob:
        assert knob.set(1.0e9).result is OrderResult.TOOK_EFFECT
    assert khz(cpus) == [3_800_000, 1_000_000]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_without_permission_it_says_what_would_help(zone: Path) -> None:
    (zone / "constraint_0_power_limit_uw").chmod(0o444)
    outcome = open_knob(f"rapl://{zone}").set(120.0)
    assert (outcome.result, "root" in outcome.problem) == (OrderResult.REFUSED, True)


def test_a_file_that_refuses_is_told(zone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    knob = open_knob(f"rapl://{zone}")
    before = knob.read().value
    monkeypatch.setattr(Path, "open", locked)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "165000000")
    outcome = knob.set(120.0)
    assert (before, outcome.result, outcome.trouble) == (
        165.0,
        OrderResult.REFUSED,
        DeviceErrorKind.REFUSED,
    )
    assert "run as root" in outcome.problem


def test_what_is_not_there_is_told_and_not_made(tmp_path: Path) -> None:
    outcome = open_knob(f"rapl://{tmp_path}/intel-rapl:0").set(120.0)
    assert (outcome.result, outcome.trouble) == (OrderResult.REFUSED, DeviceErrorKind.ABSENT)
    assert open_knob(f"cpufreq://{tmp_path}").set(1e9).trouble is DeviceErrorKind.ABSENT
    assert list(tmp_path.iterdir()) == []


def test_no_number_is_never_ordered(zone: Path) -> None:
    assert open_knob(f"rapl://{zone}").set(math.nan).result is OrderResult.REFUSED
    assert number(zone / "constraint_0_power_limit_uw") == 165_000_000


def test_garbage_is_no_limit(zone: Path) -> None:
    (zone / "constraint_0_power_limit_uw").write_text("lots")
    reading = open_knob(f"rapl://{zone}").read()
    assert (reading.value, reading.trouble) == (None, DeviceErrorKind.GARBAGE)


# --- the journal -----------------------------------------------------------------------------


def test_the_first_thing_found_is_what_a_journal_keeps(zone: Path, tmp_path: Path) -> None:
    path = tmp_path / "deep/journal.json"
    uri = f"rapl://{zone}"
    open_knob(uri, KnobJournal(path)).set(120.0)
    open_knob(uri, KnobJournal(path)).set(100.0)
    assert KnobJournal(path).found(uri) == {"power_limit_uw": 165_000_000, "enabled": True}
    assert open_knob(uri, KnobJournal(path)).restore().read_back == 165.0
    assert KnobJournal(path).entries == {}
    assert open_knob(uri, KnobJournal(path)).restore().problem == "nothing was changed"


def test_what_could_not_be_put_back_stays_in_the_journal(zone: Path, tmp_path: Path) -> None:
    path, uri = tmp_path / "journal.json", f"rapl://{zone}"
    knob = open_knob(uri, KnobJournal(path))
    knob.set(120.0)
    (zone / "constraint_0_power_limit_uw").unlink()
    assert knob.restore().in_force is False
    assert list(KnobJournal(path).entries) == [uri]


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"schema": "wattherd.journal/1"}', "\0"])
def test_what_is_no_journal_is_not_overwritten(tmp_path: Path, content: str) -> None:
    path = tmp_path / "journal.json"
    path.write_text(content)
    with pytest.raises(UserError, match="no journal"):
        KnobJournal(path)
    assert path.read_text() == content


def test_a_journal_has_one_owner(tmp_path: Path) -> None:
    path = tmp_path / "journal.json"
    with owned(path) as first, owned(path) as second:
        assert (first, second) == (True, False)
    with owned(path) as third:
        assert third


def test_a_journal_that_cannot_be_kept_is_the_users_problem(zone: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    knob = open_knob(f"rapl://{zone}", KnobJournal(tmp_path / "journal.json"))
    knob.journal = None
    with pytest.raises(UserError, match="cannot keep a journal"):
        KnobJournal(tmp_path / "file" / "journal.json").note("rapl:", {})
    with pytest.raises(UserError, match="cannot keep a journal"), owned(tmp_path / "file" / "j"):
        pass


# --- the command -----------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, list[dict[str, object]]]:
    """Exit code and the lines of a `knob` command."""
    done = CliRunner().invoke(cli, ["knob", *arguments, "-o", "json"], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    code = done.return_value
    assert isinstance(code, int)
    return code, [json.loads(line) for line in done.stdout.splitlines()]


def test_a_knob_is_read_and_set(zone: Path, tmp_path: Path) -> None:
    uri = f"rapl://{zone}"
    code, [found] = run("read", uri)
    assert (code, found["value"], found["limited"], found["unit"]) == (0, 165.0, True, "W")
    code, [outcome] = run("set", uri, "0.12kW", "--journals", str(tmp_path))
    assert (code, outcome["result"], outcome["read_back"]) == (0, "took-effect", 120.0)
    code, [outcome] = run("set", uri, "none")
    assert (code, number(zone / "enabled")) == (0, 0)
    _, [found] = run("read", uri)
    assert (found["value"], found["limited"]) == (None, False)


def test_set_for_good_ends_what_was_borrowed(zone: Path, tmp_path: Path) -> None:
    uri = f"rapl://{zone}"
    open_knob(uri, KnobJournal(borrowing.journal_path(tmp_path, uri))).set(100.0)  # and was killed
    run("set", uri, "120W", "--journals", str(tmp_path))
    assert run("restore", "--journals", str(tmp_path)) == (0, [])
    assert number(zone / "constraint_0_power_limit_uw") == 120_000_000


def test_a_knob_that_does_not_answer_is_an_answer_of_no(tmp_path: Path) -> None:
    code, [found] = run("read", f"rapl://{tmp_path}/none")
    assert (code, found["value"], found["trouble"]) == (1, None, "absent")
    code, _ = run("probe", f"rapl://{tmp_path}/none")
    assert code == 1


@pytest.mark.parametrize(
    ("uri", "value"), [("rapl:///z", "fast"), ("cpufreq:///c", "300W"), ("cpufreq:///c", "1410")]
)
def test_a_value_of_another_kind_is_refused(uri: str, value: str) -> None:
    with pytest.raises(UserError, match="is no"):
        run("set", uri, value)


def test_probe_finds_what_is_here(zone: Path, cpus: Path, tmp_path: Path) -> None:
    uris = probing.local_uris(zone.parent, cpus, tmp_path / "no.sock")
    assert [uri for uri in uris if uri.startswith(("rapl", "cpufreq"))] == [
        f"rapl://{zone}",
        f"cpufreq://{cpus}",
    ]
    found = probing.document(uris[:2])["knobs"]
    assert [(one["now"], one["highest"], one["may_set"]) for one in found] == [
        (165.0, 205.0, True),
        (3.8e9, 3.8e9, True),
    ]


# --- addresses -------------------------------------------------------------------------------


def test_every_protocol_has_an_example_of_its_own() -> None:
    assert COMMANDS["knob"][0] == "wattherd.cli.knob:knob"
    for scheme, protocol in {**PROTOCOLS, **SWITCHES}.items():
        assert parse(protocol.example).scheme == scheme


def test_a_missing_client_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "find_spec", lambda _: None)
    for scheme, protocol in PROTOCOLS.items():
        if protocol.client:
            with pytest.raises(UserError, match=r"wattherd\[knobs\]"):
                open_knob(f"{scheme}://0")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nvm://0", "is unknown"),
        ("nvml://all", "names no GPU"),
        ("nvml-clock:", "names no GPU"),
        ("amdsmi://", "names no GPU"),
        ("nvml://0?mode=instant", "no such option"),
        ("rapl:", "names no zone"),
        ("rapl:///z?constraint=a", "no number"),
        ("cpufreq:", "names no folder"),
        ("zeusd://h/all", "no number of a GPU"),
        ("zeusd+unix:?gpu=0", "names no socket"),
        ("zeusd+unix:///s", "is missing"),
        ("ipmi://h/dcmi", "has one limit"),
        ("ipmi:", "no host"),
        ("redfish+https:", "no host"),
        ("redfish+http://root:secret@h", "no user or password"),
        ("rapl:///z?settle=-1", "is no time"),
    ],
)
def test_an_address_is_checked(text: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        open_knob(text)


@pytest.mark.parametrize("opened", [open_knob, open_switch, open_meter])
def test_a_missing_program_is_named_once_the_address_is_good(
    opened: Callable[[str], object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    good = "ipmi://h/dcmi" if opened is open_meter else "ipmi://h"
    with pytest.raises(UserError, match="program ipmitool is not installed"):
        opened(good)
    with pytest.raises(UserError, match="no host"):
        opened("ipmi:")


@pytest.mark.parametrize("text", ["rapl:///z", "ipmi://h/on", "redfish+http://h?graceful=maybe"])
def test_the_address_of_a_switch_is_checked(text: str) -> None:
    with pytest.raises(UserError):
        open_switch(text)


# --- what ipmitool prints --------------------------------------------------------------------

SAID = """
    Current Limit State: {state}
    Exception actions:   Log Event to SEL
    Power Limit:         750 Watts
    Correction time:     1000 milliseconds
    Sampling period:     1 seconds

"""


def test_a_dcmi_limit_counts_while_it_is_active() -> None:
    assert said_limit(SAID.format(state="Power Limit Active")) == (750, True)
    assert said_limit(SAID.format(state="No Active Power Limit")) == (750, False)
    with pytest.raises(DeviceError) as error:
        said_limit("what?")
    assert error.value.trouble is DeviceErrorKind.GARBAGE

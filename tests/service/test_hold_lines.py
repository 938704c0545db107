"""Thousands of instruments asked by few threads: those that hang keep nobody else waiting."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from many_boards import Served, many_boards

from wattherd.devices.knobs.journal import KnobJournal
from wattherd.devices.knobs.registry import open_knob
from wattherd.devices.meters.registry import open_meter
from wattherd.devices.wire.device_errors import DeviceError
from wattherd.hold.devices import LOOK_S, Devices
from wattherd.hold.fleet import fleet_of
from wattherd.hold.lines import InstrumentLine, ask_all, poll_all, wait_for
from wattherd.hold.site_file import read_site

MOST_THREADS = 32


@pytest.fixture
def boards() -> Iterator[Served]:
    with many_boards() as boards:
        yield boards


def devices_of(boards: Served, folder: Path, count: int, *, behind: int = 1) -> Devices:
    """So many devices, each read and set by its board; `behind` each board are so many."""
    uris = [boards.uri(number, behind=behind) for number in range(count)]
    devices: dict[str, Any] = {
        f"node-{number}": {"feed": "row", "meter": uri, "knob": uri, "floor": 200, "max": 700}
        for number, uri in enumerate(uris)
    }
    path = folder / "site.yaml"
    path.write_text(json.dumps({"limit": 1e7, "feeds": {"row": {}}, "devices": devices}))
    site = read_site(path)
    return Devices(site, KnobJournal(site.journal), lambda *_: None, fleet_of(site))


def swinging(boards: Served, folder: Path, slow: str) -> Devices:
    """A node on a row that swings at 2 Hz; its meter is the row's unless a slow one is named."""
    recording = folder / "row.csv"
    recording.write_text("time_s,power_w\n0,200\n0.25,600\n")
    row = f"replay://{recording}?loop=1"
    knob = boards.uri(0, behind=1)
    node = {"feed": "row", "meter": slow or row, "knob": knob, "floor": 200, "max": 700}
    entries = {"limit": 1e7, "feeds": {"row": {"meter": row}}, "devices": {"node-0": node}}
    path = folder / "site.yaml"
    path.write_text(json.dumps(entries))
    site = read_site(path)
    return Devices(site, KnobJournal(site.journal), lambda *_: None, fleet_of(site))


def rounds(devices: Devices, count: int, period_s: float) -> list[np.ndarray[Any, Any]]:
    """When each meter was asked last (Unix seconds), as known at the end of each period."""
    known = []
    for _ in range(count):
        due_s = time.monotonic() + period_s
        known.append(devices.readings().draw_at_s)
        time.sleep(max(due_s - time.monotonic(), 0.0))
    return known


def news(known: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """How often each meter was read anew between these rounds."""
    counts: np.ndarray[Any, Any] = (np.diff(np.array(known), axis=0) > 0).sum(axis=0)
    return counts


@pytest.mark.long
def test_a_meter_of_moments_is_looked_at_within_a_period_and_tells_its_mean(
    boards: Served, tmp_path: Path
) -> None:
    """A swing at 2 Hz, by meters that may be asked at any time."""
    devices = swinging(boards, tmp_path, "")
    assert devices.looks
    devices.readings()
    told = []
    for _ in range(4):
        for _ in range(9):
            time.sleep(LOOK_S)
            devices.look()
        told.append(devices.readings())
    of_second = [one.of_second for one in told if one.of_second is not None]
    assert all(260.0 <= float(one.feed_w[0]) <= 540.0 for one in told), [one.feed_w for one in told]
    # A machine under load may be late with a cycle; such a mean is not one of a second.
    assert any(one[0] and one[1] for one in of_second)


def test_a_site_with_one_slow_meter_is_not_looked_at_within_a_period(
    boards: Served, tmp_path: Path
) -> None:
    """A mean beside what a redfish board told some time ago says nothing of their difference."""
    assert not swinging(boards, tmp_path, boards.uri(0, behind=1)).looks


@pytest.mark.long
def test_64_boards_that_hang_among_1000_keep_nobody_else_waiting(
    boards: Served, tmp_path: Path
) -> None:
    devices = devices_of(boards, tmp_path, 1000)
    devices.readings()
    usual = news(rounds(devices, 6, 1.0))
    boards.hang(list(range(64)))
    known = rounds(devices, 9, 1.0)[3:]
    beside = news(known)
    # Each second, or as often as this machine comes to it where none hangs.
    assert beside[64:].min() >= max(usual[64:].min() - 1, 1)
    assert beside[64:].mean() >= 0.7 * usual[64:].mean()
    assert not beside[:64].any()
    assert threading.active_count() <= MOST_THREADS


def test_devices_behind_one_board_and_their_meters_and_knobs_take_one_question(
    boards: Served, tmp_path: Path
) -> None:
    devices = devices_of(boards, tmp_path, 200, behind=8)
    devices.readings()
    before = boards.count()["requests"]
    readings = devices.readings()
    assert boards.count()["requests"] - before <= 200 + 1  # one of each chassis, and this one
    assert np.isfinite(readings.draw_w).all()
    assert (readings.cap_w == 700.0).all()


def test_an_order_is_read_back_afterwards_not_from_a_question_before_it(
    boards: Served, tmp_path: Path
) -> None:
    devices = devices_of(boards, tmp_path, 20)
    devices.readings()
    knob = devices.site.devices[3].knob
    outcomes = ask_all([(knob.driver, lambda: knob.set(333.0))], 10.0)
    assert outcomes[0] is not None
    assert outcomes[0].read_back == 333.0
    assert devices.readings().cap_w[3] == 333.0


@pytest.mark.long
def test_10000_devices_take_few_threads(boards: Served, tmp_path: Path) -> None:
    """Not how long they take: that is the machine's, and measured in the guide."""
    uris = [boards.uri(number, behind=8) for number in range(10_000)]
    meters = [open_meter(uri + "?timeout=20s") for uri in uris]
    lines = [InstrumentLine(meter.read, concurrent=True) for meter in meters]
    poll_all(lines)
    most = 0
    until_s = time.monotonic() + 120.0
    while any(line.busy for line in lines) and time.monotonic() < until_s:
        most = max(most, threading.active_count())
        wait_for(lines, time.monotonic() + 0.2)
    assert most <= MOST_THREADS
    assert sum(line.answer is not None for line in lines) == 10_000


# --- Calls that block ----------------------------------------------------------------------------


@pytest.mark.long
def test_calls_that_hang_in_a_library_do_not_starve_those_that_answer() -> None:
    """64 calls that block for 1 s among 200 that do not: once known, they are served apart."""
    hang_s = 1.0
    asked = [0] * 200
    over = threading.Event()

    def quick(number: int) -> None:
        asked[number] += 1

    hung: list[InstrumentLine[Any]] = [InstrumentLine(lambda: over.wait(hang_s)) for _ in range(64)]
    lines: list[InstrumentLine[Any]] = [
        InstrumentLine(lambda n=number: quick(n)) for number in range(200)
    ]
    try:
        for round_ in range(16):
            poll_all([*hung, *lines])
            time.sleep(0.5)
            assert threading.active_count() <= MOST_THREADS
            if round_ == 10:
                before = list(asked)
        assert min(np.array(asked) - before) >= 4  # in each of the last rounds but one
    finally:
        over.set()
        wait_for([*hung, *lines], time.monotonic() + 10.0)


def test_a_driver_that_fails_in_a_way_of_its_own_is_asked_again() -> None:
    asked = []

    def ask() -> int:
        asked.append(1)
        if len(asked) == 1:
            raise RuntimeError("no DeviceError")
        return len(asked)

    for concurrent in (False, True):
        asked.clear()
        line = InstrumentLine(ask, concurrent)
        line.poll()
        assert line.wait(time.monotonic() + 5.0)
        assert isinstance(line.failure, RuntimeError)
        line.poll()
        assert line.wait(time.monotonic() + 5.0)
        assert line.answer is not None


# --- The same drivers in the asking thread and outside of it -------------------------------------


@pytest.mark.long
def test_troubles_are_the_same_in_the_asking_thread(boards: Served) -> None:
    boards.hang([5])
    cases = {
        boards.uri(5) + "?timeout=0.3s": "timeout",
        "redfish+http://127.0.0.1:9/redfish/v1/Chassis/1?timeout=10s": "unreachable",
        f"nut://127.0.0.1:{boards.port}/ups?timeout=0.5s": "",
        f"modbus://127.0.0.1:{boards.port}/1/70?timeout=0.5s": "",
        "modbus://127.0.0.1:9/1/70?timeout=10s": "unreachable",
        "snmp://127.0.0.1:9/1.3.6.1?timeout=0.5s": "",
    }
    for uri, expected in cases.items():
        direct = trouble(uri)
        beside = ask_all([(object_with_concurrent(), lambda uri=uri: trouble(uri))], 10.0)
        assert beside == [direct], uri
        assert expected in direct


def object_with_concurrent() -> object:
    class Concurrent:
        concurrent = True

    return Concurrent()


def trouble(uri: str) -> str:
    with open_meter(uri) as meter:
        try:
            meter.read()
        except DeviceError as error:
            return str(error.trouble)
    return "none"


def test_knobs_settle_without_holding_up_the_asking_thread(boards: Served) -> None:
    """Eight orders that are waited for, each for its settling time, at the same time."""
    knobs = [open_knob(boards.uri(number) + "?settle=1s") for number in range(8)]
    for knob in knobs:
        assert knob.limits().lowest == 200.0
    began_s = time.monotonic()
    outcomes = ask_all([(knob.driver, lambda knob=knob: knob.set(444.0)) for knob in knobs], 10.0)
    assert all(one is not None and one.in_force for one in outcomes)
    assert time.monotonic() - began_s < 4.0

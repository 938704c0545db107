"""Files that describe a site, limits in steps, and lines that never wait for a slow instrument."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wattherd.engine.safety import SafetyLoop
from wattherd.engine.safety_meters import Meters, Seen
from wattherd.engine.safety_terms import Breaker, Fleet, Readings, SafetyConfig
from wattherd.errors import UserError
from wattherd.service.hold import to_stream
from wattherd.service.hold_devices import fleet_of
from wattherd.service.hold_lines import Line
from wattherd.service.hold_site import UNLIMITED_W, Site, read_site


@pytest.fixture
def zone(tmp_path: Path) -> Path:
    folder = tmp_path / "intel-rapl:0"
    folder.mkdir()
    (folder / "constraint_0_power_limit_uw").write_text("165000000")
    (folder / "constraint_0_max_power_uw").write_text("205000000")
    return folder


def document(zone: Path) -> dict[str, Any]:
    node = {"feed": "a", "meter": "rapl:", "knob": f"rapl://{zone}", "floor": "80W"}
    return {"limit": "0:20kW,1h:15kW", "feeds": {"a": {"limit": "12kW"}, "b": {}},
            "devices": {"cpu-0": node}}  # fmt: skip


def site_of(folder: Path, content: dict[str, Any]) -> Site:
    path = folder / "site.yaml"
    path.write_text(json.dumps(content))
    return read_site(path)


def test_a_site_is_read(zone: Path, tmp_path: Path) -> None:
    site = site_of(tmp_path, document(zone))
    assert (site.period_s, site.config.lease_s, site.since_s) == (1.0, 15.0, None)
    assert site.journal == tmp_path / "site.journal.json"
    assert site.limit_w(0.0).tolist() == [12e3, UNLIMITED_W, 20e3]
    assert site.limit_w(3589.0)[-1] == 20e3
    assert site.limit_w(3590.0)[-1] == 15e3  # a fall counts ten seconds early, to be met in time
    assert site.limit_w(3600.0)[-1] == 15e3
    assert site.limit_w(-5.0)[-1] == 20e3  # before the first step, that one


def test_a_rise_counts_when_it_comes(zone: Path, tmp_path: Path) -> None:
    site = site_of(tmp_path, {**document(zone), "limit": "0:15kW,1h:20kW", "lead": "5m"})
    assert [site.limit_w(at_s)[-1] for at_s in (3599.0, 3600.0)] == [15e3, 20e3]


def test_steps_may_begin_at_a_stated_time(zone: Path, tmp_path: Path) -> None:
    site = site_of(tmp_path, {**document(zone), "since": "1970-01-01T01:00:00+00:00"})
    assert site.since_s == 3600.0


def test_ranges_are_the_sites_within_the_knobs(zone: Path, tmp_path: Path) -> None:
    content = document(zone)
    content["devices"]["cpu-1"] = {**content["devices"]["cpu-0"], "feed": "b", "max": "900W"}
    fleet = fleet_of(site_of(tmp_path, content))
    assert fleet.floor_w.tolist() == [80.0, 80.0]
    assert fleet.max_w.tolist() == [205.0, 205.0]
    assert fleet.feed.tolist() == [0, 1]


def test_a_range_that_nobody_tells_is_asked_for(zone: Path, tmp_path: Path) -> None:
    content = document(zone)
    del content["devices"]["cpu-0"]["floor"]  # RAPL has no lowest limit
    with pytest.raises(UserError, match=r"devices\.cpu-0\.floor: is not known"):
        fleet_of(site_of(tmp_path, content))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"limits": 5}, "limits: unknown field (hint: did you mean 'limit'?"),
        ({"limit": "lots"}, "is no power"),
        ({"limit": "1h:5kW,0:6kW"}, "do not ascend"),
        ({"period": "0s"}, "period: must be above zero"),
        ({"period": "1s", "lease": "1.5s"}, "lease: is shorter than two periods"),
        ({"feeds": {}}, "feeds"),
        ({"devices": {}}, "devices"),
        ({"safety": {"magic": 1}}, "safety.magic: no such constant"),
        ({"feeds": {"b": {}}}, "devices.cpu-0.feed: no feed 'a'"),
        ({"feeds": {"a": {"meter": "modbsu://h"}}}, "protocol 'modbsu' is unknown"),
    ],
)
def test_a_wrong_file_is_refused(
    zone: Path, tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UserError, match=r"site\.yaml") as error:
        site_of(tmp_path, {**document(zone), **change})
    assert problem in error.value.line()


def test_a_knob_of_another_kind_holds_no_watts(zone: Path, tmp_path: Path) -> None:
    content = document(zone)
    content["devices"]["cpu-0"]["knob"] = "cpufreq:///sys/devices/system/cpu"
    with pytest.raises(UserError, match="limits no watts"):
        site_of(tmp_path, content)


# --- lines -----------------------------------------------------------------------------------


def test_a_slow_instrument_is_asked_once_and_keeps_its_newest_order() -> None:
    go, asked, done = threading.Event(), [], []

    def ask() -> int:
        asked.append(len(asked))
        assert go.wait(10)
        return len(asked)

    line = Line(ask)
    line.poll()
    while not asked:
        time.sleep(0.001)
    for number in range(3):
        line.poll()
        line.order(lambda number=number: done.append(number))
    assert line.wait(time.monotonic() + 0.05) is False
    assert line.fresh(time.monotonic(), 1.0) is None
    go.set()
    assert line.wait(time.monotonic() + 10) is True
    assert (done, len(asked)) == ([2], 2)  # orders 0 and 1 were overtaken
    assert line.fresh(time.monotonic() + 5, 1.0) is None
    assert line.fresh(time.monotonic(), 1.0) == 2


def test_a_reader_that_has_gone_does_not_end_the_loop() -> None:
    def gone(_: str) -> None:
        raise BrokenPipeError

    to_stream(gone)({"event": "cycle"})


# --- what the loop does about devices that were found off ---------------------------------------


@pytest.mark.parametrize(("wakes", "expected"), [(True, [True, False]), (False, [False, False])])
def test_a_device_that_was_found_off_stays_so_if_told(wakes: bool, expected: list[bool]) -> None:
    loop = SafetyLoop(two_devices(), SafetyConfig(wake_found=wakes))
    readings = Readings(now_s=1.0, draw_w=np.array([0.0, 600.0]), draw_at_s=np.array([1.0, 1.0]),
                        cap_w=np.array([700.0, 700.0]), feed_w=np.array([600.0]),
                        feed_at_s=np.array([1.0]), off=np.array([True, False]))  # fmt: skip
    orders = loop.cycle(readings, np.array([5000.0, 5000.0]))
    assert orders.switch_on.tolist() == expected


# --- meters that renew seldom -------------------------------------------------------------------


@pytest.mark.parametrize(("refresh_s", "believed"), [(0.0, False), (4.0, True)])
def test_looks_between_two_renewals_do_not_count(refresh_s: float, believed: bool) -> None:
    """One device and its feed, looked at each second, renewed every fourth."""
    meters = Meters(two_devices(), SafetyConfig(refresh_s=refresh_s))
    last = [seen(meters, at_s, 500.0 + at_s // 4) for at_s in range(60)][-1]
    assert np.isfinite(last.draw_w).all() == believed


def test_a_frozen_meter_is_found_though_it_may_renew_seldom() -> None:
    meters = Meters(two_devices(), SafetyConfig(refresh_s=4.0))
    trusted = [np.isfinite(seen(meters, at_s, 500.0).draw_w).all() for at_s in range(40)]
    assert trusted.index(False) == 4 * 5


def seen(meters: Meters, at_s: float, watts: float) -> Seen:
    """What a look at `at_s` is believed to show."""
    return meters.judge(
        Readings(now_s=at_s, draw_w=np.full(2, watts), draw_at_s=np.full(2, at_s),
                 cap_w=np.full(2, 700.0), feed_w=np.array([2 * watts]),
                 feed_at_s=np.array([at_s]), off=np.zeros(2, dtype=np.bool_))
    )  # fmt: skip


def two_devices() -> Fleet:
    return Fleet(feed=np.array([0, 0]), floor_w=np.full(2, 200.0), max_w=np.full(2, 700.0),
                 breaker=Breaker(rated_w=np.full(2, 1e12)))  # fmt: skip

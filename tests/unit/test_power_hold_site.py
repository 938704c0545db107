"""Files that describe a site, limits in steps, and lines that never wait for a slow instrument."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wattherd.engine.safety.contract import Breaker, Fleet, Readings, SafetyConfig
from wattherd.engine.safety.loop import SafetyLoop
from wattherd.engine.safety.meters import Meters, TrustedReadings
from wattherd.engine.safety.state import nothing_known
from wattherd.errors import UserError
from wattherd.hold.daemon import to_stream
from wattherd.hold.fleet import fleet_of
from wattherd.hold.lines import InstrumentLine
from wattherd.hold.saved_state import (
    SavedSite,
    StateKeeper,
    forget,
    memory_of,
    remembered,
    state_path,
)
from wattherd.hold.site_file import UNLIMITED_W, HeldSite, read_site


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


def site_of(folder: Path, content: dict[str, Any]) -> HeldSite:
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


def test_feeds_hang_on_feeds_to_any_depth(zone: Path, tmp_path: Path) -> None:
    content = document(zone)
    content["feeds"] = {
        "hall": {"limit": "30kW", "meter": "rapl:"},
        "row": {"feed": "hall", "limit": "20kW", "base": "400W"},
        "a": {"feed": "row", "limit": "12kW"},
        "shelf": {"feed": "hall"},
    }
    content |= {"base": "1kW", "meter": "rapl:"}
    site = site_of(tmp_path, content)
    assert [feed.name for feed in site.feeds] == ["a", "row", "shelf", "hall"]  # lower ones first
    fleet = fleet_of(site)
    assert fleet.tree.above.tolist() == [1, 3, 3, 4]
    assert fleet.levels(np.array([70.0])).tolist() == [70.0, 70.0, 0.0, 70.0, 70.0]
    assert site.limit_w(0.0).tolist() == [12e3, 20e3, UNLIMITED_W, 30e3, 20e3]
    assert fleet.read.tolist() == [False, False, False, True]
    assert fleet.site_metered
    assert fleet.stated_base_w.tolist() == [0.0, 400.0, 0.0, 0.0, 1000.0]


def test_a_feed_or_device_without_a_meter_is_a_fact(zone: Path, tmp_path: Path) -> None:
    content = document(zone)
    content["devices"]["cpu-1"] = {"feed": "b", "knob": f"rapl://{zone}", "floor": "80W"}
    fleet = fleet_of(site_of(tmp_path, content))
    assert fleet.read.tolist() == [False, False]
    assert fleet.device_read.tolist() == [True, False]
    assert not fleet.site_metered


def test_steps_are_the_drivers_unless_the_site_knows_coarser_ones(
    zone: Path, tmp_path: Path
) -> None:
    board = {"feed": "a", "floor": "80W", "max": "200W", "knob": "redfish+http://127.0.0.1:9"}
    content = document(zone)
    content["devices"] |= {"bmc": board, "slow": {**board, "step": "5W"}}
    site = site_of(tmp_path, content)
    assert [device.step_w for device in site.devices] == [0.5, 1.0, 5.0]


def test_what_a_loop_learned_is_there_again_for_the_same_devices_of_the_same_site(
    zone: Path, tmp_path: Path
) -> None:
    content = document(zone)
    node = content["devices"]["cpu-0"]
    content["devices"]["cpu-1"] = {**node, "knob": f"rapl://{zone}?constraint=1", "max": "200W"}
    site = site_of(tmp_path, content)
    kept = a_memory(site, held_w=[101.0, 102.0], heat=[0.1, 0.2, 0.3])
    StateKeeper(site).keep(kept, sync=True)
    del content["devices"]["cpu-0"]
    content["devices"]["cpu-9"] = {**node, "knob": f"rapl://{zone}?constraint=9"}
    content["feeds"] = {"b": {}, "a": {}}
    changed = site_of(tmp_path, content)
    memory, problem = remembered(changed)
    assert problem == ""
    assert memory is not None
    assert memory.switched_off == {"cpu-1"}
    state = memory.of(changed, kept.at_s + 5.0)
    assert np.array_equal(state.held_w, [102.0, np.nan], equal_nan=True)
    assert state.heat.tolist() == [0.2, 0.1, 0.3]
    assert np.array_equal(state.off_age_s, [6.0, np.nan], equal_nan=True)
    forget(changed)
    assert remembered(changed) == (None, "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"schema": "wattherd.hold-state/1"}', "cannot be read"),
        ("other version", "is of another version: 'wattherd.hold-state/9'"),
        ("other site", "is of another site: /elsewhere/site.journal.json"),
    ],
)
def test_a_state_that_is_not_of_this_site_and_version_is_not_used(
    zone: Path, tmp_path: Path, text: str, problem: str
) -> None:
    site = site_of(tmp_path, document(zone))
    StateKeeper(site).keep(a_memory(site, held_w=[101.0], heat=[0.1, 0.2, 0.3]))
    path = state_path(site)
    told = json.loads(path.read_text())
    if text == "other version":
        text = json.dumps({**told, "schema": "wattherd.hold-state/9"})
    if text == "other site":
        text = json.dumps({**told, "site": "/elsewhere/site.journal.json"})
    path.write_text(text)
    memory, said = remembered(site)
    assert memory is None
    assert problem in said


def a_memory(site: HeldSite, *, held_w: list[float], heat: list[float]) -> SavedSite:
    fleet = fleet_of(site)
    state = replace(
        nothing_known(fleet.size, fleet.feeds + 1),
        held_w=np.array(held_w), heat=np.array(heat), off_age_s=np.full(fleet.size, 1.0),
    )  # fmt: skip
    off = [site.devices[-1].name]
    return memory_of(site, fleet, state, switched_off=off, identities=[""] * fleet.size,
                     signal_w=None, since_s=7.0)  # fmt: skip


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
        ({"feeds": {"a": {"feed": "row"}, "rows": {}}}, "feeds.a.feed: no feed 'row' (hint: did"),
        ({"feeds": {"a": {"feed": "b"}, "b": {"feed": "a"}}}, "hangs on itself: a -> b -> a"),
        ({"feeds": {"a": {"feed": "a"}}}, "feeds.a.feed: hangs on itself: a -> a"),
        ({"feeds": {"a": {"limit": "lots"}}}, "feeds.a.limit"),
        ({"feeds": {"a": {"base": "-1W"}}}, "feeds.a.base"),
        ({"base": "much"}, "base"),
        ({"handover": "soon"}, "handover"),
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

    line = InstrumentLine(ask)
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


def test_a_meter_that_always_renewed_seldom_is_believed() -> None:
    """One device and its feed, looked at each second, renewed every fourth."""
    meters = Meters(two_devices(), SafetyConfig())
    trusted = [np.isfinite(seen(meters, at_s, 500.0 + at_s // 4).draw_w) for at_s in range(60)]
    assert np.all(trusted)


@pytest.mark.parametrize("refresh_s", [0.0, 4.0])
def test_a_meter_that_always_had_news_and_has_none_any_more_is_frozen(refresh_s: float) -> None:
    """Looks between two renewals do not count."""
    every, last = max(round(refresh_s), 1), 80
    meters = Meters(two_devices(), SafetyConfig(refresh_s=refresh_s))
    trusted = [
        np.isfinite(seen(meters, at_s, 500.0 + min(at_s, last) // every).draw_w).all()
        for at_s in range(last + 40)
    ]
    assert trusted.index(False) == last + 5 * every


def seen(meters: Meters, at_s: float, watts: float) -> TrustedReadings:
    """What a look at `at_s` is believed to show."""
    return meters.judge(
        Readings(now_s=at_s, draw_w=np.full(2, watts), draw_at_s=np.full(2, at_s),
                 cap_w=np.full(2, 700.0), feed_w=np.array([2 * watts]),
                 feed_at_s=np.array([at_s]), off=np.zeros(2, dtype=np.bool_))
    )  # fmt: skip


def two_devices() -> Fleet:
    return Fleet(feed=np.array([0, 0]), floor_w=np.full(2, 200.0), max_w=np.full(2, 700.0),
                 breaker=Breaker(rated_w=np.full(2, 1e12)))  # fmt: skip


def test_limits_of_ramps_are_read_for_the_site_and_its_feeds(zone: Path, tmp_path: Path) -> None:
    content = document(zone) | {"ramp_up": "500W/s", "swing": "6kW", "ramp_over": "20s"}
    content["feeds"]["b"] = {"ramp_down": 200}
    ramps = site_of(tmp_path, content).ramps
    assert ramps.up_w_s.tolist() == [np.inf, np.inf, 500.0]
    assert ramps.down_w_s.tolist() == [np.inf, 200.0, np.inf]
    assert ramps.swing_w.tolist() == [np.inf, np.inf, 6000.0]
    assert ramps.over_s == 20.0


def test_a_known_fall_is_approached_as_fast_as_draw_may_fall(zone: Path, tmp_path: Path) -> None:
    site = site_of(tmp_path, document(zone) | {"ramp_down": "10W/s", "lead": "10s"})
    assert [site.limit_w(at_s)[-1] for at_s in (0.0, 3090.0, 3340.0, 3590.0)] == [
        20e3, 20e3, 17.5e3, 15e3,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"ramp_up": 0}, "ramp_up"),
        ({"ramp_down": "-5W/s"}, "ramp_down"),
        ({"swing": "0W"}, "swing"),
        ({"swing": "fast"}, "swing"),
        ({"ramp_over": "0.5s"}, "ramp_over"),
        ({"feeds": {"a": {"ramp_up": 0}}}, "feeds.a.ramp_up"),
    ],
)
def test_limits_of_ramps_that_nothing_could_keep_are_refused(
    zone: Path, tmp_path: Path, wrong: dict[str, Any], field: str
) -> None:
    with pytest.raises(UserError) as caught:
        site_of(tmp_path, document(zone) | wrong)
    assert caught.value.field == field
    assert caught.value.hint


STORAGE = {
    "power": "250kW", "energy": "2kWh", "meter": "modbus://b/1/0", "charge": "modbus://b/1/2",
    "setpoint": "modbus://b/1/4",
}  # fmt: skip


def test_storage_hangs_on_its_feed_or_the_site(zone: Path, tmp_path: Path) -> None:
    pytest.importorskip("pymodbus")
    content = {**document(zone), "storages": {"a": {**STORAGE, "feed": "b"}, "whole": STORAGE}}
    found = site_of(tmp_path, content).storages
    assert [(one.name, one.where.level) for one in found] == [("a", 1), ("whole", 2)]
    assert found[0].where.size.energy_j == 7.2e6


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("feed", "row-z", "storages.a.feed"),
        ("power", "0W", "storages.a.power"),
        ("energy", "2kW", "storages.a.energy"),
        ("efficiency", 1.5, "storages.a.efficiency"),
        ("reserve", -0.1, "storages.a.reserve"),
        ("setpoint", "nvml-clock://0", "storages.a.setpoint"),
    ],
)
def test_storage_that_makes_no_sense_is_named(
    zone: Path, tmp_path: Path, field: str, value: object, named: str
) -> None:
    pytest.importorskip("pymodbus")
    pytest.importorskip("pynvml")
    content = {**document(zone), "storages": {"a": {**STORAGE, field: value}}}
    with pytest.raises(UserError) as caught:
        site_of(tmp_path, content)
    assert caught.value.field == named

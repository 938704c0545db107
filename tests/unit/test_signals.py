"""Signals from files and web servers; the servers are real, on loopback."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from web_server import Site as Pages
from web_server import certificates, serving

from wattherd.cli.power import power
from wattherd.devices.signals.contract import LimitSignal, SignalSite, SourceContact, ToldLimits
from wattherd.devices.signals.payloads import limit_w
from wattherd.devices.signals.registry import open_signal
from wattherd.devices.wire.clock import SYSTEM, Clock
from wattherd.engine.power.limit_timeline import FOREVER
from wattherd.errors import UserError

NOON_S = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
SITE = SignalSite(base_w=40_000.0, least_w=10_000.0)


def at(hours: float) -> str:
    return datetime.fromtimestamp(NOON_S + 3600 * hours, UTC).isoformat()


def steps(told: ToldLimits) -> list[tuple[float, float, float]]:
    """Start and end in hours after noon, and kilowatts."""
    return [
        ((one.start_s - NOON_S) / 3600, (one.end_s - NOON_S) / 3600, one.limit_w / 1e3)
        for one in told.spans
    ]


def until(
    signal: LimitSignal, wanted: Callable[[ToldLimits], bool], patience_s: float = 10.0
) -> ToldLimits:
    end_s = time.monotonic() + patience_s
    while not wanted(found := signal.told()):
        assert time.monotonic() < end_s, found
        time.sleep(0.01)
    return found


@contextmanager
def opened(uri: str, clock: Clock = SYSTEM) -> Iterator[LimitSignal]:
    signal = open_signal(uri, SITE, clock)
    try:
        yield signal
    finally:
        signal.close()


# --- schedules --------------------------------------------------------------------------------

CSV = f"at,limit,until\n{at(0)},30kW,\n{at(1)},50%,{at(2)}\n{at(3)},,\n"
YAML = f"""
limits:
- {{at: '{at(0)}', limit: 30kW}}
- {{at: '{at(1)}', limit: 50%, until: '{at(2)}'}}
"""
RELATIVE = "at,limit,until\n0,30kW,\n1h,20000,2h\n"


@pytest.mark.parametrize(("name", "text"), [("a.csv", CSV), ("a.yaml", YAML), ("b.csv", RELATIVE)])
def test_a_schedule_is_read_from_csv_and_yaml(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    start = f"?start={at(0)}" if name == "b.csv" else ""
    with opened(f"schedule:{tmp_path / name}{start}") as signal:
        told = signal.told()
    assert told.contact is SourceContact.HEARD
    assert steps(told) == [(0, 1, 30), (1, 2, 20)]


def test_a_schedule_follows_its_file_and_keeps_the_last_usable_plan(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(CSV)
    with opened(f"schedule:{path}") as signal:
        path.write_text(f"at,limit\n{at(5)},8kW\n")
        assert [one.limit_w for one in signal.told().spans] == [8_000.0]
        path.write_text("at,limit\nsoon,much\n")
        told = signal.told()
        assert told.contact is SourceContact.LOST
        assert "'soon' is no time" in told.note
        assert [one.limit_w for one in told.spans] == [8_000.0]
        path.unlink()
        assert signal.told().contact is SourceContact.LOST
        path.write_text(f"at,limit\n{at(5)},9kW\n")
        assert signal.told().contact is SourceContact.HEARD


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("time,limit\n", "columns at and limit"),
        ("at,limit\n2026-11-21T12:00:00,9kW\n", "no time zone"),
        ("at,limit\n1h,9kW\n", "no start to count from"),
        (f"at,limit\n{at(1)},9kW\n{at(0)},8kW\n", "row 2.*not after the row before"),
        (f"at,limit,until\n{at(0)},9kW,{at(2)}\n{at(1)},8kW,\n", "after the next row's start"),
        (f"at,limit\n{at(0)},-9kW\n", "no power"),
        (f"at,limit\n{at(0)},9kW,1,2\n", "more fields"),
        (f"at,limit,why\n{at(0)},9kW,x\n", "row 1"),
    ],
)
def test_bad_schedules_are_refused_with_their_row(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(UserError, match=problem):
        open_signal(f"schedule:{tmp_path / 'a.csv'}", SITE)


# --- web --------------------------------------------------------------------------------------


def a_document(limit: Any = "30kW", **more: Any) -> dict[str, Any]:
    return {"limits": [{"at": at(0), "limit": limit}], **more}


def test_a_web_servers_limits_are_polled_and_not_sent_twice() -> None:
    pages = Pages(pages={"/limits": a_document()}, etag='"1"')
    with (
        serving(pages),
        opened(f"http://127.0.0.1:{pages.port}/limits?safe=8kW&every=0.02s") as signal,
    ):
        told = until(signal, lambda told: told.contact is SourceContact.HEARD)
        assert steps(told) == [(0, FOREVER, 30)]
        first_s = told.heard_at_s
        until(signal, lambda told: told.heard_at_s > first_s)  # 304 is news as well
        assert pages.seen[-1][1]["If-None-Match"] == '"1"'
        pages.pages["/limits"], pages.etag = a_document(25_000), '"2"'
        until(signal, lambda told: told.spans[0].limit_w == 25_000)


@pytest.mark.parametrize("fault", ["slow", "garbage", "other JSON", "refused"])
def test_the_last_good_limits_count_until_they_expire_then_the_safe_level(fault: str) -> None:
    now_s = [NOON_S]
    clock = SYSTEM._replace(unix_s=lambda: now_s[0])
    pages = Pages(pages={"/": a_document(valid_until=at(1))})
    with (
        serving(pages) as site,
        opened(
            f"http://127.0.0.1:{site.port}/?safe=20%25&every=0.02s&timeout=0.2s", clock
        ) as signal,
    ):
        until(signal, lambda told: told.contact is SourceContact.HEARD)
        pages.drip_s = 5.0 if fault == "slow" else 0.0
        broken = {
            "garbage": b"<html>",
            "other JSON": {"limit": 3},
            "refused": {},
        }
        pages.pages["/"] = broken.get(fault, a_document())
        pages.status = 403 if fault == "refused" else 200
        told = until(signal, lambda told: told.contact is SourceContact.LOST)
        assert told.note
        assert steps(told) == [(0, FOREVER, 30)]
        now_s[0] += 3600.0
        told = signal.told()
        assert told.contact is SourceContact.EXPIRED
        assert [one.limit_w for one in told.spans] == [8_000.0]
        pages.drip_s, pages.status = 0.0, 200
        pages.pages["/"] = a_document(12_000, valid_until=at(2))
        told = until(signal, lambda told: told.contact is SourceContact.HEARD)
        assert [one.limit_w for one in told.spans] == [12_000.0]


def test_a_killed_servers_limits_count_until_it_is_back() -> None:
    pages = Pages(pages={"/": a_document(valid_until="2100-01-01T00:00:00Z")})
    with serving(pages):
        port = pages.port
        uri = f"http://127.0.0.1:{port}/?safe=8kW&every=0.02s&timeout=0.5s"
        signal = open_signal(uri, SITE)
        until(signal, lambda told: told.contact is SourceContact.HEARD)
    told = until(signal, lambda told: told.contact is SourceContact.LOST)
    assert told.spans[0].limit_w == 30_000
    with serving(pages, port=port):
        until(signal, lambda told: told.contact is SourceContact.HEARD)
    signal.close()


def test_before_the_first_word_the_safe_level_counts() -> None:
    with opened("http://127.0.0.1:9/?safe=8kW&every=0.02s") as signal:
        told = until(signal, lambda told: bool(told.note))
        assert told.contact is SourceContact.WAITING
        assert [one.limit_w for one in told.spans] == [8_000.0]


def test_certificates_are_verified(tmp_path: Path) -> None:
    made = certificates(tmp_path)
    pages = Pages(pages={"/": a_document()})
    with serving(pages, cert=made.server):
        uri = f"https://127.0.0.1:{pages.port}/?safe=8kW&every=0.05s"
        with opened(uri) as signal:
            assert "not trusted" in until(signal, lambda told: bool(told.note)).note
        with opened(f"{uri}&ca={made.authority}") as signal:
            until(signal, lambda told: told.contact is SourceContact.HEARD)


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        ("http://127.0.0.1/", "safe: is missing"),
        ("http://127.0.0.1/?safe=8kW&evry=3s", "evry: no such option"),
        ("htp://127.0.0.1/", "did you mean"),
        ("schedule:/nowhere.csv", "cannot read"),
        ("openadr3+http://127.0.0.1/", "program: is missing"),
    ],
)
def test_bad_addresses_are_refused(uri: str, problem: str) -> None:
    with pytest.raises(UserError) as error:
        open_signal(uri, SITE)
    assert problem in f"{error.value} {error.value.hint}"


# --- OpenADR 3 --------------------------------------------------------------------------------


def an_event(key: str, kind: str, values: list[float], units: str | None = "KW") -> dict[str, Any]:
    return {
        "id": key,
        "programID": "p",
        "payloadDescriptors": [{"payloadType": kind, "units": units}],
        "intervalPeriod": {"start": at(1), "duration": "PT30M"},
        "intervals": [
            {"id": number, "payloads": [{"type": kind, "values": [value]}]}
            for number, value in enumerate(values)
        ],
    }


def test_openadr_3_events_become_limits_and_a_gone_event_is_cancelled() -> None:
    events = [
        an_event("a", "IMPORT_CAPACITY_LIMIT", [30, 20]),
        an_event("b", "DISPATCH_SETPOINT_RELATIVE", [-5000], "W"),
        an_event("c", "PRICE", [0.3]),
        an_event("d", "DISPATCH_SETPOINT", [5]),
    ]
    # Not from noon but from now, as events that are over are forgotten.
    clock = SYSTEM._replace(unix_s=lambda: NOON_S)
    pages = Pages(pages={"/v3/events": events})
    with (
        serving(pages),
        opened(f"openadr3+http://127.0.0.1:{pages.port}/v3?program=p&every=0.02s", clock) as signal,
    ):
        told = until(signal, lambda told: told.contact is SourceContact.HEARD)
        assert steps(told) == [(1, 1.5, 30), (1.5, 2, 20), (1, 1.5, 35)]
        answers = {key: answer for key, answer, _ in told.events}
        assert answers == {"a": "optIn", "b": "optIn", "c": "optOut", "d": "optOut"}
        assert "programID=p" in pages.seen[0][0]
        pages.pages["/v3/events"] = events[1:]
        until(signal, lambda told: len(told.events) == 3)
        pages.pages["/v3/events"] = b"<html>"
        told = until(signal, lambda told: told.contact is SourceContact.LOST)
        assert steps(told) == [(1, 1.5, 35)]


@pytest.mark.parametrize(
    ("name", "kind", "payload", "watts"),
    [
        ("LOAD_CONTROL", "x-loadControlCapacity", 0.7, 28_000.0),
        ("LOAD_CONTROL", "x-loadControlCapacity", 70.0, None),
        ("LOAD_CONTROL", "x-loadControlPercentOffset", -25.0, 30_000.0),
        ("LOAD_DISPATCH", "setpoint", 9.5, 9_500.0),
        ("LOAD_DISPATCH", "delta", -4.0, 36_000.0),
        ("SIMPLE", "level", 2.0, 3.0),
        ("SIMPLE", "level", 3.0, 3.0),
        ("SIMPLE", "level", 1.5, None),
        ("ELECTRICITY_PRICE", "price", 0.3, None),
    ],
)
def test_openadr_2_payloads_in_watts(
    name: str, kind: str, payload: float, watts: float | None
) -> None:
    found = limit_w(name, kind, payload, scale=1e3, base_w=40_000.0, simple_w=[1.0, 2.0, 3.0])
    assert found == watts


# --- command line -----------------------------------------------------------------------------


def test_the_command_prints_the_merged_timeline(tmp_path: Path) -> None:
    for name, limit in (("a", "30kW"), ("b", "20kW")):
        (tmp_path / f"{name}.csv").write_text(f"at,limit\n0,{limit}\n1h,\n")
    start = datetime.now(UTC).isoformat()
    uris = [f"schedule:{tmp_path}/{name}.csv?start={start}" for name in "ab"]
    done = CliRunner().invoke(power, ["signal", *uris, "--base", "40kW", "-o", "json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["schema"] == "wattherd.limits/1"
    assert document["limit_w"] == 20_000.0
    assert [one["limit_w"] for one in document["timeline"]] == [20_000.0, 40_000.0]
    assert document["timeline"][-1]["until"] is None


@pytest.mark.long
def test_watching_prints_once_per_change() -> None:
    pages = Pages(pages={"/": a_document()})
    with serving(pages):
        uri = f"http://127.0.0.1:{pages.port}/?safe=8kW&every=0.05s"
        arguments = ["signal", uri, "--base", "40kW", "--watch", "--for", "1s", "-o", "json"]
        done = CliRunner().invoke(power, arguments)
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["limit_w"] for line in done.stdout.splitlines()] == [30_000.0]

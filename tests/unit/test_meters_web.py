"""Prometheus and Redfish on loopback: values that change, and servers slow, gone, wrong or shy."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from web_server import Certificates, Site, certificates, serving

from wattherd.devices.meters.contract import Quality
from wattherd.devices.meters.registry import open_meter
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.errors import UserError

METRICS = "/redfish/v1/Chassis/1/EnvironmentMetrics"
POWER = "/redfish/v1/Chassis/1/Power"


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site()) as site:
        yield site


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("pem"))


def trouble(uri: str) -> DeviceError:
    with pytest.raises(DeviceError) as error:
        open_meter(uri).read()
    assert error.value.source == uri
    return error.value


# --- Prometheus ------------------------------------------------------------------------------


def answer(kind: str, result: Any) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": kind, "result": result}}


def vector(*values: str, at_s: float = 1000.5) -> dict[str, Any]:
    return answer("vector", [{"metric": {}, "value": [at_s, value]} for value in values])


def query(site: Site, text: str, more: str = "") -> str:
    return f"prom+http://127.0.0.1:{site.port}/api/v1?query={text}{more}"


def test_a_query_gives_watts_and_time_and_follows_changes(site: Site) -> None:
    uri = query(site, 'sum(rack_power_watts{row="a"}) + 1')
    with open_meter(uri) as meter:
        for watts in (812.5, 90_000.0):
            site.answer = lambda path, asked, watts=watts: (
                vector(str(watts)) if path == "/api/v1/query" else None
            )
            reading = meter.read()
            assert (reading.watts, reading.at_s) == (watts, 1000.5)
    assert "query=sum%28rack_power_watts%7Brow%3D%22a%22%7D%29+%2B+1" in site.seen[0][0]


def test_a_range_gives_the_last_sample_with_its_own_time(site: Site) -> None:
    site.answer = lambda *_: answer("matrix", [{"values": [[990.0, "5"], [1001.25, "6"]]}])
    reading = open_meter(query(site, "watts[1m]", "&max_age=1d")).read()
    assert (reading.watts, reading.at_s, reading.quality) == (6.0, 1001.25, Quality.STALE)


def test_a_second_query_tells_the_time(site: Site) -> None:
    now_s = time.time()
    site.answer = lambda _, asked: vector(
        str(now_s - 40) if "timestamp" in asked["query"] else "7", at_s=now_s
    )
    uri = query(site, "sum(w)", "&at=min(timestamp(w))&max_age=30s")
    reading = open_meter(uri).read()
    assert reading.quality is Quality.STALE
    assert reading.at_s == pytest.approx(now_s - 40)


def test_scalars_are_numbers_too(site: Site) -> None:
    site.answer = lambda *_: answer("scalar", [3.0, "42"])
    assert open_meter(query(site, "42", "&unit=kW")).read().watts == 42_000


def test_dcgm_asks_for_both_names_of_the_field(site: Site) -> None:
    asked: list[str] = []

    def watch(_: str, request: dict[str, str]) -> dict[str, Any]:
        asked.append(request["query"])
        return vector("300")

    site.answer = watch
    open_meter(f"prom+http://127.0.0.1:{site.port}/api/v1?dcgm=gpu-1.x").read()
    selector = r'instance=~"gpu\\-1\\.x(:[0-9]+)?"'
    assert asked == [
        f"sum(DCGM_FI_DEV_POWER_USAGE{{{selector}}}) or sum(dcgm_power_usage{{{selector}}})",
        (
            f"min(timestamp(DCGM_FI_DEV_POWER_USAGE{{{selector}}}))"
            f" or min(timestamp(dcgm_power_usage{{{selector}}}))"
        ),
    ]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (vector(), DeviceErrorKind.ABSENT),
        (vector("1", "2"), DeviceErrorKind.GARBAGE),
        (vector("NaN"), DeviceErrorKind.GARBAGE),
        (vector("much"), DeviceErrorKind.GARBAGE),
        (answer("string", [1, "text"]), DeviceErrorKind.GARBAGE),
        (answer("vector", None), DeviceErrorKind.ABSENT),
        (answer("matrix", [{"values": []}]), DeviceErrorKind.GARBAGE),
        ({"status": "error", "error": "x"}, DeviceErrorKind.GARBAGE),
        ([1, 2], DeviceErrorKind.GARBAGE),
        (b"<html>", DeviceErrorKind.GARBAGE),
        (b"\xff\xfe", DeviceErrorKind.GARBAGE),
    ],
)
def test_what_is_no_single_value_is_no_reading(
    site: Site, said: Any, expected: DeviceErrorKind
) -> None:
    site.answer = lambda *_: said
    assert trouble(query(site, "w")).trouble is expected


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("prom+http://h/api/v1", "query: is missing"),
        ("prom+http:///api/v1?query=x", "no host"),
        ("prom+http://h?dcgm=n&query=x", "leave out"),
        ("prom+http://h?query=x&credentials=/none", "no file /none"),
        ("prom+https://h?query=x&ca={}", "no certificate in"),
    ],
)
def test_an_address_of_a_server_is_checked(address: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    with pytest.raises(UserError, match=problem):
        open_meter(address.format(tmp_path / "empty"))


# --- Redfish ---------------------------------------------------------------------------------


def machine(*, new: float | None = None, old: float | None = None) -> dict[str, Any]:
    """A service of one chassis that has power resources of the given generations."""
    chassis: dict[str, Any] = {"Id": "1"}
    pages: dict[str, Any] = {
        "/redfish/v1": {"RedfishVersion": "1.9.0", "Chassis": {"@odata.id": "/redfish/v1/Chassis"}},
        "/redfish/v1/Chassis": {"Members": [{"@odata.id": "/redfish/v1/Chassis/1"}]},
        "/redfish/v1/Chassis/1": chassis,
    }
    if new is not None:
        chassis["EnvironmentMetrics"] = {"@odata.id": METRICS}
        pages[METRICS] = {"PowerWatts": {"Reading": new}}
    if old is not None:
        chassis["Power"] = {"@odata.id": POWER}
        controls = [("Chassis", old), ("CPU", old / 4)]
        pages[POWER] = {
            "PowerControl": [
                {"MemberId": str(n), "Name": name, "PowerConsumedWatts": watts}
                for n, (name, watts) in enumerate(controls)
            ]
        }
    return pages


def redfish(site: Site, path: str = "", more: str = "") -> str:
    return f"redfish+http://127.0.0.1:{site.port}{path}?{more}"


@pytest.mark.parametrize("path", ["", "/redfish/v1/", "/redfish/v1/Chassis/1"])
def test_redfish_finds_its_way_once(site: Site, path: str) -> None:
    site.pages = machine(new=640.0, old=600.0)
    with open_meter(redfish(site, path)) as meter:
        assert meter.read().watts == 640.0
        site.pages[METRICS]["PowerWatts"]["Reading"] = 650.5
        site.seen.clear()
        assert meter.read().watts == 650.5
        assert [target for target, _ in site.seen] == [METRICS]


def test_redfish_reads_the_old_generation_where_the_new_is_missing_or_empty(site: Site) -> None:
    site.pages = machine(old=600.0)
    assert open_meter(redfish(site)).read().watts == 600.0
    site.pages = machine(new=1.0, old=600.0)
    site.pages[METRICS]["PowerWatts"]["Reading"] = None
    assert open_meter(redfish(site)).read().watts == 600.0


def test_redfish_picks_a_power_control_by_name_or_id(site: Site) -> None:
    site.pages = machine(old=600.0)
    for control in ("CPU", "1"):
        assert open_meter(redfish(site, POWER, f"control={control}")).read().watts == 150.0
    assert trouble(redfish(site, POWER, "control=GPU")).trouble is DeviceErrorKind.ABSENT


def test_a_sensor_tells_its_time_and_unit(site: Site) -> None:
    sensor = {"Reading": 4.25, "ReadingUnits": "kW", "ReadingTime": "2026-01-02T03:04:05Z"}
    site.pages["/redfish/v1/Chassis/1/Sensors/TotalPower"] = sensor
    reading = open_meter(redfish(site, "/redfish/v1/Chassis/1/Sensors/TotalPower")).read()
    assert (reading.watts, reading.at_s) == (4250.0, 1767323045.0)
    sensor["Status"] = {"State": "Absent"}
    assert trouble(reading.source).trouble is DeviceErrorKind.ABSENT


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ({}, DeviceErrorKind.ABSENT),
        ([], DeviceErrorKind.GARBAGE),
        ({"Members": [{}]}, DeviceErrorKind.GARBAGE),
        ({"Members": [{"@odata.id": "/a"}, {"@odata.id": "/b"}]}, DeviceErrorKind.ABSENT),
        ({"PowerWatts": 5}, DeviceErrorKind.GARBAGE),
        ({"PowerWatts": {"Reading": "many"}}, DeviceErrorKind.GARBAGE),
        ({"PowerControl": [5]}, DeviceErrorKind.GARBAGE),
        ({"Power": {"@odata.id": "/redfish/v1"}}, DeviceErrorKind.ABSENT),
        ({"Reading": 20.0, "ReadingUnits": "Cel"}, DeviceErrorKind.ABSENT),
    ],
)
def test_a_resource_without_power_is_no_reading(
    site: Site, page: Any, expected: DeviceErrorKind
) -> None:
    site.pages["/redfish/v1"] = page
    assert trouble(redfish(site)).trouble is expected


@pytest.mark.usefixtures("knows_localhost")
def test_tls_is_verified_unless_the_address_says_not_to(pem: Certificates) -> None:
    with serving(Site(pages=machine(new=640.0)), cert=pem.server) as site:
        uri = f"redfish+https://127.0.0.1:{site.port}"
        refused = trouble(uri)
        assert refused.trouble is DeviceErrorKind.REFUSED
        assert "certificate" in refused.problem
        assert site.seen == []  # nothing was asked of a server that may be anybody
        for option in (f"ca={pem.authority}", "insecure=1"):
            assert open_meter(f"{uri}?{option}").read().watts == 640.0
        wrong = f"redfish+https://localhost:{site.port}?ca={pem.authority}"
        assert (
            trouble(wrong).trouble is DeviceErrorKind.REFUSED
        )  # another name than the certificate's


def test_tls_spoken_to_a_plain_server_is_garbage(site: Site) -> None:
    uri = f"redfish+https://127.0.0.1:{site.port}"
    assert trouble(uri).trouble in (DeviceErrorKind.GARBAGE, DeviceErrorKind.UNREACHABLE)


# --- what both share -------------------------------------------------------------------------


def test_credentials_come_from_a_file_read_every_time(site: Site, tmp_path: Path) -> None:
    site.pages, site.user = machine(new=640.0), "admin:secret"
    secrets = tmp_path / "bmc.yaml"
    secrets.write_text("{username: admin, password: wrong}")
    with open_meter(redfish(site, METRICS, f"credentials={secrets}")) as meter:
        with pytest.raises(DeviceError) as error:
            meter.read()
        assert error.value.trouble is DeviceErrorKind.REFUSED
        assert "wrong" not in str(error.value)
        secrets.write_text("{username: admin, password: secret}")
        assert meter.read().watts == 640.0


def test_tokens_go_where_each_protocol_wants_them(site: Site, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("token: |\n  abc\n")
    site.pages = {METRICS: {"PowerWatts": {"Reading": 1}}, "/api/v1/query": vector("1")}
    open_meter(redfish(site, METRICS, f"credentials={tmp_path / 'token'}")).read()
    open_meter(query(site, "w", f"&credentials={tmp_path / 'token'}")).read()
    (_, bmc), (_, prometheus) = site.seen
    assert bmc["X-Auth-Token"] == "abc"
    assert prometheus["Authorization"] == "Bearer abc"


@pytest.mark.parametrize("content", ["pasword: hidden", "[hidden", "hidden", "password: [hidden]"])
def test_bad_credentials_are_not_printed(site: Site, tmp_path: Path, content: str) -> None:
    (tmp_path / "bad").write_text(content)
    refused = trouble(redfish(site, METRICS, f"credentials={tmp_path / 'bad'}"))
    assert refused.trouble is DeviceErrorKind.REFUSED
    assert "hidden" not in str(refused)


def test_a_killed_server_is_unreachable_until_it_is_back() -> None:
    site = Site(pages=machine(new=640.0))
    with serving(site):
        meter = open_meter(redfish(site))
        meter.read()
    assert trouble(meter.source).trouble is DeviceErrorKind.UNREACHABLE
    with pytest.raises(DeviceError):
        meter.read()
    with serving(site, port=site.port):
        assert meter.read().watts == 640.0


def test_a_server_that_drips_is_cut_off_in_time(site: Site) -> None:
    site.pages, site.drip_s = {METRICS: {"PowerWatts": {"Reading": 1}}}, 0.5
    started_s = time.monotonic()
    assert trouble(redfish(site, METRICS, "timeout=0.3s")).trouble is DeviceErrorKind.TIMEOUT
    assert time.monotonic() - started_s < 8.0  # all of it would take longer


def test_a_server_that_drips_over_tls_is_cut_off_in_time(pem: Certificates) -> None:
    pages = {METRICS: {"PowerWatts": {"Reading": 1}}}
    with serving(Site(pages=pages, drip_s=0.5), cert=pem.server) as site:
        uri = f"redfish+https://127.0.0.1:{site.port}{METRICS}?ca={pem.authority}&timeout=0.4s"
        started_s = time.monotonic()
        assert trouble(uri).trouble is DeviceErrorKind.TIMEOUT
        assert time.monotonic() - started_s < 8.0


@pytest.mark.parametrize("scheme", ["redfish+http", "redfish+https"])
def test_a_server_that_accepts_and_says_nothing_times_out(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}?timeout=0.2s"
        assert trouble(uri).trouble is DeviceErrorKind.TIMEOUT


@pytest.mark.parametrize("noise", [b"SSH-2.0-x\r\n", b"\x00" * 70_000, b"HTTP/1.1 abc\r\n\r\n"])
def test_a_server_that_speaks_something_else_is_garbage(noise: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_answer_once, args=[server, noise])
        thread.start()
        uri = f"redfish+http://127.0.0.1:{server.getsockname()[1]}"
        assert trouble(uri).trouble is DeviceErrorKind.GARBAGE
        thread.join()


def _answer_once(server: socket.socket, noise: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(noise)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (302, DeviceErrorKind.REFUSED),
        (400, DeviceErrorKind.GARBAGE),
        (401, DeviceErrorKind.REFUSED),
        (403, DeviceErrorKind.REFUSED),
        (404, DeviceErrorKind.ABSENT),
        (500, DeviceErrorKind.UNREACHABLE),
        (503, DeviceErrorKind.UNREACHABLE),
    ],
)
def test_each_http_status_has_its_meaning(
    site: Site, status: int, expected: DeviceErrorKind
) -> None:
    site.pages, site.status, site.location = {METRICS: {}}, status, "http://elsewhere/"
    assert trouble(redfish(site, METRICS)).trouble is expected
    assert len(site.seen) == 1

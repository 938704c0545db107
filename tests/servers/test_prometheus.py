"""Prometheus itself, scraping a small exporter: values, times, staleness."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from wattherd.devices.meters.contract import MeterReading, Quality
from wattherd.devices.meters.meter import Meter
from wattherd.devices.meters.registry import open_meter
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind

PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed"),
]
PATIENCE_S = 20.0


class _Exporter(BaseHTTPRequestHandler):
    said = ""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(type(self).said.encode())

    def log_message(self, *_: object) -> None: ...


@dataclass
class Site:
    """A Prometheus that scrapes `exporter` five times a second."""

    port: int
    exporter: ThreadingHTTPServer
    process: subprocess.Popen[bytes]

    def say(self, *lines: str) -> None:
        _Exporter.said = "".join(f"{line}\n" for line in lines)

    def uri(self, query: str, more: str = "") -> str:
        return f"prom+http://127.0.0.1:{self.port}/api/v1?query={query}{more}"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder: Path = tmp_path_factory.mktemp("prometheus")
    exporter = ThreadingHTTPServer(("127.0.0.1", 0), _Exporter)
    Thread(target=exporter.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    target = f"127.0.0.1:{exporter.server_address[1]}"
    job = {"job_name": "racks", "scrape_interval": "200ms", "scrape_timeout": "200ms",
           "static_configs": [{"targets": [target]}]}  # fmt: skip
    (folder / "config.yml").write_text(json.dumps({"scrape_configs": [job]}))
    port = free_port()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [PROMETHEUS or "", f"--config.file={folder / 'config.yml'}",
             f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        _await_ready(port)
        yield Site(port, exporter, process)
    finally:
        process.kill()
        process.wait()
        exporter.shutdown()
        exporter.server_close()


def _await_ready(port: int) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready"):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("prometheus does not start")


def eventually(meter: Meter, watts: float) -> MeterReading:
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        try:
            reading = meter.read()
        except DeviceError as error:
            if error.trouble is not DeviceErrorKind.ABSENT:  # nothing scraped yet
                raise
        else:
            if reading.watts == watts:
                return reading
        time.sleep(0.05)
    raise AssertionError(f"{meter.source} never reads {watts} W")


def test_sums_follow_the_exporter(site: Site) -> None:
    meter = open_meter(site.uri('sum(rack_power_watts{row="a"}) + 0'))
    for first, second in ((100.0, 20.5), (8000.0, 4000.0)):
        site.say(f'rack_power_watts{{row="a",rack="1"}} {first}',
                 f'rack_power_watts{{row="a",rack="2"}} {second}',
                 'rack_power_watts{row="b",rack="3"} 7')  # fmt: skip
        eventually(meter, first + second)


def test_a_range_and_a_second_query_tell_when_it_was_scraped(site: Site) -> None:
    site.say("feed_watts 5")
    ranged = open_meter(site.uri("feed_watts[1m]", "&max_age=5s"))
    timed = open_meter(site.uri("sum(feed_watts)", "&at=min(timestamp(feed_watts))&max_age=5s"))
    eventually(ranged, 5.0)
    for meter in (ranged, timed):
        reading = eventually(meter, 5.0)  # a scrape that comes too late ends the series for a while
        assert reading.quality is Quality.MEASURED
        assert 0.0 <= time.time() - reading.at_s < 5.0
    silence = open_meter(site.uri("feed_watts[1m]", "&max_age=1s"))
    site.say("other_watts 1")  # the series ends: its last sample only grows older
    until_s = time.monotonic() + PATIENCE_S
    while silence.read().quality is not Quality.STALE:
        assert time.monotonic() < until_s
        time.sleep(0.1)


def test_gpus_of_both_generations_of_the_exporter(site: Site) -> None:
    meter = open_meter(f"prom+http://127.0.0.1:{site.port}/api/v1?dcgm=127.0.0.1")
    site.say('dcgm_power_usage{gpu="0"} 30', 'dcgm_power_usage{gpu="1"} 40')
    eventually(meter, 70.0)
    site.say('DCGM_FI_DEV_POWER_USAGE{gpu="0"} 300', 'DCGM_FI_DEV_POWER_USAGE{gpu="1"} 401.5')
    reading = eventually(meter, 701.5)
    assert abs(time.time() - reading.at_s) < 5.0


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("no_such_series", DeviceErrorKind.ABSENT),
        ("sum(", DeviceErrorKind.GARBAGE),
        ("0/0", DeviceErrorKind.GARBAGE),
        ('{__name__=~"scrape_.*"}', DeviceErrorKind.GARBAGE),
    ],
)
def test_what_gives_no_single_value_is_no_reading(
    site: Site, query: str, expected: DeviceErrorKind
) -> None:
    site.say("feed_watts 5")
    eventually(open_meter(site.uri("feed_watts")), 5.0)
    with pytest.raises(DeviceError) as error:
        open_meter(site.uri(query)).read()
    assert error.value.trouble is expected

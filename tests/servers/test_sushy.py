"""Redfish as sushy-tools serves it from a folder of files, read anew at every request."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from wattherd.devices.meters.registry import open_meter
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind

SUSHY = shutil.which("sushy-static", path=str(Path(sys.executable).parent)) or shutil.which(
    "sushy-static"
)
pytestmark = pytest.mark.skipif(SUSHY is None, reason="sushy-static (sushy-tools) is not installed")
CHASSIS = "/redfish/v1/Chassis/Rack1"


@dataclass
class Mockup:
    """The folder that stands for /redfish/v1, and the server of it."""

    folder: Path
    port: int

    def write(self, path: str, resource: dict[str, Any]) -> None:
        place = self.folder / path.removeprefix("/redfish/v1").strip("/") / "index.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = place.with_name("fresh")
        fresh.write_text(json.dumps({"@odata.id": path, **resource}))
        fresh.replace(place)

    def link(self, path: str) -> dict[str, str]:
        return {"@odata.id": path}

    def uri(self, path: str = "") -> str:
        return f"redfish+http://127.0.0.1:{self.port}{path}"


@pytest.fixture
def mockup(tmp_path: Path) -> Iterator[Mockup]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    mockup = Mockup(tmp_path, port)
    mockup.write("/redfish/v1", {"Chassis": mockup.link("/redfish/v1/Chassis")})
    mockup.write("/redfish/v1/Chassis", {"Members": [mockup.link(CHASSIS)]})
    command = [SUSHY or "", "-i", "127.0.0.1", "-p", str(port), "-m", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await(port)
        yield mockup
    finally:
        process.kill()
        process.wait()


def _await(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("sushy-static does not start")


def test_power_of_both_generations_as_it_changes(mockup: Mockup) -> None:
    power, metrics = f"{CHASSIS}/Power", f"{CHASSIS}/EnvironmentMetrics"
    mockup.write(CHASSIS, {"Power": mockup.link(power)})
    with open_meter(mockup.uri()) as meter:
        for watts in (344, 512):
            mockup.write(power, {"PowerControl": [{"PowerConsumedWatts": watts}]})
            assert meter.read().watts == watts
    mockup.write(CHASSIS, {"Power": mockup.link(power), "EnvironmentMetrics": mockup.link(metrics)})
    with open_meter(mockup.uri(CHASSIS)) as meter:
        for watts in (600.5, 700.25):
            mockup.write(metrics, {"PowerWatts": {"Reading": watts}})
            assert meter.read().watts == watts


def test_a_chassis_without_power_says_so(mockup: Mockup) -> None:
    mockup.write(CHASSIS, {"Name": "empty"})
    with pytest.raises(DeviceError) as error:
        open_meter(mockup.uri()).read()
    assert error.value.trouble is DeviceErrorKind.ABSENT

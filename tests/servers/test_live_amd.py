"""A live site on a machine with AMD GPUs: the amdsmi package, as it is, on a small library."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from amdsmi_driver import COMPILER, AmdDriver, wrapper

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from wattherd.library.client import Client
from wattherd.local.orphans import end_stray
from wattherd.server.hardware.amd import model_of
from wattherd.server.hardware.gpu_devices import FoundGpu

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no C compiler to build a library with"),
    pytest.mark.skipif(wrapper() is None, reason="amdsmi is not installed"),
]
MOST_S = 60.0


@dataclass
class Service:
    """A service that sees two GPUs of 200 to 750 W that draw 420 and 750 W."""

    gpus: AmdDriver
    state: Path

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "wattherd.cli.main", "serve", "--state", str(self.state),
             "--port", "0"],
            env=self.gpus.environment, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stderr is not None
        first, self.note = self.process.stderr.readline(), self.process.stderr.readline()
        found = re.search(r"http://\S+", first)
        assert found, first
        self.client = Client(found[0])

    def until(self, true: Callable[[], Any]) -> None:
        end_s = time.monotonic() + MOST_S
        while not true():
            assert time.monotonic() < end_s, "waited in vain"
            time.sleep(0.1)

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(MOST_S)
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    (tmp_path / "lib").mkdir()
    service = Service(AmdDriver(tmp_path / "lib"), tmp_path / "state")
    yield service
    service.end()
    for folder in service.state.glob("jobs/*/run-*"):
        end_stray(folder)


@pytest.mark.long
def test_amd_gpus_are_measured_capped_and_put_back(service: Service) -> None:
    assert "measured by amdsmi" in service.note
    client = service.client
    service.until(lambda: client.get("power")["draw_w"] == 1170.0)
    document = {"run": "echo $ROCR_VISIBLE_DEVICES; sleep 600", "gpus": 2}
    job = str(client.post("jobs", {**document, "checkpoint": {"grace": 5}})["id"])
    log = service.state / "jobs" / job / "run-1" / "logs" / "0.log"
    service.until(lambda: log.exists() and log.read_text() == "0,1\n")
    client.put("power", {"budget": 1000})
    service.until(lambda: client.get(f"jobs/{job}")["cap_w"] == 500.0)

    def held() -> bool:
        """Within the budget; 4.5 % less for a GPU that was not seen close to its cap yet."""
        caps = [service.gpus.kept(gpu) or 0 for gpu in (0, 1)]
        return all(500e6 / 1.05 <= cap <= 500e6 for cap in caps)

    service.until(held)
    client.post(f"jobs/{job}/cancel", {})
    service.gpus.say("watts", 60)  # nobody works on them
    service.until(lambda: service.gpus.kept(0) == service.gpus.kept(1) == 750_000_000)


@pytest.mark.long
def test_pages_say_how_busy_amd_gpus_are(service: Service) -> None:
    def page() -> str:
        with urllib.request.urlopen(service.client.server + "/cluster", timeout=30) as answer:
            return str(answer.read().decode())

    service.until(lambda: "64% busy, 51.5 GB of 206.2 GB memory" in page())
    assert "– busy, 51.5 GB of 206.2 GB memory" in page()


@pytest.mark.parametrize(
    ("name", "model", "idle_w"),
    [("AMD Instinct MI300X", "MI300X", None), ("Radeon Odd", "Radeon-Odd", 70.0)],
    ids=["known", "unknown"],
)
def test_models_are_found_in_the_catalog(name: str, model: str, idle_w: float | None) -> None:
    found = FoundGpu(
        number=0, uuid="u", name=name, memory_mib=1000, lowest_w=200.0, default_w=700.0
    )
    made = model_of(found)
    assert made.name == model
    assert idle_w is None or made.idle_w == pytest.approx(idle_w)
    assert made.max_w == 700.0

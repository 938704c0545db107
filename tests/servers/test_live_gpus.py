"""A live site on a machine with GPUs: nvidia-ml-py, as it is, on a small driver library."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
pytest.importorskip("fastapi", reason="the extra `server` is not installed")
from nvml_driver import COMPILER, LOST, NO_PERMISSION, Driver
from test_knobs_zeusd import Daemon
from test_knobs_zeusd import serving as zeusd

from wattherd.library.client import Client
from wattherd.local.orphans import end_stray
from wattherd.server.hardware.gpu_devices import FoundGpu
from wattherd.server.hardware.nvidia import model_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(COMPILER is None, reason="no C compiler to build a driver with"),
]
MOST_S = 60.0


@dataclass
class Service:
    """A service that sees two GPUs of 100 to 300 W."""

    gpus: Driver
    state: Path
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.gpus.say(40.0)  # within what tests allow: GPUs that draw more follow no cap
        self.process = subprocess.Popen(
            [sys.executable, "-m", "wattherd.cli.main", "serve", "--state", str(self.state),
             "--port", "0", *self.options],
            env=self.gpus.environment, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stderr is not None
        found = re.search(r"http://\S+", self.process.stderr.readline())
        assert found, self.process.stderr.read()
        self.client = Client(found[0])

    def submit(self, run: str, gpus: int) -> str:
        document = {"run": run, "gpus": gpus, "checkpoint": {"grace": 5}}
        return str(self.client.post("jobs", document)["id"])

    def job(self, job_id: str) -> Any:
        return self.client.get(f"jobs/{job_id}")

    def until(self, true: Callable[[], bool]) -> None:
        end_s = time.monotonic() + MOST_S
        while not true():
            assert time.monotonic() < end_s, "waited in vain"
            time.sleep(0.1)

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(MOST_S)
        assert self.process.stderr is not None
        self.process.stderr.close()


def serves(limit_mw: int | None, cap_w: float) -> bool:
    """A GPU that was not seen close to its limit may draw 4.5 % more, and gets as much less."""
    return limit_mw is not None and cap_w / 1.05 <= limit_mw / 1000 <= cap_w


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(Driver(tmp_path), tmp_path / "state")
    yield service
    service.end()
    for folder in service.state.glob("jobs/*/run-*"):
        end_stray(folder)


def test_jobs_get_gpus_by_uuid_and_watts_are_measured(service: Service) -> None:
    service.gpus.say(123.0)  # the second one draws twice as much
    job = service.submit("echo $CUDA_VISIBLE_DEVICES; sleep 600", gpus=2)
    service.until(lambda: service.client.get("power")["draw_w"] == 369.0)
    assert service.client.get("power")["stated"] == "measured"
    log = service.state / "jobs" / job / "run-1" / "logs" / "0.log"
    service.until(lambda: log.exists() and log.read_text() == "GPU-First,GPU-Second\n")


def test_pages_say_how_busy_gpus_are_and_how_much_memory_is_taken(service: Service) -> None:
    job = service.submit("sleep 600", gpus=2)
    service.until(lambda: service.job(job)["state"] == "Running")

    def shown(path: str) -> str:
        with urllib.request.urlopen(service.client.server + path, timeout=MOST_S) as answer:
            return re.sub(r"<[^>]*>|\s+", " ", answer.read().decode())

    service.until(lambda: "83%" in shown("/cluster"))  # of the one that tells
    assert "21.5 GB" in shown("/cluster")
    told = re.sub(" +", " ", shown(f"/jobs/{job}"))
    assert "its GPUs computing, on average 83%" in told
    assert "memory of its GPUs 21.5 GB of 85.9 GB" in told
    with urllib.request.urlopen(service.client.server + "/cluster", timeout=MOST_S) as answer:
        cells = answer.read().decode()
    assert "83% busy, 10.7 GB of 42.9 GB memory" in cells
    assert "– busy, 10.7 GB of 42.9 GB memory" in cells


def test_a_budget_is_kept_by_limits_that_are_put_back_when_the_job_is_over(
    service: Service,
) -> None:
    job = service.submit("sleep 600", gpus=2)
    service.until(lambda: service.job(job)["state"] == "Running")
    service.client.put("power", {"budget": 400})
    service.until(lambda: service.job(job)["cap_w"] == 200.0)
    assert all(serves(service.gpus.kept(f"limit{n}"), 200.0) for n in (0, 1))
    service.client.post(f"jobs/{job}/cancel", {})
    service.until(lambda: service.gpus.kept("limit1") == 300_000)
    assert service.gpus.kept("limit0") == 300_000


def test_where_limits_may_not_be_set_the_job_computes_less(service: Service) -> None:
    service.gpus.setters(NO_PERMISSION)
    job = service.submit("sleep 600", gpus=2)
    service.until(lambda: service.job(job)["state"] == "Running")
    service.client.put("power", {"budget": 400})
    service.until(lambda: service.job(job)["cap_w"] == 200.0)
    heeded = service.state / "jobs" / job / "run-1" / "heeded.json"
    duty = json.loads(heeded.read_text())["duty"]
    assert 0.5 < duty < (200 - 30) / (300 - 30)  # of the watts above idle, with a margin
    assert service.gpus.kept("limit0") is None


def test_limits_are_set_through_a_daemon_where_we_may_not(tmp_path: Path) -> None:
    daemon, socket = Daemon(), tmp_path / "zeusd.sock"
    driver = Driver(tmp_path)
    driver.setters(NO_PERMISSION)
    with zeusd(daemon, socket):
        service = Service(driver, tmp_path / "state", ("--zeusd", str(socket)))
        try:
            job = service.submit("sleep 600", gpus=2)
            service.until(lambda: service.job(job)["state"] == "Running")
            service.client.put("power", {"budget": 400})
            service.until(lambda: service.job(job)["cap_w"] == 200.0)
            assert all(serves(daemon.limits_mw[n], 200.0) for n in (0, 1))
            row = service.client.get("power")["instruments"][0]
            assert (row["watts"], row["control"], row["problems"]) == ("measured", "caps", [])
            assert row["knob"].startswith("zeusd+unix:")
            service.client.post(f"jobs/{job}/cancel", {})
            service.until(lambda: daemon.limits_mw[0] == 300_000)
        finally:
            service.end()


def test_a_service_that_only_measures_sets_no_limit_whatever_the_budget(tmp_path: Path) -> None:
    service = Service(Driver(tmp_path), tmp_path / "state", ("--measure-only",))
    try:
        service.gpus.say(250.0)
        job = service.submit("sleep 600", gpus=2)
        service.until(lambda: service.client.get("power")["draw_w"] == 750.0)
        service.client.put("power", {"budget": 400})
        service.until(lambda: service.job(job)["cap_w"] == 200.0)
        row = service.client.get("power")["instruments"][0]
        assert (row["watts"], row["control"], row["knob"]) == ("measured", "duty", "")
        heeded = service.state / "jobs" / job / "run-1" / "heeded.json"
        service.until(lambda: json.loads(heeded.read_text())["duty"] < 0.63)
        service.client.post(f"jobs/{job}/cancel", {})
        service.until(lambda: service.job(job)["state"] == "Cancelled")
        assert [service.gpus.kept(f"limit{n}") for n in (0, 1)] == [None, None]
    finally:
        service.end()
        for folder in service.state.glob("jobs/*/run-*"):
            end_stray(folder)


def test_what_was_found_and_what_is_wrong_with_it_is_told(service: Service) -> None:
    service.gpus.setters(NO_PERMISSION)
    job = service.submit("sleep 600", gpus=1)
    service.client.put("power", {"budget": 350})
    service.until(lambda: service.job(job)["cap_w"] is not None)
    service.until(lambda: service.client.get("power")["instruments"][0]["problems"])
    rows = service.client.get("power")["instruments"]
    assert [row["meter"] for row in rows] == ["nvml://GPU-First", "nvml://GPU-Second"]
    assert "permission" in " ".join(rows[0]["problems"]).lower()
    (node,) = service.client.get("nodes")["nodes"]
    assert [gpu["stated"] for gpu in node["gpus"]] == ["measured", "measured"]


@pytest.mark.slow
def test_watts_that_one_job_does_not_draw_are_the_other_s(service: Service) -> None:
    """The first GPU draws 105 W, the second, at its cap, twice as much."""
    first, second = (service.submit("sleep 600", gpus=1) for _ in range(2))
    for job in (first, second):
        service.until(partial(lambda job: service.job(job)["state"] == "Running", job))
    service.client.put("power", {"budget": 400})
    service.until(lambda: service.job(first)["cap_w"] == service.job(second)["cap_w"] == 200.0)
    turn = itertools.count()

    def given() -> bool:
        service.gpus.say(105.0 + 0.1 * (next(turn) % 7))  # meters flicker, or are not believed
        return bool(service.job(second)["cap_w"] > 280.0)

    service.until(given)
    assert 105.0 < service.job(first)["cap_w"] < 115.0
    assert serves(service.gpus.kept("limit0"), service.job(first)["cap_w"])


def test_a_silent_gpu_counts_at_its_worst(service: Service) -> None:
    service.gpus.say(50.0, code=LOST)
    service.until(lambda: service.client.get("power")["stated"] == "worst case")
    assert service.client.get("power")["draw_w"] == 600.0


@pytest.mark.parametrize(
    ("name", "memory_mib", "model"),
    [
        ("NVIDIA H200", 143_771, "H200"),
        ("NVIDIA A100-SXM4-80GB", 81_920, "A100-80GB"),
        ("NVIDIA A100-PCIE-40GB", 40_960, "A100-40GB-PCIe"),
        ("NVIDIA H100 80GB HBM3", 81_559, "H100-SXM"),
        ("NVIDIA H100 PCIe", 81_559, "H100-PCIe"),
        ("Tesla T4", 15_360, "T4"),
        ("NVIDIA GeForce RTX 9990", 8_192, "NVIDIA-GeForce-RTX-9990"),
    ],
)
def test_models_are_found_in_the_catalog_by_what_drivers_call_them(
    name: str, memory_mib: int, model: str
) -> None:
    found = FoundGpu(uuid="u", name=name, memory_mib=memory_mib, lowest_w=100.0, default_w=300.0)
    assert model_of(found).name == model

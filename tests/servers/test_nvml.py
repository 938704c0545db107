"""GPUs: nvidia-ml-py, as it is, on a small driver library built here."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
from nvml_driver import COMPILER, LOST, NO_PERMISSION, NOT_SUPPORTED, Driver

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler to build a driver with")


@pytest.fixture
def gpus(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


@pytest.mark.long
def test_a_gpu_is_read_by_number_uuid_or_all_together(gpus: Driver) -> None:
    assert gpus.read("nvml://0")["watts"] == 300.0
    assert gpus.read("nvml://GPU-Second")["watts"] == 600.0
    assert gpus.read("nvml://all")["watts"] == 900.0


def test_the_latest_sample_tells_its_time(gpus: Driver) -> None:
    found = gpus.read("nvml://all?mode=instant&max_age=1h")
    assert (found["watts"], found["quality"]) == (900.0, "stale")
    assert found["at_s"] == pytest.approx(1_700_000_000.500001, abs=1e-6)


@pytest.mark.parametrize(
    ("uri", "code", "trouble"),
    [
        ("nvml://2", 0, "absent"),
        ("nvml://GPU-third", 0, "absent"),
        ("nvml://0", NOT_SUPPORTED, "absent"),
        ("nvml://0?mode=instant", NOT_SUPPORTED, "absent"),
        ("nvml://0", NO_PERMISSION, "refused"),
        ("nvml://0", LOST, "unreachable"),
        ("nvml://0", 999, "unreachable"),
    ],
)
def test_errors_have_their_name(gpus: Driver, uri: str, code: int, trouble: str) -> None:
    gpus.say(300.0, code)
    assert gpus.read(uri)["trouble"] == trouble


def test_an_old_driver_has_no_latest_sample(tmp_path: Path) -> None:
    old = Driver(tmp_path, "-DOLD")
    assert old.read("nvml://0?mode=instant")["trouble"] == "absent"
    assert old.read("nvml://0")["watts"] == 300.0


def test_without_a_driver_there_is_no_gpu(gpus: Driver) -> None:
    (gpus.folder / "libnvidia-ml.so.1").write_text("no library")
    assert gpus.read("nvml://0")["trouble"] == "unreachable"
    with gpus.command("probe") as process:
        document = json.loads(process.communicate(timeout=30)[0])
    assert [found for found in document["meters"] if found["meter"].startswith("nvml")] == []


def test_probe_finds_the_gpus(gpus: Driver) -> None:
    with gpus.command("probe") as process:
        document = json.loads(process.communicate(timeout=30)[0])
    watts = {found["meter"]: found["watts"] for found in document["meters"]}
    assert (watts["nvml://0"], watts["nvml://1"]) == (300.0, 600.0)


def until(process: subprocess.Popen[str], field: str, value: object) -> dict[str, Any]:
    """The first line that says so; the test's own time limit ends a vain wait."""
    assert process.stdout is not None
    for line in process.stdout:
        found: dict[str, Any] = json.loads(line)
        if found.get(field) == value:
            return found
    raise AssertionError(f"never {field} = {value}")


@pytest.mark.long
def test_a_watched_gpu_changes_hangs_is_lost_and_comes_back(gpus: Driver) -> None:
    with gpus.command("read", "nvml://0?timeout=0.2s", "--watch", "0.05s") as process:
        until(process, "watts", 300.0)
        gpus.say(450.0)
        until(process, "watts", 450.0)
        gpus.say(460.0, delay_s=5.0)
        began_s = time.monotonic()
        until(process, "trouble", "timeout")
        assert time.monotonic() - began_s < 5.0
        gpus.say(470.0, LOST)
        until(process, "trouble", "unreachable")
        gpus.say(480.0)
        until(process, "watts", 480.0)
        process.terminate()


@pytest.mark.long
def test_a_recording_takes_all_samples_that_the_driver_keeps(gpus: Driver) -> None:
    """A square of 5 Hz on means of a second: asked 50 times a second they are still means."""
    with gpus.command(
        "swings", "--meter", "nvml://GPU-Second", "--for", "3s", "--every", "0.5s", of="power"
    ) as process:
        found = json.loads(process.communicate(timeout=30)[0])["recordings"][0]
    assert found["name"] == "nvml://GPU-Second?mode=samples"
    assert found["rate_hz"] == pytest.approx(50.0, rel=0.02)
    assert found["strongest"]["frequency_hz"] == pytest.approx(5.0, rel=0.05)
    assert found["worst_swing_w"] == 400.0


@pytest.mark.long
def test_an_old_driver_tells_means_alone_and_what_is_faster_is_unseen(tmp_path: Path) -> None:
    old = Driver(tmp_path, "-DOLD")
    with old.command(
        "swings", "--meter", "nvml://0", "--for", "4s", "--every", "0.02s", of="power"
    ) as process:
        found = json.loads(process.communicate(timeout=30)[0])["recordings"][0]
    assert found["name"] == "nvml://0?mode=average"
    assert found["rate_hz"] == pytest.approx(10.0, rel=0.05)
    assert found["seen_up_to_hz"] < 0.7


@pytest.mark.long
def test_the_newest_sample_tells_its_time(gpus: Driver) -> None:
    found = gpus.read("nvml://0?mode=samples")
    assert found["watts"] in (200.0, 400.0)
    assert abs(found["at_s"] - time.time()) < 5.0

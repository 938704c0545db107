"""Power limits and clock locks of GPUs: nvidia-ml-py, as it is, on a small driver library."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
from nvml_driver import COMPILER, IGNORED, LOST, NO_PERMISSION, NOT_SUPPORTED, Driver

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(COMPILER is None, reason="no C compiler to build a driver with"),
]


UNCHANGED = "accepted-but-unchanged"


@pytest.fixture
def gpus(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


def ordered(gpus: Driver, *arguments: str) -> tuple[dict[str, Any], int]:
    """The last line of `knob set`, and its exit code."""
    with gpus.command("set", *arguments, of="knob") as process:
        said = process.communicate(timeout=30)[0]
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found, process.returncode


def test_a_limit_is_set_by_number_or_uuid_and_read_back(gpus: Driver) -> None:
    found, code = ordered(gpus, "nvml://0", "250W")
    assert (found["result"], found["read_back"], code) == ("took-effect", 250.0, 0)
    assert gpus.kept("limit0") == 250_000
    found, _ = ordered(gpus, "nvml://GPU-Second", "200W")
    assert (gpus.kept("limit0"), gpus.kept("limit1")) == (250_000, 200_000)


def test_a_limit_out_of_range_is_clamped(gpus: Driver) -> None:
    found, code = ordered(gpus, "nvml://0", "85W")
    assert (found["result"], found["requested"], found["read_back"]) == ("clamped", 85.0, 100.0)
    assert code == 1
    assert ordered(gpus, "nvml://0", "none")[0]["read_back"] == 350.0


@pytest.mark.parametrize(
    ("setters", "result", "trouble", "problem"),
    [
        (NO_PERMISSION, "refused", "refused", "CAP_SYS_ADMIN"),
        (NOT_SUPPORTED, "refused", "absent", "Not Supported"),
        (LOST, "unreachable", "unreachable", "lost"),
        (IGNORED, "accepted-but-unchanged", None, "still holds 300 W"),
    ],
)
def test_what_became_of_an_order_has_its_name(
    gpus: Driver, setters: int, result: str, trouble: str | None, problem: str
) -> None:
    gpus.setters(setters)
    found, code = ordered(gpus, "nvml://0?settle=0.2s", "250W")
    assert (found["result"], found["trouble"], code) == (result, trouble, 1)
    assert problem in found["problem"]


def test_a_hanging_driver_is_not_waited_for(gpus: Driver) -> None:
    gpus.say(300.0, delay_s=6.0)
    began_s = time.monotonic()
    found, _ = ordered(gpus, "nvml://0?timeout=0.3s", "250W")
    assert (found["result"], found["trouble"]) == ("unreachable", "timeout")
    assert time.monotonic() - began_s < 6.0


def test_a_clock_is_locked_and_unlocked(gpus: Driver) -> None:
    found, _ = ordered(gpus, "nvml-clock://GPU-Second", "1410MHz")
    assert (found["result"], found["unit"], found["read_back"]) == ("took-effect", "Hz", 1.41e9)
    assert gpus.kept("clock1") == 1410
    found, _ = ordered(gpus, "nvml-clock://GPU-Second", "none")
    assert found["result"] == "took-effect"
    assert gpus.kept("clock1") == 1980


def test_a_clock_that_stays_high_shows_the_lock_is_not_kept(gpus: Driver) -> None:
    gpus.setters(IGNORED)
    found, code = ordered(gpus, "nvml-clock://0?settle=0.2s", "1.2GHz")
    assert (found["result"], found["read_back"], code) == (UNCHANGED, 1.98e9, 1)


# --- for a while -----------------------------------------------------------------------------


def began(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["result"] == "took-effect"


@pytest.mark.long
def test_a_limit_for_a_while_is_put_back(gpus: Driver, tmp_path: Path) -> None:
    ordered(gpus, "nvml://0", "320W")
    found, code = ordered(gpus, "nvml://0", "200W", "--for", "0.2s", "--journals", str(tmp_path))
    assert (found["result"], found["read_back"], code) == ("took-effect", 320.0, 0)
    assert gpus.kept("limit0") == 320_000


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_puts_the_limit_back(gpus: Driver, tmp_path: Path, number: int) -> None:
    arguments = ["nvml://0", "200W", "--for", "60s", "--journals", str(tmp_path)]
    with gpus.command("set", *arguments, of="knob") as process:
        began(process)
        assert gpus.kept("limit0") == 200_000
        process.send_signal(number)
        process.communicate(timeout=30)
    assert gpus.kept("limit0") == 300_000


@pytest.mark.long
def test_after_a_kill_the_limit_is_put_back_by_restore(gpus: Driver, tmp_path: Path) -> None:
    arguments = ["nvml://1", "200W", "--for", "60s", "--journals", str(tmp_path)]
    with gpus.command("set", *arguments, of="knob") as process:
        began(process)
        with gpus.command("set", *arguments, of="knob") as second:
            assert second.communicate(timeout=30)[0] == ""  # one borrower at a time
        assert second.returncode == 2
        process.kill()
        process.communicate()
    assert gpus.kept("limit1") == 200_000
    with gpus.command("restore", "--journals", str(tmp_path), of="knob") as process:
        found = json.loads(process.communicate(timeout=30)[0])
    assert (found["knob"], found["read_back"], process.returncode) == ("nvml://1", 300.0, 0)
    assert gpus.kept("limit1") == 300_000


def test_a_limit_follows_its_gpu_when_numbers_move(gpus: Driver, tmp_path: Path) -> None:
    """The journal of a killed process names the GPU by UUID, whatever its number is by now."""
    arguments = ["nvml://1", "200W", "--for", "60s", "--journals", str(tmp_path)]
    with gpus.command("set", *arguments, of="knob") as process:
        began(process)
        process.kill()
        process.communicate()
    journal = next(tmp_path.glob("*.json"))
    journal.write_text(journal.read_text().replace("nvml://1", "nvml://0"))
    with gpus.command("restore", "--journals", str(tmp_path), of="knob") as process:
        process.communicate(timeout=30)
    assert (gpus.kept("limit0"), gpus.kept("limit1")) == (None, 300_000)


def test_probe_tells_limits_and_rights_and_sets_nothing(gpus: Driver) -> None:
    with gpus.command("probe", of="knob") as process:
        document = json.loads(process.communicate(timeout=30)[0])
    found = {knob["knob"]: knob for knob in document["knobs"]}
    limits = found["nvml://GPU-First"]
    assert [limits[name] for name in ("lowest", "highest", "default", "now")] == [
        100,
        350,
        300,
        300,
    ]
    assert isinstance(limits["may_set"], bool)
    assert gpus.kept("limit0") is None

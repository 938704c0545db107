"""AMD GPUs: the amdsmi package, as it is, on a small driver library built here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pynvml", reason="the libraries for meters are not installed")
from amdsmi_driver import (
    COMPILER,
    IGNORED,
    NO_DRIVER,
    NO_PERMISSION,
    NOT_SUPPORTED,
    AmdDriver,
    wrapper,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(COMPILER is None, reason="no C compiler to build a driver with"),
    pytest.mark.skipif(wrapper() is None, reason="amdsmi is not installed"),
]
SECOND = "00ff74a1-0000-1000-8002-000000000000"


@pytest.fixture
def gpus(tmp_path: Path) -> AmdDriver:
    return AmdDriver(tmp_path)


def said(gpus: AmdDriver, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "wattherd.cli.main", *arguments, "-o", "json"],
        env=gpus.environment, stdout=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_each_generation_tells_its_own_power(gpus: AmdDriver) -> None:
    first, second = (said(gpus, "meter", "read", f"amdsmi://{name}") for name in ("0", SECOND))
    assert (first["watts"], first["quality"]) == (420.0, "measured")
    assert (second["watts"], second["quality"]) == (750.0, "averaged")
    gpus.say("watts", 500)
    assert said(gpus, "meter", "read", "amdsmi://0")["watts"] == 500.0


@pytest.mark.parametrize(
    ("uri", "code", "trouble"),
    [
        ("amdsmi://2", 0, "absent"),
        ("amdsmi://0", NOT_SUPPORTED, "absent"),
        ("amdsmi://0", NO_PERMISSION, "refused"),
        ("amdsmi://0", NO_DRIVER, "unreachable"),
    ],
)
def test_errors_have_their_name(gpus: AmdDriver, uri: str, code: int, trouble: str) -> None:
    gpus.say("code", code)
    assert said(gpus, "meter", "read", uri)["trouble"] == trouble
    assert said(gpus, "knob", "read", uri)["trouble"] == trouble


def test_a_gpu_that_tells_no_power_has_no_reading(gpus: AmdDriver) -> None:
    gpus.say("watts", 0)
    assert said(gpus, "meter", "read", "amdsmi://0")["trouble"] == "absent"


@pytest.mark.long
def test_a_cap_is_set_by_number_or_uuid_and_clamped(gpus: AmdDriver) -> None:
    found = said(gpus, "knob", "set", "amdsmi://0", "550W")
    assert (found["result"], found["read_back"], gpus.kept(0)) == ("took-effect", 550, 550_000_000)
    found = said(gpus, "knob", "set", f"amdsmi://{SECOND}", "100W")
    assert (found["result"], found["read_back"], gpus.kept(1)) == ("clamped", 200, 200_000_000)


@pytest.mark.parametrize(
    ("setters", "result"),
    [(NO_PERMISSION, "refused"), (NO_DRIVER, "unreachable"), (IGNORED, "accepted-but-unchanged")],
)
def test_what_became_of_an_order_has_its_name(gpus: AmdDriver, setters: int, result: str) -> None:
    gpus.say("set", setters)
    found = said(gpus, "knob", "set", "amdsmi://0?settle=0.1s", "550W")
    assert found["result"] == result
    assert setters != NO_PERMISSION or "root" in found["problem"]


def test_a_cap_for_a_while_is_put_back(gpus: AmdDriver, tmp_path: Path) -> None:
    arguments = ["550W", "--for", "0.1s", "--journals", str(tmp_path / "j")]
    done = subprocess.run(
        [sys.executable, "-m", "wattherd.cli.main", "knob", "set", "amdsmi://1", *arguments],
        env=gpus.environment, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, gpus.kept(1)) == (0, 750_000_000)


def test_probe_finds_the_gpus(gpus: AmdDriver) -> None:
    found = said(gpus, "knob", "probe")["knobs"]
    mine = [one for one in found if one["knob"].startswith("amdsmi")]
    assert [(one["lowest"], one["highest"], one["default"]) for one in mine] == [
        (200, 750, 750)
    ] * 2

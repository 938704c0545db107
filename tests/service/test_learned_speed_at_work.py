"""A service learns from what real jobs report where they are fast, and sends the next one there."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from service.serving import Serving, until

pytestmark = pytest.mark.long

QUICK_S, SLOW_S = 0.05, 0.25
"""Seconds per step: on `west` and on `east`, which comes first by its name."""
PROGRAM = f"""
import json, os, time
step_s = {QUICK_S} if os.environ["WATTHERD_DEVICE_TYPE"] == "west" else {SLOW_S}
step, until_s = 0, time.monotonic() + float(os.environ.get("SECONDS", "1000"))
while time.monotonic() < until_s:
    time.sleep(step_s)
    step += 1
    with open(os.environ["WATTHERD_PROGRESS"], "a") as reports:
        reports.write(json.dumps({{"step": step, "rate_per_s": 1e6}}) + "\\n")
"""


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    (tmp_path / "train.py").write_text(PROGRAM)
    serving = Serving(
        tmp_path / "state", "--slots", "east=1,west=1", "--policy", "fifo-first-fit@fastest",
        "--allow-root-jobs",
    )  # fmt: skip
    serving.begin()
    serving.ready()
    yield serving
    serving.end()


def submitted(serving: Serving, folder: Path, seed: int, **more: Any) -> str:
    return serving.submit(f"{sys.executable} {folder / 'train.py'} --seed {seed}", **more)


def type_of(serving: Serving, job: str) -> str:
    until(lambda: serving.ask(f"jobs/{job}")["where"])
    return str(serving.ask(f"jobs/{job}")["where"][0]["node"].rpartition("-")[2])


def cancelled(serving: Serving, job: str) -> None:
    serving.ask(f"jobs/{job}/cancel", {})
    until(lambda: serving.state_of(job) == "Cancelled")


def learned(serving: Serving, job: str) -> dict[str, dict[str, Any]]:
    """What is expected of a job, by type of slots."""
    return {one["gpu_model"]: one for one in serving.ask(f"jobs/{job}")["speed"]["expected"]}


def test_a_job_goes_where_its_kind_was_seen_to_be_fastest_also_after_a_restart_and_compaction(
    serving: Serving, tmp_path: Path
) -> None:
    first = submitted(serving, tmp_path, 1)
    assert type_of(serving, first) == "east", "nothing is known: the first by name"
    assert {one["source"] for one in learned(serving, first).values()} <= {
        "stated",
        "taken for equal",
    }
    second = submitted(serving, tmp_path, 2)
    assert type_of(serving, second) == "west", "there is room nowhere else"
    until(lambda: learned(serving, second)["west"]["source"] == "learned from its kind")
    found = learned(serving, second)
    assert found["west"]["step_s"] == pytest.approx(QUICK_S, rel=0.5), "not the 1e-6 that it claims"
    assert found["west"]["times"] > 2

    serving.kill()
    serving.begin()
    serving.ready()
    cancelled(serving, first)
    cancelled(serving, second)
    serving.end_service()
    archive = ("--archive", str(tmp_path / "archive.jsonl.gz"))
    compacted = serving.store("compact", "--keep", "0s", *archive)
    assert compacted.returncode == 0, compacted.stderr
    left = json.loads(serving.store("info", "-o", "json").stdout)
    assert left["first_entry"] > 1, left
    serving.begin()
    serving.ready()
    other = submitted(serving, tmp_path, 3, kind="of-its-own")
    assert type_of(serving, other) == "east", "a kind of which nothing was learned"
    cancelled(serving, other)

    third = submitted(serving, tmp_path, 4)
    assert type_of(serving, third) == "west"
    words = serving.call("explain", third)
    assert "goes to the first of these with room: west" in words.stdout, words.stdout + words.stderr
    assert "learned from its kind (1 job)" in words.stdout
    assert "measured" in words.stdout
    assert serving.ask(f"jobs/{third}")["speed"]["kind"].endswith("train.py")
    shown = serving.call("show", third)
    assert "learned from its kind" in shown.stdout, shown.stdout + shown.stderr
    assert "UNCAPPED S" in shown.stdout
    page = urllib.request.urlopen(f"http://127.0.0.1:{serving.port}/jobs/{third}", timeout=20)
    with page:
        text = page.read().decode()
    assert "goes to the first of these with room: west" in text
    assert "s a step" in text
    assert serving.store("verify").returncode == 0

"""`serve --policy aiturbo` and ours on real programs: sound, unkind, under a killed service."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from service.serving import Serving, until

pytestmark = pytest.mark.long

PROGRAM = """
import json, os, sys, time
steps, way = int(sys.argv[1]), sys.argv[2]
width = int(os.environ["WATTHERD_DEVICES"])
kept = os.path.join(os.environ["WATTHERD_CHECKPOINT_DIR"], "step")
done = float(open(kept).read()) if os.path.exists(kept) else 0.0

def tells():
    if way == "silent":
        return []
    sound = {"step": done, "total": steps, "loss": 1 / (0.02 * done + 0.4) + 0.1}
    if way == "flat" or way == "scales":
        return [sound]
    unkind = {"step": done, "loss": float("nan"), "rate_per_s": 0.0, "total": float("nan")}
    if way == "burst":
        return [{"step": done + n / 1000, "total": done + 1, "at": -5.0} for n in range(200)]
    return [unkind]

def write(reports):
    with open(os.environ["WATTHERD_PROGRESS"], "a") as file:
        for one in reports:
            file.write(json.dumps(one) + "\\n")

while done < steps:
    time.sleep(0.1)
    done += 0.1 * (width if way == "scales" else 1) * 10
    write(tells())
    with open(kept + ".new", "w") as file:
        file.write(str(done))
    os.replace(kept + ".new", kept)
    try:
        asked = json.load(open(os.environ["WATTHERD_CONTROL"])).get("stop")
    except (OSError, ValueError):
        asked = None
    if asked:
        sys.exit(143)
"""


@pytest.fixture(params=["aiturbo", "wattherd"])
def serving(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Serving]:
    (tmp_path / "train.py").write_text(PROGRAM)
    serving = Serving(
        tmp_path / "state", "--slots", "4", "--policy", request.param, "--allow-root-jobs"
    )
    serving.begin()
    serving.ready()
    yield serving
    serving.end()


def submitted(serving: Serving, folder: Path, steps: int, way: str, **more: Any) -> str:
    command = f"{sys.executable} {folder / 'train.py'} {steps} {way}"
    return serving.submit(command, gpus=more.pop("gpus", 1), **more)


def held(serving: Serving, job: str) -> int:
    """Slots that it holds."""
    return sum(len(one["gpus"]) for one in serving.ask(f"jobs/{job}")["where"] or ())


def story(serving: Serving, job: str) -> str:
    return " | ".join(one["what"] for one in serving.ask(f"jobs/{job}")["story"])


def test_a_job_is_resized_by_what_it_reports_also_after_a_kill_and_unkind_ones_end(
    serving: Serving, tmp_path: Path
) -> None:
    wide = {"gpus": {"min": 1, "max": 4}, "checkpoint": {"grace": "10s"}}
    long = submitted(serving, tmp_path, 4000, "scales", **wide)
    until(lambda: held(serving, long) == 4, 60)
    until(lambda: serving.ask(f"jobs/{long}")["speed"]["measured"], 60)

    others = [submitted(serving, tmp_path, 60, way) for way in ("silent", "nan", "burst")]
    until(lambda: held(serving, long) == 1, 90)
    until(lambda: all(serving.state_of(one) != "Queued" for one in others), 60)
    # At once, or by a step between where a plan was made before all three had come.
    assert "resized from 4 to " in story(serving, long), story(serving, long)
    assert " to 1 GPUs" in story(serving, long), story(serving, long)
    assert "the total that it reports" in story(serving, long)

    serving.kill()
    serving.begin()
    serving.ready()
    assert serving.ask(f"jobs/{long}")["speed"]["measured"], "what was learned is still known"
    until(lambda: all(serving.state_of(one) == "Succeeded" for one in others), 120)
    until(lambda: held(serving, long) == 4, 90)
    serving.end_service()
    assert serving.store("verify").returncode == 0

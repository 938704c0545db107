"""`serve --policy gavel-max-min` on real programs and slots of two types, killed midway."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("scipy", reason="the extra `science` is not installed")

from service.serving import Serving, until

pytestmark = pytest.mark.long

PROGRAM = """
import json, os, sys, time
steps, gain, way = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
per_s = 10.0 * (gain if os.environ["WATTHERD_DEVICE_TYPE"] == "fast" else 1.0)
kept = os.path.join(os.environ["WATTHERD_CHECKPOINT_DIR"], "done")
done = float(open(kept).read()) if os.path.exists(kept) else 0.0
while done < steps:
    time.sleep(0.2)
    done += 0.2 * per_s
    told = {"step": done, "total": steps} if way == "sound" else {"step": float("nan")}
    with open(os.environ["WATTHERD_PROGRESS"], "a") as file:
        file.write(json.dumps(told) + "\\n")
    with open(kept + ".new", "w") as file:
        file.write(str(done))
    os.replace(kept + ".new", kept)
    try:
        if json.load(open(os.environ["WATTHERD_CONTROL"])).get("stop"):
            sys.exit(143)
    except (OSError, ValueError):
        pass
"""


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    (tmp_path / "train.py").write_text(PROGRAM)
    serving = Serving(
        tmp_path / "state", "--slots", "fast=1,slow=1", "--policy", "gavel-max-min",
        "--allow-root-jobs",
    )  # fmt: skip
    serving.begin()
    serving.ready()
    yield serving
    serving.end()


def submitted(serving: Serving, folder: Path, steps: int, gain: float, way: str) -> str:
    command = f"{sys.executable} {folder / 'train.py'} {steps} {gain} {way}"
    return serving.submit(command, checkpoint={"grace": "10s"})


def story(serving: Serving, job: str) -> str:
    return " | ".join(one["what"] for one in serving.ask(f"jobs/{job}")["story"])


def test_jobs_take_turns_on_two_types_by_what_they_report_also_after_a_kill(
    serving: Serving, tmp_path: Path
) -> None:
    jobs = [
        submitted(serving, tmp_path, 900, 4.0, "sound"),
        submitted(serving, tmp_path, 300, 1.0, "sound"),
        submitted(serving, tmp_path, 150, 1.0, "nan"),
    ]
    until(lambda: sum(serving.state_of(one) == "Running" for one in jobs) == 2, 60)
    told = " | ".join(story(serving, one) for one in jobs)
    assert "goes to fast; speeds: " in told, told
    until(lambda: any(serving.ask(f"jobs/{one}")["speed"]["measured"] for one in jobs), 60)
    serving.kill()
    serving.begin()
    serving.ready()
    until(lambda: all(serving.state_of(one) == "Succeeded" for one in jobs), 300)
    serving.end_service()
    verified = serving.store("verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr

"""`serve --policy pollux-climb` on real programs that tell their gradient noise, killed midway."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("numba", reason="the extra `fast` is not installed")

from service.serving import Serving, until

pytestmark = pytest.mark.long

PROGRAM = """
import json, os, sys, time
steps, way = float(sys.argv[1]), sys.argv[2]
width = int(os.environ["WATTHERD_DEVICES"])
kept = os.path.join(os.environ["WATTHERD_CHECKPOINT_DIR"], "done")
done = float(open(kept).read()) if os.path.exists(kept) else 0.0
while done < steps:
    time.sleep(0.2)
    done += 2.0  # a step takes as long at any width: its batch grows
    told = {"step": done, "total": steps, "batch": 32 * width, "noise_scale": 5e4}
    if way == "unkind":
        told = {"step": done, "batch": float("nan"), "noise_scale": -1}
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
        tmp_path / "state", "--slots", "4", "--policy", "pollux-climb", "--allow-root-jobs"
    )
    serving.begin()
    serving.ready()
    yield serving
    serving.end()


def submitted(serving: Serving, folder: Path, steps: float, way: str) -> str:
    command = f"{sys.executable} {folder / 'train.py'} {steps} {way}"
    wide: dict[str, Any] = {"gpus": {"min": 1, "max": 4}, "checkpoint": {"grace": "10s"}}
    return serving.submit(command, **wide)


def held(serving: Serving, job: str) -> int:
    """Slots that it holds."""
    return sum(len(one["gpus"]) for one in serving.ask(f"jobs/{job}")["where"] or ())


def story(serving: Serving, job: str) -> str:
    return " | ".join(one["what"] for one in serving.ask(f"jobs/{job}")["story"])


def test_a_job_grows_by_its_noise_and_gives_way_also_after_a_kill(
    serving: Serving, tmp_path: Path
) -> None:
    long = submitted(serving, tmp_path, 700, "sound")
    until(lambda: held(serving, long) == 4, 150)
    assert "gradient noise 50,000 samples, batch" in story(serving, long), story(serving, long)
    serving.kill()
    serving.begin()
    serving.ready()
    others = [submitted(serving, tmp_path, 100, way) for way in ("sound", "unkind")]
    until(lambda: all(serving.state_of(one) == "Running" for one in others), 60)
    assert held(serving, long) < 4
    until(lambda: all(serving.state_of(one) == "Succeeded" for one in (long, *others)), 300)
    serving.end_service()
    verified = serving.store("verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr

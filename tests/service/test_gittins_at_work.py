"""`serve --policy tiresias-gittins` on real programs, also under a service that is killed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from service.serving import Serving, until
from wattherd.estimate.learned_services import LEAST_JOBS

pytestmark = pytest.mark.long

PROGRAM = """
import json, os, sys, time
seconds = float(sys.argv[1])
kept = os.path.join(os.environ["WATTHERD_CHECKPOINT_DIR"], "done")
done = float(open(kept).read()) if os.path.exists(kept) else 0.0
while done < seconds:
    time.sleep(0.1)
    done += 0.1
    with open(os.environ["WATTHERD_PROGRESS"], "a") as file:
        file.write(json.dumps({"step": done}) + "\\n")
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
        tmp_path / "state", "--slots", "4", "--policy", "tiresias-gittins", "--allow-root-jobs"
    )
    serving.begin()
    serving.ready()
    yield serving
    serving.end()


def submitted(serving: Serving, folder: Path, seconds: float, gpus: int = 1) -> str:
    command = f"{sys.executable} {folder / 'train.py'} {seconds}"
    return serving.submit(command, gpus=gpus, checkpoint={"grace": "10s"})


def test_a_newcomer_passes_who_outlived_the_jobs_that_ended_here_also_after_a_kill(
    serving: Serving, tmp_path: Path
) -> None:
    past = [submitted(serving, tmp_path, 0.1) for _ in range(LEAST_JOBS)]
    words = serving.call("explain", past[-1])
    assert f"as tiresias until {LEAST_JOBS} jobs have succeeded" in words.stdout, words.stdout
    until(lambda: all(serving.state_of(one) == "Succeeded" for one in past), 120)

    long = submitted(serving, tmp_path, 400.0, gpus=4)
    until(lambda: serving.state_of(long) == "Running", 30)
    serving.kill()
    serving.begin()
    serving.ready()
    short = submitted(serving, tmp_path, 0.1)
    until(lambda: serving.state_of(short) == "Succeeded", 150)
    assert serving.state_of(long) != "Succeeded"
    story = " | ".join(one["what"] for one in serving.ask(f"jobs/{long}")["story"])
    assert "It is to save its state and stop" in story, story
    serving.end_service()
    verified = serving.store("verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr

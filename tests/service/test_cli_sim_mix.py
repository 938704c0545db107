"""`sim mix`, and parameter-server jobs under `sim run`, as a user meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

pytestmark = pytest.mark.long

WATTHERD = [sys.executable, "-m", "wattherd.cli.main"]
SMALL = ("sim", "mix", "--jobs", "8", "--gpus", "32", "--seed", "0", "--processes", "1")


def wattherd(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*WATTHERD, *arguments], capture_output=True, text=True, check=False)


def test_a_mix_sweep_prints_means_and_draws_lines(tmp_path: Path) -> None:
    plot = tmp_path / "mix.svg"
    done = wattherd(
        *SMALL, "--policy", "fifo,tiresias", "--unpredictable", "0,100", "--plot", str(plot),
        "-o", "json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "wattherd.mix/1"
    rows = document["means"]
    assert [(row["policy"], row["unpredictable"]) for row in rows] == [
        ("fifo", 0.0), ("tiresias", 0.0), ("fifo", 1.0), ("tiresias", 1.0),
    ]  # fmt: skip
    assert all(row["seeds"] == 1 and row["avg_jct_h"] > 0 for row in rows)
    assert rows[0]["avg_jct_h"] == rows[2]["avg_jct_h"]  # FIFO never looks at the loss
    assert len(document["runs"]) == 4
    assert ET.parse(plot).getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--unpredictable", "50,0"), "ascending"),
        (("--unpredictable", "0,120"), "ascending"),
        (("--unpredictable", "half"), "ascending"),
        (("--policy", "aitrubo"), "aiturbo"),
        (("--gpus", "12"), "whole nodes"),
        (("--unpredictable", "50", "--plot", "x.svg"), "two shares"),
    ],
)
def test_bad_sweeps_are_refused(arguments: tuple[str, ...], problem: str) -> None:
    done = wattherd(*SMALL, *arguments)
    assert done.returncode == 2
    assert problem in done.stderr
    assert "Traceback" not in done.stderr


COLUMNS = (
    "id", "model_name", "batch_size", "target_loss", "total_steps", "arrive_time", "ps_num",
    "worker_num", "gpu_num", "cpu_core_worker", "cpu_core_ps",
)  # fmt: skip
ROWS = (
    (1, "vgg19", 32, 0.3, 606, 0, 1, 2, 200, 5, 5),
    (2, "resnet50", 64, 0.4, 1501, 3, 2, 2, 200, 5, 5),
    (3, "alexnet", 1024, 0.3, 330, 7, 1, 1, 100, 5, 5),
)
LIST = "".join("\t".join(map(str, row)) + "\n" for row in (COLUMNS, *ROWS))


def test_a_job_list_runs_under_every_scheduler_of_its_preset(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.txt"
    jobs.write_text(LIST)
    done = wattherd(
        "sim", "run", "--format", "aiturbo", "--jobs", str(jobs), "--preset", "aiturbo-hpdc21",
        "--cluster", "1x4:P100", "--policy", "fifo,tiresias,optimus,aiturbo", "-o", "json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["policies"]
    assert [(row["policy"], row["finished"]) for row in rows] == [
        ("fifo", 3), ("tiresias", 3), ("optimus", 3), ("aiturbo", 3),
    ]  # fmt: skip
    assert all(row["energy_j"]["run"] > 0 for row in rows)


def test_another_workload_does_not_run_under_this_preset(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.txt"
    jobs.write_text(LIST.replace("vgg19", "vgg18"))
    done = wattherd(
        "sim", "run", "--format", "aiturbo", "--jobs", str(jobs), "--preset", "aiturbo-hpdc21",
        "--cluster", "1x4:P100",
    )  # fmt: skip
    assert done.returncode == 2
    assert "jobs.txt:2" in done.stderr
    assert "vgg1" in done.stderr

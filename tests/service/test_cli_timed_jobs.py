"""`sim run` on job files with durations, every scheduler side by side, as a user meets them."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from wattherd.cli.main import cli
from wattherd.experiments.schedule.ordered import MAKERS
from wattherd.experiments.schedule.simulators import PRESETS

pytestmark = pytest.mark.long

JOBS = """\
id,submit_s,gpus,duration_s,queue,priority,after
a,0,4,100,x,0,
b,1,8,50,y,1,
c,2,1,10,x,0,a
huge,3,64,10,x,0,
d,4,2,300,y,2,
"""


def wattherd(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "wattherd.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)


def sim_run(path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return wattherd("sim", "run", "--jobs", str(path), "--format", "native", "--cluster",
                    "2x4:T4", "--preset", "none", *more)  # fmt: skip


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS)
    return path


def test_every_scheduler_finishes_what_fits_and_rejects_what_never_could(
    jobs: Path, tmp_path: Path
) -> None:
    names = ",".join(["drf", "capacity", "hived", *MAKERS])
    done = sim_run(jobs, "--policy", names, "--out", str(tmp_path / "out"), "-o", "json")
    assert done.returncode == 0, done.stderr
    rows = {row["policy"]: row for row in json.loads(done.stdout)["policies"]}
    assert set(rows) == {"drf", "capacity", "hived", *MAKERS}
    for name in MAKERS:
        assert (rows[name]["finished"], rows[name]["rejected"]) == (4, 1), name
    with (tmp_path / "out" / "jobs-fifo.csv").open() as stream:
        by_id = {row["job"]: row for row in csv.DictReader(stream)}
    assert by_id["huge"]["state"] == "Rejected"
    assert float(by_id["a"]["finish_s"]) == 100.0
    assert float(by_id["c"]["start_s"]) >= 100.0, "c waits for a"


def test_under_a_budget_nothing_draws_more(jobs: Path) -> None:
    done = sim_run(jobs, "--policy", "srtf,fifo-backfill", "--budget", "500W", "-o", "json")
    assert done.returncode == 0, done.stderr
    for row in json.loads(done.stdout)["policies"]:
        assert row["over_budget_s"] == 0.0
        assert row["finished"] == 4


def test_presets_of_known_durations_have_all_orders() -> None:
    for name in ("none", "muri-sigcomm22", "tiresias-nsdi19", "pollux-osdi21"):
        assert set(MAKERS) <= set(PRESETS[name].schedulers), name


def test_a_job_without_a_duration_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("id,submit_s\na,0\n")
    done = sim_run(path, "--policy", "fifo")
    assert done.returncode == 2
    assert "job a: --preset: has no duration" in done.stderr


def test_bad_content_ends_in_one_line_and_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("id,submit_s,after\na,0,b\nb,1,a\n")
    done = sim_run(path, "--policy", "fifo")
    assert done.returncode == 2
    assert "jobs wait for each other: b after a after b" in done.stderr


def test_what_is_exempt_and_assumed_stands_beside_the_figures(tmp_path: Path) -> None:
    """A cut that nobody announced, and caps that are in force 5 s after it."""
    (tmp_path / "jobs.csv").write_text("id,submit_s,duration_s,gpus\na,0,100,4\n")
    scenario = tmp_path / "late.yaml"
    scenario.write_text(
        "policies: [fifo]\npreset: none\ncluster: 1x4:T4\njobs: {file: jobs.csv, format: native}\n"
        "budgets: ['0:280W,50s:260W']\ncaps: {delay: 5s, ahead: 0s}\n"
    )
    ran = CliRunner().invoke(cli, ["sim", "run", str(scenario), "--out", str(tmp_path / "o")])
    assert ran.exit_code == 0, ran.output
    assert "fifo: 5.0 s above the budget are exempt" in ran.stderr
    page = tmp_path / "page.html"
    told = CliRunner().invoke(cli, ["report", str(tmp_path / "o"), "--out", str(page)])
    assert told.exit_code == 0, told.output
    text = page.read_text()
    assert "fifo drew more than the budget for 5.0 s that are exempt" in text
    assert "A cap is in force 5.0 s after its order (caps.delay)." in text
    compared = CliRunner().invoke(cli, ["sim", "compare", str(scenario), "-o", "json"])
    assert "A cap is in force 5.0 s after its order" in compared.stdout
    assert "fifo (0:280W,50s:260W, water-filling): 5.0 s above the budget" in compared.stderr

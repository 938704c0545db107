"""`sim run`, `sim replay`, `sim compare` and `sim churn` as a user meets them."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

WATTHERD = [sys.executable, "-m", "wattherd.cli.main"]


def wattherd(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONHASHSEED": hash_seed}
    return subprocess.run(
        [*WATTHERD, *arguments], capture_output=True, text=True, check=False, env=env
    )


def run(suite: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return wattherd(
        "sim", "run", "--jobs", str(suite / "jobs.csv"), "--profiles", str(suite / "profiles"),
        "--cluster", "2x4:T4", *more,
    )  # fmt: skip


def test_a_budgeted_run_finishes_every_job_and_never_exceeds_the_budget(
    suite: Path, tmp_path: Path
) -> None:
    done = run(suite, "--budget", "0:560W,10m:490W", "--out", str(tmp_path), "-o", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "wattherd.sim/1"
    (row,) = document["policies"]
    assert (row["jobs"], row["finished"], row["over_budget_s"]) == (12, 12, 0.0)
    assert set(row["energy_j"]) == {"run", "idle", "wake", "wasted"}
    with (tmp_path / "jobs-tiresias.csv").open() as file:
        jobs = list(csv.DictReader(file))
    assert {"job", "submit_s", "start_s", "finish_s", "jct_s", "energy_j", "restarts"} <= set(
        jobs[0]
    )
    assert row["avg_jct_s"] == pytest.approx(sum(float(job["jct_s"]) for job in jobs) / 12)
    total = sum(float(job["energy_j"]) for job in jobs)
    assert total == pytest.approx(row["energy_j"]["run"] + row["energy_j"]["wasted"], rel=0.02)


def test_a_budget_nobody_reaches_changes_no_completion_time(suite: Path) -> None:
    rows = [
        json.loads(run(suite, *more, "-o", "json").stdout)["policies"][0]
        for more in ((), ("--budget", "100kW"))
    ]
    assert rows[0]["avg_jct_s"] == rows[1]["avg_jct_s"]
    assert rows[0]["energy_j"] == rows[1]["energy_j"]


def test_a_log_replays_to_the_same_commands_under_another_hash_seed(
    suite: Path, tmp_path: Path
) -> None:
    run(suite, "--budget", "500W", "--out", str(tmp_path), "--log")
    again = wattherd("sim", "replay", str(tmp_path), hash_seed="4711")
    assert again.returncode == 0, again.stderr
    assert again.stdout.rstrip().endswith("same")


def test_a_changed_log_is_found_out(suite: Path, tmp_path: Path) -> None:
    import gzip

    run(suite, "--out", str(tmp_path), "--log")
    path = tmp_path / "log-tiresias.jsonl.gz"
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    kept = [line for line in lines if '"job-3"' not in line]  # one job never came
    path.write_bytes(gzip.compress("\n".join(kept).encode()))
    again = wattherd("sim", "replay", str(tmp_path))
    assert (again.returncode, "DIFFERENT" in again.stdout) == (1, True)


def test_compare_marks_only_runs_that_finished_everything(suite: Path, tmp_path: Path) -> None:
    done = wattherd(
        "sim", "compare", str(suite / "scenario.yaml"), "--out", str(tmp_path), "-o", "json"
    )
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert [(one["budget"] is None, one["power"]) for one in runs] == [
        (True, None), (False, "water-filling"), (False, "pause")]  # fmt: skip
    assert all(one["finished"] == one["jobs"] for one in runs if one["on_front"])
    assert any(one["on_front"] for one in runs)
    assert (tmp_path / "pareto.svg").read_text().startswith("<?xml")


BAD = {
    "an unknown policy": (["--policy", "tiresia"], "did you mean 'tiresias'"),
    "an unknown GPU": (["--cluster", "2x4:T5"], "unknown GPU 'T5'"),
    "a cluster of no form": (["--cluster", "lots"], "is no group of nodes"),
    "a budget in no unit": (["--budget", "40kg"], "is no power"),
    "a budget that goes back in time": (["--budget", "2h:1kW,1h:2kW"], "do not ascend"),
    "an unknown preset": (["--preset", "pollux"], "unknown preset"),
    "an unknown format": (["--format", "polux"], "did you mean 'pollux'"),
    "a log without a place": (["--log"], "--log needs --out"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_in_one_line(suite: Path, case: str) -> None:
    arguments, expected = BAD[case]
    done = run(suite, *arguments)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert expected in done.stderr
    assert "hint:" in done.stderr


def test_a_job_wider_than_the_cluster_is_rejected_and_counted(suite: Path) -> None:
    done = run(suite, "--cluster", "1x2:T4", "-o", "json")
    (row,) = json.loads(done.stdout)["policies"]
    assert row["rejected"] + row["finished"] == 12
    assert row["rejected"] > 0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("polices=[x]", "did you mean 'policies'"),
        ("policies=[]", "policies"),
        ("cluster=", "cluster"),
        ("nonsense", "is no change"),
    ],
)
def test_a_bad_scenario_names_the_field(suite: Path, change: str, expected: str) -> None:
    done = wattherd("sim", "compare", str(suite / "scenario.yaml"), "--set", change)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert expected in done.stderr


def test_the_published_schema_is_that_of_the_code() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "scenario.schema.json"
    assert page.read_text() == wattherd("sim", "schema").stdout


def test_churn_averages_over_time(tmp_path: Path) -> None:
    made = wattherd("traces", "generate", "--nodes", "30", "--seed", "1", "--out", str(tmp_path))
    assert made.returncode == 0, made.stderr
    files = ["--nodes", str(tmp_path / "nodes.csv"), "--pods", str(tmp_path / "pods.csv")]
    more = ["--policy", "fgd,best-fit", "--load", "0.7", "--arrivals", "500", "-o", "json"]
    done = wattherd("sim", "churn", *files, *more)
    assert done.returncode == 0, done.stderr
    for row in json.loads(done.stdout)["runs"]:
        assert 0 < row["allocated_pct"] <= 100
        assert 0 <= row["admitted_gpu_time_pct"] <= 100
        assert row["power_w"] > 0


def test_an_error_of_a_scenario_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    for text, line, field in (
        ("cluster: 1x8:V100M16\njobs:\n  file: jobs.csv\n  seed: many\n", 4, "jobs.seed"),
        ("cluster: 1x8:V100M16\njobs: {file: jobs.csv}\npolicys: [fifo]\n", 3, "policys"),
        ("cluster: 1x8:V100M16\njobs: {file: jobs.csv}\ncaps:\n  dealy: 5s\n", 4, "dealy"),
    ):
        file.write_text(text)
        told = wattherd("sim", "run", str(file))
        assert told.returncode == 2
        assert f"scenario.yaml:{line}: " in told.stderr
        assert field.rpartition(".")[2] in told.stderr

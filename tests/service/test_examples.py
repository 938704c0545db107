"""Every file in `examples` is run by a test: here, or where the table says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import docs_commands as docs

EXAMPLES = docs.REPOSITORY / "examples"
TESTS = docs.REPOSITORY / "tests"
RUN_BY = {
    "learn/scheduler.py": "unit/test_schedule_env.py",
    "learn/sb3_scheduler.py": "service/test_sb3_example.py",
    "pollux-budget.yaml": "service/test_examples.py",
    "three-gpu-types/scenario.yaml": "unit/test_fastest_model.py",
    "train/mlp.py": "service/test_training_jobs.py",
    "train/cnn.py": "service/test_training_jobs.py",
    "train/attention.py": "service/test_training_jobs.py",
    "train/mlp.yaml": "service/test_examples.py",
    "train/torch_mlp.py": "service/test_torch_jobs.py",
    "train/torch_cnn.py": "service/test_torch_jobs.py",
    "train/torch_transformer.py": "service/test_torch_jobs.py",
}
IMPORTED = {"train/numpy_training.py", "train/torch_training.py"}
"""By the programs beside them."""


def wattherd(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "wattherd.cli.main", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
    ).stdout


def test_no_example_is_left_out() -> None:
    found = {
        str(one.relative_to(EXAMPLES))
        for kind in ("*.py", "*.yaml")
        for one in EXAMPLES.rglob(kind)
        if "checkpoint" not in one.parts
        and one.parts[len(EXAMPLES.parts)] != "plugin"  # by tests/service/test_plugins.py, whole
    }
    assert found == set(RUN_BY) | IMPORTED
    for example, test in RUN_BY.items():
        assert Path(example).stem in (TESTS / test).read_text(encoding="utf-8"), example


@pytest.mark.long
def test_the_job_file_is_one_and_runs_its_program() -> None:
    from wattherd.workload.job_file import read_job

    job = read_job(EXAMPLES / "train" / "mlp.yaml")
    spec = job.spec(user="ann")
    assert job.workdir == str(EXAMPLES / "train")
    assert "mlp.py" in " ".join(spec.roles[0].command)


@pytest.mark.long
def test_the_scenario_is_run(tmp_path: Path, traces: Path) -> None:
    os.environ.setdefault("WATTHERD_DATA", str(traces.parent))
    scenario = str(EXAMPLES / "pollux-budget.yaml")
    told = wattherd(
        tmp_path, "sim", "compare", scenario,
        "--policy", "srtf", "--set", "power=[uniform]", "-o", "json",
    )  # fmt: skip
    rows = json.loads(told)["runs"]
    assert len(rows) == 3
    assert all(row["over_budget_s"] == 0 for row in rows)

"""The demonstration itself, with short trainings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from wattherd.local import run_dir

pytestmark = pytest.mark.long

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

REPOSITORY = Path(__file__).resolve().parents[2]
SDK = str(REPOSITORY / "sdk" / "src")
MOST_S = 400


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((SDK, os.environ.get("PYTHONPATH", "")))
    return subprocess.run(
        [sys.executable, "-m", "wattherd.cli.main", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=MOST_S,
        check=False,
    )


def test_it_trains_under_its_budget_and_leaves_a_page(tmp_path: Path) -> None:
    done = run("demo", "--out", str(tmp_path), "--scale", "0.05")
    assert done.returncode == 0, done.stderr
    assert re.search(r"dashboard: http://127\.0\.0\.1:\d+/", done.stderr)
    assert "budget cut by 25%" in done.stderr
    assert "budget raised again" in done.stderr
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<td>Succeeded</td>") == 6
    assert "estimated" in page
    assert 'class="ceiling"' in page


def test_trainings_that_do_not_finish_are_told_and_ended(tmp_path: Path) -> None:
    done = run("demo", "--out", str(tmp_path), "--scale", "1000", "--limit", "3")
    assert done.returncode == 1, done.stderr
    assert "mlp-0 is Running" in done.stderr
    runs = list(tmp_path.glob("state/jobs/*/run-*"))
    assert any((folder / run_dir.EXIT).exists() for folder in runs)
    for (
        folder
    ) in runs:  # the room of one that ended may be taken by another before that is cancelled
        forestalled = run_dir.read(folder / run_dir.BEGUN) == run_dir.NOBODY
        assert forestalled or run_dir.read(folder / run_dir.EXIT), folder


def test_a_folder_without_trainings_is_refused(tmp_path: Path) -> None:
    done = run("demo", "--out", str(tmp_path), "--programs", str(tmp_path))
    assert done.returncode == 2
    assert "--programs" in done.stderr


def test_a_page_needs_a_store(tmp_path: Path) -> None:
    done = run("report", "--state", str(tmp_path))
    assert done.returncode == 2
    assert "holds no store" in done.stderr


def test_ten_elastic_trainings_under_three_schedulers_make_one_report(tmp_path: Path) -> None:
    done = run("demo", "--adaptive", "--out", str(tmp_path), "--scale", "0.03", "--limit", "100")
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert done.returncode == 0, done.stderr + report
    rows = re.findall(
        r"^\| (\w+) \| [\d.]+ s \| [\d.]+ \| [\d.]+ \| (\d+) of 10 \|", report, re.MULTILINE
    )
    assert rows == [("fifo", "10"), ("aiturbo", "10"), ("wattherd", "10")], report
    for policy in ("fifo", "aiturbo", "wattherd"):
        assert f"## {policy}: who was resized, when and why" in report
        assert (tmp_path / policy / "report.html").is_file()

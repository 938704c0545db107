"""A budget under which queued jobs can never run is answered at once, with numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from test_live_site import Service

WATTHERD = (sys.executable, "-m", "wattherd.cli.main")


def wattherd(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*WATTHERD, *arguments], capture_output=True, text=True, timeout=60, check=False, cwd=cwd
    )


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    one = Service.begin(tmp_path / "state", "--budget", "0.5W")
    yield one
    one.process.terminate()
    one.process.wait(20)
    one.process.stderr.close()  # type: ignore[union-attr]


def said(service: Service, *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [*WATTHERD, *arguments], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "WATTHERD_SERVER": service.url},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.long
def test_power_set_and_submit_say_what_a_budget_can_never_power(service: Service) -> None:
    code, out, err = said(service, "submit", "-g", "2", "--", "true")
    assert code == 0
    job = out.strip()
    assert f"note: {job} waits: NeverFits: asked" in err
    assert "available 0.5 W" in err
    code, out, _ = said(service, "power", "set", "0.01W")
    assert code == 0
    assert "the budget of 0.01 W is below the" in out
    assert f"1 of 1 waiting job can never run: {job} needs at least" in out
    code, out, err = said(service, "power", "set", "10mW")
    assert code == 2
    assert "milliwatts or megawatts" in err
    assert "write 0.01W or 10MW" in err
    code, out, _ = said(service, "power", "set", "none")
    assert (code, "note" in out) == (0, False)
    code, out, _ = said(service, "run", "--", "true")
    assert code == 0
    document = json.loads(said(service, "show", job, "-o", "json")[1])
    assert document["state"] == "Succeeded", "it is planned again once the budget lets it run"


@pytest.mark.long
def test_explain_says_who_holds_what_and_shows_the_last_lines_of_a_failure(
    service: Service,
) -> None:
    assert said(service, "power", "set", "none")[0] == 0
    code, out, _ = said(service, "submit", "-g", "2", "-t", "10m", "--", "sleep", "300")
    holder = out.strip()
    service.until(holder, "Running")
    waits = said(service, "submit", "-g", "2", "--", "true")[1].strip()
    code, out, _ = said(service, "explain", waits)
    assert code == 0
    assert f"{holder} holds 2 GPUs" in out
    assert "(by its time limit)" in out
    assert said(service, "cancel", holder, waits)[0] == 0
    failed = said(service, "run", "--", "sh", "-c", "echo first; echo out of memory >&2; exit 7")
    assert failed[0] == 1
    name = failed[2].split()[0]
    out = said(service, "explain", name)[1]
    assert "| first" in out
    assert "| out of memory" in out
    assert "Woke" not in out
    assert "JobExited" not in out


@pytest.mark.parametrize("arguments", [("submit", "-t", "12", "--", "true")])
def test_a_time_without_a_unit_is_asked_back(arguments: tuple[str, ...]) -> None:
    done = wattherd(*arguments)
    assert done.returncode == 2
    assert "12s, 12m or 12h" in done.stderr


def jobs_file(folder: Path, sizes: list[int]) -> Path:
    lines = [f"job-{n},{n},{gpus},60" for n, gpus in enumerate(sizes)]
    path = folder / "jobs.csv"
    path.write_text("\n".join(["id,submit_s,gpus,duration_s", *lines, ""]))
    return path


def sim(jobs: Path, *options: str) -> subprocess.CompletedProcess[str]:
    common = ("--format", "native", "--preset", "none", "--cluster", "2x4:T4", "--policy", "fifo")
    return wattherd("sim", "run", "--jobs", str(jobs), *common, *options)


@pytest.mark.long
def test_a_simulation_says_before_and_after_what_never_runs(tmp_path: Path) -> None:
    jobs = jobs_file(tmp_path, [1, 8, 1, 1])
    done = sim(jobs, "--budget", "300W", "-o", "json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["policies"][0]["finished"] == 3
    before, _, after = done.stderr.partition("fifo: 1 of 4 jobs unfinished")
    assert "1 of 4 jobs can never run: job-1 needs at least 480 W; the budget is 300 W" in before
    assert "fifo: 1 unfinished as job-1: NeverFits: asked 480 W, available 300 W" in after
    dark = sim(jobs, "--budget", "20W")
    assert dark.returncode == 1
    assert "the budget of 20 W is below the 80 W that its nodes draw idle" in dark.stderr
    assert "4 of 4 jobs can never run" in dark.stderr
    vague = sim(jobs, "--budget", "20")
    assert vague.returncode == 2
    assert "write 20W or 20kW" in vague.stderr


@pytest.mark.long
def test_a_comparison_names_the_jobs_that_each_run_left_unfinished(tmp_path: Path) -> None:
    jobs = jobs_file(tmp_path, [1, 8, 1, 1])
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(
        f"cluster: 2x4:T4\njobs: {{file: {jobs}, format: native}}\npreset: none\n"
        "policies: [fifo, fifo-first-fit]\nbudgets: [300W, 600W]\n"
    )
    done = wattherd("sim", "compare", str(scenario))
    for policy in ("fifo", "fifo-first-fit"):
        assert f"{policy} (300W, " in done.stderr
        assert "): 1 unfinished as job-1: NeverFits: asked 480 W, available 300 W" in done.stderr
    assert "600W" not in done.stderr


@pytest.mark.long
def test_steps_that_rise_let_it_run_and_nothing_is_said(tmp_path: Path) -> None:
    done = sim(jobs_file(tmp_path, [1, 8, 1, 1]), "--budget", "0:300W,10m:600W")
    assert done.returncode == 0
    assert "never" not in done.stderr
    assert "unfinished" not in done.stderr


@pytest.mark.long
def test_a_branch_below_its_idle_draw_is_named(tmp_path: Path) -> None:
    jobs = jobs_file(tmp_path, [1, 8])
    tree = tmp_path / "tree.yaml"
    tree.write_text(
        "name: site\nchildren:\n"
        "- {name: rack-a, budget: 20W, nodes: [node-00000]}\n"
        "- {name: rack-b, nodes: [node-00001]}\n"
    )
    done = sim(jobs, "--tree", str(tree))
    assert done.returncode == 1
    assert "the budget of rack-a of 20 W is below the 40 W that its nodes draw idle" in done.stderr
    assert "1 of 2 jobs can never run: job-1 needs at least" in done.stderr
    assert "at rack-a" in done.stderr

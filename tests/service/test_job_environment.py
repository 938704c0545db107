"""The shell's environment on its way: command line, service, task; and nowhere else."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from service.serving import Serving, until

pytestmark = pytest.mark.long

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs jobs as other users")
SHOWN = "env | sort"
HIDDEN = "only-the-job-knows"


@pytest.fixture
def service() -> Iterator[Serving]:
    with tempfile.TemporaryDirectory() as name:  # other users must pass it
        Path(name).chmod(0o755)
        service = Serving(Path(name) / "state")
        service.begin()
        try:
            service.ready()
            yield service
        finally:
            service.end()


def printed(service: Serving, *options: str, **shell: str) -> dict[str, str]:
    """The environment of a job that is submitted from a shell with these variables, too."""
    done = service.call("run", *options, "--", "sh", "-c", SHOWN, **shell)
    assert done.returncode == 0, done.stderr
    return dict(line.partition("=")[::2] for line in done.stdout.splitlines() if "=" in line)


def test_an_activated_environment_counts_and_secrets_stay_behind(
    service: Serving, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mine").write_text("#!/bin/sh\necho mine\n")
    (tmp_path / "bin" / "mine").chmod(0o755)
    shell = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "VIRTUAL_ENV": str(tmp_path)}
    assert service.call("run", "--", "mine", **shell).stdout == "mine\n"
    found = printed(
        service, **shell, HF_TOKEN="t", WATTHERD_JOB_ID="j-99", HOME="/theirs", USER="them",
        SSH_AUTH_SOCK="/s", CUDA_VISIBLE_DEVICES="7", XDG_RUNTIME_DIR="/run/user/7",
    )  # fmt: skip
    assert found["VIRTUAL_ENV"] == str(tmp_path)
    assert found["HOME"] == os.environ["HOME"]
    assert found["WATTHERD_JOB_ID"] != "j-99"
    assert found.get("CUDA_VISIBLE_DEVICES", "") != "7"
    assert not {"HF_TOKEN", "SSH_AUTH_SOCK"} & found.keys()
    assert "theirs" not in found.values()
    assert found.get("XDG_RUNTIME_DIR") != "/run/user/7"


def test_libraries_of_ours_do_not_set_what_the_shell_did_not(service: Serving) -> None:
    """The command line limits its own BLAS; trainings are not to inherit that."""
    shell = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS")}
    done = _in(shell, service, "run", "--", "sh", "-c", SHOWN)
    assert "OPENBLAS_NUM_THREADS=" not in done


def _in(shell: dict[str, str], service: Serving, *arguments: str) -> str:
    env = {**shell, "WATTHERD_SERVER": f"http://127.0.0.1:{service.port}"}
    return subprocess.run(
        [sys.executable, "-m", "wattherd.cli.main", *arguments],
        env=env, capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip


def test_none_is_the_services_and_names_are_taken_alone(service: Serving) -> None:
    shell = {"MINE": "1", "HF_TOKEN": "t", "OTHER": "2"}
    assert not shell.keys() & printed(service, "--export", "NONE", **shell).keys()
    found = printed(service, "--export", "HF_TOKEN,A=1", "-e", "A=2", **shell)
    assert (found["HF_TOKEN"], found["A"]) == ("t", "2")
    assert "OTHER" not in found


def test_the_job_file_says_so_too_and_the_command_line_wins(
    service: Serving, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"run: {SHOWN}\nexport: [MINE, 'B=1,2']\n")
    found = _lines(service.call("run", "-f", str(file), MINE="1", OTHER="2").stdout)
    assert {"MINE=1", "B=1,2"} <= found
    assert "OTHER=2" not in found
    found = _lines(service.call("run", "-f", str(file), "--export", "OTHER", OTHER="2").stdout)
    assert "OTHER=2" in found
    assert "B=1,2" not in found
    done = service.call("submit", str(file), "--export", "ABSENT")
    assert done.returncode == 2
    assert "ABSENT" in done.stderr


def _lines(text: str) -> set[str]:
    return set(text.splitlines())


def test_nobody_is_shown_what_is_in_it(service: Serving) -> None:
    done = service.call("submit", "-n", "hides", "--", "true", MINE=HIDDEN)
    job_id = done.stdout.strip()
    service.wait_for(job_id, "Succeeded")
    told = service.ask(f"jobs/{job_id}")
    assert "MINE" in told["spec"]["environment"]
    for path in ("jobs", f"jobs/{job_id}", f"jobs/{job_id}/explain", "jobs?over=true", "audit"):
        assert HIDDEN not in json.dumps(service.ask(path)), path
    for command in ("history", "audit"):
        assert HIDDEN not in service.call(command, "-o", "json").stdout
    assert HIDDEN not in service.call("show", job_id, "-o", "json").stdout
    assert HIDDEN not in service.errors.read_text()


def test_a_job_keeps_it_over_runs_and_lives_of_the_service(service: Serving) -> None:
    job = ("sh", "-c", 'echo "mine: $MINE"; sleep 600')
    job_id = service.call("submit", "--", *job, MINE="1").stdout.strip()
    service.wait_for(job_id, "Running")
    service.call("pause", job_id)
    service.wait_for(job_id, "Paused")
    service.kill()
    service.begin()
    service.ready()
    service.call("resume", job_id)
    service.wait_for(job_id, "Running")
    log = service.state / "jobs" / job_id / "run-2" / "logs" / "0.log"
    _until_there(log, "mine: 1")
    service.call("cancel", job_id)


def _until_there(path: Path, text: str) -> None:
    until(lambda: path.exists() and text in path.read_text())


@needs_root
def test_another_account_is_its_own_whoever_submits(service: Serving) -> None:
    job = {
        "run": "env",
        "user": "nobody",
        "environment": {"variables": {"HOME": "/root", "USER": "root", "MINE": "1"}},
    }
    job_id = service.ask("jobs", job)["id"]
    service.wait_for(job_id, "Succeeded")
    found = _lines(service.call("logs", job_id).stdout)
    assert {"USER=nobody", "LOGNAME=nobody", f"HOME={pwd.getpwnam('nobody').pw_dir}"} <= found
    assert "MINE=1" in found


def test_over_the_api_the_word_export_is_refused_with_what_to_send(service: Serving) -> None:
    told = service.ask("jobs", {"run": "true", "export": "ALL"})
    assert told["field"] == "export"
    assert "environment" in told["hint"]
    assert "id" in service.ask("jobs", {"run": "true", "export": "NONE"})


def test_what_is_of_another_machine_is_left_there(service: Serving) -> None:
    sent = {"machine": "elsewhere", "variables": {"MINE": "1"}}
    job_id = service.ask("jobs", {"run": "env", "environment": sent})["id"]
    service.wait_for(job_id, "Succeeded")
    assert "MINE=1" not in _lines(service.call("logs", job_id).stdout)
    assert service.ask(f"jobs/{job_id}")["spec"]["environment"] == []

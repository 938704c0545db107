"""A live site from the outside: a real service, its command line, real jobs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from wattherd.library.client import Client
from wattherd.local.orphans import end_stray

pytestmark = pytest.mark.long

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
WATTHERD = (sys.executable, "-m", "wattherd.cli.main")
MOST_S = 30.0


@dataclass
class Service:
    """A service on a free port, and its command line."""

    state: Path
    process: subprocess.Popen[str]
    url: str

    @classmethod
    def begin(cls, state: Path, *options: str) -> Service:
        process = subprocess.Popen(
            [*WATTHERD, "serve", "--state", str(state), "--port", "0", "--slots", "2", *options],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://\S+", line)
        assert found, line + process.stderr.read()
        return cls(state, process, found[0])

    def call(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [*WATTHERD, *arguments],
            env={**os.environ, "WATTHERD_SERVER": self.url},
            capture_output=True,
            text=True,
            timeout=MOST_S,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout if code in (0, 1) else done.stderr

    def job(self, job_id: str) -> Any:
        return Client(self.url).get(f"jobs/{job_id}")

    def until(self, job_id: str, state: str) -> Any:
        end_s = time.monotonic() + MOST_S
        while (job := self.job(job_id))["state"] != state:
            assert time.monotonic() < end_s, job
            time.sleep(0.1)
        return job

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(MOST_S)
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service.begin(tmp_path / "state")
    yield service
    service.end()
    for folder in (tmp_path / "state").glob("jobs/*/run-*"):
        end_stray(folder)


def test_run_shows_what_the_job_prints_and_ends_as_it_does(service: Service) -> None:
    assert service.call("run", "--", "sh", "-c", "echo one; sleep 0.3; echo two") == "one\ntwo\n"
    service.call("run", "--", "false", code=1)


def test_a_job_file_is_run_beside_it(service: Service, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: here\nrun: ls *.yaml; echo $A\nenvs: {A: 1}\n")
    job_id = service.call("submit", str(tmp_path / "job.yaml")).strip()
    assert service.until(job_id, "Succeeded")["name"] == "here"
    assert service.call("logs", job_id) == "job.yaml\n1\n"


def test_what_does_not_fit_waits_and_says_why(service: Service) -> None:
    first = service.call("submit", "--", "sleep", "60").strip()
    second = service.call("submit", "-g", "2", "--", "true").strip()
    told = service.call("explain", second)
    assert "#1 in queue" in told
    assert "WaitingForGpus" in told
    assert "would fit now with `gpus: 1`" in told
    service.call("cancel", first)
    service.until(first, "Cancelled")
    service.until(second, "Succeeded")


def test_a_shorter_time_is_named_where_it_would_help(service: Service, tmp_path: Path) -> None:
    """One slot is free, and reserved for a job that needs both once the first is over."""

    def submitted(run: str, expected: str = "", gpus: int = 1) -> str:
        file = tmp_path / "job.yaml"
        file.write_text(f"run: {run}\ngpus: {gpus}\n")
        if expected:
            file.write_text(f"{file.read_text()}time: {{expected: {expected}}}\n")
        return service.call("submit", str(file)).strip()

    first = submitted("sleep 80", "90s")
    service.until(first, "Running")
    both, long = submitted("'true'", "1h", 2), submitted("'true'", "10min")
    told = service.call("explain", long)
    (most_s,) = re.findall(r"would fit now if it took (\d+) s at most", told)
    assert 30 < int(most_s) <= 90
    assert "at most" not in service.call("explain", both)
    service.until(submitted("'true'", "10s"), "Succeeded")
    assert service.job(both)["state"] == service.job(long)["state"] == "Queued"
    service.call("cancel", first)
    service.until(both, "Succeeded")


def test_what_can_never_run_is_refused_with_numbers(service: Service) -> None:
    job = service.job(service.call("submit", "-g", "9", "--", "true", code=1).strip())
    assert job["state"] == "Failed"
    assert "asked 9" in job["reason"]["text"]


def test_a_dry_run_changes_nothing(service: Service, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("run: 'true'\ntime: {expected: 1h}\n")
    told = json.loads(service.call("submit", str(tmp_path / "job.yaml"), "--dry-run", "-o", "json"))
    (chosen,) = [one for one in told["candidates"] if one["chosen"]]
    assert (chosen["start"], chosen["slowdown"], chosen["time_s"]) == ("now", 1.0, 3600.0)
    assert chosen["energy_j"] == pytest.approx(3600.0 * chosen["cap_w"])
    assert json.loads(service.call("queue", "-A", "-o", "json"))["jobs"] == []


def test_a_budget_that_is_cut_caps_what_runs(service: Service) -> None:
    job_id = service.call("submit", "--", "sh", "-c", "while :; do :; done").strip()
    service.until(job_id, "Running")
    most_w = Client(service.url).get("nodes")["gpu_max_w"]
    service.call("power", "set", f"{1.5 * most_w}W")
    end_s = time.monotonic() + MOST_S
    while (job := service.job(job_id))["cap_w"] is None:
        assert time.monotonic() < end_s
    assert 0 < job["cap_w"] < 1.5 * most_w
    power = Client(service.url).get("power")
    assert power["budget_w"] == 1.5 * most_w
    assert power["stated"] == "model"
    service.call("cancel", job_id)


def test_a_service_that_is_killed_loses_nothing(service: Service, tmp_path: Path) -> None:
    job_id = service.call("submit", "--", "sh", "-c", "sleep 6; echo done").strip()
    waiting = service.call("submit", "-g", "2", "--", "echo", "later").strip()
    service.until(job_id, "Running")
    service.process.kill()
    service.process.wait()
    assert "no answer" in service.call("queue", code=4)
    again = Service.begin(service.state)
    again.until(waiting, "Succeeded")
    assert again.job(job_id)["attempts"] == 1
    assert again.call("logs", job_id) == "done\n"
    again.end()


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (("show", "j-99"), 3, ["j-99", "hint:"]),
        (("submit",), 2, ["nothing to run", "hint:"]),
        (("submit", "-g", "x", "--", "true"), 2, ["--gpus", "hint:"]),
        (("power", "set", "lots"), 2, ["lots", "hint:"]),
        (("submit", "-q", "nowhere", "-p", "urgent", "--", "true"), 2, ["priority"]),
    ],
)
def test_what_makes_no_sense_is_one_line(
    service: Service, arguments: tuple[str, ...], code: int, parts: list[str]
) -> None:
    told = service.call(*arguments, code=code).strip()
    assert told.startswith("wattherd: error: ")
    assert len(told.splitlines()) == 1
    for part in parts:
        assert part in told


def test_a_second_service_on_the_port_is_refused(service: Service, tmp_path: Path) -> None:
    port = service.url.rpartition(":")[2]
    told = service.call("serve", "--state", str(tmp_path / "other"), "--port", port, code=2)
    assert "cannot listen" in told
    assert "hint:" in told

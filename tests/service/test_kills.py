"""`kill -9` at any moment: nothing that was acknowledged is lost, and nothing runs twice."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from serving import Serving, until

pytestmark = pytest.mark.long

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

KILLS, JOBS = 50, 20


class Users:
    """Hand jobs in, as many as are allowed by now, until each is acknowledged."""

    def __init__(self, service: Serving, effects: Path, seed: int) -> None:
        draw = random.Random(seed)
        self._service = service
        self._effects = effects
        self._lasts = [draw.uniform(0.3, 3.0) for _ in range(JOBS)]
        self.allowed = 0
        self.ids: list[str] = []
        self.unheard = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            if len(self.ids) < self.allowed:
                self._submit(len(self.ids))
            else:
                time.sleep(0.02)

    def _submit(self, number: int) -> None:
        run = (
            f'echo "began $WATTHERD_JOB_ID $WATTHERD_ATTEMPT" >> {self._effects};'
            f" sleep {self._lasts[number]:.2f};"
            f' echo "ended $WATTHERD_JOB_ID $WATTHERD_ATTEMPT" >> {self._effects}'
        )
        body = {"run": run, "name": f"job-{number}"}
        headers = {"Idempotency-Key": f"job-{number}"}
        answer: Any = self._service.ask("jobs", body, **headers)
        assert answer is None or "id" in answer, answer
        if answer is None:
            self.unheard += 1
            time.sleep(0.02)
        else:
            self.ids.append(answer["id"])

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def test_killed_fifty_times_no_job_is_lost_and_none_runs_twice(tmp_path: Path) -> None:
    draw = random.Random(20)
    config = tmp_path / "serve.yaml"
    config.write_text("snapshot_every: 25\n")
    service = Serving(tmp_path / "state", "--config", str(config))
    effects = tmp_path / "effects"
    users = Users(service, effects, seed=21)
    try:
        began_s = time.monotonic()
        service.begin()
        service.ready()
        start_s = time.monotonic() - began_s
        for number in range(1, KILLS + 1):
            users.allowed = min(JOBS, 1 + number * JOBS // (KILLS - 8))
            # From before anything is read to well into the decisions about what was.
            time.sleep(draw.uniform(0.0, 1.0) * (start_s + 0.5))
            service.kill()
            service.begin()
        until(lambda: len(users.ids) == JOBS, 120)
        until(lambda: all(service.state_of(job) == "Succeeded" for job in users.ids), 120)
        listed = service.ask("jobs?over=true")["jobs"]
    finally:
        users.end()
        service.end()
    assert sorted(users.ids) == sorted({row["id"] for row in listed})
    assert len(listed) == len(set(users.ids)) == JOBS
    lines = Counter(effects.read_text().splitlines())
    assert lines == Counter(f"{what} {job} 1" for job in users.ids for what in ("began", "ended"))
    verdict = service.store("verify", "-o", "json")
    found = json.loads(verdict.stdout)
    assert (verdict.returncode, found["problems"]) == (0, [])
    assert found["entries"] >= 4 * JOBS
    assert found["snapshots"] >= 1
    assert users.unheard > 0  # some were in doubt, so the test has tested something


@pytest.fixture
def service(tmp_path: Path) -> Any:
    service = Serving(tmp_path / "state")
    service.begin()
    service.ready()
    yield service
    service.end()


STAYS = "echo $$ > pid-$WATTHERD_ATTEMPT-${RANK:-0}; test $WATTHERD_ATTEMPT -gt 1 || sleep 60"


def test_a_killed_job_is_tried_again(service: Serving) -> None:
    import os
    import signal

    job = service.submit(STAYS, restarts=1)
    (pid,) = until(lambda: service.tasks(job))
    os.kill(pid, signal.SIGKILL)
    service.wait_for(job, "Succeeded")
    assert service.ask(f"jobs/{job}")["attempts"] == 2


def test_a_gang_that_loses_a_worker_is_ended_and_tried_again_as_a_whole(service: Serving) -> None:
    import os
    import signal

    gang = {"worker": {"count": 2, "run": STAYS}}
    answer = service.ask("jobs", {"name": "gang", "taskRoles": gang, "restarts": 1})
    job = answer["id"]
    first, second = until(lambda: len(pids := service.tasks(job)) == 2 and pids)
    os.kill(second, signal.SIGKILL)
    service.wait_for(job, "Succeeded")
    assert not Path(f"/proc/{first}").exists()
    assert len(service.tasks(job, run=2)) == 2
    assert service.ask(f"jobs/{job}")["attempts"] == 2


def test_a_port_that_is_taken_is_said_and_harms_nobody(service: Serving, tmp_path: Path) -> None:
    done = service.call("serve", "--state", str(tmp_path / "other"), "--port", str(service.port))
    assert done.returncode == 2
    assert "cannot listen: Address already in use" in done.stderr
    assert "--port" in done.stderr
    assert not (tmp_path / "other").exists()
    assert service.ask("health")["ok"]


def test_a_store_that_is_in_use_is_said_and_harms_nobody(service: Serving) -> None:
    done = service.call("serve", "--state", str(service.state), "--port", "0")
    assert done.returncode == 2
    assert f"in use by process {service.process.pid}" in done.stderr  # type: ignore[union-attr]
    assert service.ask("health")["ok"]


def test_a_full_disk_refuses_wishes_keeps_facts_and_is_recovered_from(service: Serving) -> None:
    import resource

    assert service.process is not None
    job = service.submit("sleep 0.5")
    wal = service.state / "journal.sqlite-wal"
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(
        service.process.pid, resource.RLIMIT_FSIZE, (wal.stat().st_size, resource.RLIM_INFINITY)
    )
    refused = until(
        lambda: (answer := service.ask("jobs", {"run": "true"})) and "error" in answer and answer
    )
    assert refused["code"] == 503
    assert "nothing was changed" in refused["hint"]
    assert not service.ask("health")["ok"]
    exited = service.state / "jobs" / job / "run-1" / "exit.json"
    until(exited.exists)
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, unlimited)
    service.wait_for(job, "Succeeded")
    until(lambda: service.ask("health")["ok"])
    later = service.submit("true")
    service.wait_for(later, "Succeeded")
    assert service.store("verify").returncode == 0


def test_a_locked_database_refuses_wishes_and_is_recovered_from(service: Serving) -> None:
    import sqlite3

    other = sqlite3.connect(service.state / "journal.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    answer = service.ask("jobs", {"run": "true"})
    assert (answer["code"], answer["error"]) == (503, "database is locked")
    other.execute("ROLLBACK")
    other.close()
    until(lambda: service.ask("health")["ok"])
    job = service.submit("true")
    service.wait_for(job, "Succeeded")


def test_another_policy_takes_running_and_waiting_jobs_over(service: Serving) -> None:
    run = "echo $WATTHERD_ATTEMPT >> attempts; test $WATTHERD_ATTEMPT -gt 1 || sleep 60"
    jobs = [service.submit(run, gpus=2), service.submit("true")]
    service.wait_for(jobs[0], "Running")
    service.kill()
    service.options = ("--policy", "drf")
    service.begin()
    service.ready()
    for job in jobs:
        service.wait_for(job, "Succeeded")
    attempts = service.state / "jobs" / jobs[0] / "work" / "attempts"
    assert attempts.read_text().split() == ["1", "2"]
    assert "have changed" in service.errors.read_text()
    assert service.store("verify").returncode == 0

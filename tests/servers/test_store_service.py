"""A real service on a real PostgreSQL that is killed under it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra `server`")
pytest.importorskip("psycopg", reason="needs the extra `postgres`")

from postgres_server import Postgres

sys.path.append(str(Path(__file__).parents[1] / "service"))
from serving import Serving, until

pytestmark = pytest.mark.long


def test_a_killed_database_refuses_wishes_keeps_facts_and_is_used_again(
    postgres: Postgres, tmp_path: Path
) -> None:
    service = Serving(tmp_path / "state", "--store", url := postgres.database())
    try:
        service.begin()
        service.ready()
        job = service.submit("sleep 0.5")
        service.wait_for(job, "Running")
        postgres.kill()
        refused = service.ask("jobs", {"run": "true"}, **{"Idempotency-Key": "again"})
        assert refused["code"] == 503
        assert refused["hint"]
        until((service.state / "jobs" / job / "run-1" / "exit.json").exists)
        assert not service.ask("health")["ok"]
        postgres.start()
        service.wait_for(job, "Succeeded")
        until(lambda: service.ask("health")["ok"])
        again = service.ask("jobs", {"run": "true"}, **{"Idempotency-Key": "again"})["id"]
        service.wait_for(again, "Succeeded")
        service.kill()
        service.begin()
        service.ready()
        listed = service.ask("jobs?over=true")["jobs"]
        assert [(row["id"], row["state"]) for row in listed] == [
            (job, "Succeeded"), (again, "Succeeded")
        ]  # fmt: skip
    finally:
        service.end()
    verdict = service.call("store", "verify", "--store", url)
    assert (verdict.returncode, verdict.stdout.splitlines()[-1]) == (0, "sound")


def test_a_new_database_or_an_older_one_beside_runs_is_not_taken_for_theirs(
    postgres: Postgres, tmp_path: Path
) -> None:
    state, url = tmp_path / "state", postgres.database()
    first = Serving(state, "--store", url)
    try:
        first.begin()
        first.ready()
        first.wait_for(first.submit("echo of the first store"), "Succeeded")
        first.end()
        backup = str(tmp_path / "backup")
        assert first.call("store", "export", backup, "--store", url).returncode == 0
        first.begin()
        first.ready()
        first.wait_for(first.submit("echo of the lost history"), "Succeeded")
    finally:
        first.end()
    for other, job in ((postgres.database(), "j-1"), (postgres.database(), "j-2")):
        if job == "j-2":
            done = first.call("store", "import", backup, "--store", other)
            assert done.returncode == 0, done.stderr
        second = Serving(state, "--store", other)
        second.begin()
        assert second.process is not None
        assert second.process.wait(60) == 2
        assert "--accept-store" in second.errors.read_text()
        second = Serving(state, "--store", other, "--accept-store")
        try:
            second.begin()
            second.ready()
            assert second.submit("echo of the second store; exit 3") == job
            second.wait_for(job, "Failed")
        finally:
            second.end()
        log = state / "jobs" / job / "run-1" / "logs" / "0.log"
        assert log.read_text() == "of the second store\n"
        verdict = second.call("store", "verify", "--store", other, "--state", str(state))
        assert verdict.stdout.endswith("sound\n"), verdict.stdout
    cut = first.call("store", "verify", "--store", url, "--state", str(state))
    assert (cut.returncode, "journal.head knows" in cut.stdout) == (1, True)

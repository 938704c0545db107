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

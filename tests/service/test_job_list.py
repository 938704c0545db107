"""Lists of jobs and of acts by REST: filtered, page by page, the ended ones from the store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from serving import Serving, until

pytestmark = pytest.mark.long

pytest.importorskip("fastapi", reason="the extra `server` is not installed")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Six jobs are over, one runs, one waits; the service was restarted meanwhile."""
    service = Serving(tmp_path_factory.mktemp("list") / "state")
    service.begin()
    service.ready()
    for number in range(6):
        user = "ann" if number % 2 else "bob"
        body = {"run": f"exit {number // 5}", "name": f"short-{number}"}
        assert service.ask(f"jobs?user={user}", body)["id"] == f"j-{number + 1}"
    for number in range(6):
        service.wait_for(f"j-{number + 1}", "Failed" if number == 5 else "Succeeded")
    until(lambda: len(service.ask("power?last=7200")["samples"]) >= 2)
    assert service.process is not None
    service.process.terminate()  # what waits to be written is written
    assert service.process.wait(20) == 0
    assert not (service.state / "journal.sqlite-wal").exists()  # the store was closed
    assert (service.state / "journal.sqlite").stat().st_mode & 0o077 == 0
    service.begin()
    service.ready()
    service.submit("sleep 60", name="long", gpus=2)
    service.submit("true", name="next")
    service.wait_for("j-7", "Running")
    yield service
    for job in ("j-7", "j-8"):
        service.ask(f"jobs/{job}/cancel", {})
    until(lambda: not service.ask("jobs")["jobs"])
    service.end()


def names(document: Any) -> list[str]:
    return [row["id"] for row in document["jobs"]]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("", "78"),
        ("over=true", "12345678"),
        ("over=true&limit=3", "678"),
        ("over=true&state=succeeded", "12345"),
        ("over=true&state=Succeeded&state=Failed", "123456"),
        ("over=true&user=ann", "246"),
        ("over=true&text=SHORT-3", "4"),
        ("over=true&queue=none", ""),
        ("state=queued", "8"),
        ("over=true&state=running", "7"),
        ("text=lon", "7"),
    ],
)
def test_jobs_are_listed_as_asked(service: Serving, query: str, wanted: str) -> None:
    assert names(service.ask(f"jobs?{query}")) == [f"j-{number}" for number in wanted]


def test_a_state_that_is_none_is_refused_and_not_found_empty(service: Serving) -> None:
    told = service.ask("jobs?over=true&state=succeded")
    assert (told["code"], told["field"], told["hint"]) == (
        400,
        "state",
        "did you mean 'Succeeded'?",
    )


def test_pages_follow_each_other_to_the_end(service: Serving) -> None:
    found: list[str] = []
    query = "jobs?over=true&limit=3"
    page = service.ask(query)
    while True:
        found = [*names(page), *found]
        if page["before"] is None:
            break
        page = service.ask(f"{query}&before={page['before']}")
    assert found == [f"j-{number}" for number in range(1, 9)]


def test_an_ended_job_is_shown_as_a_live_one_is(service: Serving) -> None:
    job = service.ask("jobs/j-6")
    assert (job["state"], job["exit_code"], job["attempts"]) == ("Failed", 1, 1)
    assert job["finished"] > job["started"] >= job["submitted"]
    assert service.ask("jobs/j-99")["code"] == 404
    waiting = service.ask("jobs?over=true")["jobs"][-1]
    assert (waiting["id"], waiting["position"], waiting["state"]) == ("j-8", 1, "Queued")


@pytest.mark.long
def test_the_audit_tells_who_did_what(service: Serving) -> None:
    (act,) = service.ask("audit?about=j-2")["acts"]
    assert (act["by"], act["what"], act["detail"]["user"]) == ("ann", "JobSubmitted", "ann")
    first = service.ask("audit?by=bob&limit=2")
    assert [one["about"] for one in first["acts"]] == ["j-5", "j-3"]
    rest = service.ask(f"audit?by=bob&limit=2&before={first['before']}")
    assert [one["about"] for one in rest["acts"]] == ["j-1"]


def test_samples_of_watts_outlive_the_service(service: Serving) -> None:
    """The first life of the service took samples before any of the second one's jobs."""
    began = service.ask("jobs/j-7")["submitted"]
    samples = service.ask("power?last=7200")["samples"]
    assert any(sample["at"] < began for sample in samples)

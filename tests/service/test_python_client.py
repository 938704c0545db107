"""`wattherd.Client` with a service of its own: what a notebook asks for."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

import wattherd as wh
from service.serving import Serving

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    serving = Serving(tmp_path_factory.mktemp("python") / "state", "--slots", "1")
    try:
        serving.begin()
        serving.ready()
        yield serving
    finally:
        serving.end()


@pytest.fixture
def site(serving: Serving) -> wh.Client:
    return wh.Client(f"http://127.0.0.1:{serving.port}")


def test_a_job_from_a_notebook_to_its_end(site: wh.Client) -> None:
    job = site.submit(["sh", "-c", "echo 'a b'; sleep 0.2"], name="words", queue="default")
    done = site.wait(job["id"], timeout_s=60)
    assert done["state"] == "Succeeded"
    assert b"a b" in b"".join(site.stream(f"jobs/{job['id']}/logs"))
    rows = site.history().where(id=job["id"])
    assert rows["name"] == ["words"]
    assert sum(site.energy(by="queue")["jobs"]) >= 1
    assert job["id"] in site.energy(by="job")["job"]


def test_who_waits_is_in_the_queue_with_a_reason(site: wh.Client) -> None:
    long = site.submit("sleep 60", name="long")
    late = site.submit("true", name="late", begin="in 2h")
    waits = site.queue().where(id=late["id"])
    assert len(waits) == 1
    assert "NotBefore" in str(waits["reason"][0])
    assert site.explain(late["id"])["reason"]["code"] == "NotBefore"
    for one in (late, long):
        site.cancel(one["id"])
        assert site.wait(one["id"], timeout_s=30)["state"] == "Cancelled"
    assert late["id"] not in [row["id"] for row in site.queue()]


def test_all_pages_of_the_queue_are_one_table(site: wh.Client) -> None:
    made = [site.submit("true", begin="in 2h")["id"] for _ in range(7)]
    assert set(made) <= set(site.queue(limit=2)["id"])
    for one in made:
        site.cancel(one)


def test_events_come_as_they_happen(site: wh.Client) -> None:
    seen: list[str] = []

    def look() -> None:
        for event in site.watch(kind=["job"]):
            seen.append(str(event["state"]))
            if event["state"] == "Succeeded":
                return

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    while not seen:  # until the watch is there
        site.wait(site.submit("true")["id"], timeout_s=30)
    looking.join(30)
    assert "Succeeded" in seen


def test_budgets_and_refusals(site: wh.Client) -> None:
    assert site.set_budget("5kW")["budget_w"] == 5000.0
    assert site.power()["budget_w"] == 5000.0
    site.set_budget(None)
    with pytest.raises(wh.UserError, match="gpus"):
        site.submit("true", gpus="many")
    with pytest.raises(wh.UserError) as told:
        site.job("j-9999")
    assert told.value.exit_code == 3
    with pytest.raises(wh.UserError, match="cannot sum energy by 'mood'"):
        site.energy(by="mood")
    assert site.wait(site.submit("sleep 30")["id"], timeout_s=0)["state"] != "Succeeded"


def test_nobody_answers() -> None:
    with pytest.raises(wh.UserError, match="no answer") as told:
        wh.Client("http://127.0.0.1:9").queue()
    assert told.value.exit_code == 4

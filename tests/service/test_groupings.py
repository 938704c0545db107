"""Queues, tenants and search groups over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from service.guarded import Guarded
from wattherd.server.auth.caller import Role
from wattherd.workload.scenario import QueueField

V1 = "/api/v1"
QUEUES = QueueField(
    name="root",
    children=[
        QueueField(name="prod", guaranteed_pct=50, maximum_pct=100, user_limit_factor=2),
        QueueField(name="dev", guaranteed_pct=50, maximum_pct=50, user_limit_factor=2),
    ],
)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    state: Path = tmp_path_factory.mktemp("site") / "state"
    guarded = Guarded(state, queues=QUEUES, policy="capacity")
    guarded.let_in("ann", Role.USER, "a")
    guarded.let_in("bob", Role.USER, "b")
    guarded.let_in("operator", Role.OPERATOR)
    yield guarded
    guarded.close()


def test_a_stopped_queue_starts_nothing_until_it_is_started(guarded: Guarded) -> None:
    stopped = guarded.ask("POST", f"{V1}/queues/prod/stop", "operator").json["queues"]
    assert [one["name"] for one in stopped if one["stopped"]] == ["prod"]
    job = guarded.submit("ann", queue="prod")
    guarded.until(
        lambda: (
            guarded.ask("GET", f"{V1}/jobs/{job}", "ann").json["reason"]["code"] == "QueueStopped"
        )
    )
    rows = {one["name"]: one for one in guarded.ask("GET", f"{V1}/queues", "ann").json["queues"]}
    assert (rows["prod"]["waiting"], rows["root"]["waiting"], rows["dev"]["waiting"]) == (1, 1, 0)
    assert (rows["dev"]["guaranteed"], rows["dev"]["maximum"]) == (0.5, 0.5)
    guarded.ask("POST", f"{V1}/queues/prod/start", "operator")
    guarded.until(
        lambda: guarded.ask("GET", f"{V1}/jobs/{job}", "ann").json["state"] == "Succeeded"
    )


def test_queues_that_are_not_there(guarded: Guarded) -> None:
    for path in ("none/stop", "prod/paint"):
        reply = guarded.ask("POST", f"{V1}/queues/{path}", "operator")
        assert (reply.status, "prod" in reply.json["hint"]) == (404, True)


def test_a_group_is_seen_and_ended_by_its_own(guarded: Guarded) -> None:
    mine = [guarded.submit("ann", "sleep 60", queue="dev", group="lr") for _ in range(2)]
    theirs = guarded.submit("bob", "sleep 60", queue="dev", group="lr")
    found = guarded.ask("GET", f"{V1}/groups/lr", "ann").json
    assert [one["id"] for one in found["trials"]] == mine
    assert found["best"] is None
    tenants = guarded.ask("GET", f"{V1}/tenants", "bob").json["tenants"]
    assert [(one["name"], one["running"] + one["waiting"]) for one in tenants] == [("b", 1)]
    assert guarded.ask("POST", f"{V1}/groups/lr/cancel", "ann").status == 200
    for job, who, over in ((mine[0], "ann", True), (mine[1], "ann", True), (theirs, "bob", False)):
        if over:
            guarded.until(
                lambda job=job, who=who: (
                    guarded.ask("GET", f"{V1}/jobs/{job}", who).json["state"] == "Cancelled"
                )
            )
        else:
            state = guarded.ask("GET", f"{V1}/jobs/{job}", who).json["state"]
            assert state in ("Queued", "Starting", "Running")
    assert guarded.ask("POST", f"{V1}/groups/none/cancel", "ann").status == 404
    guarded.ask("POST", f"{V1}/jobs/{theirs}/cancel", "bob")
    guarded.until(
        lambda: guarded.ask("GET", f"{V1}/jobs/{theirs}", "bob").json["state"] == "Cancelled"
    )


@pytest.mark.long
def test_a_search_is_told_of_when_all_its_trials_are_over(guarded: Guarded) -> None:
    """That is when one looks for the best; memory has forgotten them by then."""
    mine = [guarded.submit("ann", "true", queue="dev", group='m"ü 1') for _ in range(2)]
    other = guarded.submit("ann", 'echo "group":"m"', queue="dev", group="M")
    _wait_for(guarded, *mine, other)
    path = f"{V1}/groups/m%22%C3%BC%201"
    for _ in range(3):
        # More entries make memory forget what is over.
        _wait_for(guarded, guarded.submit("ann", "true", queue="dev"))
        found = guarded.ask("GET", path, "ann")
        assert found.status == 200, found.text
        assert [(one["id"], one["state"]) for one in found.json["trials"]] == [
            (job, "Succeeded") for job in mine
        ]
    told = {one["name"]: one for one in guarded.ask("GET", f"{V1}/groups", "ann").json["groups"]}
    assert (told['m"ü 1']["trials"], told['m"ü 1']["over"], told["M"]["over"]) == (2, 2, 1)
    assert guarded.ask("GET", path, "bob").status == 404
    assert guarded.ask("POST", f"{path}/cancel", "ann").status == 200


def _wait_for(guarded: Guarded, *jobs: str) -> None:
    for job in jobs:
        guarded.until(
            lambda job=job: (
                guarded.ask("GET", f"{V1}/jobs/{job}", "ann").json["state"] == "Succeeded"
            )
        )

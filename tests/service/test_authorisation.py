"""Every route and every role; tenants do not see each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from starlette.routing import Route

from service.guarded import Guarded

V1 = "/api/v1"
LEAST = {
    "GET /openapi.json": "viewer",
    "GET /whoami": "viewer",
    "GET /jobs": "viewer",
    "POST /jobs": "user",
    "POST /dry-run": "user",
    "GET /jobs/{job_id}": "viewer",
    "GET /jobs/{job_id}/explain": "viewer",
    "GET /jobs/{job_id}/swings": "viewer",
    "GET /jobs/{job_id}/logs": "viewer",
    "GET /jobs/{job_id}/sessions": "user",
    "PATCH /jobs/{job_id}": "user",
    "POST /jobs/{job_id}/rerun": "user",
    "POST /arrays": "user",
    "GET /arrays/{array_id}": "viewer",
    "GET /arrays/{array_id}/explain": "viewer",
    "PATCH /arrays/{array_id}": "user",
    "POST /arrays/{array_id}/rerun": "user",
    "POST /arrays/{array_id}/{action}": "user",
    "POST /jobs/{job_id}/{action}": "user",
    "GET /nodes": "viewer",
    "POST /nodes/{node}/{action}": "operator",
    "POST /gpus/{gpu}/{action}": "operator",
    "GET /power": "viewer",
    "GET /power/tree": "viewer",
    "GET /power/promise": "operator",
    "GET /power/delivery": "viewer",
    "GET /metrics": "viewer",
    "PUT /power": "operator",
    "PUT /power/schedule": "operator",
    "PUT /power/signals": "admin",
    "GET /queues": "viewer",
    "PUT /queues": "operator",
    "PUT /queues/{queue}": "operator",
    "DELETE /queues/{queue}": "operator",
    "POST /queues/{queue}/{action}": "operator",
    "GET /tenants": "viewer",
    "PUT /tenants/{tenant}": "operator",
    "DELETE /tenants/{tenant}": "operator",
    "GET /groups": "viewer",
    "GET /groups/{name}": "viewer",
    "POST /groups/{name}/{action}": "user",
    "GET /decisions": "viewer",
    "GET /events": "viewer",
    "GET /tokens": "admin",
    "POST /tokens": "admin",
    "DELETE /tokens/{token_id}": "admin",
    "GET /audit": "admin",
    "GET /audit/requests": "admin",
}
"""Written down by hand: what the service's own table says is what is tested."""
WITHOUT = {"GET /health": 200, "GET /alive": 200, "POST /jobs/{job_id}/trainer-status": 401}
UNTOLD = {"GET /events", "GET /openapi.json"}
"""Pages without jobs: a stream that does not end, and a description whose examples have names."""
ROOT = {"/metrics"}
"""Addresses that are not below the API's."""
ABSENT = (
    *("{token_id}", "{node}", "{gpu}", "{queue}", "{name}", "{array_id}"),
    *("DELETE /tenants", "PUT /queues"),
)
"""What is asked for here and is not there: that is told to those alone who may ask."""
ROLES = ["viewer", "user", "operator", "admin"]
BODIES = {
    "POST /jobs": {"run": "true"},
    "POST /dry-run": {"run": "true"},
    "POST /arrays": {"run": "true", "array": "0-1"},
    "PATCH /arrays/{array_id}": {"time": {"limit": "1h"}},
    "PATCH /jobs/{job_id}": {"time": {"limit": "1h"}},
    "PUT /power": {"budget": None},
    "PUT /power/schedule": {"schedule": None},
    "PUT /power/signals": {"signals": []},
    "PUT /queues": {"name": "root"},
    "PUT /queues/{queue}": {"maximum_pct": 50},
    "PUT /tenants/{tenant}": {"most_gpus": None},
    "POST /tokens": {"user": "new"},
    "POST /jobs/{job_id}/trainer-status": {"trainerStatus": {}},
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    guarded = Guarded(tmp_path_factory.mktemp("site") / "state").let_people_in()
    yield guarded
    guarded.close()


@pytest.fixture(scope="module")
def job(guarded: Guarded) -> str:
    """A job of tenant `a` that has printed something and is over."""
    job_id = guarded.submit("user", "echo private-words", name="private-name")
    guarded.until(lambda: "private" in guarded.ask("GET", f"{V1}/jobs/{job_id}/logs", "user").text)
    return job_id


OF_LIVE_JOBS = "PATCH /jobs/{job_id}"
"""The job of these tests may be over by then, which is said to who may edit it."""


def served(guarded: Guarded) -> set[str]:
    return {
        f"{method} {route.path.removeprefix(V1)}"
        for route in guarded.app.routes
        if isinstance(route, Route)
        if route.path.startswith((V1, "/metrics"))  # pages are in test_dashboard
        for method in (route.methods or ()) - {"HEAD"}
    }


def address(route: str, job: str) -> tuple[str, str]:
    method, _, path = route.partition(" ")
    none = tuple((name, "none") for name in (*ABSENT, "{tenant}"))
    for name, value in (("{job_id}", job), ("{action}", "resume"), *none):
        path = path.replace(name, value)
    if path == "/decisions":
        path += f"?job={job}"
    if path == "/power/delivery":
        path += "?start=1&end=2&limit=1W"
    if path == "/events":
        path += "?follow=false"
    return method, path if path in ROOT else V1 + path


def test_every_route_has_its_line_here(guarded: Guarded) -> None:
    assert all(hasattr(route, "path") for route in guarded.app.routes)  # none is hidden in another
    assert served(guarded) == LEAST.keys() | WITHOUT.keys()


@pytest.mark.parametrize("route", LEAST)
def test_a_role_may_what_it_may_and_no_more(guarded: Guarded, job: str, route: str) -> None:
    method, path = address(route, job)
    asked = guarded.ask(method, path, body=BODIES.get(route))
    assert asked.status == 401
    assert asked.headers["www-authenticate"] == "Bearer"
    if route == "GET /power/promise":  # not before something was measured
        guarded.until(lambda: guarded.ask(method, path, "admin").status != 503)
    for role in ROLES:
        reply = guarded.ask(method, path, role, BODIES.get(route))
        may = ROLES.index(role) >= ROLES.index(LEAST[route])
        allowed = (400, 404) if any(name in route for name in ABSENT) else (200, 201)
        allowed = (200, 409) if route == OF_LIVE_JOBS else allowed
        allowed = (400,) if route == "GET /power/delivery" else allowed  # of 1970 nothing is kept
        allowed = (200, 400) if route.endswith("/swings") else allowed  # seen for too short a time
        assert reply.status in (allowed if may else (403,)), (role, reply.text)


@pytest.mark.parametrize("route", WITHOUT)
def test_what_needs_no_role_needs_none(guarded: Guarded, job: str, route: str) -> None:
    method, path = address(route, job)
    for who in ("", *ROLES):
        assert guarded.ask(method, path, who, BODIES.get(route)).status == WITHOUT[route]


def test_other_tenants_decisions_are_not_told(guarded: Guarded, job: str) -> None:
    assert guarded.ask("GET", f"{V1}/decisions", "user").status == 403
    assert guarded.ask("GET", f"{V1}/decisions?job={job}", "stranger").status == 404
    log = guarded.ask("GET", f"{V1}/decisions?limit=1000", "operator").json["decisions"]
    own = guarded.ask("GET", f"{V1}/decisions?job={job}", "user").json["decisions"]
    assert [one["number"] for one in log] == list(range(1, len(log) + 1))
    assert [one["event"]["type"] for one in own][:1] == ["JobSubmitted"]
    told = {order["job_id"] for one in own for order in one["commands"]}
    assert told == {job}
    assert any(order["type"] == "StartJob" for one in own for order in one["commands"])


def test_other_tenants_limits_are_not_told(guarded: Guarded) -> None:
    for tenant in ("a", "b"):
        assert (
            guarded.ask("PUT", f"{V1}/tenants/{tenant}", "operator", {"most_gpus": 99}).status
            == 200
        )
    rows = guarded.ask("GET", f"{V1}/tenants", "stranger").json["tenants"]
    assert [(one["name"], one["most_gpus"]) for one in rows] == [("b", 99)]
    rows = guarded.ask("GET", f"{V1}/tenants", "admin").json["tenants"]
    assert {one["name"] for one in rows} >= {"a", "b"}
    for tenant in ("a", "b"):
        assert guarded.ask("DELETE", f"{V1}/tenants/{tenant}", "operator").status == 200


def test_other_tenants_jobs_are_not_there(guarded: Guarded, job: str) -> None:
    for route in (one for one in LEAST if "{job_id}" in one):
        method, path = address(route, job)
        body = BODIES.get(route)
        missing = guarded.ask(method, path.replace(job, "j-999"), "stranger", body)
        for who in ("stranger", "nobody"):
            reply = guarded.ask(method, path, who, body)
            assert (reply.status, reply.text) == (404, missing.text.replace("j-999", job))


def test_other_tenants_arrays_and_their_tasks_are_not_there(guarded: Guarded) -> None:
    file = {"run": "true", "array": "0-2", "begin": "in 9h", "name": "private"}
    array = guarded.ask("POST", f"{V1}/arrays", "user", file).json["id"]
    first = array.replace("a-", "j-")
    for route in (one for one in LEAST if "{array_id}" in one):
        method, _, path = route.replace("{action}", "cancel").partition(" ")
        missing = guarded.ask(
            method, V1 + path.replace("{array_id}", "a-999"), "stranger", BODIES.get(route)
        )
        for who in ("stranger", "nobody"):
            reply = guarded.ask(
                method, V1 + path.replace("{array_id}", array), who, BODIES.get(route)
            )
            assert (reply.status, reply.text) == (404, missing.text.replace("a-999", array))
    for task in (f"{array}[1]", f"{first}[1]", f"{array}[9]", f"{array}[0-1]"):
        for method, path in (("GET", ""), ("GET", "/logs"), ("POST", "/cancel")):
            reply = guarded.ask(method, f"{V1}/jobs/{quote(task)}{path}", "stranger")
            assert (reply.status, task in reply.text) == (404, True)
    assert guarded.ask("GET", f"{V1}/jobs?array={array}&over=true", "stranger").status == 404
    assert "private" not in guarded.ask("GET", f"{V1}/jobs?grouped=true", "stranger").text
    for parent in (array, f"{array}[0]", first):
        body = {"run": "true", "after": [parent]}
        reply = guarded.ask("POST", f"{V1}/jobs", "stranger", body)
        assert (reply.status, reply.json["error"]) == (400, f"no job '{parent}'")
    for action in ("cancel", "rerun"):
        assert guarded.ask("POST", f"{V1}/arrays/{array}/{action}", "colleague").status == 403
    body = {"run": "true", "array": "0-1", "priority": "high"}
    assert guarded.ask("POST", f"{V1}/arrays", "user", body).status == 400
    assert guarded.ask("PATCH", f"{V1}/arrays/{array}", "user", {"priority": 1}).status == 400
    assert guarded.ask("GET", f"{V1}/arrays/{array}", "colleague").json["states"] == {"Queued": 3}
    assert guarded.ask("POST", f"{V1}/arrays/{array}/cancel", "user").status == 200


@pytest.mark.long
def test_no_page_names_other_tenants_jobs(guarded: Guarded) -> None:
    running = guarded.submit("user", "sleep 60", name="private-name")
    guarded.until(
        lambda: guarded.ask("GET", f"{V1}/jobs/{running}", "user").json["state"] == "Running"
    )
    guarded.until(lambda: running in str(guarded.ask("GET", f"{V1}/power", "user").json["samples"]))
    for route in (
        one for one in LEAST if one.startswith("GET") and "{" not in one and one not in UNTOLD
    ):
        for query in ("", "?over=true&last=9", "?tenant=a&over=true", "?user=user&text=private"):
            text = guarded.ask("GET", V1 + route.removeprefix("GET ") + query, "stranger").text
            assert "private" not in text, route
            assert f'"{running}"' not in text, route
    others = guarded.ask("GET", f"{V1}/power", "stranger").json["samples"][-1]["by_job"]
    assert list(others) == ["others"]
    assert "others" in guarded.ask("GET", f"{V1}/nodes", "stranger").text
    guarded.ask("POST", f"{V1}/jobs/{running}/cancel", "user")


def test_colleagues_look_and_do_not_touch(guarded: Guarded, job: str) -> None:
    assert guarded.ask("GET", f"{V1}/jobs/{job}/logs", "colleague").text == "private-words\n"
    assert guarded.ask("POST", f"{V1}/jobs/{job}/cancel", "colleague").status == 403
    assert guarded.ask("POST", f"{V1}/jobs/{job}/cancel", "operator").status == 200


def test_nobody_waits_for_jobs_that_are_not_there(guarded: Guarded, job: str) -> None:
    for parent in (job, "j-999"):
        body = {"run": "true", "after": [parent]}
        reply = guarded.ask("POST", f"{V1}/jobs", "stranger", body)
        assert (reply.status, reply.json["error"]) == (400, f"no job '{parent}'")
    guarded.submit("user", after=[job])


def test_a_job_belongs_to_its_token_whatever_it_says(guarded: Guarded) -> None:
    reply = guarded.ask("POST", f"{V1}/jobs?user=boss&tenant=b", "user", {"run": "true"})
    assert (reply.json["user"], reply.json["tenant"]) == ("user", "a")
    body = {"run": "true", "user": "root"}
    assert guarded.ask("POST", f"{V1}/jobs", "user", body).status == 400


def test_priority_has_a_ceiling_by_role(guarded: Guarded) -> None:
    for priority in ("high", 1):
        for address in ("jobs", "dry-run"):
            body = {"run": "true", "priority": priority}
            reply = guarded.ask("POST", f"{V1}/{address}", "user", body)
            assert reply.status == 400
            assert f"{priority} is above normal, the highest that a user may give" in reply.text
    for role, priority in (("user", "low"), ("user", "normal"), ("operator", "high")):
        body = {"run": "true", "priority": priority}
        assert guarded.ask("POST", f"{V1}/dry-run", role, body).status == 200


def test_an_address_without_a_rule_is_not_there(guarded: Guarded) -> None:
    @guarded.app.get("/api/v1/forgotten")
    async def forgotten() -> str:
        return "secret"

    try:
        assert guarded.ask("GET", f"{V1}/forgotten").status == 401
        assert guarded.ask("GET", f"{V1}/forgotten", "admin").status == 404
    finally:
        guarded.app.router.routes.pop()


def test_the_folder_of_logs_cannot_be_left(guarded: Guarded, job: str) -> None:
    for path in ("../j-1", "%2e%2e", "..%2f..%2ftokens.json", "%00", f"{job}%00"):
        reply = guarded.ask("GET", f"{V1}/jobs/{path}/logs", "stranger")
        assert reply.status == 404, reply.text


def test_what_was_done_and_refused_is_on_record(guarded: Guarded, tmp_path: Path) -> None:
    guarded.ask("PUT", f"{V1}/power", "user", {"budget": "1kW"})
    guarded.ask("PUT", f"{V1}/power", "operator", {"budget": "2kW"})
    lines = guarded.ask("GET", f"{V1}/audit/requests?limit=2", "admin").json["requests"]
    assert [(one["by"], one["result"], one["status"]) for one in lines] == [
        ("operator", "done", 200),
        ("a/user", "refused", 403),
    ]
    acts = guarded.ask("GET", f"{V1}/audit?by=operator&limit=1", "admin").json["acts"]
    assert (acts[0]["what"], acts[0]["detail"]["budget_w"]) == ("BudgetChanged", 2000.0)
    assert (guarded.site.config.state / "audit.jsonl").stat().st_mode & 0o777 == 0o600

"""Who sees and may do what on the pages, without a browser."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from guarded import Guarded, Reply
from starlette.routing import Route

from wattherd.server.auth.caller import Role

ROLES = ["viewer", "user", "operator", "admin"]
LEAST = {
    "GET /": "viewer",
    "GET /cluster": "viewer",
    "GET /power": "viewer",
    "GET /timeline": "viewer",
    "GET /queue": "viewer",
    "GET /decisions": "viewer",
    "GET /compare": "viewer",
    "GET /compare/{name}": "viewer",
    "GET /jobs/{job_id}": "viewer",
    "POST /jobs/{job_id}/{action}": "user",
    "GET /arrays/{array_id}": "viewer",
    "POST /arrays/{array_id}/{action}": "user",
    "POST /budget": "operator",
    "GET /submit": "user",
    "POST /submit": "user",
    "GET /jobs/{job_id}/app": "viewer",
    **{
        f"{method} /jobs/{{job_id}}/app/{{path:path}}": "viewer"
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
    },
}
"""Written down by hand: what the service's own table says is what is tested."""
WITHOUT = {
    "GET /login": 200,
    "POST /login": 403,
    "POST /logout": 403,
    "GET /login/oidc": 404,  # none is set up here: test_oidc has one
    "GET /login/oidc/callback": 404,
    "GET /static/{name}": 200,
}
ELSEWHERE = ("/api/", "/metrics")
HTML = "text/html,*/*"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    guarded = Guarded(tmp_path_factory.mktemp("site") / "state", budget="300W").let_people_in()
    yield guarded
    guarded.close()


@pytest.fixture(scope="module")
def job(guarded: Guarded) -> str:
    """A job of tenant `a` that runs and has printed something."""
    job_id = guarded.submit("user", "echo private-words; sleep 600", name="private-name")
    guarded.until(lambda: "private-words" in page(guarded, f"/jobs/{job_id}", "user").text)
    return job_id


def page(guarded: Guarded, path: str, who: str) -> Reply:
    return guarded.ask("GET", path, accept=HTML, cookie=f"wattherd_token={guarded.tokens[who]}")


def post(guarded: Guarded, path: str, who: str, **fields: str) -> Reply:
    """As a browser does: with the session's cookie, and what our own forms carry."""
    first = guarded.ask("GET", "/login", accept=HTML)
    session = first.headers["set-cookie"].partition(";")[0]
    found = re.search(r'name="form_secret" value="(\w+)"', first.text)
    assert found is not None
    body = urllib.parse.urlencode({"form_secret": found[1], **fields}).encode()
    cookie = f"{session}; wattherd_token={guarded.tokens[who]}"
    return guarded.ask("POST", path, body=body, accept=HTML, cookie=cookie)


@pytest.fixture(scope="module")
def array(guarded: Guarded) -> str:
    """An array of tenant `a` that waits."""
    file = {"run": "true", "array": "0-2%1", "begin": "in 9h", "name": "private-tasks"}
    return str(guarded.ask("POST", "/api/v1/arrays", "user", file).json["id"])


def address(route: str, job: str, array: str = "") -> tuple[str, str]:
    method, _, path = route.partition(" ")
    values = {"{job_id}": job, "{array_id}": array, "{action}": "resume", "/{name}": "/htmx.min.js"}
    for name, value in values.items():
        path = path.replace(name, value)
    return method, path


def test_every_page_has_its_line_here(guarded: Guarded) -> None:
    served = {
        f"{method} {route.path}"
        for route in guarded.app.routes
        if isinstance(route, Route) and not route.path.startswith(ELSEWHERE)
        for method in (route.methods or ()) - {"HEAD"}
    }
    assert served == LEAST.keys() | WITHOUT.keys()


@pytest.mark.parametrize("route", [one for one in LEAST if "/app" not in one])
def test_a_role_may_what_it_may_and_no_more(
    guarded: Guarded, job: str, array: str, route: str
) -> None:
    method, path = address(route, job, array)
    nobody = guarded.ask(method, path, accept=HTML)
    assert (nobody.status, nobody.headers["location"]) == (303, f"/login?next={path}")
    for role in ROLES:
        may = ROLES.index(role) >= ROLES.index(LEAST[route])
        if method == "POST":
            reply = post(guarded, path, role, budget="300W", run="true", do="submit")
            assert reply.status == (303 if may else 403), role
        else:
            reply = page(guarded, path, role)
            assert reply.status == (403 if not may else 404 if "{name}" in route else 200), role
        assert may or "Permission denied" in reply.text


@pytest.mark.parametrize("route", [one for one in LEAST if "/app" in one])
def test_pages_of_a_job_need_a_login_whatever_the_method(
    guarded: Guarded, job: str, route: str
) -> None:
    method, _, path = route.partition(" ")
    there = path.replace("{job_id}", job).replace("{path:path}", "x")
    nobody = guarded.ask(method, there, accept=HTML)
    assert (nobody.status, nobody.headers["location"]) == (303, f"/login?next={there}")
    for role in ROLES:  # it serves none; who may open those that do is in test_apps
        reply = guarded.ask(method, there, role)
        assert (reply.status, "location" in reply.headers) in ((404, False), (307, True)), role


@pytest.mark.parametrize("route", WITHOUT)
def test_what_needs_no_role_needs_none(guarded: Guarded, job: str, route: str) -> None:
    method, path = address(route, job)
    assert guarded.ask(method, path, accept=HTML).status == WITHOUT[route]


def test_a_refresh_without_a_token_leads_to_the_login(guarded: Guarded) -> None:
    reply = guarded.ask("GET", "/queue", accept=HTML, **{"hx-request": "true"})
    assert reply.headers["hx-redirect"] == "/login?next=/queue"
    assert reply.text == ""


@pytest.mark.parametrize(
    "path", ["/", "/cluster", "/timeline", "/queue?shown=running", "/decisions", "/queue"]
)
def test_other_tenants_see_nothing_of_a_job(guarded: Guarded, job: str, path: str) -> None:
    mine, theirs = page(guarded, path, "user"), page(guarded, path, "stranger")
    assert theirs.status == 200
    for secret in ("private", f"/jobs/{job}", f">{job}<"):
        assert secret not in theirs.text
    if path != "/queue":
        assert job in mine.text


@pytest.mark.parametrize("asked", ["user=user", "name=private", "label=name=private-name"])
def test_a_filter_tells_nothing_about_jobs_of_others(
    guarded: Guarded, job: str, asked: str
) -> None:
    mine = page(guarded, f"/timeline?{asked}", "user")
    assert re.search(r">[1-9]\d* of the runs in this time are shown", mine.text)
    assert f"/jobs/{job}#story" in mine.text
    theirs = page(guarded, f"/timeline?{asked}", "stranger")
    assert ">0 of the runs in this time are shown" in theirs.text


def test_a_job_of_others_is_not_there(guarded: Guarded, job: str) -> None:
    theirs = page(guarded, f"/jobs/{job}", "stranger")
    assert (theirs.status, "private" in theirs.text) == (404, False)
    assert post(guarded, f"/jobs/{job}/cancel", "stranger").status == 404
    assert guarded.ask("GET", f"/api/v1/jobs/{job}", "user").json["state"] in (
        "Starting",
        "Running",
    )


def test_an_array_of_others_is_not_there_and_a_colleagues_is_not_touched(
    guarded: Guarded, array: str
) -> None:
    theirs = page(guarded, f"/arrays/{array}", "stranger")
    missing = page(guarded, "/arrays/a-999", "stranger")
    assert theirs.status == missing.status == 404
    assert "private" not in theirs.text
    for action in ("cancel", "pause", "limit"):
        assert post(guarded, f"/arrays/{array}/{action}", "stranger", most="9").status == 404
        assert post(guarded, f"/arrays/{array}/{action}", "colleague", most="9").status == 403
    of_colleague = page(guarded, f"/arrays/{array}", "colleague").text
    assert "private-tasks" in of_colleague
    assert f'action="/arrays/{array}/limit"' not in of_colleague
    change = {"most": 9}
    address = f"/api/v1/arrays/{array}"
    assert guarded.ask("PATCH", address, "stranger", change).status == 404
    assert guarded.ask("PATCH", address, "colleague", change).status == 403
    assert guarded.ask("GET", f"{address}/explain", "stranger").status == 404
    found = guarded.ask("GET", address, "user").json
    assert (found["most"], found["states"]) == (1, {"Queued": 3})


def test_how_many_tasks_run_at_a_time_is_set_on_the_page_of_the_array(
    guarded: Guarded, array: str
) -> None:
    assert f'action="/arrays/{array}/limit"' in page(guarded, f"/arrays/{array}", "user").text
    assert post(guarded, f"/arrays/{array}/limit", "user", most="2").status == 303
    assert guarded.ask("GET", f"/api/v1/arrays/{array}", "user").json["most"] == 2
    reply = post(guarded, f"/arrays/{array}/limit", "user", most="none at all")
    there = page(guarded, reply.headers["location"], "user")
    assert "&#39;none at all&#39; is no number of tasks" in there.text
    assert post(guarded, f"/arrays/{array}/limit", "user", most="1").status == 303
    assert post(guarded, f"/arrays/{array}/nonsense", "user").status == 404


def test_a_form_is_held_to_the_rules_of_the_api(guarded: Guarded, job: str) -> None:
    refused = post(guarded, "/submit", "user", run="true", queue="nowhere", do="submit")
    assert refused.status == 400
    assert "queue &#39;nowhere&#39; does not exist" in refused.text
    assert "leave it out: this site&#39;s policy keeps no queues" in refused.text
    assert 'name="queue" value="nowhere"' in refused.text
    foreign = {"rest": f"after: [{job}]", "run": "true", "do": "submit"}
    assert "no job" in post(guarded, "/submit", "stranger", **foreign).text
    assert page(guarded, f"/submit?from={job}", "stranger").status == 404
    assert "private-words" in page(guarded, f"/submit?from={job}", "colleague").text
    without = guarded.ask(
        "POST", "/submit", body=b"run=true&do=submit", accept=HTML,
        cookie=f"wattherd_token={guarded.tokens['user']}",
    )  # fmt: skip
    assert without.status == 403


def test_a_form_that_is_sent_twice_makes_one_job(guarded: Guarded) -> None:
    sent = {"run": "true", "key": "the-same", "do": "submit", "name": "once"}
    first, again = (post(guarded, "/submit", "user", **sent) for _ in range(2))
    assert first.headers["location"] == again.headers["location"]
    shown = post(guarded, "/submit", "user", run="true", do="show", name="not-yet")
    assert (shown.status, "name: not-yet" in shown.text) == (200, True)
    assert guarded.ask("GET", "/api/v1/jobs?over=true&text=not-yet", "user").json["jobs"] == []


def test_a_token_taken_back_opens_no_page(guarded: Guarded) -> None:
    token_id = guarded.let_in("leaver", Role.VIEWER, "a")
    assert page(guarded, "/", "leaver").status == 200
    guarded.desk.tokens.revoke(token_id)
    assert page(guarded, "/", "leaver").status == 303


def test_pages_allow_no_script_of_others(guarded: Guarded) -> None:
    headers = page(guarded, "/", "viewer").headers
    assert "script-src 'self';" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"


def test_a_problem_is_told_within_the_page_that_is_refreshed(guarded: Guarded) -> None:
    cookie = f"wattherd_token={guarded.tokens['viewer']}"
    part = guarded.ask("GET", "/jobs/j-99", accept=HTML, cookie=cookie, **{"hx-request": "true"})
    assert (part.status, "No such job" in part.text, "<html" in part.text) == (404, True, False)

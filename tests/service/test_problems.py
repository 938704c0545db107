"""Every refusal of a real service is problem details (RFC 9457), whoever it comes from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from service.guarded import Guarded, Reply
from wattherd.server.api import http
from wattherd.server.api.openapi import REFUSALS, operations
from wattherd.server.app import api
from wattherd.server.auth.rates import RequestRates
from wattherd.server.problems import PAGE, PROBLEM_JSON, PROBLEM_TYPES, ProblemDetails
from wattherd.store.entry import StoreDoubt, StoreFailure

REPOSITORY = Path(__file__).resolve().parents[2]
V1 = "/api/v1"
OLD = {"error", "where", "field", "hint"}
"""The whole body before there were problem details: programs read these."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A site with a job that is over (j-1)."""
    guarded = Guarded(tmp_path_factory.mktemp("site") / "state", rate_burst=1000)
    guarded.let_people_in()
    guarded.tokens["wrong"] = guarded.tokens["user"][:-1] + "?"
    ended = guarded.submit("user")
    guarded.until(
        lambda: guarded.ask("GET", f"{V1}/jobs/{ended}", "user").json["state"] == "Succeeded"
    )
    yield guarded
    guarded.close()


def told(reply: Reply, status: int, path: str) -> dict[str, Any]:
    """The members of a refusal, which is as the standard and the page have it."""
    assert reply.status == status, reply.text
    assert reply.headers["content-type"] == PROBLEM_JSON
    found: dict[str, Any] = reply.json
    assert found.keys() == ProblemDetails.model_fields.keys()
    assert found.keys() > OLD
    assert found["status"] == status
    assert found["detail"] == found["error"]
    assert found["detail"].strip()
    assert found["instance"] == path
    assert found["type"] == PROBLEM_TYPES[status].uri
    assert found["title"] == PROBLEM_TYPES[status].title
    return found


CASES: dict[str, tuple[int, str, str, str, Any, dict[str, str]]] = {
    # what: status, method, path, who, body, members as they are to be
    "an array that is sent as a job": (
        400, "POST", "/jobs", "user", {"run": "true", "array": "0-3"},
        {"field": "array", "detail": "makes many jobs"},
    ),
    "a body that is no text": (400, "POST", "/jobs", "user", b"\xff\xfe{", {}),
    "no token": (401, "GET", "/jobs", "", None, {"detail": "needs a token"}),
    "a token that opens nothing": (401, "GET", "/jobs", "wrong", None, {}),
    "a trainer that shows another's token": (
        401, "POST", "/jobs/j-1/trainer-status", "user", {"trainerStatus": {}}, {},
    ),
    "what only operators may": (
        403, "PUT", "/power", "user", {"budget": "1kW"},
        {"hint": "ask an admin for another token"},
    ),
    "another's job": (403, "POST", "/jobs/j-1/cancel", "colleague", None, {}),
    "no such job": (
        404, "GET", "/jobs/j-99", "user", None,
        {"detail": "no job 'j-99'", "hint": "`wattherd history` lists all"},
    ),
    "another tenant's job": (404, "GET", "/jobs/j-1", "stranger", None, {}),
    "no such address": (
        404, "GET", "/nothing", "user", None, {"hint": "/api/v1/openapi.json lists all"},
    ),
    "a wrong method": (405, "DELETE", "/jobs", "user", None, {}),
    "a job that is over": (
        409, "PATCH", "/jobs/j-1", "user", {"gpus": 1},
        {"detail": "is over", "where": "j-1"},
    ),
    "a body that is too long": (413, "POST", "/jobs", "user", b" " * (2 << 20), {}),
    "a field that is wrong": (
        422, "POST", "/jobs", "user", {"run": "true", "gpus": -1}, {"field": "gpus"},
    ),
    "no JSON": (422, "POST", "/jobs", "user", b"{", {}),
    "a question that is wrong": (422, "GET", "/jobs?limit=x", "user", None, {"field": "limit"}),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_every_refusal_is_problem_details(guarded: Guarded, what: str) -> None:
    status, method, path, who, body, members = CASES[what]
    reply = guarded.ask(method, f"{V1}{path}", who, body)
    found = told(reply, status, f"{V1}{path.partition('?')[0]}")
    assert {name: found[name] for name in members} == members


def test_who_asks_too_often_is_told_in_the_same_words(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded.desk, "rates", RequestRates(0.1, 1))
    guarded.ask("GET", f"{V1}/whoami", "user")
    reply = guarded.ask("GET", f"{V1}/whoami", "user")
    told(reply, 429, f"{V1}/whoami")
    assert int(reply.headers["retry-after"]) >= 1


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "status", "hint"),
    [(StoreFailure("full"), 503, "nothing was changed"), (StoreDoubt("lost"), 504, "may have")],
)
def test_a_store_that_fails_is_told_in_the_same_words(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, hint: str
) -> None:
    monkeypatch.setattr(guarded.site.keeper, "post", failing(error))
    reply = guarded.ask("PUT", f"{V1}/power", "operator", {"budget": "1kW"})
    found = told(reply, status, f"{V1}/power")
    assert found["detail"] == str(error)
    assert hint in found["hint"]


def test_a_defect_is_told_in_the_same_words_and_gives_nothing_away(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "look_up", failing(RuntimeError("the password is swordfish")))
    reply = guarded.ask("GET", f"{V1}/jobs/j-1", "user")
    told(reply, 500, f"{V1}/jobs/j-1")
    assert "swordfish" not in reply.text


def test_a_websocket_that_is_turned_away_is_told_in_the_same_words(guarded: Guarded) -> None:
    path = f"{V1}/jobs/j-1/sessions"
    address = f"ws://127.0.0.1:{guarded.port}{path}"
    for who, status in (("", 401), ("colleague", 403), ("stranger", 404), ("user", 409)):
        shown = {"authorization": f"Bearer {guarded.tokens[who]}"} if who else {}
        with pytest.raises(InvalidStatus) as refused:
            connect(address, additional_headers=shown, proxy=None)
        answer = refused.value.response
        headers = {name.lower(): value for name, value in answer.headers.raw_items()}
        told(Reply(answer.status_code, headers, (answer.body or b"").decode()), status, path)


def test_outside_the_api_programs_read_details_and_people_a_page(guarded: Guarded) -> None:
    token = {"authorization": f"Bearer {guarded.tokens['user']}"}
    for path in ("/nothing", "/robots.txt", "/jobs"):
        told(guarded.send("GET", path, None, token), 404, path)
        page = guarded.send("GET", path, None, {**token, "accept": "text/html,*/*"})
        assert (page.status, "<html" in page.text) == (404, True)
        assert page.headers["content-type"].startswith("text/html")
    told(guarded.send("GET", "/queue", None, {}), 401, "/queue")
    told(guarded.send("POST", "/queue", None, token), 405, "/queue")


@pytest.mark.parametrize(
    "path", ["/jobs/%3Cscript%3E", "/jobs/a%3Fb%23c", "/jobs/%C3%A9%20e", "/jobs/%22%0d%0aX:%20y"]
)
def test_the_instance_is_an_address_whatever_was_asked_for(guarded: Guarded, path: str) -> None:
    reply = guarded.ask("GET", f"{V1}{path}", "user")
    assert reply.status == 404
    found = reply.json["instance"]
    assert re.fullmatch(r"[A-Za-z0-9/%._~!$&'()*+,;=:@-]+", found)
    assert guarded.ask("GET", found, "user").json["detail"] == reply.json["detail"]


def test_the_document_says_so_of_every_operation() -> None:
    for _, path, one in operations(api().openapi()):
        for status, answer in one["responses"].items():
            if int(status) < 400:
                continue
            assert int(status) in REFUSALS
            kinds = answer["content"]
            if status == "503" and path in (f"{V1}/health", f"{V1}/alive"):
                assert kinds.keys() == {"application/json"}  # a document of their own
                continue
            reference = {"$ref": "#/components/schemas/ProblemDetails"}
            assert kinds == {PROBLEM_JSON: {"schema": reference}}, (path, status)


def test_every_type_is_an_address_on_the_reference_page() -> None:
    page = (REPOSITORY / "docs" / "reference" / "api.md").read_text()
    assert PAGE.endswith("/docs/reference/api.md")
    assert len({one.name for one in PROBLEM_TYPES.values()}) == len(PROBLEM_TYPES)
    for status, one in PROBLEM_TYPES.items():
        assert page.count(f"\n### {one.name}\n\n{status}. ") == 1
        HTTPStatus(status)

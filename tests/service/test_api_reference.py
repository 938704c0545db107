"""What the service answers is what its OpenAPI document, its shapes and the page say it answers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from pydantic import BaseModel

from service.guarded import Guarded
from wattherd.server.api.openapi import REFUSALS, ROLE, operations
from wattherd.server.api.schemas import groupings, jobs, power, site
from wattherd.server.api.schemas.shape import ApiShape, example, told
from wattherd.server.api_reference import curl, page
from wattherd.server.app import api
from wattherd.server.auth.caller import Role
from wattherd.server.problems import ProblemDetails

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENT = api().openapi()
SHAPES: dict[str, type[ApiShape]] = {
    name: one
    for module in (groupings, jobs, power, site)
    for name, one in vars(module).items()
    if isinstance(one, type) and issubclass(one, ApiShape) and one is not ApiShape
}
OPERATIONS = {f"{method} {path}": one for method, path, one in operations(DOCUMENT)}
NOT_THERE = ("PUT /api/v1/queues", "GET /api/v1/power/delivery")
LEFT_OUT = {
    "PUT /api/v1/power/signals": "its example is the address of somebody else's service",
    "GET /api/v1/events": "does not end by itself",
}


def rewritten(model: type[BaseModel], document: Any) -> Any:
    """The document as the model knows it: without what the model does not know."""
    return model.model_validate(document).model_dump(mode="json", by_alias=True, exclude_unset=True)


def shape_of(operation: dict[str, Any]) -> tuple[int, type[ApiShape] | None]:
    """Status and shape of the answer; None for text."""
    status = next(code for code in operation["responses"] if code.startswith("2"))
    content = operation["responses"][status]["content"].get("application/json")
    reference = content and content["schema"]["$ref"]
    return int(status), SHAPES[reference.rpartition("/")[2]] if reference else None


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A site with jobs that run, wait, and are over, with budgets to come and limits by time."""
    guarded = Guarded(tmp_path_factory.mktemp("site") / "state")
    guarded.let_in("admin", Role.ADMIN)
    ended = guarded.submit("admin", "echo said", name="short")
    guarded.until(
        lambda: guarded.ask("GET", f"/api/v1/jobs/{ended}", "admin").json["state"] == "Succeeded"
    )
    running = guarded.submit("admin", "sleep 1000", gpus=2, group="sweep", envs={"EPOCHS": 9})
    guarded.until(
        lambda: guarded.ask("GET", f"/api/v1/jobs/{running}", "admin").json["state"] == "Running"
    )
    guarded.submit("admin", gpus=1, after=[running])
    guarded.submit("admin", gpus=1)
    guarded.ask("PUT", "/api/v1/power", "admin", {"budget": "1kW", "in": "9h"})
    plan = {"name": "limits.csv", "text": "at,limit,until\n18:00,6kW,22:00\n"}
    guarded.ask("PUT", "/api/v1/power/schedule", "admin", {"schedule": plan})
    guarded.ask("PUT", "/api/v1/tenants/a", "admin", {"most_gpus": 1})
    guarded.until(lambda: guarded.ask("GET", "/api/v1/power", "admin").json["samples"])
    yield guarded
    guarded.close()


def test_the_reference_page_is_fresh() -> None:
    assert (REPOSITORY / "docs" / "reference" / "api.md").read_text() == page()


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_route_says_who_may_and_what_comes_back(name: str) -> None:
    operation = OPERATIONS[name]
    assert operation[ROLE] in {*map(str, Role), "anyone", "own"}
    assert {str(code) for code in REFUSALS} <= operation["responses"].keys()
    answer = shape_of(operation)[1]
    assert answer is not None or name.endswith(("/logs", "/events"))
    unsaid = [one["name"] for one in operation.get("parameters", []) if _unsaid(one)]
    assert unsaid == [] or name.endswith("/{tenant}")


def _unsaid(parameter: dict[str, Any]) -> bool:
    return not parameter.get("description")


@pytest.mark.parametrize("name", [*SHAPES, "ProblemDetails"])
def test_examples_are_of_their_shapes(name: str) -> None:
    model = SHAPES.get(name, ProblemDetails)
    assert rewritten(model, example(model)) == example(model)


def test_the_document_shows_examples_that_fit_their_schemas() -> None:
    jsonschema = pytest.importorskip("jsonschema_rs", reason="schemathesis is not installed")
    shown = {name: one for name, one in DOCUMENT["components"]["schemas"].items() if name in SHAPES}
    assert {name for name in SHAPES if name.endswith("Document")} <= shown.keys()
    for name, schema in shown.items():
        assert schema["examples"] == [example(SHAPES[name])]
        whole = {**schema, "components": DOCUMENT["components"]}
        jsonschema.validate(whole, schema["examples"][0])


def test_a_field_without_an_example_is_found() -> None:
    class Silent(ApiShape):
        name: str = told("nothing to see")

    with pytest.raises(TypeError, match="has no example"):
        example(Silent)


@pytest.mark.parametrize("name", [one for one in OPERATIONS if one not in LEFT_OUT])
def test_examples_of_the_page_are_answered_as_documented(guarded: Guarded, name: str) -> None:
    method, _, path = name.partition(" ")
    command = " ".join(curl(method, path, OPERATIONS[name], DOCUMENT["components"]["schemas"]))
    words = shlex.split(command.replace("\\", ""))
    given = urlsplit(next(word for word in words if "http://" in word))
    address = f"{given.path}?{given.query}" if given.query else given.path
    body = json.loads(words[words.index("-d") + 1]) if "-d" in words else None
    assert ("-X" in words) == (method != "GET")
    if path == "/api/v1/power/promise":  # not before something was measured
        guarded.until(lambda: guarded.ask(method, address, "admin").status != 503)
    reply = guarded.ask(method, address, "admin", body)
    status, model = shape_of(OPERATIONS[name])
    if reply.status == status:
        assert model is None or rewritten(model, reply.json) == reply.json
        return
    about_what_is_not_there = "{" in path or name in NOT_THERE
    assert about_what_is_not_there, reply.text
    assert reply.status in (400, 401, 404)  # 422 would be an example of the wrong shape
    assert ProblemDetails.model_validate(reply.json).error


LIVE = {
    "a list with jobs of every state": ("GET /api/v1/jobs", "/jobs?over=true"),
    "a page of a list": ("GET /api/v1/jobs", "/jobs?over=true&limit=1"),
    "a job that is over": ("GET /api/v1/jobs/{job_id}", "/jobs/j-1"),
    "a job that runs": ("GET /api/v1/jobs/{job_id}", "/jobs/j-2"),
    "a job that waits for another": ("GET /api/v1/jobs/{job_id}", "/jobs/j-3"),
    "a job that waits for devices": ("GET /api/v1/jobs/{job_id}", "/jobs/j-4"),
    "why it waits": ("GET /api/v1/jobs/{job_id}/explain", "/jobs/j-4/explain"),
    "nodes in use": ("GET /api/v1/nodes", "/nodes"),
    "watts with budgets and samples": ("GET /api/v1/power", "/power?last=9"),
    "queues in use": ("GET /api/v1/queues", "/queues"),
    "tenants with a limit": ("GET /api/v1/tenants", "/tenants"),
    "search groups": ("GET /api/v1/groups", "/groups"),
    "one search group": ("GET /api/v1/groups/{name}", "/groups/sweep"),
    "decisions": ("GET /api/v1/decisions", "/decisions?limit=1000"),
    "decisions about one job": ("GET /api/v1/decisions", "/decisions?job=j-2"),
    "the record of acts": ("GET /api/v1/audit", "/audit?limit=2"),
    "the record of requests": ("GET /api/v1/audit/requests", "/audit/requests"),
    "tokens": ("GET /api/v1/tokens", "/tokens"),
}


@pytest.mark.parametrize("told_of", LIVE)
def test_live_answers_have_the_fields_of_their_shape(guarded: Guarded, told_of: str) -> None:
    name, path = LIVE[told_of]
    reply = guarded.ask("GET", f"/api/v1{path}", "admin")
    status, model = shape_of(OPERATIONS[name])
    assert reply.status == status, reply.text
    assert model is not None
    assert rewritten(model, reply.json) == reply.json
    assert model.model_fields.keys() - {"schema_"} <= reply.json.keys()


def test_what_is_out_of_use_or_not_heard_is_told_in_the_same_shapes(guarded: Guarded) -> None:
    drained = guarded.ask("POST", "/api/v1/gpus/1/drain", "admin", {"reason": "fan"})
    nodes = drained.json
    assert nodes["nodes"][0]["gpus"][1]["cause"] == "fan"
    assert rewritten(power.NodesDocument, nodes) == nodes
    nobody = {"signals": ["http://127.0.0.1:9/limits?safe=8kW"]}
    told_of = guarded.ask("PUT", "/api/v1/power/signals", "admin", nobody).json
    assert {one["contact"] for one in told_of["signals"]} >= {"waiting"}
    assert told_of["timeline"]
    assert rewritten(power.PowerDocument, told_of) == told_of
    guarded.ask("POST", "/api/v1/gpus/1/return", "admin")
    guarded.ask("PUT", "/api/v1/power/signals", "admin", {"signals": []})


def test_a_job_answers_with_all_fields_from_the_first_moment_on(guarded: Guarded) -> None:
    first = guarded.ask("POST", "/api/v1/jobs", "admin", {"run": "true"}).json
    later = guarded.ask("GET", f"/api/v1/jobs/{first['id']}", "admin").json
    assert first.keys() == later.keys()


def test_names_of_operations_read_as_a_verb_and_a_thing() -> None:
    """Generated clients call their functions so."""
    names = [one["operationId"] for one in OPERATIONS.values()]
    assert len(set(names)) == len(names)
    verbs = {"act_on", "create", "edit", "explain", "get", "limit", "list", "remove", "replace",
             "report", "rerun", "revoke", "set", "submit", "try", "unlimit", "watch"}  # fmt: skip
    told = [name for name in names if not any(name.startswith(f"{verb}_") for verb in verbs)]
    assert told == []
    shapes = DOCUMENT["components"]["schemas"]
    assert [name for name in shapes if not name.isidentifier()] == []

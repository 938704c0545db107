"""The OpenAPI document is kept: requests made from it, sound and broken ones, by schemathesis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("schemathesis", reason="schemathesis is not installed")


import schemathesis
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import positive_data_acceptance

from service.guarded import Guarded
from wattherd.server.api.openapi import operations
from wattherd.server.auth.caller import Role

GenerationMode = schemathesis.GenerationMode
EXAMPLES = 12
NOT_SAID = [positive_data_acceptance]
"""What a schema cannot say: that a text is a time or a size, that one of two fields is needed."""
# Streams that do not end by themselves, and what would close the gate to the test itself.
LEFT_OUT = r"/events$"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    more: dict[str, Any] = {"rate_per_s": 1e6, "rate_burst": 1e6}
    guarded = Guarded(tmp_path_factory.mktemp("site") / "state", **more)
    guarded.let_in("admin", Role.ADMIN)
    guarded.submit("admin", "sleep 1000", gpus=2)  # so that nothing that is made up here is run
    guarded.until(
        lambda: guarded.ask("GET", "/api/v1/jobs/j-1", "admin").json["state"] == "Running"
    )
    yield guarded
    guarded.close()


def document_of(guarded: Guarded) -> dict[str, Any]:
    """Without what it says of tokens: wrong ones, tried by the dozen, would close the gate.

    Who may ask for what is tried in test_authorisation.
    """
    document: dict[str, Any] = guarded.ask("GET", "/api/v1/openapi.json", "admin").json
    for _, _, operation in operations(document):
        del operation["security"]
    return document


def schema_of(guarded: Guarded, document: dict[str, Any]) -> Any:
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=guarded.url)
    return schema


@pytest.mark.long
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_answer_is_as_documented(guarded: Guarded, mode: GenerationMode) -> None:
    schema = schema_of(guarded, document_of(guarded))
    headers = {"authorization": f"Bearer {guarded.tokens['admin']}"}
    tried = []
    for found in schema.exclude(path_regex=LEFT_OUT).get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def answers(case: Any) -> None:
            if case.query and case.query.get("follow"):
                case.query["follow"] = False
            case.call_and_validate(headers=headers, timeout=60, excluded_checks=NOT_SAID)

        try:
            answers()
        except Unsatisfiable:
            assert mode is GenerationMode.NEGATIVE  # nothing can be wrong about `GET /nodes`
        tried.append(operation.label)
    documented = {f"{method} {path}" for method, path, _ in operations(document_of(guarded))}
    assert documented - set(tried) == {"GET /api/v1/events"}


@pytest.mark.long
def test_an_answer_without_a_documented_field_is_noticed(guarded: Guarded) -> None:
    document = document_of(guarded)
    document["components"]["schemas"]["CallerDocument"]["required"].append("shoe_size")
    case = schema_of(guarded, document)["/api/v1/whoami"]["GET"].Case()
    headers = {"authorization": f"Bearer {guarded.tokens['admin']}"}
    with pytest.raises(FailureGroup, match="shoe_size"):
        case.call_and_validate(headers=headers, timeout=60)


BAD = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"x"',
    b"\xff\xfe",
    b"1e999",
    b'{"budget": 1e307}',
    b'{"budget": "1e307W"}',
    b'{"budget": true}',
    b'{"budget": 1e9, "in": 1e300}',
    b'{"budget": 1e9, "in": "1e999d"}',
    b'{"run": NaN}',
    b'{"run": "true", "gpus": 1e400}',
    b'{"run": "true", "gpus": -1}',
    b'{"run": "true", "gpus": 99999999999999999999999}',
    b'{"run": "true", "priority": 1e30}',
    b'{"run": "true", "memory_per_gpu": "1e308TB"}',
    b'{"run": "true", "time": {"limit": "nan"}}',
    b'{"run": "true", "time": {"limit": -1}}',
    b'{"run": "true", "time": {"limit": 1e999}}',
    b'{"run": "true", "time": {"deadline": "0001-01-01T00:00:00"}}',
    b'{"run": "true", "backoff": "inf"}',
    b'{"run": "true", "restarts": 1e18}',
    b'{"run": [], "gpus": 1}',
    b'{"run": "a\\u0000b"}',
    b'{"run": "\\ud800"}',
    b'{"run": "true", "name": "\\ud800"}',
    b'{"run": "true", "queue": "\\u0000"}',
    b'{"run": "true", "taskRoles": {}}',
    b'{"taskRoles": {"": {"run": "true"}}}',
    b'{"taskRoles": {"a": {"run": "true", "taskNumber": 1000000000}}}',
    b'{"run": "true", "after": ["j-1", "j-1", ""]}',
    b'{"run": "true", "group": "' + b"g" * 100_000 + b'"}',
    b"[" * 50_000,
]
PATHS = ["/jobs", "/dry-run", "/power", "/tokens", "/jobs/j-1/trainer-status"]


@pytest.mark.parametrize("path", PATHS)
def test_nonsense_is_refused_in_a_sentence(guarded: Guarded, path: str, tmp_path: Path) -> None:
    method = "PUT" if path == "/power" else "POST"
    for body in BAD:
        reply = guarded.ask(method, f"/api/v1{path}", "admin", body)
        assert reply.status < 500, (body[:80], reply.text)
        assert "Traceback" not in reply.text
        if reply.status >= 400 and "trainer" not in path:
            assert reply.json["error"], body[:80]
    assert guarded.ask("GET", "/api/v1/health").json["ok"]

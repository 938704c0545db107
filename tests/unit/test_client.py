"""What callers of the Python client are told of an error that a service answers with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wattherd.devices.wire.http_client import HttpAnswer
from wattherd.errors import UserError
from wattherd.library import client
from wattherd.library.client import NotThere, RefusedByService, ServiceUnreachable

NOW = {
    "type": "https://example.org/types#not-found", "title": "There is no such thing", "status": 404,
    "detail": "no job 'j-9'", "instance": "/api/v1/jobs/j-9", "error": "no job 'j-9'", "where": "",
    "field": "", "hint": "`wattherd history` lists all",
}  # fmt: skip


def told(status: int, body: Any, reason: str = "Reason") -> UserError:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client._refusal(HttpAnswer(status, reason, {}, text))


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (NOW, "no job 'j-9' (hint: `wattherd history` lists all)"),
        ({"error": "no job", "hint": "look"}, "no job (hint: look)"),  # a service of before
        ({"type": "about:blank", "title": "Bad Gateway", "status": 502}, "Bad Gateway"),  # a proxy
        ({"title": "Teapot", "detail": "short and stout"}, "short and stout"),
        ({"detail": "", "error": "", "title": ""}, "Reason"),
        ({"detail": {"a": 1}, "title": 3}, "Reason"),
        ({"detail": "a\u001b[31mb\nc", "field": "x\u001b"}, "x?: a?[31mb c"),
        ([1], "418 Reason"),
        (b"<html>", "418 Reason"),
    ],
)
def test_the_words_of_whoever_answers(body: Any, line: str) -> None:
    assert told(418, body).line() == line


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, UserError, 2), (401, RefusedByService, 5), (403, RefusedByService, 5),
        (404, NotThere, 3), (409, UserError, 2), (413, UserError, 2), (422, UserError, 2),
        (429, RefusedByService, 5), (500, UserError, 2), (503, ServiceUnreachable, 4),
        (504, ServiceUnreachable, 4),
    ],
)  # fmt: skip
def test_the_status_says_whose_fault_it_is(status: int, kind: type[UserError], code: int) -> None:
    error = told(status, NOW)
    assert (type(error), error.exit_code) == (kind, code)

"""The reference page of the REST API, made of its OpenAPI document: docs/reference/api.md."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlencode

from wattherd.server.api.openapi import ROLE, operations
from wattherd.server.app import api
from wattherd.server.problems import PROBLEM_TYPES

Schema = dict[str, Any]
ELSEWHERE = {"JobFile": "job-yaml.md"}
"""Shapes that have a page of their own."""
_ADDRESS = "http://127.0.0.1:8700"
_WHO = {"anyone": "anyone", "own": "the run's own token"}
_HEAD = """# REST API v1

This page is what `python -m wattherd.server.api_reference` prints, made of the OpenAPI document
that a service gives at `/api/v1/openapi.json`. The [guide](../guides/api.md) tells how to use it,
and [security](../guides/security.md) who has which role. With tokens send
`-H "Authorization: Bearer $WATTHERD_TOKEN"`. Units: `_w` watts, `_s` seconds, `_j` joules; times
are ISO 8601 with zone. Fields may be added to a document; a `schema` of another number tells that
something has changed or gone.
"""


def page() -> str:
    """The page, in Markdown."""
    document = api().openapi()
    shapes = document["components"]["schemas"]
    parts = [_HEAD, _index(document), _refusals(), *_groups(document), "## Documents\n"]
    parts += [_shape(name, shapes[name]) for name in sorted(_reached(document))]
    return "\n".join(parts)


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _index(document: Schema) -> str:
    rows = [
        (f"`{method} {path}`", _who(one), _answer(one), one["summary"])
        for method, path, one in operations(document)
    ]
    return _table(("method and address", "least role", "answer", "what"), rows)


_ERRORS = """## Errors

Every error is a [ProblemDetails](#problemdetails), as RFC 9457 has them, with the content type
`application/problem+json`. Its `type` is an address that ends in one of these names. Only `/health`
and `/alive` answer 503 with their own document. A connection that is one too many, or whose head is
broken, gets a bare status.
"""


def _refusals() -> str:
    told = [f"### {one.name}\n\n{code}. {one.meaning}.\n" for code, one in PROBLEM_TYPES.items()]
    return "\n".join([_ERRORS, *told])


def _groups(document: Schema) -> Iterator[str]:
    found: dict[str, list[str]] = {}
    for method, path, one in operations(document):
        text = _operation(method, path, one, document["components"]["schemas"])
        found.setdefault(one["tags"][0], []).append(text)
    for tag, texts in found.items():
        yield f"## {tag.capitalize()}\n\n" + "\n".join(texts)


def _operation(method: str, path: str, one: Schema, shapes: Schema) -> str:
    text = one["description"].strip()
    role = f"Least role: {_who(one)}. In generated clients: `{one['operationId']}`.\n"
    parts = [f"### `{method} {path}`\n", f"{text}\n", role]
    parameters = [_parameter(given) for given in one.get("parameters", [])]
    if parameters:
        parts.append(_table(("parameter", "in", "type", "meaning"), parameters))
    if "requestBody" in one:
        body = _linked(_kind(_body(one)))
        need = "" if one["requestBody"].get("required") else ", may be left out"
        parts.append(f"Request: {body}{need}.\n")
    parts += [f"    {line}" for line in curl(method, path, one, shapes)]
    return "\n".join([*parts, f"\nAnswer: {_answer(one)}.\n"])


def _who(one: Schema) -> str:
    return _WHO.get(one[ROLE], str(one[ROLE]))


def _body(one: Schema) -> Schema:
    schema: Schema = one["requestBody"]["content"]["application/json"]["schema"]
    return schema


def _answer(one: Schema) -> str:
    status = next(code for code in one["responses"] if code.startswith("2"))
    kind, content = next(iter(one["responses"][status]["content"].items()))
    if kind != "application/json":
        return f"{status}, `{kind}`"
    return f"{status}, {_linked(_kind(content['schema']))}"


def _parameter(given: Schema) -> tuple[str, str, str, str]:
    schema = given["schema"]
    default = schema.get("default")
    said = given.get("description", "")
    if default not in (None, "", []):
        said = f"{said}; " * bool(said) + f"`{json.dumps(default)}` if left out"
    return f"`{given['name']}`", given["in"], _kind(schema), said


def curl(method: str, path: str, one: Schema, shapes: Schema) -> Iterator[str]:
    """Lines of a command that asks for it, by the examples of the document."""
    query = {}
    for given in one.get("parameters", []):
        value = (given["schema"].get("examples") or given.get("examples") or [None])[0]
        if given["in"] == "path":
            path = path.replace(f"{{{given['name']}}}", str(value))
        elif given["in"] == "query" and value is not None:
            query[given["name"]] = value
    asked = "" if method == "GET" else f"-X {method} "
    address = f"{_ADDRESS}{path}"
    if query:
        address = f"'{address}?{urlencode(query, safe=':')}'"
    if "requestBody" not in one:
        yield f"curl -s {asked}{address}"
        return
    yield f"curl -s {asked}-H 'Content-Type: application/json' {address} \\"
    yield f"  -d '{json.dumps(example(_body(one), shapes))}'"


def example(schema: Schema, shapes: Schema) -> Any:
    """A value of that schema: its own example, or made of those of its fields.

    Raises:
        KeyError: there is none.
    """
    if "examples" in schema:
        return schema["examples"][0]
    if "anyOf" in schema:
        return example(schema["anyOf"][0], shapes)
    if "$ref" in schema:
        return example(shapes[_name(schema)], shapes)
    fields = schema["properties"].items()
    needed = schema.get("required", [])
    shown = [(name, one) for name, one in fields if name in needed or "examples" in one]
    return {name: example(one, shapes) for name, one in shown}


def _name(schema: Schema) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _kind(schema: Schema) -> str:
    """A type in words; shapes by name, in brackets."""
    if "$ref" in schema:
        return f"[{_name(schema)}]"
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{one}`" for one in schema["enum"] if one)
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"{_kind(schema['additionalProperties'])} by name"
    return str(schema.get("type", "anything")) + _range(schema)


def _range(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None and high is None:
        return ""
    return f", {low} to {high}" if high is not None else f", at least {low}"


def _linked(text: str) -> str:
    for name in _names(text):
        text = text.replace(f"[{name}]", f"[{name}]({ELSEWHERE.get(name, f'#{name.lower()}')})")
    return text


def _names(text: str) -> list[str]:
    return [part.split("]")[0] for part in text.split("[")[1:]]


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield _name(part)
        for one in part.values():
            yield from _references(one)
    elif isinstance(part, list):
        for one in part:
            yield from _references(one)


def _reached(document: Schema) -> set[str]:
    """Names of shapes that requests and answers are made of, but for those told elsewhere."""
    found: set[str] = set()
    waiting = list(_references(document["paths"]))
    while waiting:
        name = waiting.pop()
        if name not in found and name not in ELSEWHERE:
            found.add(name)
            waiting += _references(document["components"]["schemas"][name])
    return found


def _shape(name: str, schema: Schema) -> str:
    parts = [f"### {name}\n", f"{schema.get('description', '').strip()}\n"]
    if "enum" in schema:
        parts.append(f"{_kind(schema)}\n")
    needed = schema.get("required", [])
    rows = [
        (f"`{key}`", _linked(_kind(one)), "" if key in needed else "yes", _meaning(one))
        for key, one in schema.get("properties", {}).items()
    ]
    if rows:
        parts.append(_table(("field", "type", "optional", "meaning"), rows))
    if schema.get("examples"):
        parts.append(f"```json\n{json.dumps(schema['examples'][0], indent=2)}\n```\n")
    return "\n".join(parts)


def _meaning(schema: Schema) -> str:
    return " ".join(str(schema.get("description", "")).split())


if __name__ == "__main__":
    sys.stdout.write(page())

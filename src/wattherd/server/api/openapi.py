"""The application, and its OpenAPI document: who may ask for what, and what comes back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from wattherd import __version__
from wattherd.server.api.schemas.shape import example, shapes
from wattherd.server.auth.caller import Role
from wattherd.server.auth.rules import RULES, V1, OpenAddresses
from wattherd.server.problems import PROBLEM_JSON, PROBLEM_TYPES, ProblemDetails

REFUSALS = {code: PROBLEM_TYPES[code] for code in PROBLEM_TYPES if code not in (405, 500)}
"""What any operation may answer: not asked by its method is another, and a defect is none."""
ROLE = "x-least-role"
"""Says the least role of an operation, or `anyone`, or `own`: a secret of its own is asked for."""
PROBLEM = {"$ref": f"#/components/schemas/{ProblemDetails.__name__}"}
SCHEME = "token"
_SCHEMES = {SCHEME: {"type": "http", "scheme": "bearer", "description": "`wattherd token create`"}}


class DocumentedApi(FastAPI):
    """FastAPI, with a document that knows the rules of access."""

    def openapi(self) -> dict[str, Any]:
        """The document, made once."""
        if self.openapi_schema is None:
            document = super().openapi()
            document["components"]["securitySchemes"] = _SCHEMES
            _show_examples(document["components"]["schemas"])
            _leave_out_empty_defaults(document["components"]["schemas"])
            for method, path, operation in operations(document):
                _finish(method, path, operation)
        return super().openapi()


def new_application() -> DocumentedApi:
    """One without any address but that of its document."""
    return DocumentedApi(
        title="wattherd",
        version=__version__,
        openapi_url=f"{V1}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # What generators of clients call each operation: by default its path stands in the name.
        generate_unique_id_function=lambda route: route.name,
        # Two shapes of one name, for what is sent and what comes back, are more than some of them
        # take: they drop one, and each answer that has it.
        separate_input_output_schemas=False,
        responses={
            code: {"model": ProblemDetails, "description": one.meaning}
            for code, one in REFUSALS.items()
        },
    )


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and the rest of all that can be asked for."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


def _finish(method: str, path: str, operation: dict[str, Any]) -> None:
    rule = RULES[method, path]
    operation[ROLE] = str(rule.value)
    operation["security"] = (
        [{SCHEME: []}] if isinstance(rule, Role) or rule is OpenAddresses.OWN else []
    )
    operation["tags"] = [path.removeprefix(V1).split("/")[1]]
    operation["summary"] = operation["description"].split("\n", 1)[0].removesuffix(".")
    for response in operation["responses"].values():
        contents = response.get("content", {})
        for content in contents.values():
            _only_reference(content.get("schema", {}))
        if contents.get("application/json", {}).get("schema") == PROBLEM:
            contents[PROBLEM_JSON] = contents.pop("application/json")


def _show_examples(schemas: dict[str, Any]) -> None:
    """Whole ones, by hand: FastAPI leaves out of its document what is null."""
    known: dict[str, type[BaseModel]] = {ProblemDetails.__name__: ProblemDetails, **shapes()}
    for name in known.keys() & schemas.keys():
        schemas[name]["examples"] = [example(known[name])]


def _leave_out_empty_defaults(schemas: dict[str, Any]) -> None:
    """Of fields of several types: of no list that is text or a list, clients send the text `[]`."""
    for shape in schemas.values():
        for schema in shape.get("properties", {}).values():
            if "anyOf" in schema and schema.get("default") == []:
                del schema["default"]


def _only_reference(schema: dict[str, Any]) -> None:
    """What FastAPI knows of the mapping that is sent says less than the document's own shape."""
    if "$ref" in schema:
        reference = schema["$ref"]
        schema.clear()
        schema["$ref"] = reference

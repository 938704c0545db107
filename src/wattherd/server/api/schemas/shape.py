"""What all shapes share: documents as OpenAPI shows them, each with an example.

The service makes its documents as plain mappings, ten thousand rows at a time, and does not check
each again before it is sent; tests hold what is sent to these shapes, to the field.
"""

from __future__ import annotations

from types import NoneType
from typing import Any, get_args, get_origin

from pydantic import BaseModel, Field

Responses = dict[int | str, dict[str, Any]]


class ApiShape(BaseModel):
    """A document or a part of one. More fields may come within a version; none goes."""


def told(text: str, *examples: Any) -> Any:
    """A field, by what it says; without an example that of its type is shown."""
    return Field(description=text, examples=list(examples) or None)


def version(name: str) -> Any:
    """The field `schema` of a document."""
    return Field(alias="schema", description="name and version of this document", examples=[name])


def example(model: type[BaseModel]) -> dict[str, Any]:
    """A document of that shape, made of the examples of its fields.

    Raises:
        TypeError: a field has none.
    """
    return {
        field.alias or name: field.examples[0] if field.examples else _example_of(field.annotation)
        for name, field in model.model_fields.items()
    }


def _example_of(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return example(annotation)
    parts = [one for one in get_args(annotation) if one is not NoneType]
    if not parts:
        raise TypeError(f"{annotation} has no example")
    return [_example_of(parts[0])] if get_origin(annotation) is list else _example_of(parts[0])


def shapes(of: type[ApiShape] = ApiShape) -> dict[str, type[ApiShape]]:
    """All shapes by name."""
    found: dict[str, type[ApiShape]] = {}
    for one in of.__subclasses__():
        found |= {one.__name__: one, **shapes(one)}
    return found


def answers(model: type[BaseModel], status: int = 200, text: str = "Done") -> Responses:
    """What a route says of its answer, as FastAPI takes it."""
    return {status: {"model": model, "description": text}}

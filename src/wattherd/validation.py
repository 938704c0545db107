"""What is said of a document that does not have the shape it should: field, fault, what was meant.

This module knows no other part of wattherd but its errors and its spelling.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from wattherd.errors import UserError
from wattherd.spelling import nearest

Place = Sequence[int | str]
_UNKNOWN = "extra_forbidden"
_SHAPES = {
    "model_type": "a mapping of fields to values",
    "dict_type": "a mapping of names to values",
    "dataclass_type": "a mapping of fields to values",
    "list_type": "a list",
    "tuple_type": "a list",
}
_KINDS = {dict: "a mapping", list: "a list", tuple: "a list", str: "a text", type(None): "nothing"}


def misfit(
    problem: ValidationError, where: str, kind: type[BaseModel] | None = None, *, hint: str = ""
) -> UserError:
    """The first thing that is wrong, as an error for who wrote the document.

    Args:
        problem: what pydantic found; an unknown field comes first, for a field that is missing
            is often one that was misspelt.
        where: the file, line or argument that the document came from.
        kind: what the document should have been; its fields make the hint for an unknown one.
        hint: said where nothing better is known.
    """
    errors = problem.errors(include_url=False)
    first = next((one for one in errors if one["type"] == _UNKNOWN), _telling(errors))
    unknown = first["type"] == _UNKNOWN
    place, siblings = _place(first["loc"], kind, unknown=unknown)
    field = ".".join(map(str, place))
    if unknown:
        meant = _meant(str(place[-1]), list(map(str, siblings)))
        return UserError("unknown field", where=where, field=field, hint=meant or hint)
    return UserError(_fault(first), where=where, field=field, hint=hint)


def _telling(errors: Sequence[Any]) -> Any:
    """The first error, or of alternatives to it the one that understood most of what was written.

    That is one for which a check of our own has words, or else the one that came farthest.
    """
    place = errors[0]["loc"][:-1]
    same = [one for one in errors if place and one["loc"][: len(place)] == place]
    return max(same or errors[:1], key=lambda one: (one["type"] == "value_error", len(one["loc"])))


def _fault(error: Any) -> str:
    """What is wrong, beginning with a small letter."""
    if error["type"] in _SHAPES:
        found = _KINDS.get(type(error["input"]), "a number")
        return f"is {found}, where {_SHAPES[error['type']]} is expected"
    message = str(error["msg"]).removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _meant(name: str, siblings: Sequence[str]) -> str:
    """The field whose name is nearest among those of the same mapping, or all of them."""
    near = nearest(name, siblings)
    if near is not None:
        return f"did you mean {near!r}?"
    return f"fields: {', '.join(siblings)}" if siblings else ""


def _place(place: Place, kind: type[BaseModel] | None, *, unknown: bool) -> tuple[Place, Place]:
    """Where it is in the document, and the fields there.

    pydantic also names the member of a union that it tried, as if that were a field; it is left
    out. The last part is kept where it is the field that is `unknown`.
    """
    if kind is None:
        return place, ()
    kept: list[int | str] = []
    at, keyed = kind, False
    for part in place:
        annotation = None if keyed else _fields(at).get(part)
        if annotation is not None or keyed or isinstance(part, int):
            kept.append(part)
        keyed = annotation is not None and _is_mapping(annotation)
        at = next(_models(annotation), at)
    if unknown and kept[-1:] != [place[-1]]:
        kept.append(place[-1])
    return kept, tuple(_fields(at))


def _fields(kind: type[BaseModel]) -> dict[int | str, Any]:
    return {info.alias or name: info.annotation for name, info in kind.model_fields.items()}


def _is_mapping(annotation: Any) -> bool:
    origins = (get_origin(one) for one in (annotation, *get_args(annotation)))
    return any(isinstance(one, type) and issubclass(one, Mapping) for one in origins)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Models within lists, mappings and unions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)

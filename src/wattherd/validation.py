"""What is said of a document that does not have the shape it should: field, fault, what was meant.

This module knows no other part of wattherd but its errors and its spelling.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError

from wattherd.errors import UserError
from wattherd.spelling import nearest

Place = Sequence[int | str]
_UNKNOWN = "extra_forbidden"
_SHAPES = {
    "model_type": "a mapping of fields to values",
    "model_attributes_type": "a mapping of fields to values",
    "dict_type": "a mapping of names to values",
    "dataclass_type": "a mapping of fields to values",
    "list_type": "a list",
    "tuple_type": "a list",
}
_KINDS = {dict: "a mapping", list: "a list", tuple: "a list", str: "a text", type(None): "nothing"}
_VALUES = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "greater_than": "a number above {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "a number below {lt}",
    "less_than_equal": "{le} or less",
    "literal_error": "{expected}",
    "enum": "{expected}",
}
"""What is expected in place of a value; where a text is, the value may be a secret: not told."""
_TEXTS = {
    "string_too_long": "has {found} characters, {max_length} are the most",
    "string_too_short": "has {found} characters, {min_length} are the least",
}
_LENGTHS = {
    "too_long": "has {actual_length} entries, {max_length} are the most",
    "too_short": "has {actual_length} entries, {min_length} are the least",
}
_PRESENCE = {_UNKNOWN: "unknown field", "missing": "is missing"}
_MOST_SHOWN = 40
_QUOTES = "write it in quotes"


class Fault(NamedTuple):
    """What is wrong with a field, beginning with a small letter, and what helps, if known."""

    problem: str
    hint: str


def fault_within(errors: Sequence[Any], document: Any) -> tuple[str, Fault]:
    """The field and its fault among what pydantic found in a document that is at hand.

    Parts of a place that are not in the document are names of alternatives that were tried.
    """
    first = _telling(errors)
    at, kept = document, []
    for number, part in enumerate(first["loc"]):
        inside = (
            part in at
            if isinstance(at, Mapping)
            else isinstance(at, list) and part in range(len(at))
        )
        if inside:
            at = at[part]
            kept.append(str(part))
        elif number == len(first["loc"]) - 1 and first["type"] == "missing":
            kept.append(str(part))
    return ".".join(kept), _fault(first, errors)


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
    fault = _fault(first, errors)
    return UserError(fault.problem, where=where, field=field, hint=fault.hint or hint)


def _telling(errors: Sequence[Any]) -> Any:
    """The first error, or of alternatives to it the one that understood most of what was written.

    That is one for which a check of our own has words, or else the one that came farthest, to a
    value that is only out of range.
    """
    place = errors[0]["loc"][:-1]
    same = [one for one in errors if place and one["loc"][: len(place)] == place]
    return max(
        same or errors[:1],
        key=lambda one: (one["type"] == "value_error", len(one["loc"]), "than" in one["type"]),
    )


def _fault(error: Any, errors: Sequence[Any] = ()) -> Fault:
    """What is wrong; of alternatives to this error among `errors`, all are told."""
    kind, found = error["type"], error.get("input")
    others = [one for one in errors if _is_alternative(one, error)]
    if kind in _VALUES:
        wanted = list(dict.fromkeys(filter(None, map(_expected, others or [error]))))
        if len(wanted) > 1:
            wanted = [one.replace(" or ", ", ") for one in wanted]
        problem = f"is {_shown(found)}, where {' or '.join(wanted)} is expected"
        words = [word for one in others for word in _literals(one)]
        near = nearest(found, words) if isinstance(found, str) else None
        return Fault(problem, f"did you mean {near!r}?" if near else "")
    if kind == "string_pattern_mismatch":
        return Fault(f"{_shown(found)} does not match {error['ctx']['pattern']}", "")
    if kind in _SHAPES:
        return Fault(f"is {_named(found)}, where {_SHAPES[kind]} is expected", "")
    if kind == "string_type":
        plain = isinstance(found, bool | int | float)
        return Fault(f"is {_named(found)}, where a text is expected", _QUOTES if plain else "")
    if kind in _TEXTS:
        return Fault(_TEXTS[kind].format(found=len(found), **error["ctx"]), "")
    if kind in _LENGTHS:
        return Fault(_LENGTHS[kind].format(**error["ctx"]), "")
    if kind in _PRESENCE:
        return Fault(_PRESENCE[kind], "")
    # A check of ours may have a hint of its own, which is better than that of the whole document.
    message, _, hint = str(error["msg"]).removeprefix("Value error, ").partition(" (hint: ")
    return Fault(message[:1].lower() + message[1:], hint.removesuffix(")"))


def _is_alternative(one: Any, other: Any) -> bool:
    """Whether both found fault with one value; one that is only out of range has no other form."""
    ranges = "than" in one["type"] or "than" in other["type"]
    same = one["loc"][:-1] == other["loc"][:-1] and one.get("input") is other.get("input")
    return same and (one["type"] == other["type"] or not ranges)


def _expected(error: Any) -> str:
    words = _VALUES.get(error["type"]) or _SHAPES.get(error["type"], "")
    return words.format(**error.get("ctx", {}))


def _literals(error: Any) -> list[str]:
    """The words of pydantic's `'low', 'normal' or 'high'`."""
    return str(error["ctx"]["expected"]).split("'")[1::2] if "literal" in error["type"] else []


def _named(found: Any) -> str:
    return "true or false" if isinstance(found, bool) else _KINDS.get(type(found), "a number")


def _shown(found: Any) -> str:
    """A value as whoever wrote it knows it."""
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, int | float):
        return f"{found:g}" if isinstance(found, float) else str(found)[:_MOST_SHOWN]
    if isinstance(found, str):
        return repr(found if len(found) <= _MOST_SHOWN else f"{found[:_MOST_SHOWN]}...")
    return _named(found)


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

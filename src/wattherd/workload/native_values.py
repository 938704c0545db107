"""Values of fields in wattherd's own job files, from a CSV cell or from JSON.

In a cell, names stand between semicolons and labels are `key=value`; JSON has lists and an object.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from wattherd.workload.cells import MAX_INTEGER, CellPlace
from wattherd.workload.source import shown


class FieldKind(StrEnum):
    """What a field holds."""

    NAME = "a text"
    NAMES = "names"
    WORDS = "words"
    LABELS = "labels"
    WHOLE = "a whole number of zero or more"
    WHOLES = "whole numbers of zero or more"
    INTEGER = "a whole number"
    NUMBER = "a number"
    SECONDS = "seconds, zero or more"
    FLAG = "true or false"


def _bad(place: CellPlace, field: str, value: object, kind: FieldKind) -> Exception:
    return place.error(field, f"{shown(str(value))} is not {kind}", _EXAMPLES.get(kind, ""))


_EXAMPLES: Mapping[FieldKind, str] = {
    FieldKind.LABELS: "team=vision;stage=2, or an object in JSON",
    FieldKind.NAMES: "a;b, or a list in JSON",
    FieldKind.WHOLES: "8;16, or a list in JSON",
    FieldKind.WORDS: '["python", "train.py"]',
    FieldKind.SECONDS: "a plain decimal number",
}


# From a cell ------------------------------------------------------------------------------------


def _text(place: CellPlace, field: str, text: str) -> str:
    del place, field
    return text


def _number(place: CellPlace, field: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _bad(place, field, text, FieldKind.NUMBER)
    return value


def _seconds(place: CellPlace, field: str, text: str) -> float:
    value = _number(place, field, text)
    if value < 0:
        raise place.error(field, f"{shown(text)} is negative", str(FieldKind.SECONDS))
    return value


def _integer(place: CellPlace, field: str, text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    return sign * place.integer(field, text.removeprefix("-"))


def _labels(place: CellPlace, field: str, text: str) -> tuple[tuple[str, str], ...]:
    pairs = [part.partition("=") for part in _names(place, field, text)]
    if not all(key and equals for key, equals, _ in pairs):
        raise _bad(place, field, text, FieldKind.LABELS)
    return tuple((key.strip(), value.strip()) for key, _, value in pairs)


def _names(place: CellPlace, field: str, text: str) -> tuple[str, ...]:
    del place, field
    return tuple(part.strip() for part in text.split(";") if part.strip())


def _flag(place: CellPlace, field: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise _bad(place, field, text, FieldKind.FLAG)
    return text.lower() == "true"


FromText = Callable[[CellPlace, str, str], Any]
FROM_TEXT: Mapping[FieldKind, FromText] = {
    FieldKind.NAME: _text,
    FieldKind.NAMES: _names,
    FieldKind.LABELS: _labels,
    FieldKind.WHOLE: lambda place, field, text: place.integer(field, text),
    FieldKind.WHOLES: lambda place, field, text: tuple(
        place.integer(field, part) for part in _names(place, field, text)
    ),
    FieldKind.INTEGER: _integer,
    FieldKind.NUMBER: _number,
    FieldKind.SECONDS: _seconds,
    FieldKind.FLAG: _flag,
}


# From JSON --------------------------------------------------------------------------------------


def _is_number(value: Any) -> bool:
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return numeric and math.isfinite(value) and abs(value) <= MAX_INTEGER


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_INTEGER


def _are_whole(value: Any) -> bool:
    return isinstance(value, list) and all(_is_whole(one) and one >= 0 for one in value)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) and one for one in value)


def _are_labels(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, str) for one in value.values())


def _checked(
    kind: FieldKind, holds: Callable[[Any], bool], made: Callable[[Any], Any]
) -> Callable[[CellPlace, str, Any], Any]:
    def read(place: CellPlace, field: str, value: Any) -> Any:
        if not holds(value):
            raise _bad(place, field, value, kind)
        return made(value)

    return read


FROM_JSON: Mapping[FieldKind, Callable[[CellPlace, str, Any], Any]] = {
    FieldKind.NAME: _checked(FieldKind.NAME, lambda value: isinstance(value, str), str),
    FieldKind.NAMES: _checked(FieldKind.NAMES, _are_names, tuple),
    FieldKind.WORDS: _checked(FieldKind.WORDS, _are_names, tuple),
    FieldKind.LABELS: _checked(FieldKind.LABELS, _are_labels, lambda value: tuple(value.items())),
    FieldKind.WHOLE: _checked(FieldKind.WHOLE, lambda value: _is_whole(value) and value >= 0, int),
    FieldKind.WHOLES: _checked(FieldKind.WHOLES, _are_whole, tuple),
    FieldKind.INTEGER: _checked(FieldKind.INTEGER, _is_whole, int),
    FieldKind.NUMBER: _checked(FieldKind.NUMBER, _is_number, float),
    FieldKind.SECONDS: _checked(
        FieldKind.SECONDS, lambda value: _is_number(value) and value >= 0, float
    ),
    FieldKind.FLAG: _checked(FieldKind.FLAG, lambda value: isinstance(value, bool), bool),
}

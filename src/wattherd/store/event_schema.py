"""The JSON Schema of a line of the journal: one for each kind of event, and of order.

Made of the classes themselves, so that it is true of every line that is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from wattherd.store.event_log import COMMAND_TYPES, EVENT_TYPES

_MODE: JsonSchemaMode = "serialization"
_REFERENCE = "#/$defs/{model}"
_ANCESTORS = frozenset({"Event", "RunEvent"})
"""What kinds of events are made of, and nothing that happens."""


def journal_schema() -> dict[str, Any]:
    """Events and orders as documents with a `type`, each by its name in `$defs`."""
    kinds: Mapping[str, Any] = {**EVENT_TYPES, **COMMAND_TYPES}
    told = sorted(kinds.keys() - _ANCESTORS)
    adapters = [(name, _MODE, TypeAdapter(kinds[name])) for name in told]
    _, found = TypeAdapter.json_schemas(adapters, ref_template=_REFERENCE)
    parts = found["$defs"]
    for name in told:
        parts[name] = _named(parts[name], name)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of wattherd's journal: an event, or an order that followed",
        "oneOf": [{"$ref": _REFERENCE.format(model=name)} for name in told],
        "$defs": dict(sorted(parts.items())),
    }


def _named(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    """With its `type`, without which it cannot be told from others; more fields are none."""
    return {
        **schema,
        "properties": {"type": {"const": name}, **schema["properties"]},
        "required": ["type", *schema.get("required", ())],
        "additionalProperties": False,
    }

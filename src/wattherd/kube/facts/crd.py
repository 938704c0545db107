"""Custom resource definitions, made of the classes in `kube.facts.power_kinds`.

A structural schema (apiextensions.k8s.io/v1) knows no references and no `null`: those that msgspec
writes are put in place. What a status says is not required of anybody.
"""

from __future__ import annotations

from typing import Any

import msgspec

from wattherd.kube.facts.power_kinds import DEFINITIONS, GROUP, VERSION, Definition

Json = dict[str, Any]
_CONDITIONS = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
_REF = "#/$defs/"
_KEPT = frozenset(
    {
        *("type", "description", "properties", "required", "items", "additionalProperties"),
        *("pattern", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "enum"),
        *("minItems", "maxItems", "format", "x-kubernetes-validations"),
    }
)
"""Words of JSON Schema that mean the same to the API server."""


def definitions() -> list[Json]:
    """All definitions, as the API takes them."""
    return [_definition(one) for one in DEFINITIONS]


def _definition(one: Definition) -> Json:
    kind = one.kind.__name__
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(column) for column in one.columns],
        "schema": {"openAPIV3Schema": schema(one)},
    }
    names = {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": one.plural,
        "singular": kind.lower(),
        "shortNames": [one.short],
        "categories": ["wattherd"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{one.plural}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Cluster", "names": names, "versions": [version]},
    }


def _column(column: Any) -> Json:
    made: Json = msgspec.to_builtins(column)
    return made


def schema(one: Definition) -> Json:
    """The structural schema of one kind."""
    _, parts = msgspec.json.schema_components([one.kind], ref_template=_REF + "{name}")
    whole = _plain({"$ref": _REF + one.kind.__name__}, parts)
    properties = whole["properties"]
    required = [name for name in ("spec",) if name in whole.get("required", ())]
    properties["metadata"] = {"type": "object"}
    conditions = properties["status"]["properties"]["conditions"]
    conditions.update(_CONDITIONS)
    conditions["items"]["required"] = ["type", "status"]
    rules = [{"rule": rule, "message": said} for rule, said in one.rules]
    return {
        "type": "object",
        "description": whole["description"],
        "required": required or ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            **{name: properties[name] for name in ("metadata", "spec", "status")},
        },
        "x-kubernetes-validations": rules,
    }


def _plain(node: Json, parts: Json) -> Json:
    """`node` with references put in place, optional values as such, and no defaults."""
    if "anyOf" in node:
        [some] = [each for each in node["anyOf"] if each.get("type") != "null"]
        node = {**some, **{key: value for key, value in node.items() if key != "anyOf"}}
    if "$ref" in node:
        target = parts[node["$ref"].removeprefix(_REF)]
        more = {key: value for key, value in node.items() if key != "$ref"}
        return _plain({**target, **more}, parts)
    made = {key: value for key, value in node.items() if key in _KEPT and value != []}
    if "enum" in made:
        made.setdefault("type", "string")
    if isinstance(made.get("exclusiveMinimum"), int | float):
        made["minimum"], made["exclusiveMinimum"] = made["exclusiveMinimum"], True
    if "properties" in made:
        fields = made["properties"].items()
        made["properties"] = {name: _plain(field, parts) for name, field in fields}
    for inner in ("items", "additionalProperties"):
        if isinstance(made.get(inner), dict):
            made[inner] = _plain(made[inner], parts)
    return made

"""Custom resource definitions: made of the classes that read the objects, and shipped as made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from wattherd.kube.api.api_objects import decoder
from wattherd.kube.facts.crd import definitions
from wattherd.kube.facts.power_kinds import PowerBudget, PowerDomain, Queue

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
NOT_STRUCTURAL = {"$ref", "anyOf", "oneOf", "allOf", "$defs", "default", "title"}
KINDS = {one["spec"]["names"]["kind"]: one for one in definitions()}


@pytest.mark.parametrize("folder", ["crds", "chart/crds"])
def test_files_are_what_the_classes_make(folder: str) -> None:
    shipped = {path.name: yaml.safe_load(path.read_text()) for path in (DEPLOY / folder).iterdir()}
    assert shipped == {f"{one['spec']['names']['plural']}.yaml": one for one in definitions()}


def schemas(node: Any) -> Iterator[dict[str, Any]]:
    """Every schema within a schema, itself included."""
    yield node
    for each in node.get("properties", {}).values():
        yield from schemas(each)
    for inner in ("items", "additionalProperties"):
        if isinstance(node.get(inner), dict):
            yield from schemas(node[inner])


@pytest.mark.parametrize("kind", KINDS)
def test_schemas_are_structural_and_say_what_each_field_of_a_spec_means(kind: str) -> None:
    whole = KINDS[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for one in schemas(whole):
        assert "type" in one, one
        assert not NOT_STRUCTURAL & one.keys(), one
    fields = whole["properties"]["spec"]["properties"]
    assert fields
    assert all(one.get("description") for one in fields.values()), fields


@pytest.mark.parametrize(
    ("kind", "field"),
    [(PowerDomain, "parent"), (PowerBudget, "constant"), (Queue, "weight")],
    ids=["domain", "budget", "queue"],
)
def test_a_field_that_the_api_names_is_the_one_that_is_read(kind: type[Any], field: str) -> None:
    value: Any = 2.0 if field == "weight" else "40kW" if field == "constant" else "site"
    spec = {field: value, "domain": "d"} if kind is PowerBudget else {field: value}
    read = decoder(kind).decode(json.dumps({"metadata": {"name": "n"}, "spec": spec}))
    assert getattr(read.spec, field) == value
    assert field in KINDS[kind.__name__]["spec"]["versions"][0]["schema"]["openAPIV3Schema"][
        "properties"]["spec"]["properties"]  # fmt: skip

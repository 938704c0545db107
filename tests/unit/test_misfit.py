"""What a document of the wrong shape is told."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from wattherd.errors import UserError
from wattherd.validation import misfit


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=False)


class Role(_Strict):
    count: int = Field(default=1, ge=1)
    run: str | list[str] = "true"


class Tree(_Strict):
    budget: str = "1kW"
    children: list[Tree] = []


class Order(_Strict):
    name: str = ""
    roles: dict[str, Role] = {}
    steps: list[Role] = []
    task_roles: dict[str, Role] = Field(default={}, alias="taskRoles")
    tree: Annotated[
        Annotated[str, Tag("file")] | Annotated[Tree, Tag("inline")],
        Discriminator(lambda value: "file" if isinstance(value, str) else "inline"),
    ] = ""


def told(document: Any) -> UserError:
    with pytest.raises(ValidationError) as caught:
        Order.model_validate(document)
    return misfit(caught.value, "order.yaml", Order)


@pytest.mark.parametrize(
    ("document", "field", "problem", "hint"),
    [
        ({"nme": "x"}, "nme", "unknown field", "did you mean 'name'?"),
        ({"roles": {"name": {"cuont": 1}}}, "roles.name.cuont", "unknown field", "'count'"),
        ({"steps": [{}, {"zzz": 1}]}, "steps.1.zzz", "unknown field", "fields: count, run"),
        ({"taskRole": {}}, "taskRole", "unknown field", "'taskRoles'"),
        ({"taskRoles": {"a": {"count": 0}}}, "taskRoles.a.count", "greater than or equal", ""),
        ({"tree": {"budgt": 1}}, "tree.budgt", "unknown field", "'budget'"),
        ({"tree": {"children": [{"budgt": 1}]}}, "tree.children.0.budgt", "unknown", "'budget'"),
        ({"tree": {"budget": 1}}, "tree.budget", "valid string", ""),
        ({"tree": []}, "tree", "is a list, where a mapping of fields to values is expected", ""),
        ({"steps": {"a": 1}}, "steps", "is a mapping, where a list is expected", ""),
        ({"roles": 3}, "roles", "is a number, where a mapping of names", ""),
        ({"steps": [{"run": 3}]}, "steps.0.run", "valid string", ""),
    ],
)
def test_the_field_the_fault_and_what_was_meant(
    document: object, field: str, problem: str, hint: str
) -> None:
    error = told(document)
    assert error.where == "order.yaml"
    assert error.field == field
    assert problem in error.problem
    assert hint in error.hint


def test_a_misspelt_field_is_told_before_the_one_that_is_missing() -> None:
    class Needs(_Strict):
        run: str

    with pytest.raises(ValidationError) as caught:
        Needs.model_validate({"rnu": "x"})
    error = misfit(caught.value, "job.yaml", Needs)
    assert (error.field, error.hint) == ("rnu", "did you mean 'run'?")


def test_without_a_kind_the_place_is_told_as_it_is() -> None:
    with pytest.raises(ValidationError) as caught:
        Order.model_validate({"steps": [{"count": 0}]})
    error = misfit(caught.value, "sim.json", hint="see its description")
    assert (error.field, error.hint) == ("steps.0.count", "see its description")

"""What a document of the wrong shape is told."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from wattherd.errors import UserError
from wattherd.validation import fault_within, misfit


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
    label: str = Field(default="", max_length=8, pattern=r"^[\w-]*$")
    level: Literal["low", "high"] | Annotated[int, Field(ge=0, le=9)] = "low"
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
        ({"taskRoles": {"a": {"count": 0}}}, "taskRoles.a.count", "is 0, where 1 or more is", ""),
        ({"tree": {"budgt": 1}}, "tree.budgt", "unknown field", "'budget'"),
        ({"tree": {"children": [{"budgt": 1}]}}, "tree.children.0.budgt", "unknown", "'budget'"),
        ({"tree": {"budget": 1}}, "tree.budget", "is a number, where a text", "quotes"),
        ({"tree": []}, "tree", "is a list, where a mapping of fields to values is expected", ""),
        ({"steps": {"a": 1}}, "steps", "is a mapping, where a list is expected", ""),
        ({"level": "hihg"}, "level", "is 'hihg', where 'low', 'high' or a whole number", "'high'"),
        ({"level": 12}, "level", "is 12, where 9 or less is expected", ""),
        ({"level": 1.5}, "level", "is 1.5, where 'low', 'high' or a whole number", ""),
        ({"level": []}, "level", "is a list, where 'low', 'high' or a whole number", ""),
        ({"tree": {"budget": True}}, "tree.budget", "is true or false, where a text", "quotes"),
        ({"label": "a b"}, "label", r"'a b' does not match ^[\w-]*$", ""),
        ({"label": "a" * 9}, "label", "has 9 characters, 8 are the most", ""),
        ({"roles": 3}, "roles", "is a number, where a mapping of names", ""),
        ({"steps": [{"run": 3}]}, "steps.0.run", "is a number, where a text", "quotes"),
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


@pytest.mark.parametrize(
    ("document", "field", "problem"),
    [
        (
            {"level": "hihg"},
            "level",
            "is 'hihg', where 'low', 'high' or a whole number is expected",
        ),
        ({"level": -1}, "level", "is -1, where 0 or more is expected"),
        ({"roles": {"a": {"count": 0}}}, "roles.a.count", "is 0, where 1 or more is expected"),
        ({"steps": [{}, {"run": 3}]}, "steps.1.run", "is a number, where a text is expected"),
        ({"steps": [{}, {"zzz": 3}]}, "steps.1.zzz", "unknown field"),
        ({"tree": {"children": [{"budget": 1}]}}, "tree.children.0.budget", "is a number, where"),
    ],
)
def test_of_a_document_at_hand_no_alternative_is_taken_for_a_field(
    document: Any, field: str, problem: str
) -> None:
    """As the API does, which knows what came, and not by which model it was read."""
    with pytest.raises(ValidationError) as caught:
        Order.model_validate(document)
    place, fault = fault_within(caught.value.errors(include_url=False), document)
    assert place == field
    assert fault.problem.startswith(problem)


def test_a_field_that_is_missing_is_named_although_it_is_not_there() -> None:
    class Needs(_Strict):
        run: str

    class Many(_Strict):
        jobs: list[Needs]

    with pytest.raises(ValidationError) as caught:
        Many.model_validate({"jobs": [{}]})
    place, fault = fault_within(caught.value.errors(include_url=False), {"jobs": [{}]})
    assert (place, fault.problem) == ("jobs.0.run", "is missing")


def test_a_text_that_is_too_much_is_not_said_again() -> None:
    """It may be a secret that stands in the wrong place."""
    for document in ({"label": "pass" * 3}, {"tree": {"budget": ["pass"]}}):
        assert "pass" not in told(document).line()

"""Scenario files: one YAML document that says which cluster, jobs, policies and budget to simulate.

Every field has a name that `--set name.of.field=value` can change. The JSON Schema for editors is
`docs/reference/scenario.schema.json`.
"""

from __future__ import annotations

from collections.abc import Iterable
from os.path import expandvars
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wattherd.errors import UserError
from wattherd.spelling import nearest


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class JobsFile(_Strict):
    """Where the jobs come from.

    Paths are relative to the scenario file; `${NAME}` stands for an environment variable.
    """

    file: str
    format: str = "pollux"
    profiles: str | None = None


class Scenario(_Strict):
    """What to simulate; every policy is run with every way of sharing power and every budget."""

    cluster: str = Field(description="16x4:T4, or V100M16=8,P100=16")
    jobs: JobsFile
    preset: str = "pollux-osdi21"
    policies: list[str] = Field(min_length=1)
    power: list[str] = Field(default=["water-filling"], min_length=1)
    budgets: list[str | None] = Field(
        default=[None], min_length=1, description="40kW, steps 0:40kW,2h:30kW, or null for none"
    )


def read_scenario(path: Path, changes: Iterable[str] = ()) -> Scenario:
    """Read a scenario and apply `a.b=value` changes (values are YAML).

    Raises:
        UserError: unreadable, no YAML, an unknown or wrong field (with its line where known).
    """
    document = _load(path)
    for change in changes:
        _set(document, change)
    try:
        scenario = Scenario.model_validate(document)
    except ValidationError as problem:
        raise _explained(problem, path) from None
    return _beside(scenario, path.parent)


def _load(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise UserError("not UTF-8 text", where=str(path)) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(f"no YAML: {error.problem}", where=f"{path}:{line}") from None
    if not isinstance(document, dict):
        raise UserError("holds no fields", where=str(path), hint="see docs/guides/scenarios.md")
    return document


def _set(document: dict[str, Any], change: str) -> None:
    name, equals, value = change.partition("=")
    if not equals or not name:
        raise UserError(f"{change!r} is no change", field="--set", hint="write power=[uniform]")
    *parents, last = name.split(".")
    at: Any = document
    for parent in parents:
        at = at.setdefault(parent, {}) if isinstance(at, dict) else None
    if not isinstance(at, dict):
        raise UserError(f"{name!r} is no field of a group", field="--set")
    try:
        at[last] = yaml.safe_load(value)
    except yaml.YAMLError:
        raise UserError(f"{value!r} is no YAML value", field="--set") from None


def _explained(problem: ValidationError, path: Path) -> UserError:
    first = problem.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    hint = ""
    if first["type"] == "extra_forbidden":
        known = [*Scenario.model_fields, *(f"jobs.{name}" for name in JobsFile.model_fields)]
        near = nearest(field, known)
        hint = f"did you mean {near!r}?" if near else f"fields: {', '.join(known)}"
    message = "unknown field" if first["type"] == "extra_forbidden" else str(first["msg"])
    return UserError(message[:1].lower() + message[1:], where=str(path), field=field, hint=hint)


def _beside(scenario: Scenario, folder: Path) -> Scenario:
    jobs = scenario.jobs
    found = jobs.model_copy(
        update={
            "file": _expanded(jobs.file, folder),
            "profiles": _expanded(jobs.profiles, folder) if jobs.profiles else None,
        }
    )
    return scenario.model_copy(update={"jobs": found})


def _expanded(text: str, folder: Path) -> str:
    path = expandvars(text)
    if "$" in path:
        hint = "export it, or write the path"
        raise UserError(f"{text!r} names a variable that is not set", field="jobs", hint=hint)
    return str(folder / path)

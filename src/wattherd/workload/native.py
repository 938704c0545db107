"""wattherd's own job files: CSV with a header, or JSON lines (docs/reference/job-files.md).

Both have the same fields, those of `model.job.JobSpec`; only JSON lines can describe task roles.
In a cell, names stand between semicolons and labels are `key=value`; JSON has lists and an object.
Unknown fields are refused, jobs stand in order of submission, and dependencies must name jobs of
the file and have no cycle.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from wattherd.errors import UserError
from wattherd.model.job import JobSpec, TaskRole
from wattherd.spelling import hint_for
from wattherd.workload.cells import MAX_INTEGER, CellPlace
from wattherd.workload.job_table import check_new, check_order
from wattherd.workload.source import opened, shown
from wattherd.workload.table import Layout, rows


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


REQUIRED = ("id", "submit_s")
FIELDS: Mapping[str, FieldKind] = {
    "id": FieldKind.NAME,
    "submit_s": FieldKind.SECONDS,
    "min_width": FieldKind.WHOLE,
    "max_width": FieldKind.WHOLE,
    "gpu_models": FieldKind.NAMES,
    "priority": FieldKind.INTEGER,
    "queue": FieldKind.NAME,
    "tenant": FieldKind.NAME,
    "user": FieldKind.NAME,
    "after": FieldKind.NAMES,
    "after_any": FieldKind.NAMES,
    "after_notok": FieldKind.NAMES,
    "singleton": FieldKind.FLAG,
    "begin_s": FieldKind.SECONDS,
    "duration_s": FieldKind.SECONDS,
    "deadline_s": FieldKind.SECONDS,
    "time_limit_s": FieldKind.SECONDS,
    "restarts": FieldKind.WHOLE,
    "backoff_s": FieldKind.SECONDS,
    "grace_s": FieldKind.SECONDS,
    "checkpoint_s": FieldKind.SECONDS,
    "group": FieldKind.NAME,
    "profile": FieldKind.NAME,
    "power_profile": FieldKind.NAME,
    "steps": FieldKind.WHOLE,
    "weight": FieldKind.NUMBER,
    "batch_size": FieldKind.WHOLE,
    "micro_batches": FieldKind.WHOLES,
    "energy_budget_j": FieldKind.NUMBER,
    "target_loss": FieldKind.NUMBER,
    "array": FieldKind.NAME,
    "array_index": FieldKind.WHOLE,
    "array_count": FieldKind.WHOLE,
    "array_most": FieldKind.WHOLE,
    "labels": FieldKind.LABELS,
}
"""Fields of a job but for its roles."""
ROLE_FIELDS: Mapping[str, FieldKind] = {
    **{one.name: FieldKind.WHOLE for one in fields(TaskRole)},
    "name": FieldKind.NAME,
    "command": FieldKind.WORDS,
}
"""Fields of a task role."""
SINGLE: Mapping[str, str] = {
    "gpus": "count",
    "gpus_per_task": "gpu_count",
    "gpu_milli": "gpu_milli",
    "gpu_memory_mib": "gpu_memory_mib",
    "cpu_milli": "cpu_milli",
    "memory_mib": "memory_mib",
}
"""Fields of a job of one role, and what they are called in the role; `gpus` is their sum."""
ROLES = "roles"
LAYOUT = Layout(
    kind="wattherd job file", required=REQUIRED, optional=(*list(FIELDS)[len(REQUIRED) :], *SINGLE)
)
_MAX_LINE = 1 << 20


def read_jobs(path: Path) -> tuple[JobSpec, ...]:
    """The jobs of a CSV or JSON lines file; it is JSON if its first character is a brace.

    Raises:
        UserError: with file, line and field.
    """
    is_json = _begins_with_brace(path)
    jobs = list(_in_order(_json_rows(path) if is_json else _csv_rows(path)))
    if not jobs:
        raise UserError("holds no job", where=str(path), hint="is this the right file?")
    check_dependencies([job for job, _ in jobs], {job.id: place for job, place in jobs})
    return tuple(job for job, _ in jobs)


def _begins_with_brace(path: Path) -> bool:
    with opened(path) as stream:
        return stream.read(1 << 12).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{"


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    place: CellPlace
    values: Mapping[str, Any]
    """Parsed, by field; absent where the cell was empty."""


def _in_order(lines: Iterable[_Line]) -> Iterator[tuple[JobSpec, CellPlace]]:
    known: dict[str, int] = {}
    before_s = 0.0
    for line in lines:
        job = _placed(line)
        check_new(job.id, line.number, known, line.place, "id")
        check_order(job.submit_s, before_s, line.place, "submit_s")
        before_s = job.submit_s
        yield job, line.place


def _placed(line: _Line) -> JobSpec:
    try:
        return _job(line.values, line.place)
    except UserError as error:
        if error.where.startswith(line.place.where):
            raise
        raise line.place.error(error.field, error.problem, error.hint) from None


def _job(values: Mapping[str, Any], place: CellPlace) -> JobSpec:
    for name in REQUIRED:
        if name not in values:
            raise place.error(name, "is missing", "every job needs an id and a time of submission")
    plain = {name: values[name] for name in FIELDS if name in values}
    return JobSpec(roles=_roles(values, place), **plain)


def _roles(values: Mapping[str, Any], place: CellPlace) -> tuple[TaskRole, ...]:
    single = {SINGLE[name]: values[name] for name in SINGLE if name in values}
    if ROLES in values:
        if single:
            name = next(name for name in SINGLE if name in values)
            raise place.error(name, "stands beside `roles`", "say it in the roles")
        return tuple(TaskRole(**role) for role in values[ROLES])
    gpus, each = single.get("count", 1), single.get("gpu_count", 1)
    if not gpus:
        return (TaskRole(**single | {"count": 1, "gpu_count": 0}),)
    if not each or gpus % each:
        problem = f"{gpus} GPUs are no whole number of tasks with {each} each"
        raise place.error("gpus_per_task", problem, "a divisor of `gpus`")
    return (TaskRole(**single | {"count": gpus // each, "gpu_count": each}),)


# CSV --------------------------------------------------------------------------------------------


def _csv_rows(path: Path) -> Iterator[_Line]:
    _check_header(path)
    for number, cells in rows(path, LAYOUT):
        place = CellPlace(f"{path}:{number}")
        named = zip(LAYOUT.columns, cells, strict=True)
        values = {
            name: FROM_TEXT[kind_of(name)](place, name, cell.strip())
            for name, cell in named
            if cell.strip()
        }
        yield _Line(number, place, values)


def kind_of(name: str) -> FieldKind:
    """What a field holds."""
    return FIELDS.get(name, FieldKind.WHOLE)


def _check_header(path: Path) -> None:
    with opened(path) as stream:
        first = stream.readline(_MAX_LINE).decode("utf-8-sig", errors="replace")
    names = next(csv.reader([first]), [])
    for name in (name.strip() for name in names):
        if name == ROLES:
            hint = "describe roles in a JSON lines file"
            raise UserError("no column of a CSV file", where=f"{path}:1", field=ROLES, hint=hint)
        if name not in LAYOUT.columns:
            raise _unknown(name, LAYOUT.columns, f"{path}:1")


def _unknown(name: str, known: Iterable[str], where: str) -> UserError:
    return UserError(
        "unknown field", where=where, field=shown(name)[1:-1], hint=hint_for(name, known)
    )


# JSON lines -------------------------------------------------------------------------------------


def _json_rows(path: Path) -> Iterator[_Line]:
    number = 0
    with opened(path) as stream:
        while raw := stream.readline(_MAX_LINE):
            number += 1
            if raw.strip():
                place = CellPlace(f"{path}:{number}")
                yield _Line(number, place, _object(raw, place))


def _object(raw: bytes, place: CellPlace) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except ValueError as error:
        hint = "one JSON object on every line"
        raise UserError(f"no JSON: {error}", where=place.where, hint=hint) from None
    if not isinstance(found, dict):
        raise UserError("no JSON object", where=place.where, hint='{"id": "a", "submit_s": 0}')
    known = (*LAYOUT.columns, ROLES)
    values = _values(found, known, kind_of, place)
    if found.get(ROLES) is not None:
        values[ROLES] = _role_values(found[ROLES], place)
    return values


def _values(
    found: Mapping[str, Any],
    known: Iterable[str],
    kind: Callable[[str], FieldKind],
    place: CellPlace,
) -> dict[str, Any]:
    for name in found:
        if name not in known:
            raise _unknown(name, known, place.where)
    return {
        name: FROM_JSON[kind(name)](place, name, value)
        for name, value in found.items()
        if value is not None and name != ROLES
    }


def _role_values(found: Any, place: CellPlace) -> list[dict[str, Any]]:
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise place.error(ROLES, "is no list of objects", '[{"name": "worker", "count": 4}]')
    roles = []
    for number, one in enumerate(found):
        inner = CellPlace(f"{place.where}: {ROLES}[{number}]")
        roles.append(_values(one, ROLE_FIELDS, ROLE_FIELDS.__getitem__, inner))
    return roles


def native_line(job: JobSpec) -> str:
    """The job as one JSON line, which `read_jobs` reads as the same job."""
    stated = {
        one.name: getattr(job, one.name)
        for one in fields(JobSpec)
        if one.name in REQUIRED or (one.name in FIELDS and getattr(job, one.name) != one.default)
    }
    if "labels" in stated:
        stated["labels"] = dict(job.labels)
        if not job.labels:
            del stated["labels"]
    roles = [
        {
            one.name: getattr(role, one.name)
            for one in fields(TaskRole)
            if getattr(role, one.name) != one.default
        }
        for role in job.roles
    ]
    return json.dumps(stated | {ROLES: roles})


DEPENDENCY_FIELDS = ("after", "after_any", "after_notok")
"""Where a job says whom it waits for."""


def check_dependencies(jobs: Iterable[JobSpec], places: Mapping[str, CellPlace]) -> None:
    """See that dependencies name known jobs or arrays; no job waits for itself by way of others.

    Raises:
        UserError: at the place of a job that waits in vain, naming the unknown job or the cycle.
    """
    waits: dict[str, tuple[str, ...]] = {}
    jobs = list(jobs)
    for task in (job for job in jobs if job.array):  # an array is over when its tasks are
        waits[task.array] = (*waits.get(task.array, ()), task.id)
    known = {**places, **dict.fromkeys(waits)}
    for job in jobs:
        for field in DEPENDENCY_FIELDS:
            parents: tuple[str, ...] = getattr(job, field)
            for parent in parents:
                if parent not in known:
                    problem = f"unknown job {shown(parent)}"
                    raise places[job.id].error(field, problem, hint_for(parent, known))
            waits[job.id] = waits.get(job.id, ()) + parents
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        circle = [one for one in error.args[1][:-1] if one in places]
        raise _circle(circle, places) from None


def _circle(ids: list[str], places: Mapping[str, CellPlace]) -> UserError:
    """The cycle, from its last job in the file back to it; each waits for the next."""
    order = list(places)
    first = max(ids, key=order.index)
    at = ids.index(first)
    # graphlib names each job before the one that waits for it.
    circle = [first, *reversed(ids[:at]), *reversed(ids[at + 1 :]), first]
    problem = f"jobs wait for each other: {' after '.join(circle)}"
    return places[first].error("after", problem, "remove one of these dependencies")

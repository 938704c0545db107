"""Arrays and grids: one job file that is many jobs, which differ by an index and by values.

`array: "0-9%3"` numbers the tasks and says how many may run at a time; `grid: {lr: [0.1, 0.01]}`
makes a task of every combination, the last axis changing fastest, numbered from 0. With a grid
`array` chooses among these numbers, or says how many at a time alone (`"%3"`). Texts of the job may
name what is its task's own as `{index}` and `{lr}`. `${lr}` is the shell's; `{{lr}}` is `{lr}`.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wattherd.errors import UserError
from wattherd.model.job import JobSpec
from wattherd.spelling import hint_for

MOST_TASKS = 10_000
"""Of one array."""
MOST_BYTES = 128 << 20
"""That the tasks of an array may take in a journal: each has all that it needs with it."""
MOST_INDEX = 999_999_999
NEW = "a-new"
"""Stands for the array's id until it is handed in."""
PAPER = "array"
"""Where the papers of its tasks tell of the array."""
INDEX = "index"
ENVIRONMENT = "WATTHERD_GRID_"
"""Before the name of an axis, in capitals: the variable with its value."""
HINT = '0-9, 1,4,7 or 0-20:5; "%3" behind it lets three run at a time'
_RANGE = re.compile(r"(\d{1,12})(?:-(\d{1,12})(?::(\d{1,12}))?)?")
_STEPS = re.compile(r"(-?\d{1,12})\.\.(-?\d{1,12})(?::(\d{1,12}))?")
_AXIS = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,59}")
_PLACEHOLDER = re.compile(
    r"(?<!\$)(?:\{\{([A-Za-z_][A-Za-z0-9_]*)\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\})"
)
_Fill = Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class JobArray:
    """The tasks of an array: their indices, ascending; how many at a time (None: all); its grid."""

    indices: Sequence[int]
    most: int | None
    axes: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def values(self, index: int) -> dict[str, str]:
        """What the axes have for a task."""
        found: dict[str, str] = {}
        for name, values in reversed(self.axes):
            index, place = divmod(index, len(values))
            found[name] = values[place]
        return {name: found[name] for name, _ in self.axes}

    @property
    def text(self) -> str:
        """As a job file writes it."""
        at_a_time = "" if self.most is None else f"%{self.most}"
        return f"{shown(self.indices)}{at_a_time}"


def job_array(array: str | int | None, grid: Mapping[str, Any]) -> JobArray | None:
    """The array that a job file describes; None if it describes a single job.

    Raises:
        UserError: a range, an axis or a number that makes none, naming the field.
    """
    if array is None and not grid:
        return None
    axes = axes_of(grid)
    total = math.prod(len(values) for _, values in axes)
    if total > MOST_TASKS:
        raise _too_many(total, "grid")
    text, percent, at_a_time = str("" if array is None else array).partition("%")
    most = _most(at_a_time.strip()) if percent else None
    if not text.strip() and axes and (percent or array is None):
        return JobArray(range(total), most, axes)
    found = indices(text)
    if axes and found[-1] >= total:
        problem = f"{found[-1]} is no task of a grid of {total}"
        raise UserError(problem, field="array", hint=f"0-{total - 1}, or leave it out")
    return JobArray(found, most, axes)


def indices(text: str, field: str = "array") -> Sequence[int]:
    """The numbers that a text such as `0-9,20-30:5` means, ascending.

    Raises:
        UserError: it means none, one of them twice, or too many.
    """
    parts = [_range(part.strip(), field) for part in text.split(",")]
    total = sum(map(len, parts))
    if total > MOST_TASKS:
        raise _too_many(total, field)
    found = sorted(itertools.chain.from_iterable(parts))
    for one, other in itertools.pairwise(found):
        if one == other:
            raise UserError(f"{one} is given twice", field=field, hint="leave one out")
    return found


def _range(part: str, field: str) -> range:
    found = _RANGE.fullmatch(part)
    if found is None:
        raise UserError(f"{part!r} is no index and no range", field=field, hint=HINT)
    first = int(found[1])
    last, step = int(found[2] or first), int(found[3] or 1)
    if last < first:
        hint = f"write {last}-{first}"
        raise UserError(f"{part!r} ends before it begins", field=field, hint=hint)
    if step < 1:
        raise UserError(f"{part!r} has no step", field=field, hint=HINT)
    if last > MOST_INDEX:
        raise UserError(f"{last} is above {MOST_INDEX:,}", field=field, hint="lower numbers")
    return range(first, last + 1, step)


def _most(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text) or int(text) < 1:
        raise UserError(f"%{text} lets no task run", field="array", hint="0-9%3: three at a time")
    return int(text)


def at_a_time(text: str) -> int | None:
    """How many tasks may run at a time: `3`, `%3`, or `all` (None).

    Raises:
        UserError: it says neither.
    """
    word = text.strip().removeprefix("%")
    if word == "all":
        return None
    if not (word.isascii() and word.isdecimal() and len(word) <= 9 and int(word) > 0):
        hint = "a number from 1 on, or `all`"
        raise UserError(f"{text!r} is no number of tasks", field="at a time", hint=hint)
    return int(word)


def _too_many(total: int, field: str) -> UserError:
    hint = "let each task do more, or hand in several arrays"
    return UserError(f"{total:,} tasks, {MOST_TASKS:,} are the most", field=field, hint=hint)


def axes_of(grid: Mapping[str, Any]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The axes of a grid with their values as texts.

    Raises:
        UserError: a name that is none or stands twice, or an axis without values.
    """
    axes = tuple((name, axis_values(name, values)) for name, values in grid.items())
    known: dict[str, str] = {}
    for name, _ in axes:
        twin = known.setdefault(name.upper(), name)
        if twin != name:
            problem = f"{name} and {twin} would both be {ENVIRONMENT}{name.upper()}"
            raise UserError(problem, field="grid", hint="call one of them otherwise")
    return axes


def axis_values(name: str, values: Any) -> tuple[str, ...]:
    """The values of an axis: a list, or a text such as `0.1,0.01` or `1..5`.

    Raises:
        UserError: there are none, or one stands twice.
    """
    field = f"grid.{name}"
    if not _AXIS.fullmatch(name) or name.casefold() == INDEX:
        hint = "letters, digits and `_`; `index` is the number of the task"
        raise UserError(f"{name!r} is no name of an axis", field="grid", hint=hint)
    found = _listed(values, field) if isinstance(values, str) else tuple(map(_value, values))
    if not found or "" in found:
        raise UserError("has no value", field=field, hint=f"{name}=0.1,0.01 or {name}=1..5")
    if len(set(found)) < len(found):
        twice = next(one for one in found if found.count(one) > 1)
        raise UserError(f"{twice} is given twice", field=field, hint="leave one out")
    return found


def _listed(text: str, field: str) -> tuple[str, ...]:
    found: list[str] = []
    for part in text.split(","):
        steps = _STEPS.fullmatch(part.strip())
        if steps is None:
            found.append(part.strip())
            continue
        first, last, step = int(steps[1]), int(steps[2]), int(steps[3] or 1)
        if step < 1 or last < first:
            raise UserError(f"{part!r} has no number", field=field, hint="1..5, or 0..100:10")
        numbers = range(first, last + 1, step)
        if len(numbers) > MOST_TASKS:
            raise _too_many(len(numbers), field)
        found += map(str, numbers)
    return tuple(found)


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def shown(numbers: Sequence[int]) -> str:
    """Ascending numbers as `indices` reads them, as short as ranges make them."""
    parts, at = [], 0
    while at < len(numbers):
        step = numbers[at + 1] - numbers[at] if at + 1 < len(numbers) else 1
        end = at
        while end + 1 < len(numbers) and numbers[end + 1] - numbers[end] == step:
            end += 1
        if end - at < (1 if step == 1 else 2):
            parts.append(str(numbers[at]))
            at += 1
        else:
            by = "" if step == 1 else f":{step}"
            parts.append(f"{numbers[at]}-{numbers[end]}{by}")
            at = end + 1
    return ",".join(parts)


# Tasks ------------------------------------------------------------------------------------------


def tasks(
    array: JobArray, spec: JobSpec, paper: Mapping[str, Any]
) -> Iterator[tuple[JobSpec, dict[str, Any]]]:
    """Every task as a job of its own; of a job file's `spec` and `paper`.

    The first paper has what all of them were made of, so that it can be handed in again.

    Raises:
        UserError: a placeholder is unknown, or all tasks would write to the same place.
    """
    count, name = len(array.indices), str(paper.get("name") or "")
    others = tuple(pair for pair in spec.labels if pair[0] != "name")
    first: dict[str, Any] = _template(array, spec, paper)
    _check_size(count, paper, spec)
    for index in array.indices:
        values = array.values(index)
        fill = _filling({**values, INDEX: str(index)})
        called = f"{name}[{index}]" if name else ""
        told: dict[str, Any] = {"values": values} if values else {}
        yield (
            replace(
                spec,
                roles=tuple(
                    replace(role, command=tuple(fill(word, "run") for word in role.command))
                    for role in spec.roles
                ),
                array=NEW,
                array_index=index,
                array_count=count,
                array_most=array.most,
                labels=((("name", called),) if name else ()) + others,
            ),
            {**paper, **_filled(paper, fill), "name": called, PAPER: {**told, **first}},
        )
        first = {}


def _check_size(count: int, paper: Mapping[str, Any], spec: JobSpec) -> None:
    """Whether a journal could be asked to take so many of them.

    Raises:
        UserError: it could not.
    """
    words = sum(len(word) for role in spec.roles for word in role.command)
    total = count * (len(json.dumps(paper)) + words)
    if total > MOST_BYTES:
        problem = f"{count:,} tasks take {total / 2**20:,.0f} MiB, {MOST_BYTES >> 20} at most"
        hint = "`--export NAME,...` leaves most of the shell's environment out; or several arrays"
        raise UserError(problem, field="array", hint=hint)


def _filling(values: Mapping[str, str]) -> _Fill:
    """Puts values in the place of placeholders; of an unknown one the field is told."""

    def fill(text: str, field: str) -> str:
        if "{" not in text:
            return text

        def value(match: re.Match[str]) -> str:
            if match[1] is not None:
                return f"{{{match[1]}}}"
            if match[2] in values:
                return values[match[2]]
            hint = f"{hint_for(match[2], values)}; if the braces are meant: {{{{{match[2]}}}}}"
            raise UserError(f"{{{match[2]}}} is no placeholder here", field=field, hint=hint)

        return _PLACEHOLDER.sub(value, text)

    return fill


def _filled(paper: Mapping[str, Any], fill: _Fill) -> dict[str, Any]:
    """The parts of a paper in which placeholders are seen."""
    return {
        **{
            field: {name: fill(text, f"{field}.{name}") for name, text in paper[field].items()}
            for field in ("envs", "inputs")
            if paper.get(field)
        },
        "outputs": {
            name: {**one, "to": fill(one["to"], f"outputs.{name}")}
            for name, one in (paper.get("outputs") or {}).items()
        },
        **{
            name: fill(paper[name], field)
            for name, field in (("workdir", "workdir"), ("checkpoint_dir", "checkpoint.dir"))
            if paper.get(name) is not None
        },
    }


def _template(array: JobArray, spec: JobSpec, paper: Mapping[str, Any]) -> dict[str, Any]:
    """What the array was made of, where that cannot be seen of its tasks.

    Raises:
        UserError: all tasks would write to the same place.
    """
    last = array.indices[-1]
    fill = _filling({**array.values(last), INDEX: str(last)})
    filled = _filled(paper, fill)
    if len(array.indices) > 1:
        _check_apart(paper, filled)
    commands = [list(role.command) for role in spec.roles]
    changed = {name: paper[name] for name, value in filled.items() if paper.get(name) != value}
    if any(fill(word, "run") != word for words in commands for word in words):
        changed["commands"] = commands
    return {
        "indices": shown(array.indices),
        **({"grid": {name: list(values) for name, values in array.axes}} if array.axes else {}),
        **({"template": changed} if changed else {}),
    }


def _check_apart(paper: Mapping[str, Any], filled: Mapping[str, Any]) -> None:
    """Every task keeps its checkpoints and its results in a place of its own."""
    places = {"checkpoint.dir": (paper.get("checkpoint_dir"), filled.get("checkpoint_dir"))} | {
        f"outputs.{name}": (one["to"], filled["outputs"][name]["to"])
        for name, one in (paper.get("outputs") or {}).items()
    }
    for field, (written, one) in places.items():
        if written is not None and written == one:
            hint = f"write {written.rstrip('/')}/{{index}}"
            raise UserError("is the same for all tasks of the array", field=field, hint=hint)


def whole_array(
    spec: JobSpec, paper: Mapping[str, Any], made_of: Mapping[str, Any]
) -> tuple[JobSpec, dict[str, Any]]:
    """The job that an array was made of, from one task and what the first one's paper tells."""
    template = dict(made_of.get("template", {}))
    commands = template.pop("commands", [list(role.command) for role in spec.roles])
    name = str(paper.get("name") or "").rpartition("[")[0]
    others = tuple(pair for pair in spec.labels if pair[0] != "name")
    roles = tuple(
        replace(role, command=tuple(words))
        for role, words in zip(spec.roles, commands, strict=True)
    )
    whole = {field: value for field, value in paper.items() if field != PAPER}
    return (
        replace(spec, roles=roles, labels=((("name", name),) if name else ()) + others),
        {**whole, **template, "name": name},
    )


# Ids --------------------------------------------------------------------------------------------

_ID = re.compile(r"a-(\d{1,18})")
_TASK = re.compile(r"(?:([aj])-)?(\d{1,18})(?:\[([^\[\]]*)\]|_(\d{1,9}))")


@dataclass(frozen=True, slots=True)
class Tasks:
    """Some tasks of an array, or all of it: `a-7[3]`, `a-7[0-4]`, `a-7`."""

    array: str
    chosen: Sequence[int] | None = None

    @property
    def first_job(self) -> str:
        """The id of the array's first task: all have consecutive ones."""
        return first_job(self.array)


def tasks_called(word: str) -> Tasks | None:
    """What an id means, if it is one of an array or of its tasks: also `j-7[3]`, and `7_3`.

    Raises:
        UserError: what stands in brackets is no range.
    """
    whole, some = _ID.fullmatch(word), _TASK.fullmatch(word)
    if whole is not None:
        return Tasks(word)
    if some is None:
        return None
    if some[4] is not None:
        return Tasks(f"a-{some[2]}", (int(some[4]),))
    return Tasks(f"a-{some[2]}", indices(some[3], word))


def array_id(first: int) -> str:
    """The id of an array whose first task has that number."""
    return f"a-{first}"


def first_job(array: str) -> str:
    """The id of its first task; of what is no array's id the word itself."""
    found = _ID.fullmatch(array)
    return array if found is None else f"j-{found[1]}"

"""Write the pages of docs/reference on settings, options, chart values and labels.

serve.md is made of the configuration's fields, options.md of the command line, chart.md of the
chart's values, their comments and their schema, labels.md of the names in kube/api. Nothing on
these pages is written by hand;
tests/unit/test_references.py says when one is stale, and that no description is missing.
"""

from __future__ import annotations

import ast
import enum
import inspect
import json
import re
import types
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import Any

import click
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from wattherd.cli.main import cli
from wattherd.cli.serve import serve as serve_command
from wattherd.kube.api import names
from wattherd.server.settings.config import ServeConfig

REPOSITORY = Path(__file__).resolve().parents[1]
REFERENCE = REPOSITORY / "docs" / "reference"
CHART = REPOSITORY / "deploy" / "kubernetes" / "chart"
MADE = "This page is what `python scripts/references.py` writes."
WORDS = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`", dict: "map"}
UNITS = {"_s": "seconds", "_per_s": "a second", "_w": "watts", "_pct": "percent"}
"""What a number counts, by the end of its field's name."""
POWERS = ("ramp_up", "ramp_down", "swing", "limit", "rated", "base", "step", "floor", "max")
"""Fields that are a text or a number, and watts; all others are times."""
TIME = r"[0-9.]+(s|min|h|d)"


def main() -> None:
    """Write them all."""
    for name, text in pages().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """Names below docs/reference, and texts."""
    return {
        "serve.md": serve_page(),
        "options.md": options_page(),
        "chart.md": chart_page(),
        "labels.md": labels_page(),
    }


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *([_cell(one) for one in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


# The service's configuration --------------------------------------------------------------------


def serve_page() -> str:
    """Every field of `serve.yaml`, model by model."""
    head = f"""# Settings of a service

{MADE}
`wattherd serve --config serve.yaml` reads these fields from a YAML file. All are optional,
except where the default says *required*. An option of the command line overrides the field. A
*power* is a number of watts or a text such as `40kW`, a *time* a number of seconds or a text such
as `90s` or `1h`. `wattherd schema serve` prints the JSON Schema for
editors; some settings can be [changed at work](../guides/settings.md).
"""
    parts = [head, "## serve.yaml\n\n" + _fields(ServeConfig, options=serve_options())]
    for path, model in nested(ServeConfig):
        doc = inspect.cleandoc(model.__doc__ or "").split("\n\n")[0]
        parts.append(f"## {path}\n\n{' '.join(doc.split())}\n\n{_fields(model)}")
    return "\n".join(parts)


def serve_options() -> dict[str, str]:
    """Field of the configuration to the option that overrides it."""
    return {one.name: one.opts[0] for one in serve_command.params if one.name and one.opts}


def nested(model: type[BaseModel]) -> list[tuple[str, type[BaseModel]]]:
    """Models within a model with the path to each, in order; one that contains itself once."""
    found: dict[type[BaseModel], str] = {model: ""}

    def enter(at: type[BaseModel]) -> None:
        for name, field in at.model_fields.items():
            for inner in _models(field.annotation):
                if inner not in found:
                    key = ".NAME" if typing.get_origin(field.annotation) is dict else ""
                    found[inner] = f"{found[at]}.{field.alias or name}{key}".lstrip(".")
                    enter(inner)

    enter(model)
    return [(path, one) for one, path in found.items() if path]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _models(part)


def _fields(model: type[BaseModel], options: dict[str, str] | None = None) -> str:
    rows = []
    for name, field in model.model_fields.items():
        row = [
            _code(field.alias or name),
            _kind(name, field),
            _default(field),
            field.description or "",
        ]
        if options is not None:
            row.insert(1, _code(options.get(name, "")))
        rows.append(row)
    heads = ["field", "type", "default", "what it does"]
    if options is not None:
        heads.insert(1, "option")
    return table(heads, rows)


def _kind(name: str, field: FieldInfo) -> str:
    """Type, unit and range of a field."""
    told = _type(field.annotation)
    if "number" in told and "text" not in told:
        ends = sorted((one for one in UNITS if name.endswith(one)), key=len)
        told += f", {UNITS[ends[-1]]}" if ends else ""
    if told == "text or number":
        told = "power" if name in POWERS else "time"
    elif told == "text" and re.fullmatch(TIME, str(field.default)):
        told = "time"
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    limits = [
        f"{sign} {getattr(one, key):g}"
        for one in field.metadata
        for key, sign in signs.items()
        if getattr(one, key, None) is not None
    ]
    return ", ".join([told, *limits])


def _type(annotation: Any) -> str:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(one) for one in parts if one is not type(None))
    if origin is typing.Annotated:
        return _type(parts[0])
    if origin is typing.Literal:
        return ", ".join(_code(str(one)) for one in parts)
    if origin in (list, tuple):
        return f"list of {_type(parts[0])}"
    if origin is dict:
        return f"map of {_type(parts[0])} to {_type(parts[1])}"
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return "fields below"
    if inspect.isclass(annotation) and issubclass(annotation, enum.Enum):
        return ", ".join(_code(str(one)) for one in annotation)
    if inspect.isclass(annotation) and issubclass(annotation, PurePath):
        return "path"
    return WORDS[annotation]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "*required*"
    return _code(_shown(field.default))


def _shown(value: Any) -> str:
    if isinstance(value, BaseModel):
        return _shown(value.model_dump(exclude_defaults=True, mode="json"))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_shown(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value))
    return "" if value is None else str(value)


# The command line -------------------------------------------------------------------------------


def options_page() -> str:
    """Every command with its arguments and options."""
    head = f"""# Commands and their options

{MADE}
It has every command in the order of `wattherd --help`, as `wattherd COMMAND --help` tells
it. Every command takes `-h` or `--help`; `wattherd --debug COMMAND` shows tracebacks. The
[command line](command-line.md) tells what commands print and their exit codes.
"""
    return "\n".join([head, *(_command(path, one) for path, one in commands())])


def commands() -> Iterator[tuple[str, click.Command]]:
    """All commands that are not hidden, by their full names, in the order of the help."""

    def below(path: str, group: click.Group) -> Iterator[tuple[str, click.Command]]:
        context = click.Context(group, info_name=path)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if command is not None and not command.hidden:
                yield f"{path} {name}", command
                if isinstance(command, click.Group):
                    yield from below(f"{path} {name}", command)

    yield from below("wattherd", cli)


def _command(path: str, command: click.Command) -> str:
    context = click.Context(command, info_name=path)
    usage = " ".join(command.collect_usage_pieces(context))
    # Cleaned first: the mark's own indentation would go to the line below it.
    told = inspect.cleandoc(command.help or "").replace("\b\n", "").partition("\f")[0]
    parts = [f"## {path}\n", f"```text\n{path} {usage}\n```\n"]
    parts += [f"{_prose(one)}\n" for one in told.split("\n\n") if one]
    rows = [
        [", ".join(map(_code, (*one.opts, *one.secondary_opts))), *_option(one)]
        for one in options(command)
    ]
    if rows:
        parts.append(table(("option", "value", "default", "what it does"), rows))
    return "\n".join(parts)


def _prose(paragraph: str) -> str:
    """A paragraph of a help text; what is set in columns stays as it is."""
    lines = paragraph.strip("\n").splitlines()
    if any(re.match(r" {2,}|\S.* {2,}\S", line) for line in lines):
        return "```text\n" + "\n".join(lines) + "\n```"
    return re.sub(r"([<>])", r"\\\1", " ".join(line.strip() for line in lines))


def options(command: click.Command) -> list[click.Option]:
    """Those that users are shown."""
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden]


def _option(option: click.Option) -> list[str]:
    if option.is_flag or option.count:
        value = ""
    elif isinstance(option.type, click.Choice):
        value = ", ".join(_code(str(one)) for one in option.type.choices)
    else:
        value = _code(option.metavar or option.type.name.upper().removesuffix(" RANGE"))
        if isinstance(option.type, click.IntRange | click.FloatRange):
            value += f" {_range(option.type)}"
    value += " (repeatable)" if option.multiple else ""
    told, _, default = (option.help or "").partition("  [default: ")
    default = default.rstrip("]")
    if not default and not option.is_flag and not callable(option.default):
        plain = option.default if isinstance(option.default, str | int | float | Path) else None
        default = _code(_shown(plain))
    elif not default and option.is_flag and option.secondary_opts and option.default is not None:
        default = _code(option.opts[0] if option.default is True else option.secondary_opts[0])
    default = "*required*" if option.required else default
    variable = option.envvar if isinstance(option.envvar, str) else ""
    return [value, default, told + (f" Also by `{variable}`." if variable else "")]


def _range(given: click.IntRange | click.FloatRange) -> str:
    """As signs, both ends."""
    low = f"{'>' if given.min_open else '≥'} {given.min:g}" if given.min is not None else ""
    high = f"{'<' if given.max_open else '≤'} {given.max:g}" if given.max is not None else ""
    return ", ".join(one for one in (low, high) if one)


# The chart --------------------------------------------------------------------------------------


def chart_page() -> str:
    """Every value of the chart."""
    head = f"""# Values of the Helm chart

{MADE}
The chart is `deploy/kubernetes/chart`; its schema refuses other names and other values before
anything is installed. A *power* is a text such as `40kW`, a *time* one such as `10m`. The
[installation](../guides/kubernetes-install.md) tells which of them matter when.
"""
    rows = [
        [_code(path), kind, _code(json.dumps(value)), told]
        for path, kind, value, told in chart_values()
    ]
    return f"{head}\n{table(('value', 'type', 'default', 'what it does'), rows)}"


def chart_values() -> list[tuple[str, str, Any, str]]:
    """Path, type, default and comment of each value, in the order of values.yaml."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values, told = yaml.safe_load(text), comments(text)
    found: list[tuple[str, str, Any, str]] = []

    def enter(path: str, value: Any, shape: dict[str, Any]) -> None:
        reference = shape.get("$ref", "")
        shape = schema["$defs"][reference.rpartition("/")[2]] if reference else shape
        if "properties" in shape and not reference.endswith(("resources", "peer")):
            for key, one in value.items():
                enter(f"{path}.{key}".lstrip("."), one, shape["properties"][key])
        else:
            found.append((path, _shape(shape), value, told.get(path, "")))

    enter("", values, schema)
    return found


def _shape(shape: dict[str, Any]) -> str:
    if "enum" in shape:
        return ", ".join(_code(json.dumps(one) if one == "" else str(one)) for one in shape["enum"])
    words = {"string": "text", "integer": "whole number", "object": "map", "array": "list"}
    told = words.get(shape.get("type", ""), shape.get("type", ""))
    if (pattern := shape.get("pattern", "")).endswith(")[kM]?W$"):
        told = "power"
    elif re.search(r"\((?:[smhd]|min)(?:\|(?:s|m|min|h|d))+\)", pattern):
        told = "time"
    told = "`true` or `false`" if told == "boolean" else told
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    return ", ".join(
        [told, *(f"{sign} {shape[key]:g}" for key, sign in signs.items() if key in shape)]
    )


def comments(text: str) -> dict[str, str]:
    """Path of a value to its comment in a YAML file: of its line, else of the lines above it."""
    found: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    above: list[str] = []
    for line in text.splitlines():
        key = re.match(r"( *)([\w-]+):", line)
        if not key:
            said = re.match(r" *# ?(.*)", line)
            above = [*above, said[1]] if said else []
            continue
        depth = len(key[1])
        path = [one for one in path if one[0] < depth] + [(depth, key[2])]
        beside = re.search(r"(?:^|\s)# (.*)$", line)
        said_here = beside[1] if beside else " ".join(above)
        found[".".join(name for _, name in path)] = said_here
        above = []
    return found


# Labels and annotations -------------------------------------------------------------------------


def labels_page() -> str:
    """Every label, annotation and resource that has a name in `kube/api/names.py`."""
    head = f"""# Labels and annotations on Kubernetes

{MADE}
Names that begin with `wattherd.dev/` are ours. Programs write and read the names that end in `-w`
or are `watts`: they hold a plain number of watts. People write the other watts and times: those
hold a text with its unit, such as `300W` or `2min`. Where the chart's `reserving` is on, only
wattherd's own accounts may write what wattherd itself puts on pods
([rights](../guides/kubernetes-rights.md)).
"""
    ours, theirs = [], []
    for section, rows in label_names().items():
        own = [row[:3] for row in rows if row[0].startswith(names.OURS)]
        others = [(row[0],) for row in rows if not row[0].startswith(names.OURS)]
        named = [(_code(name), *rest) for name, *rest in own]
        if own:
            ours.append(f"## {section}\n\n{table(('name', 'kind', 'what it says'), named)}")
        if others:
            read = ", ".join(_code(name) for (name,) in others)
            theirs.append(f"* **{section}**: {read}\n")
    told = "## Names of others that are read\n\n"
    return "\n".join([head, *ours, told + "".join(theirs)])


def label_names() -> dict[str, list[tuple[str, str, str]]]:
    """Name, kind and meaning below each heading of the module, in its order."""
    source = inspect.getsource(names)
    headings = {
        number: line[2:].rstrip(".")
        for number, line in enumerate(source.splitlines(), start=1)
        if line.startswith("# ")
    }
    body = ast.parse(source).body
    found: dict[str, list[tuple[str, str, str]]] = {}
    for one, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(one, ast.Assign) or not isinstance(one.targets[0], ast.Name):
            continue
        value = getattr(names, one.targets[0].id)
        told = _docstring(following)
        above = [heading for line, heading in headings.items() if line < one.lineno]
        alone = not isinstance(value, tuple)
        known = {name for rows in found.values() for name, _, _ in rows}
        for name in [value] if alone else value:
            if name != names.OURS and re.search(r"[./]", name) and (alone or name not in known):
                kind, colon, said = told.partition(": ")
                said = said if colon else told
                row = (name, kind if colon else "", said[:1].upper() + said[1:])
                found.setdefault(above[-1], []).append(row)
    return found


def _docstring(node: ast.stmt | None) -> str:
    """What stands behind an assignment."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return " ".join(str(node.value.value).split())
    return ""


if __name__ == "__main__":
    main()

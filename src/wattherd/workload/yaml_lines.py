"""On which line of a YAML file a field stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from wattherd.errors import UserError

_PART = re.compile(r"[^.\[\]]+")


@contextmanager
def lines_of(path: Path) -> Iterator[None]:
    """Errors about a field of the file name its line, too.

    Raises:
        UserError: those of the block, with `PATH:LINE` where they said `PATH`.
    """
    try:
        yield
    except UserError as error:
        line = line_of(path, error.field) if error.where == str(path) and error.field else None
        if line is None:
            raise
        where = f"{path}:{line}"
        raise UserError(error.problem, where=where, field=error.field, hint=error.hint) from None


def line_of(path: Path, field: str) -> int | None:
    """The line, from 1, of a field such as `time.limit` or `roles.0.run`.

    Where the field is missing it is that of what it is missing in; None if the file cannot be read
    or nothing of the field is there.
    """
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError):
        return None
    line = None
    for part in _PART.findall(field):
        found = _child(node, part)
        if found is None:
            return line
        key, node = found
        line = int(key.start_mark.line) + 1
    return line


def _child(node: yaml.Node | None, part: str) -> tuple[yaml.Node, yaml.Node] | None:
    """A part of a mapping with its key, or of a list."""
    if isinstance(node, yaml.MappingNode):
        return next(((key, value) for key, value in node.value if key.value == part), None)
    if isinstance(node, yaml.SequenceNode) and part.isdecimal() and int(part) < len(node.value):
        item = node.value[int(part)]
        return item, item
    return None

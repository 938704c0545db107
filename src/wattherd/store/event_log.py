"""Events and commands on disk: one JSON object a line, in the order in which they occurred.

Replaying the events into a fresh core must give the same commands; `digest` compares them without
keeping both.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, get_args

from pydantic import TypeAdapter, ValidationError

from wattherd.errors import UserError
from wattherd.model import event as events
from wattherd.model.command import Command
from wattherd.model.event import Event
from wattherd.validation import misfit

EVENT_TYPES: dict[str, type[Event]] = {
    name: kind
    for name, kind in vars(events).items()
    if isinstance(kind, type) and issubclass(kind, Event)
}
COMMAND_TYPES: dict[str, Any] = {kind.__name__: kind for kind in get_args(Command)}


class RecordedRun(Protocol):
    """What a run leaves: its events and commands, each in order."""

    @property
    def events(self) -> Sequence[Event]:
        """In the order in which the core heard of them."""
        ...

    @property
    def commands(self) -> Sequence[Command]:
        """In the order in which the core gave them."""
        ...


_adapters: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(kind) for name, kind in {**EVENT_TYPES, **COMMAND_TYPES}.items()
}


_LATER: dict[str, Any] = {
    "after_any": [], "after_notok": [], "singleton": False, "begin_s": None,
    "array": "", "array_index": 0, "array_count": 0, "array_most": None,
}  # fmt: skip
"""Fields of jobs that came later, with the values that are not written: logs of jobs that do not
use them are, byte for byte, what they were before."""


def _leave_out(job: dict[str, Any]) -> None:
    for name, default in _LATER.items():
        if job[name] == default:
            del job[name]


def plain(one: Event | Command) -> dict[str, Any]:
    """An event or command as JSON values, with its type (a question has a kind of its own)."""
    body: dict[str, Any] = _adapters[type(one).__name__].dump_python(one, mode="json")
    if "job" in body:
        _leave_out(body["job"])
    return {"type": type(one).__name__, **body}


def write_log(path: Path, recorded: RecordedRun) -> None:
    """Write the events of a run and the digest of its commands; equal runs give equal bytes.

    Raises:
        UserError: the file cannot be written.
    """
    lines = [json.dumps(plain(event)) for event in recorded.events]
    lines.append(json.dumps({"type": "Digest", "commands": digest(recorded.commands)}))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n", mtime=0))
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", where=str(path)) from None


def digest(commands: Iterable[Command]) -> str:
    """SHA-256 over the commands' JSON, in order."""
    total = hashlib.sha256()
    for command in commands:
        total.update(json.dumps(plain(command), sort_keys=True).encode())
    return total.hexdigest()


def read_log(path: Path) -> tuple[list[Event], str]:
    """The events of a log, and the digest of the commands they led to.

    Raises:
        UserError: unreadable, or a line that is no event, with its number.
    """
    found: list[Event] = []
    commands = ""
    for line, payload in _lines(path):
        kind = payload.pop("type", "")
        if kind == "Digest":
            commands = str(payload.get("commands", ""))
        else:
            found.append(event_of({"type": kind, **payload}, f"{path}:{line}"))
    return found, commands


def event_of(document: dict[str, Any], where: str) -> Event:
    """The event that `plain` made a document of.

    Raises:
        UserError: it is none, named by `where`.
    """
    kind = document.pop("type", "")
    if kind not in EVENT_TYPES:
        raise UserError(f"unknown type {kind!r}", where=where, field="type")
    return _event(EVENT_TYPES[kind], document, where)


def command_of(document: dict[str, Any], where: str) -> Command:
    """The command that `plain` made a document of.

    Raises:
        UserError: it is none, named by `where`.
    """
    kind = document.pop("type", "")
    if kind not in COMMAND_TYPES:
        raise UserError(f"unknown type {kind!r}", where=where, field="type")
    try:
        one: Command = _adapters[kind].validate_python(document)
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        raise UserError(str(first["msg"]), where=where, field=kind) from None
    return one


def _event(kind: type[Event], payload: dict[str, Any], where: str) -> Event:
    try:
        one: Event = _adapters[kind.__name__].validate_python(payload)
    except ValidationError as problem:
        raise misfit(problem, where) from None
    return one


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as text:
            for number, line in enumerate(text, start=1):
                yield number, json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"broken JSON: {error.msg}", where=str(path)) from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {error}", where=str(path)) from None

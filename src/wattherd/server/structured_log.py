"""What is decided, line by line, for log collectors: as JSON or as text.

The number of an entry in the journal is the id of the decision that followed from it: all lines
with the same `decision` belong together. Lines are handed to a thread, so that a slow reader of the
log holds up nothing; when too many wait, new ones are lost.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from logging.handlers import QueueHandler, QueueListener
from typing import Any, TextIO

from wattherd.model.command import Command, WakeAt
from wattherd.model.event import JobProgressed, JobSubmitted, Woke
from wattherd.store.entry import JournalEntry

MOST_WAITING = 100_000
FIELDS = "fields"
_USUAL = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
_LOG = logging.getLogger("wattherd.decisions")
_TOLD = ("job_id", "attempt", "node", "queue", "reason", "cause", "state", "cap_w", "budget_w",
         "exit_code", "detail", "grace_s")  # fmt: skip
_SILENT = JobProgressed | Woke
"""Events that are told only if orders follow."""


class Form(StrEnum):
    """How lines are written."""

    NONE = "none"
    TEXT = "text"
    JSON = "json"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """One object per line."""
        line = {
            "at": _time(record),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Time, level, message, then `name=value`."""
        told = "".join(f" {name}={value}" for name, value in _extras(record).items())
        return f"{_time(record)} {record.levelname.lower()} {record.getMessage()}{told}"


def _extras(record: logging.LogRecord) -> Mapping[str, Any]:
    """Fields that came with a line: those of decisions, or any others by their own names."""
    found = {name: value for name, value in vars(record).items() if name not in _USUAL}
    fields: Mapping[str, Any] = found.pop(FIELDS, {})
    return {**found, **fields}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class _Waiting(QueueHandler):
    def enqueue(self, record: logging.LogRecord) -> None:
        """Never wait for room."""
        with contextlib.suppress(queue.Full):
            self.queue.put_nowait(record)

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """As it is: it stays in this process."""
        return record


@contextlib.contextmanager
def logging_to(stream: TextIO, form: Form) -> Iterator[None]:
    """Write the log of this program to `stream` until the block ends."""
    if form is Form.NONE:
        yield
        return
    out = logging.StreamHandler(stream)
    out.setFormatter(_Json() if form is Form.JSON else _Text())
    waiting: queue.Queue[logging.LogRecord] = queue.Queue(MOST_WAITING)
    handler, listener = _Waiting(waiting), QueueListener(waiting, out)
    root = logging.getLogger("wattherd")
    before = root.level
    root.setLevel(logging.INFO)
    root.addHandler(handler)
    listener.start()
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        listener.stop()


def log_turns(turns: Sequence[tuple[JournalEntry, Sequence[Command]]]) -> None:
    """One line for what happened, one for every order that followed."""
    if not _LOG.isEnabledFor(logging.INFO):
        return
    for entry, commands in turns:
        orders = [one for one in commands if not isinstance(one, WakeAt)]
        if not orders and isinstance(entry.event, _SILENT):
            continue
        told = {"event": type(entry.event).__name__, "by": entry.by, **_fields(entry.event)}
        _log(entry.seq, told["event"], told)
        for command in orders:
            order = type(command).__name__
            _log(entry.seq, order, {"order": order, **_fields(command)})


def _log(seq: int, message: str, fields: Mapping[str, Any]) -> None:
    _LOG.info(message, extra={FIELDS: {"decision": seq, **fields}})


def _fields(one: Any) -> dict[str, Any]:
    """What of an event or order helps to find it; never what a job is made of."""
    job = {"job": one.job.id, "user": one.job.user} if isinstance(one, JobSubmitted) else {}
    known = {name: getattr(one, name, None) for name in _TOLD}
    named = {name: _plain(value) for name, value in known.items() if value not in (None, "")}
    if "job_id" in named:
        named = {"job": named.pop("job_id"), **named}
    return {**job, **named}


def _plain(value: Any) -> Any:
    code = getattr(value, "code", value)
    return code if isinstance(code, int | float) and not isinstance(code, bool) else str(code)

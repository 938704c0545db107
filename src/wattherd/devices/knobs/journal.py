"""The journal of what was found: on disk before the first order, until it has been put back.

A process that is killed restores nothing; its successor reads here what devices were like before.
One JSON file, replaced as a whole and synced with its folder, so that a loss of power leaves the
old or the new one. Its owner holds a lock beside it for as long as it lives.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from wattherd.devices.knobs.contract import State
from wattherd.errors import UserError

SCHEMA = "wattherd.journal/1"
LOOK_S = 0.1


class KnobEntry(BaseModel):
    """What a knob was like before it was first turned, and when that was noted (Unix seconds)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state: dict[str, Any]
    at_s: float


class _Content(BaseModel):
    model_config = ConfigDict(extra="forbid")

    found: dict[str, KnobEntry]


@dataclass(slots=True)
class KnobJournal:
    """What knobs were like, by their address; may be written to by several threads.

    Raises:
        UserError: the file is there but is no journal.
    """

    path: Path
    _found: dict[str, KnobEntry] = field(default_factory=dict)
    _writing: threading.Lock = field(default_factory=threading.Lock)
    _later: bool = False
    _unwritten: bool = False

    def __post_init__(self) -> None:
        """Read what a predecessor left."""
        self._found = _read(self.path)

    @property
    def entries(self) -> Mapping[str, KnobEntry]:
        """All that has not been put back yet."""
        return dict(self._found)

    def found(self, knob: str) -> State | None:
        """What was noted of a knob."""
        entry = self._found.get(knob)
        return None if entry is None else entry.state

    def note(self, knob: str, state: State) -> None:
        """Keep what was found; an earlier note stays, as it is older."""
        self.note_all([(knob, state)])

    def note_all(self, states: Iterable[tuple[str, State]]) -> None:
        """Keep several at the price of one write."""
        now_s = time.time()
        fresh = {knob: KnobEntry(state=dict(state), at_s=now_s) for knob, state in states}
        with self._writing:
            self._write({**fresh, **self._found})

    def forget(self, knob: str) -> None:
        """It has been put back."""
        with self._writing:
            self._write({name: entry for name, entry in self._found.items() if name != knob})

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write once, at the end, what is noted and forgotten meanwhile.

        For what has been put back: a process that is killed meanwhile leaves notes of devices that
        are as they were, which does no harm.
        """
        with self._writing:
            self._later = True
        try:
            yield
        finally:
            with self._writing:
                self._later = False
                if self._unwritten:
                    self._write(self._found)

    def _write(self, found: Mapping[str, KnobEntry]) -> None:
        self._unwritten = self._later
        if self._later:
            self._found = dict(found)
            return
        entries = {knob: entry.model_dump() for knob, entry in sorted(found.items())}
        text = json.dumps({"schema": SCHEMA, "found": entries}, indent=1)
        try:
            _replace(self.path, text)
        except OSError as error:
            raise _unusable(self.path, error) from None
        self._found = dict(found)


@contextmanager
def owned(path: Path, patience_s: float = 0.0) -> Iterator[bool]:
    """Hold a journal's lock; False if somebody else does, after waiting for `patience_s`.

    The lock is the system's and ends with its holder, however it dies.

    Raises:
        UserError: there can be no lock there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(path, error) from None
    try:
        yield _locked(lock, time.monotonic() + patience_s)
    finally:
        os.close(lock)


def _locked(lock: int, until_s: float) -> bool:
    while True:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() >= until_s:
            return False
        time.sleep(LOOK_S)


def _read(path: Path) -> dict[str, KnobEntry]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.pop("schema", None) != SCHEMA:
            raise UserError(f"is no journal ({SCHEMA})", where=str(path))
        return _Content.model_validate(content).found
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _unusable(path, error) from None
    except (ValueError, ValidationError) as error:
        hint = "set the devices back by hand, then remove it"
        raise UserError(f"is no journal: {error}", where=str(path), hint=hint) from None


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _unusable(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot keep a journal: {error.strerror}", where=str(path), field="journal")

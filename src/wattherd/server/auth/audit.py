"""Who asked for what, and what came of it: one JSON object a line, in files that rotate.

Whatever changes something is written down, and whatever was refused for want of rights; looking is
not. What a job or a budget became by it stands in the journal.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

FILE = "audit.jsonl"
MOST_BYTES = 8 << 20
"""Of one file. Older ones are `audit.jsonl.1` and so on, the higher the older; none is deleted."""


class Audit:
    """Adds lines from any thread, and reads them, the latest first."""

    def __init__(self, folder: Path) -> None:
        """Keep the files in `folder`."""
        self.path = folder / FILE
        self.problem = ""
        """Why the last line could not be written, if it could not."""
        self._writing = threading.Lock()
        self._handle: int | None = None

    def add(self, line: Mapping[str, Any]) -> None:
        """Write one line; a full disk must not stop the service, so it is only told."""
        text = json.dumps(dict(line)).encode() + b"\n"
        with self._writing:
            try:
                self._write(text)
                self.problem = ""
            except OSError as error:
                self._let_go()
                self.problem = f"{self.path}: {error.strerror}"

    def _write(self, text: bytes) -> None:
        """The file stays open: opening takes ten times as long as writing a line."""
        if self._handle is not None:
            found = os.fstat(self._handle)
            if not found.st_nlink or found.st_size + len(text) > MOST_BYTES:
                self._let_go()
        if self._handle is None:
            self._rotate(len(text))
            self._handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(self._handle, text)

    def _let_go(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def close(self) -> None:
        """Let go of the file; the next line opens it again."""
        with self._writing:
            self._let_go()

    def _rotate(self, more: int) -> None:
        if not self.path.exists() or self.path.stat().st_size + more <= MOST_BYTES:
            return
        for number in reversed(self._numbers()):
            self._older(number).replace(self._older(number + 1))
        self.path.replace(self._older(1))

    def _numbers(self) -> list[int]:
        """Of older files, in order; an operator may have taken some away."""
        ends = (one.name.removeprefix(f"{FILE}.") for one in self.path.parent.glob(f"{FILE}.*"))
        return sorted(int(end) for end in ends if end.isdigit())

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{FILE}.{number}")

    def lines(
        self, limit: int, *, since: datetime | None = None, **wanted: str | None
    ) -> list[dict[str, Any]]:
        """The last lines in which every field of `wanted` that is not None has that value."""
        asked = {name: value for name, value in wanted.items() if value is not None}
        found: list[dict[str, Any]] = []
        for line in self._backwards():
            if since is not None and datetime.fromisoformat(line["at"]) < since:
                break
            if all(str(line.get(name)) == value for name, value in asked.items()):
                found.append(line)
                if len(found) == limit:
                    break
        return found

    def _backwards(self) -> Iterator[dict[str, Any]]:
        for path in (self.path, *(self._older(number) for number in self._numbers())):
            try:
                lines = path.read_bytes().splitlines()
            except FileNotFoundError:
                continue
            for line in reversed(lines):
                try:
                    yield json.loads(line)
                except ValueError:  # cut short by a crash
                    continue

"""`schedule:FILE`: limits planned in a file, CSV with a header or YAML; see `rows` and `daily`.

The file is read again when it changes. A change that cannot be used changes nothing: what was
planned before keeps counting, and the note says what is wrong.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from datetime import tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import yaml

from wattherd.devices.signals.contract import SignalSite, SourceContact, ToldLimits
from wattherd.devices.signals.daily import daily, is_daily
from wattherd.devices.signals.limit_rows import moment_s, spans
from wattherd.devices.wire.clock import SYSTEM, Clock
from wattherd.devices.wire.uri import Uri
from wattherd.engine.power.limit_timeline import LimitPeriod
from wattherd.errors import UserError
from wattherd.yaml_fields import fields_of

OPTIONS = frozenset({"start", "zone"})
Plan = Callable[[float], tuple[LimitPeriod, ...]]
"""The limits of a file, by the present time (Unix seconds)."""


class ScheduleFile:
    """A file of limits.

    Raises:
        UserError: (on opening) it cannot be read or used.
    """

    def __init__(self, uri: Uri, site: SignalSite, clock: Clock = SYSTEM) -> None:
        """Read it for the first time."""
        self._uri, self._site, self._clock = uri, site, clock
        self._path = Path(uri.authority + uri.path)
        start = uri.options.get("start")
        self._start_s = moment_s(start, where=uri.text, field="start") if start else None
        self._zone = _zone(uri)
        self._stamp = self._stat()
        self._plan, self._read_at_s, self._note = self._read(), clock.unix_s(), ""

    def told(self) -> ToldLimits:
        """The limits of the file as it was last usable."""
        try:
            self._follow()
        except UserError as error:
            self._note = str(error)
        return ToldLimits(
            source=self._uri.text,
            contact=SourceContact.LOST if self._note else SourceContact.HEARD,
            spans=self._plan(self._clock.unix_s()),
            heard_at_s=self._read_at_s,
            note=self._note,
        )

    def close(self) -> None:
        """Nothing is held open."""

    def _follow(self) -> None:
        stamp = self._stat()
        if stamp != self._stamp or self._note:
            self._plan = self._read()
            self._stamp, self._read_at_s, self._note = stamp, self._clock.unix_s(), ""

    def _stat(self) -> tuple[int, int]:
        try:
            found = self._path.stat()
        except OSError as error:
            raise self._uri.error(f"cannot read {self._path}: {error.strerror}") from None
        return found.st_mtime_ns, found.st_size

    def _read(self) -> Plan:
        try:
            text = self._path.read_text(encoding="utf-8")
        except OSError as error:
            raise self._uri.error(f"cannot read {self._path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise self._uri.error(f"{self._path} is not UTF-8 text") from None
        where, base_w = str(self._path), self._site.base_w
        content = _kind(self._path)(text, where)
        if is_daily(content):
            return daily(content, where=where, base_w=base_w, zone=self._zone).spans
        found = spans(content, where=where, base_w=base_w, start_s=self._start_s)
        return lambda _: found


def _zone(uri: Uri) -> tzinfo | None:
    """The zone of times of day; None is this machine's."""
    name = uri.options.get("zone")
    try:
        return None if name is None else ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        hint = "write Europe/Berlin, or UTC"
        raise uri.error(f"no time zone {name!r}", field="zone", hint=hint) from None


def _kind(path: Path) -> Callable[[str, str], Any]:
    return _from_yaml if path.suffix in (".yaml", ".yml") else _from_csv


def _from_yaml(text: str, where: str) -> Any:
    try:
        content = fields_of(text)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        said = getattr(error, "problem", None) or "it cannot be read"
        place = f"{where}:{mark.line + 1}" if mark else where
        raise UserError(
            f"no YAML: {said}", where=place, hint="see docs/guides/demand-response.md"
        ) from None
    return content.get("limits", content) if isinstance(content, dict) else content


def _from_csv(text: str, where: str) -> Any:
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    if not {"at", "limit"} <= set(reader.fieldnames or ()):
        found = ", ".join(reader.fieldnames or ()) or "none"
        hint = "the first line says at,limit,until (docs/guides/demand-response.md)"
        problem = f"needs the columns at and limit, found {found}"
        raise UserError(problem, where=f"{where}:1", hint=hint)
    rows = list(reader)
    for number, row in enumerate(rows):
        if None in row:
            raise UserError("has more fields than the header", where=f"{where}: row {number + 1}")
    return rows

"""Budgets of PowerBudget objects at work: constants, schedules, signals from outside."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import tzinfo
from itertools import pairwise
from pathlib import Path, PurePosixPath
from zoneinfo import ZoneInfo

from msgspec import UNSET

from wattherd.devices.signals.contract import LimitSignal, SignalSite, SourceContact
from wattherd.devices.signals.daily import daily, is_daily
from wattherd.devices.signals.limit_rows import level_w, spans
from wattherd.devices.signals.registry import open_signal
from wattherd.devices.wire.clock import SYSTEM, Clock
from wattherd.devices.wire.uri import parse
from wattherd.engine.power.limit_timeline import FOREVER, LimitPeriod, merged
from wattherd.errors import UserError
from wattherd.kube.facts.power_kinds import PowerBudgetSpec, ScheduleBudget
from wattherd.kube.facts.power_plan import PlanVerdict, Stated, Timetable, Word

SECRETS = Path("/etc/wattherd")
"""Files that the address of a signal may name are below this folder, where operators mount them."""
_FILES = ("credentials", "cert", "key", "ca")


def open_timetable(
    spec: PowerBudgetSpec,
    limit_w: float | None,
    clock: Clock = SYSTEM,
    secrets: Path = SECRETS,
) -> Timetable:
    """A budget at work, of a domain with this limit (W).

    Raises:
        UserError: a level, zone, row or address that makes no sense.
    """
    if spec.constant is not UNSET:
        return _Constant(_level(spec.constant, limit_w))
    if spec.schedule is not UNSET:
        return _Scheduled(_planned(spec.schedule, limit_w), clock)
    if spec.signal is UNSET:
        raise UserError("gives neither constant, schedule nor signal", field="spec")
    _check_address(spec.signal.address, limit_w, secrets)
    site = SignalSite(base_w=math.inf if limit_w is None else limit_w)
    return _Signalled(open_signal(spec.signal.address, site, clock), clock)


def _level(text: str, limit_w: float | None) -> float:
    if limit_w is None and text.endswith("%"):
        hint = "give the PowerDomain a limit, or write watts"
        raise UserError(
            f"{text} is a share of a limit, and the domain has no limit",
            field="constant",
            hint=hint,
        )
    return level_w(text, limit_w or 0.0, field="constant")


def _check_address(address: str, limit_w: float | None, secrets: Path) -> None:
    """Who may make a PowerBudget is not thereby to read any file of the scheduler's.

    Raises:
        UserError: a file that is not below `secrets`, or a share of a limit that there is not.
    """
    uri = parse(address)
    if limit_w is None and uri.options.get("safe", "").endswith("%"):
        hint = "give the PowerDomain a limit, or write watts"
        raise UserError(
            "is a share of a limit, and the domain has no limit", field="address", hint=hint
        )
    for name in _FILES:
        path = uri.options.get(name)
        if path is None:
            continue
        parts = PurePosixPath(path).parts
        if ".." in parts or not PurePosixPath(path).is_relative_to(secrets):
            raise UserError(f"{path} is not below {secrets}", field="address", hint=f"{name}=FILE")


class _Constant:
    """Always the same."""

    def __init__(self, watts: float) -> None:
        self._stated = Stated(watts)

    def stated(self) -> Stated:
        return self._stated

    def close(self) -> None:
        """Nothing is held open."""


Plan = Callable[[float], Iterable[LimitPeriod]]


def _planned(schedule: ScheduleBudget, limit_w: float | None) -> Plan:
    """Spans by the present time."""
    shares = any(row.limit is not UNSET and row.limit.endswith("%") for row in schedule.rows)
    if shares and limit_w is None:
        hint = "give the PowerDomain a limit, or write watts"
        raise UserError(
            "has shares of a limit, and the domain has no limit", field="schedule", hint=hint
        )
    rows = [
        {
            "at": row.at,
            "limit": None if row.limit is UNSET else row.limit.replace(" ", ""),
            "until": None if row.until is UNSET else row.until,
        }
        for row in schedule.rows
    ]
    if is_daily(rows):
        zone = _zone(schedule.time_zone)
        return daily(rows, where="schedule", base_w=limit_w or 0.0, zone=zone).spans
    found = spans(rows, where="schedule", base_w=limit_w or 0.0, start_s=None)
    return lambda _: found


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        hint = "write Europe/Berlin, or UTC"
        raise UserError(f"no time zone {name!r}", field="timeZone", hint=hint) from None


class _Scheduled:
    """Rows of a schedule."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self._plan, self._clock = plan, clock

    def stated(self) -> Stated:
        now_s = self._clock.unix_s()
        return _stated(self._plan(now_s), now_s, PlanVerdict())

    def close(self) -> None:
        """Nothing is held open."""


_WORDS = {
    SourceContact.WAITING: Word.SIGNAL_WAITING,
    SourceContact.HEARD: Word.IN_FORCE,
    SourceContact.LOST: Word.SIGNAL_LOST,
    SourceContact.EXPIRED: Word.SIGNAL_LOST,
}


class _Signalled:
    """A source that is listened to."""

    def __init__(self, signal: LimitSignal, clock: Clock) -> None:
        self._signal, self._clock = signal, clock

    def stated(self) -> Stated:
        told = self._signal.told()
        text = told.note or f"the source is {told.contact}"
        return _stated(told.spans, self._clock.unix_s(), PlanVerdict(_WORDS[told.contact], text))

    def close(self) -> None:
        self._signal.close()


def _stated(found: Iterable[LimitPeriod], now_s: float, verdict: PlanVerdict) -> Stated:
    """What counts now, and the next change of it."""
    line = merged(LimitPeriod(0.0, FOREVER, math.inf), found, now_s).spans
    now = line[0]
    later = next((one for before, one in pairwise(line) if one.limit_w != before.limit_w), None)
    return Stated(
        _finite(now.limit_w),
        None if later is None else later.start_s,
        None if later is None else _finite(later.limit_w),
        verdict if verdict.word is not Word.IN_FORCE else PlanVerdict(),
    )


def _finite(watts: float) -> float | None:
    return None if math.isinf(watts) else watts

"""Budgets of a live site from outside: schedules, web documents, events of a grid operator.

Once a second what the sources say is compared with what the core was told of them. The difference
becomes events: the level that counts now is stated, falls to come are announced, so that caps are
lower when they begin. The operators' own budget stands beside it, and the lower one counts.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

from wattherd.devices.signals.contract import SignalSite, SourceContact
from wattherd.devices.signals.limit_sources import LimitListener, SiteLimitsNow, document, listening
from wattherd.engine.core.core import Core
from wattherd.engine.power.budgets import BudgetFall
from wattherd.errors import ClusterError, UserError
from wattherd.model.event import BudgetAnnounced, BudgetChanged, Event
from wattherd.server.journal.contract import JournalTime
from wattherd.server.journal.core_loop import CoreLoop
from wattherd.server.limits.seen_events import SeenEvents
from wattherd.server.periodic import PeriodicThread

SOURCE = "signals"
"""Under this name the core knows what all of them ask for together."""
BASE = "base"
PERIOD_S = 1.0
PATIENCE_S = 5.0
FIRST_S = 5.0
"""For first news of a source, before what it says while it is silent counts."""
STEADY_S = 2.0
"""A rise must last so long: clocks that differ by an instant make none."""
AHEAD_S = 7 * 86_400.0
MOST_FALLS = 64
"""Falls that are announced: those of a week, and no more than that."""
KEPT, SCHEDULE, EVENTS = "signals.json", "schedule", "seen-events.json"
KINDS = (".csv", ".yaml", ".yml")
_LOG = logging.getLogger(__name__)


def configured(uris: Sequence[str], schedule: Path | None) -> tuple[str, ...]:
    """Addresses of what a configuration names."""
    planned = () if schedule is None else (f"schedule:{quote(str(schedule.absolute()))}",)
    return (*uris, *planned)


class SignalWatch(PeriodicThread):
    """Listens in a thread of its own; `site` is what shares such as `75%` are of.

    What was set while the service ran is kept in `folder` and counts again after a restart, unless
    there are configured ones: whether those count is decided by
    `server.documents.changeable_settings`.
    """

    def __init__(
        self,
        keeper: CoreLoop,
        clock: JournalTime,
        site: SignalSite,
        folder: Path,
        configured: Sequence[str],
    ) -> None:
        """Listen to what is configured, or was set last.

        Raises:
            UserError: an address that cannot be used.
        """
        super().__init__("signals", PERIOD_S)
        self._keeper, self._clock, self._site, self._folder = keeper, clock, site, folder
        self._lock = threading.Lock()
        self._open = ExitStack()
        self._listener: LimitListener | None = None
        self.seen = SeenEvents(folder / EVENTS)
        self._uris, self._schedule = kept(folder) or ((), "")
        if configured:
            self._uris = tuple(configured)
        self.problem = ""
        """Why what was set last is not listened to; empty if it is."""
        try:
            self._listen(self._uris, self._schedule)
        except UserError as error:
            if configured:
                raise
            self.problem = f"a signal that was set earlier is not heard: {error.line()}"

    def end(self) -> None:
        """Stop; the last word of the sources stays in force."""
        super().end()
        with self._lock:
            self._open.close()

    def set_signals(self, uris: Sequence[str]) -> None:
        """From now on these count, beside the schedule.

        Raises:
            UserError: an address that cannot be used; then nothing is changed.
        """
        self._take(tuple(uris), self._schedule)

    def set_schedule(self, name: str, text: str) -> None:
        """From now on this one counts, beside the signals; times without a date count from now.

        Raises:
            UserError: a schedule that cannot be used; then nothing is changed.
        """
        kind = Path(name).suffix
        if kind not in KINDS:
            raise UserError(f"{name!r} is no schedule", field="name", hint="a .csv or .yaml file")
        now = datetime.now(UTC)
        path = (self._folder / f"{SCHEDULE}-{now:%Y%m%dT%H%M%S%f}{kind}").absolute()
        path.write_text(text, encoding="utf-8")
        try:
            self._take(self._uris, f"schedule:{quote(str(path))}?start={now.isoformat()}")
        except UserError as error:
            path.unlink()
            raise UserError(error.problem, where=name, field=error.field, hint=error.hint) from None

    def drop_schedule(self) -> None:
        """No schedule counts any more."""
        self._take(self._uris, "")

    def _take(self, uris: tuple[str, ...], schedule: str) -> None:
        self._listen(uris, schedule)
        self._uris, self._schedule, self.problem = uris, schedule, ""
        fresh = self._folder / f".{KEPT}"
        with fresh.open("w", encoding="utf-8") as stream:
            json.dump({"signals": uris, "schedule": schedule}, stream)
            stream.flush()
            os.fsync(stream.fileno())  # a power cut leaves no empty file
        fresh.replace(self._folder / KEPT)
        for path in self._folder.glob(f"{SCHEDULE}-*"):
            if quote(str(path.absolute())) not in schedule:
                path.unlink()

    def _listen(self, uris: Sequence[str], schedule: str) -> None:
        fresh = ExitStack()
        wanted = [*uris, *([schedule] if schedule else [])]
        listener = fresh.enter_context(listening(wanted, self._site)) if wanted else None
        with self._lock:
            old, self._open, self._listener = self._open, fresh, listener
        old.close()

    def limits(self, patience_s: float = 0.0) -> SiteLimitsNow | None:
        """What counts now, and what every source said; None where there are none.

        For sources that have not said anything yet `patience_s` is waited.
        """
        with self._lock:
            listener = self._listener
        return None if listener is None else listener.first(patience_s)

    def told(self) -> dict[str, Any]:
        """The same as parts of a document: `signals` and `timeline`."""
        found = self.limits()
        whole = document(found, self._site) if found is not None else {}
        return {name: whole.get(name, []) for name in ("signals", "timeline")}

    def _run(self) -> None:
        self.try_look()  # at once: a limit may be in force already
        super()._run()

    def look(self) -> None:
        """Tell the core what is new."""
        found = self.limits(FIRST_S)
        try:
            known = self._keeper.ask(_known).result(PATIENCE_S)
        except (TimeoutError, ClusterError):
            return
        if found is not None:
            try:
                self.seen.take(found)
            except OSError as error:
                _LOG.warning("events are not written down: %s", error)
        if found is None and known == (None, ()):
            return
        for event in news(found, known, self._clock.now_s()):
            _LOG.info("budget by signals: %s", event.cause)
            self._keeper.tell(event)


Known = tuple[float | None, tuple[BudgetFall, ...]]
"""What the core holds of the signals: the level in force (None: no limit), and what is to come."""


def _known(core: Core) -> Known:
    falls = tuple(one for one in core.budgets.announced if one.source == SOURCE and not one.domain)
    return core.budgets.by_source.get("", {}).get(SOURCE), falls


def news(found: SiteLimitsNow | None, known: Known, now_s: float) -> list[Event]:
    """Events that bring the core from what it knows to what the sources say.

    `now_s` is the journal's time of `found`. While a source has not said anything yet nothing is
    raised or taken back: what it said before a restart still counts.
    """
    level_w, falls = known
    now_w, cause = _level(found, 0.0)
    if _as_number(now_w) > _as_number(level_w):
        now_w, cause = _level(found, STEADY_S)  # the core's clock may already be past a fall
    waiting = found is not None and any(one.contact is SourceContact.WAITING for one in found.told)
    coming = _falls(found, now_s)
    events: list[Event] = []
    if now_w != level_w and not (waiting and _as_number(now_w) > _as_number(level_w)):
        events.append(BudgetChanged(at_s=0.0, budget_w=now_w, source=SOURCE, cause=cause))
    events += [
        _announced(at_s, watts, source)
        for at_s, (watts, source) in coming.items()
        if not any(_same(at_s, one) and one.budget_w == watts for one in falls)
        if at_s > now_s + STEADY_S or watts != level_w
    ]
    gone = [] if waiting else [one for one in falls if not any(_same(at_s, one) for at_s in coming)]
    events += [_announced(one.begins_s, None, "") for one in gone if one.begins_s > now_s]
    return events


def _announced(begins_s: float, budget_w: float | None, cause: str) -> BudgetAnnounced:
    return BudgetAnnounced(
        at_s=0.0, begins_s=begins_s, budget_w=budget_w, source=SOURCE, cause=cause
    )


def _level(found: SiteLimitsNow | None, ahead_s: float) -> tuple[float | None, str]:
    """The lowest that counts from now for `ahead_s`, and who says so; None: no limit."""
    if found is None:
        return None, ""
    until_s = found.now_s + ahead_s
    spans = [one for one in found.timeline.spans if one.start_s <= until_s]
    limits = [one for one in spans if one.end_s > found.now_s and one.source != BASE]
    lowest = min(limits, key=lambda one: one.limit_w, default=None)
    return (None, "") if lowest is None else (lowest.limit_w, lowest.source)


def _falls(found: SiteLimitsNow | None, now_s: float) -> dict[float, tuple[float, str]]:
    """Falls to come by their time in the journal, whole milliseconds."""
    if found is None:
        return {}
    spans = found.timeline.spans
    ahead = [
        (one.start_s - found.now_s, one)
        for before, one in pairwise(spans)
        if one.limit_w < before.limit_w
    ]
    return {
        round(now_s + ahead_s, 3): (one.limit_w, one.source)
        for ahead_s, one in ahead[:MOST_FALLS]
        if 0 < ahead_s <= AHEAD_S
    }


def _same(begins_s: float, fall: BudgetFall) -> bool:
    """Within half a second: two clocks do not agree to the millisecond."""
    return abs(begins_s - fall.begins_s) < 0.5


def _as_number(watts: float | None) -> float:
    return math.inf if watts is None else watts


def kept(folder: Path) -> tuple[tuple[str, ...], str] | None:
    """Signals and schedule as they were set at work last; None if they never were.

    Raises:
        UserError: they were, and cannot be read: a limit from outside is not forgotten for that.
    """
    path = folder / KEPT
    hint = "repair or remove the file; without it, signals are those of the configuration"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return tuple(str(one) for one in found["signals"]), str(found["schedule"])
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=str(path), hint=hint) from None
    except (ValueError, KeyError, TypeError):
        raise UserError("names no signals", where=str(path), hint=hint) from None


def forget_kept(folder: Path) -> None:
    """Forget what was set at work.

    Raises:
        OSError: that is not possible.
    """
    (folder / KEPT).unlink(missing_ok=True)

"""Events that a service has seen: by id, over restarts, taken back, or repeated by nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattherd.devices.signals.contract import SourceContact, ToldLimits
from wattherd.devices.signals.limit_sources import SiteLimitsNow
from wattherd.engine.power.limit_timeline import FOREVER, LimitPeriod, merged
from wattherd.errors import UserError
from wattherd.server.limits.seen_events import KEPT_S, SeenEvents

NOON_S = 1_900_000_800.0


def told(
    now_s: float, *spans: LimitPeriod, contact: SourceContact = SourceContact.HEARD
) -> SiteLimitsNow:
    base = LimitPeriod(0.0, FOREVER, 9e3, "base")
    source = ToldLimits(source="openadr3+https://vtn", contact=contact, spans=spans)
    return SiteLimitsNow(now_s, merged(base, spans, now_s), (source,))


def span(start_s: float, end_s: float, limit_w: float, source: str = "event evt-7") -> LimitPeriod:
    return LimitPeriod(NOON_S + start_s, NOON_S + end_s, limit_w, source)


def test_an_event_is_known_by_its_id_when_it_is_over_and_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "events.json"
    seen = SeenEvents(path)
    evening = span(3600, 7200, 6e3)
    for now_s in (0.0, 3600.0, 7000.0):
        seen.take(told(NOON_S + now_s, evening))
    seen.take(told(NOON_S + 7300))
    found = SeenEvents(path).named("evt-7", NOON_S + 8000)
    assert (found.start_s, found.end_s, found.limit_w) == (NOON_S + 3600, NOON_S + 7200, 6e3)
    assert (found.announced_s, found.cancelled) == (NOON_S, False)
    assert SeenEvents(path).named(None, NOON_S + 8000) == found


def test_intervals_of_one_event_are_told_apart(tmp_path: Path) -> None:
    seen = SeenEvents(tmp_path / "events.json")
    seen.take(told(NOON_S, span(100, 200, 6e3), span(200, 300, 5e3)))
    assert [(one.id, one.limit_w) for one in seen.all()] == [("evt-7", 6e3), ("evt-7/2", 5e3)]


def test_a_schedule_has_no_ids_so_that_times_stand_for_them(tmp_path: Path) -> None:
    seen = SeenEvents(tmp_path / "events.json")
    seen.take(told(NOON_S, span(0, 60, 6e3, "limits.csv:2"), LimitPeriod(0.0, FOREVER, 8e3, "x")))
    assert [one.id for one in seen.all()] == ["2030-03-17T18:00:00Z"]


def test_an_event_that_is_taken_back_ends_then_and_one_to_come_never_was(tmp_path: Path) -> None:
    seen = SeenEvents(tmp_path / "events.json")
    seen.take(told(NOON_S, span(-60, 600, 6e3), span(9000, 9600, 6e3, "event later")))
    seen.take(told(NOON_S + 100))
    found = seen.named("evt-7", NOON_S + 700)
    assert (found.end_s, found.cancelled) == (NOON_S + 100, True)
    assert [one.id for one in seen.all()] == ["evt-7"]


@pytest.mark.parametrize("contact", [SourceContact.WAITING, SourceContact.LOST])
def test_a_source_that_is_not_heard_takes_nothing_back(
    tmp_path: Path, contact: SourceContact
) -> None:
    seen = SeenEvents(tmp_path / "events.json")
    seen.take(told(NOON_S, span(-60, 600, 6e3)))
    seen.take(told(NOON_S + 100, contact=contact))
    assert not seen.named("evt-7", NOON_S + 700).cancelled


def test_an_event_that_was_moved_is_one_event(tmp_path: Path) -> None:
    seen = SeenEvents(tmp_path / "events.json")
    seen.take(told(NOON_S, span(100, 200, 6e3)))
    seen.take(told(NOON_S + 50, span(300, 400, 5e3)))
    found = seen.named("evt-7", NOON_S + 500)
    assert (found.start_s, found.limit_w, found.announced_s) == (NOON_S + 300, 5e3, NOON_S)


def test_an_event_that_goes_on_ends_now_and_one_to_come_is_refused(tmp_path: Path) -> None:
    seen = SeenEvents(tmp_path / "events.json")
    seen.take(told(NOON_S, span(-100, 900, 6e3), span(2000, 2100, 6e3, "event later")))
    assert seen.named(None, NOON_S + 10).end_s == NOON_S + 10
    with pytest.raises(UserError, match="still to come"):
        seen.named("later", NOON_S + 10)
    with pytest.raises(UserError, match="no event 'evt-8' was seen") as caught:
        seen.named("evt-8", NOON_S + 10)
    assert "evt-7" in caught.value.hint


def test_old_events_are_forgotten_and_a_broken_file_stops_nobody(tmp_path: Path) -> None:
    path = tmp_path / "events.json"
    path.write_text("{")
    seen = SeenEvents(path)
    with pytest.raises(UserError, match="no event has been seen"):
        seen.named(None, NOON_S)
    seen.take(told(NOON_S, span(-100, 10, 6e3)))
    seen.take(told(NOON_S + KEPT_S + 20))
    assert seen.all() == []

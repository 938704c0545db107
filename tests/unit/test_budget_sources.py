"""Several sources of budgets: each speaks for itself, the lowest counts."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from wattherd.devices.signals.contract import SignalSite, SourceContact, ToldLimits
from wattherd.devices.signals.limit_sources import SiteLimitsNow
from wattherd.devices.signals.registry import open_signal
from wattherd.devices.wire.clock import SYSTEM
from wattherd.engine.power.budgets import BudgetFall, Budgets, CapRules
from wattherd.engine.power.limit_timeline import FOREVER, LimitPeriod, merged
from wattherd.errors import UserError
from wattherd.model.event import BudgetAnnounced, BudgetChanged
from wattherd.server.limits.signal_watch import SOURCE, Known, news

RULES = CapRules(ahead_s=4.0)
NOW_S = 1_000_000_000.0


def test_the_lowest_of_several_budgets_counts() -> None:
    budgets = Budgets(RULES, ("",))
    budgets.change("", 100.0, 0.0)
    budgets.change("", 60.0, 1.0, "grid")
    assert budgets.stated_w[""] == 60.0
    budgets.change("", 50.0, 2.0)
    assert budgets.stated_w[""] == 50.0
    budgets.change("", None, 3.0)
    assert budgets.stated_w[""] == 60.0
    budgets.change("", None, 4.0, "grid")
    assert budgets.stated_w[""] is None


def test_what_one_source_announced_is_not_ended_by_another() -> None:
    budgets = Budgets(RULES, ("",))
    budgets.change("", 100.0, 0.0)
    budgets.announce("", 10.0, 60.0, "grid")
    budgets.announce("", 10.0, 80.0)
    budgets.change("", 80.0, 10.0)
    assert budgets.held_w("", 11.0, lambda _: 0.0) == 60.0
    budgets.announce("", 10.0, None)
    assert [one.source for one in budgets.announced] == ["grid"]


def limits(*spans: LimitPeriod, contact: SourceContact = SourceContact.HEARD) -> SiteLimitsNow:
    base = LimitPeriod(0.0, FOREVER, 100.0, "base")
    told = ToldLimits(source="plan", contact=contact, spans=spans)
    return SiteLimitsNow(NOW_S, merged(base, spans, NOW_S), (told,))


def span(start_s: float, end_s: float, limit_w: float) -> LimitPeriod:
    return LimitPeriod(NOW_S + start_s, NOW_S + end_s, limit_w, "plan")


UNKNOWN: Known = (None, ())


def test_a_level_is_stated_and_falls_to_come_are_announced() -> None:
    found = limits(span(-5, 60, 80.0), span(60, 120, 50.0), span(120, 180, 90.0))
    stated, announced = news(found, UNKNOWN, 500.0)
    assert stated == BudgetChanged(at_s=0.0, budget_w=80.0, source=SOURCE, cause="plan")
    assert announced == BudgetAnnounced(
        at_s=0.0, begins_s=560.0, budget_w=50.0, source=SOURCE, cause="plan"
    )
    known = (80.0, (BudgetFall(560.0, 50.0, "", SOURCE),))
    assert news(found, known, 500.003) == []


def test_what_is_no_longer_planned_is_taken_back() -> None:
    (event,) = news(limits(), (None, (BudgetFall(560.0, 50.0, "", SOURCE),)), 500.0)
    assert isinstance(event, BudgetAnnounced)
    assert (event.begins_s, event.budget_w) == (560.0, None)


def test_the_end_of_all_limits_lifts_the_budget() -> None:
    (event,) = news(limits(), (50.0, ()), 500.0)
    assert event == BudgetChanged(at_s=0.0, budget_w=None, source=SOURCE)
    assert news(None, (50.0, ()), 500.0) == [event]


def test_a_source_that_was_not_heard_yet_raises_and_takes_back_nothing() -> None:
    found = limits(contact=SourceContact.WAITING)
    assert news(found, (50.0, (BudgetFall(560.0, 40.0, "", SOURCE),)), 500.0) == []
    (event,) = news(limits(span(-1, 60, 30.0), contact=SourceContact.WAITING), (50.0, ()), 500.0)
    assert isinstance(event, BudgetChanged)
    assert event.budget_w == 30.0


def test_a_clock_a_moment_behind_the_fall_does_not_raise_the_budget_again() -> None:
    """The fall has come by the journal's clock; by the source's it is 2 ms ahead."""
    found = limits(span(-60, 0.002, 80.0), span(0.002, 60, 50.0))
    assert news(found, (50.0, ()), 500.0) == []


# Times of day ---------------------------------------------------------------------------------


def plan(
    tmp_path: Path, text: str, now: datetime, zone: str = "UTC"
) -> list[tuple[str, str, float]]:
    """Spans of today and tomorrow as local times."""
    path = tmp_path / "plan.csv"
    path.write_text(text)
    clock = SYSTEM._replace(unix_s=now.timestamp)
    signal = open_signal(f"schedule:{path}?zone={zone}", SignalSite(base_w=1000.0), clock)
    told = signal.told()
    local = ZoneInfo(zone)
    return [
        (
            datetime.fromtimestamp(one.start_s, local).strftime("%d %H:%M"),
            datetime.fromtimestamp(one.end_s, local).strftime("%d %H:%M"),
            one.limit_w,
        )
        for one in told.spans
        if now.timestamp() <= one.end_s <= now.timestamp() + 2 * 86_400
    ]


NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_times_of_day_come_again_every_day(tmp_path: Path) -> None:
    text = "at,limit,until\n8:00,700,\n18:00,60%,22:00\n"
    assert plan(tmp_path, text, NOON) == [
        ("21 08:00", "21 18:00", 700.0),
        ("21 18:00", "21 22:00", 600.0),
        ("22 08:00", "22 18:00", 700.0),
        ("22 18:00", "22 22:00", 600.0),
    ]


def test_the_last_row_of_a_day_holds_until_the_first_of_the_next(tmp_path: Path) -> None:
    text = "at,limit\n08:00,700\n20:30,none\n"
    late = NOON.replace(hour=21)
    assert plan(tmp_path, text, late) == [
        ("22 08:00", "22 20:30", 700.0),
        ("23 08:00", "23 20:30", 700.0),
    ]
    night = "at,limit\n08:00,\n20:00,500\n"
    assert plan(tmp_path, night, late)[0] == ("21 20:00", "22 08:00", 500.0)


def test_a_limit_of_the_night_is_an_hour_shorter_when_clocks_go_forward(tmp_path: Path) -> None:
    path = tmp_path / "plan.csv"
    path.write_text("at,limit,until\n22:00,500,06:00\n")
    now = datetime(2026, 3, 28, 12, tzinfo=UTC)
    clock = SYSTEM._replace(unix_s=now.timestamp)
    uri = f"schedule:{path}?zone=Europe/Berlin"
    spans = open_signal(uri, SignalSite(base_w=1.0), clock).told().spans
    hours = [round((one.end_s - one.start_s) / 3600) for one in spans]
    assert hours[:3] == [8, 7, 8]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("at,limit\n18:00,5\n2026-01-01T00:00:00Z,5\n", "at"),
        ("at,limit\n18:00,5\n17:00,5\n", "at"),
        ("at,limit,until\n08:00,5,19:00\n18:00,5,\n", "until"),
        ("at,limit\n18:00,heavy\n", "limit"),
    ],
    ids=["a date among times", "out of order", "beyond the next", "no limit"],
)
def test_a_day_that_makes_no_sense_is_refused(text: str, field: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        plan(tmp_path, text, NOON)
    assert error.value.field == field


def test_a_zone_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no time zone"):
        plan(tmp_path, "at,limit\n18:00,5\n", NOON, "Mars/Olympus")

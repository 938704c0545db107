"""OpenADR 3 events as limits: time, targets, priorities, and what a bad one does to the others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.devices.signals.contract import SignalSite
from wattherd.devices.signals.openadr3_events import EventReader, EventSpans, counting
from wattherd.engine.power.limit_timeline import FOREVER, LimitPeriod

NOON = datetime(2030, 6, 1, 12, tzinfo=UTC)
NOON_S = NOON.timestamp()
SITE = SignalSite(base_w=40_000.0)
HOUR_S = 3600.0


def at(hours: float) -> str:
    return (NOON + timedelta(hours=hours)).isoformat()


def event(*values: Any, **fields: Any) -> dict[str, Any]:
    kind = fields.pop("kind", "IMPORT_CAPACITY_LIMIT")
    return {
        "id": "e", "programID": "p",
        "intervalPeriod": {"start": at(1), "duration": "PT1H"},
        "intervals": [{"id": n, "payloads": [{"type": kind, "values": [value]}]}
                      for n, value in enumerate(values)],
        **fields,
    }  # fmt: skip


def read(*rows: Any, **options: Any) -> list[EventSpans]:
    return list(EventReader(site=SITE, **options).read(rows, NOON_S))


def steps(spans: tuple[LimitPeriod, ...]) -> list[tuple[float, float, float]]:
    """(From, until, kilowatts) in hours after noon."""
    return [((one.start_s - NOON_S) / HOUR_S, (one.end_s - NOON_S) / HOUR_S, one.limit_w / 1e3)
            for one in spans]  # fmt: skip


# --- time ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("duration", "end"),
    [("PT30M", 1.5), ("P1D", 25.0), ("P0Y0M0DT1H0M0S", 2.0),
     ("P1W", 169.0), ("PT0S", FOREVER), ("P9999Y", FOREVER),
     (None, FOREVER), ("PT0.5S", 1 + 0.5 / 3600)],
)  # fmt: skip
def test_durations_of_all_kinds(duration: str | None, end: float) -> None:
    (found,) = read(event(30, intervalPeriod={"start": at(1), "duration": duration}))
    assert steps(found.firm) == [(1, pytest.approx(end), 30)]


def test_an_open_interval_ends_where_the_next_one_begins_by_itself() -> None:
    rows = event(30, 20)
    rows["intervals"][0]["intervalPeriod"] = {"start": at(1)}
    rows["intervals"][1]["intervalPeriod"] = {"start": at(3), "duration": "PT1H"}
    assert steps(read(rows)[0].firm) == [(1, 3, 30), (3, 4, 20)]


def test_a_start_in_the_year_one_is_when_the_event_was_written_or_heard() -> None:
    period = {"start": "0001-01-01T00:00:00Z", "duration": "PT1H"}
    assert steps(read(event(30, intervalPeriod=period))[0].firm) == [(0, 1, 30)]
    written = event(30, intervalPeriod=period, modificationDateTime=at(-0.5))
    assert steps(read(written)[0].firm) == [(-0.5, 0.5, 30)]


def test_an_event_with_a_duration_of_its_own_repeats_its_intervals() -> None:
    (found,) = read(event(30, 20, duration="PT5H"))
    assert steps(found.firm) == [(1, 2, 30), (2, 3, 20), (3, 4, 30), (4, 5, 20), (5, 6, 30)]


def test_an_event_that_loops_for_ever_stays_small_and_covers_now() -> None:
    started = {"start": at(-24 * 365), "duration": "PT1H"}
    (found,) = read(event(30, 20, duration="P9999Y", intervalPeriod=started))
    assert len(found.firm) <= 10_001
    assert min(one.start_s for one in found.firm) <= NOON_S < max(one.end_s for one in found.firm)


def test_several_values_divide_an_interval() -> None:
    rows = event(30)
    rows["intervals"][0]["payloads"][0]["values"] = [30, 20, 10]
    assert steps(read(rows)[0].firm) == [
        (1, pytest.approx(4 / 3), 30), (pytest.approx(4 / 3), pytest.approx(5 / 3), 20),
        (pytest.approx(5 / 3), 2, 10),
    ]  # fmt: skip


def test_random_starts_are_within_their_range_the_same_every_time_and_differ_by_site() -> None:
    rows = event(30, intervalPeriod={"start": at(1), "duration": "PT1H", "randomizeStart": "PT10M"})
    starts = [read(rows, name=name)[0].firm[0] for name in ("a", "a", "b", "c", "d")]
    delays = [one.start_s - NOON_S - HOUR_S for one in starts]
    assert all(0 <= delay < 600 for delay in delays)
    assert delays[0] == delays[1]
    assert len(set(delays)) == 4
    assert all(one.end_s - one.start_s == pytest.approx(HOUR_S) for one in starts)


# --- what cannot be used ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        {"id": "x"}, {}, "x", None, 7, [], {"id": 3}, event(30, id=None),
        event(30, id="x", intervalPeriod=None),
        event(30, id="x", intervalPeriod={"start": "noon"}),
        event(30, id="x", intervalPeriod={"start": "2030-06-01T12:00:00"}),
        event(30, id="x", intervalPeriod={"start": at(1), "duration": "P1M"}),
        event(30, id="x", intervalPeriod={"start": at(1), "duration": "1h"}),
        event(30, id="x", intervals=[{"payloads": [{"type": "PRICE", "values": []}]}]),
        event(30, id="x", intervals="all"), event(30, 20, id="x", intervalPeriod={"start": at(1)}),
        event("much", id="x"), event(float("nan"), id="x"), event(True, id="x"),
        event(30, id="x", payloadDescriptors=[{"payloadType": "IMPORT_CAPACITY_LIMIT",
                                               "units": "CELSIUS"}]),
        event(30, id="x", priority="high"), event(30, id="x", kind="PRICE"),
        event(30, id="x", modificationDateTime="yesterday"),
    ],
)  # fmt: skip
def test_a_bad_event_loses_itself_only(bad: Any) -> None:
    found = read(event(30, id="good"), bad, event(20, id="also"))
    good = {one.event_id: one for one in found}
    assert steps(good["good"].firm) == [(1, 2, 30)]
    assert steps(good["also"].firm) == [(1, 2, 20)]
    others = [one for one in found if one.event_id not in ("good", "also")]
    assert len(others) == 1
    assert others[0].problem
    assert others[0].spans == ()


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["id", "intervals", "intervalPeriod", "start", "duration", "payloads",
                         "type", "values", "priority", "targets", "payloadDescriptors"]), inner),
    max_leaves=20,
))  # fmt: skip
def test_nothing_in_a_list_of_events_raises(row: Any) -> None:
    found = read(row, event(30))
    assert any(one.event_id == "e" and one.firm for one in found)


def test_a_limit_below_zero_is_zero() -> None:
    (found,) = read(event(-5))
    assert steps(found.firm) == [(1, 2, 0)]


# --- targets ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "taken"),
    [
        (None, True), ([], True), (["hall"], True), (["other"], False), (["other", "hall"], True),
        ([{"type": "GROUP", "values": ["hall"]}], True),
        ([{"type": "VEN_NAME", "values": ["other"]}], False),
        ([{"type": "GROUP", "values": None}], False),
    ],
)  # fmt: skip
def test_events_for_others_are_not_ours(targets: Any, taken: bool) -> None:
    assert bool(read(event(30, targets=targets), targets=frozenset({"hall"}))) is taken
    assert read(event(30, targets=targets))  # without names of ours, the server has chosen


# --- priorities ------------------------------------------------------------------------------


def order(
    start: float, end: float, kw: float, priority: float, *, firm: bool = False
) -> EventSpans:
    span = LimitPeriod(NOON_S + start * HOUR_S, NOON_S + end * HOUR_S, kw * 1e3)
    spans = {"firm": (span,)} if firm else {"told": (span,)}
    return EventSpans(event_id=f"{start}{end}{kw}", priority=priority, **spans)


def test_of_orders_at_the_same_time_the_one_of_higher_priority_counts() -> None:
    found = counting([order(0, 4, 10, 5), order(1, 2, 30, 0)])
    assert sorted(steps(found)) == [(0, 1, 10), (1, 2, 30), (2, 4, 10)]


def test_orders_of_the_same_priority_all_count() -> None:
    assert sorted(steps(counting([order(0, 2, 10, 5), order(1, 3, 30, 5)]))) == [
        (0, 2, 10), (1, 3, 30),
    ]  # fmt: skip


def test_a_capacity_limit_counts_whatever_its_priority() -> None:
    found = counting([order(0, 4, 10, 9, firm=True), order(0, 4, 30, 0)])
    assert sorted(steps(found)) == [(0, 4, 10), (0, 4, 30)]


def test_an_order_that_states_no_priority_is_the_last() -> None:
    (found,) = read(event(30, kind="DISPATCH_SETPOINT"))
    assert sorted(steps(counting([found, order(1, 1.5, 35, 100)]))) == [(1, 1.5, 35), (1.5, 2, 30)]


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 8), st.integers(1, 40),
                          st.sampled_from([0, 1, 2]), st.booleans()), max_size=6))  # fmt: skip
def test_at_any_time_the_limits_that_count_are_those_of_the_rule(given_: list[Any]) -> None:
    events = [order(start, start + length, kw, priority, firm=firm)
              for start, length, kw, priority, firm in given_]  # fmt: skip
    found = counting(events)
    for half in range(35):
        moment = NOON_S + (half / 2 + 0.25) * HOUR_S
        firm = {one.limit_w for event in events for one in event.firm if one.holds(moment)}
        told = [(event.priority, one.limit_w) for event in events for one in event.told
                if one.holds(moment)]  # fmt: skip
        best = min((priority for priority, _ in told), default=None)
        expected = firm | {watts for priority, watts in told if priority == best}
        assert {one.limit_w for one in found if one.holds(moment)} == expected


def test_simple_levels_mean_what_the_site_says() -> None:
    simple_w = (40e3, 36e3, 20e3)
    (found,) = read(event(1, 2, 9, kind="SIMPLE"), simple_w=simple_w)
    assert [kw for _, _, kw in steps(found.told)] == [36, 20, 20]
    assert read(event(1, kind="SIMPLE"))[0].problem

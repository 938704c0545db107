"""Proof of delivery: baselines, reductions and minutes late of series that were made by hand."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from wattherd.errors import UserError
from wattherd.experiments.grid.delivery import (
    BaselineMethod,
    DeliveredWatts,
    DeliveryEvent,
    delivered,
    readings_of,
)

DAY_S = 86_400.0
START_S = datetime(2030, 6, 5, 18, tzinfo=UTC).timestamp()  # a Wednesday


def series(
    *parts: tuple[float, float], step_s: float = 10.0, from_s: float = -7200.0
) -> DeliveredWatts:
    """`(seconds, watts)` parts one after the other, from so long before the event."""
    watts = [w for seconds, w in parts for _ in range(int(seconds / step_s))]
    return readings_of([START_S + from_s + n * step_s for n in range(len(watts))], watts)


def event(hours: float = 1.0, **fields: float) -> DeliveryEvent:
    return DeliveryEvent(
        start_s=START_S, end_s=START_S + hours * 3600, **(fields or {"limit_w": 700.0})
    )


def test_the_hour_before_is_the_baseline_without_the_last_quarter() -> None:
    # Already down in the last quarter: that must not make the baseline lower.
    found = delivered(
        series((6300, 1000), (900, 600), (3600, 600)), event(), BaselineMethod.HOUR_BEFORE
    )
    assert {one.baseline_w for one in found.slots} == {1000.0}
    assert found.reduction_w == pytest.approx(400.0)
    assert found.asked_w == pytest.approx(300.0)
    assert found.performance == pytest.approx(4 / 3)
    assert found.energy_j == pytest.approx(400 * 3600)
    assert (found.late_s, found.above_s, found.unseen_s) == (0.0, 0.0, pytest.approx(0.0))


def test_an_announcement_ends_the_baseline_where_it_was_made() -> None:
    readings = series((3600, 1000), (3600, 2000), (3600, 600))  # raised once it was announced
    announced = event(limit_w=700.0, announced_s=START_S - 3600)
    found = delivered(readings, announced, BaselineMethod.HOUR_BEFORE)
    assert found.slots[0].baseline_w == 1000.0


def test_late_is_until_draw_stays_below_the_target_for_a_minute() -> None:
    readings = series((7200, 1000), (120, 1000), (30, 600), (60, 900), (3390, 600))
    found = delivered(readings, event(), BaselineMethod.HOUR_BEFORE)
    assert found.late_s == 210.0
    assert found.above_s == 180.0
    assert found.worst_w == 300.0


def test_a_target_that_is_never_kept_is_late_for_ever() -> None:
    found = delivered(series((10_800, 1000)), event(), BaselineMethod.HOUR_BEFORE)
    assert found.late_s == math.inf
    assert found.above_s == 3600.0


def test_a_reduction_is_asked_from_the_baseline() -> None:
    found = delivered(series((7200, 1000), (3600, 600)), event(reduction_w=500.0),
                      BaselineMethod.HOUR_BEFORE)  # fmt: skip
    assert found.slots[0].target_w == 500.0
    assert found.performance == pytest.approx(0.8)


def test_a_gap_proves_nothing_and_is_told() -> None:
    whole = series((7200, 1000), (3600, 600))
    inside = (whole.begins_s >= START_S + 600) & (whole.begins_s < START_S + 2000)
    readings = readings_of(whole.begins_s[~inside].tolist(), whole.watts[~inside].tolist())
    found = delivered(readings, event(), BaselineMethod.HOUR_BEFORE)
    assert found.unseen_s == pytest.approx(1400.0)
    assert math.isnan(found.slots[1].draw_w)
    assert found.reduction_w == pytest.approx(400.0)


def days(*levels_w: float, today: tuple[float, float], zone: str = "UTC") -> DeliveredWatts:
    """A level for each day before the event (the last one is yesterday), then before and during."""
    at_s, watts = [], []
    place = ZoneInfo(zone)
    noon = datetime(2030, 6, 5, tzinfo=place)
    for back in range(len(levels_w), -1, -1):
        midnight_s = (noon - timedelta(days=back)).timestamp()
        for slot in range(96):
            moment_s = midnight_s + slot * 900.0
            at_s.append(moment_s)
            if back:
                watts.append(levels_w[len(levels_w) - back])
            else:
                watts.append(today[0] if moment_s < START_S else today[1])
    return readings_of(at_s, watts)


def test_ten_days_that_are_alike_make_the_baseline_and_today_adjusts_it() -> None:
    # Two weeks and more: weekends at 5 kW do not count for a Wednesday.
    levels = []
    for back in range(16, 0, -1):
        day = date(2030, 6, 5) - timedelta(days=back)
        levels.append(5000.0 if day.weekday() >= 5 else 1000.0)
    found = delivered(days(*levels, today=(1100, 600)), event(), BaselineMethod.TEN_IN_TEN)
    assert found.slots[0].baseline_w == pytest.approx(1100.0)
    assert found.reduction_w == pytest.approx(500.0)
    assert found.basis == "10 days from 2030-05-22 to 2030-06-04, times 1.100"


def test_the_adjustment_stays_within_a_fifth() -> None:
    found = delivered(days(*[1000.0] * 16, today=(5000, 600)), event(), BaselineMethod.TEN_IN_TEN)
    assert found.slots[0].baseline_w == pytest.approx(1200.0)


def test_days_with_an_event_make_no_baseline() -> None:
    levels = [1000.0] * 20
    levels[-1] = 100.0  # yesterday
    plain = delivered(days(*levels, today=(1000, 600)), event(), BaselineMethod.TEN_IN_TEN)
    without = delivered(days(*levels, today=(1000, 600)), event(), BaselineMethod.TEN_IN_TEN,
                        event_days=frozenset({date(2030, 6, 4)}))  # fmt: skip
    assert without.slots[0].baseline_w == pytest.approx(1000.0)
    assert "2030-06-03" in without.basis
    assert "2030-06-04" in plain.basis


def test_too_few_days_are_told() -> None:
    with pytest.raises(UserError, match="only 4 of 10 days"):
        delivered(days(*[1000.0] * 6, today=(1000, 600)), event(), BaselineMethod.TEN_IN_TEN)


def test_readings_count_by_how_long_they_lasted() -> None:
    readings = readings_of([0.0, 10.0, 15.0, 25.0], [100.0, 400.0, 100.0, 100.0])
    mean_w, seen = readings.mean_w(0.0, 20.0)
    assert mean_w == pytest.approx((100 * 10 + 400 * 5 + 100 * 5) / 20)
    assert seen == 1.0
    assert np.isnan(readings.mean_w(100.0, 200.0)[0])


@pytest.mark.parametrize(
    ("at_s", "said"), [([0.0], "fewer than two"), ([0.0, 0.0], "do not ascend")]
)
def test_readings_that_are_none_are_refused(at_s: list[float], said: str) -> None:
    with pytest.raises(UserError, match=said):
        readings_of(at_s, [1.0] * len(at_s))


def test_an_event_asks_for_one_thing_over_some_time() -> None:
    for fields in ({}, {"limit_w": 1.0, "reduction_w": 1.0}):
        with pytest.raises(UserError, match="either a limit or a reduction"):
            DeliveryEvent(start_s=0.0, end_s=1.0, **fields)
    with pytest.raises(UserError, match="ends before it begins"):
        DeliveryEvent(start_s=1.0, end_s=1.0, limit_w=1.0)

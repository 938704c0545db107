"""Jobs that wait for cheap energy: when they begin, who may change that, and what is refused."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.errors import UserError
from wattherd.estimate.deferral import Deferrable, RateSignal, cheapest_known_start
from wattherd.estimate.rates import EnergyRates, RateRow, hourly
from wattherd.model.event import JobEdited, JobSubmitted
from wattherd.model.job import JobSpec
from wattherd.server.journal.core_loop import CoreLoop
from wattherd.server.journal.job_history import DEFERRED_BY, JobHistory
from wattherd.server.journal.journal_writer import _numbered
from wattherd.server.settings.energy_rates import RatesWatch, why_deferred
from wattherd.server.site.deferral import DeferWatch, chosen_begin_s, deferred
from wattherd.store.entry import JournalEntry
from wattherd.workload.job_file import validated_job
from wattherd.workload.resubmission import file_again

HOUR_S = 3600.0
EPOCH = 2_000_000_000.0
"""When the journal began; a whole number of hours after the rates of a day began."""
COST: dict[str, Any] = {"defer": {"by": "cost"}}


def priced(*prices: float | None, carbon: float | None = 100.0) -> EnergyRates:
    """A price for each hour from the beginning of the journal on."""
    return EnergyRates(
        tuple(
            RateRow(EPOCH + hour * HOUR_S, EPOCH + (hour + 1) * HOUR_S, price, carbon)
            for hour, price in enumerate(prices)
        ),
        currency="EUR",
    )


def told(rates: EnergyRates | None) -> RatesWatch:
    return cast("RatesWatch", SimpleNamespace(rates=rates))


def job(hours: float = 1.0, within_h: float = 6.0, **more: Any) -> JobSpec:
    return JobSpec(
        id="new", submit_s=0.0, duration_s=hours * HOUR_S, deadline_s=within_h * HOUR_S, **more
    )


def begins_h(spec: JobSpec, rates: EnergyRates, now_h: float = 0.0) -> float | None:
    found, _ = deferred(spec, dict(COST), told(rates), now_h * HOUR_S, EPOCH)
    return None if found.begin_s is None else now_h + found.begin_s / HOUR_S


# --- when it begins -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prices", "hours", "within_h", "expected"),
    [
        ([3, 2, 1, 4, 5, 6], 1.0, 6.0, 2.0),
        ([3, 2, 1, 4, 5, 6], 2.0, 6.0, 1.0),
        ([1, 2, 3, 4, 5, 6], 1.0, 6.0, None),  # now is the cheapest
        ([3, 2, 1, 0, 0, 0], 1.0, 3.0, 2.0),  # the cheaper hours are behind the deadline
        ([3, 2, 9, 9, 9, 0], 2.0, 6.0, None),  # 3 + 2 is less than all other pairs
        ([5, 5, 5, 1], 2.0, 9.0, 2.0),  # nothing is known of later hours: nothing is hoped of them
        ([5, 1], 3.0, 9.0, None),  # no such run ends while prices are known
    ],
)
def test_a_job_begins_where_its_whole_run_is_the_cheapest(
    prices: list[float], hours: float, within_h: float, expected: float | None
) -> None:
    assert begins_h(job(hours, within_h), priced(*prices)) == expected


def test_how_long_it_takes_is_its_limit_where_nothing_is_expected() -> None:
    spec = JobSpec(id="new", submit_s=0.0, time_limit_s=2 * HOUR_S, deadline_s=6 * HOUR_S)
    assert begins_h(spec, priced(3, 2, 1, 4, 5, 6)) == 1.0


def test_it_does_not_begin_before_its_user_wants() -> None:
    spec = job(1.0, 6.0, begin_s=3 * HOUR_S)
    assert begins_h(spec, priced(1, 1, 1, 4, 3, 6)) == 4.0
    found, paper = deferred(spec, dict(COST), told(priced(1, 1, 1, 1, 3, 6)), 0.0, EPOCH)
    assert found.begin_s == 3 * HOUR_S
    assert paper["defer"] == {"by": "cost", "earliest_s": 3 * HOUR_S}


def test_one_that_is_late_begins_at_once() -> None:
    assert begins_h(job(5.0, 4.0), priced(9, 1, 1, 1, 1, 1)) is None


def test_carbon_is_looked_at_where_that_is_asked_for() -> None:
    rows = tuple(
        row._replace(carbon_g=float(9 - hour)) for hour, row in enumerate(priced(1, 2, 3).rows)
    )
    paper = {"defer": {"by": "carbon"}}
    found, _ = deferred(job(1.0), paper, told(EnergyRates(rows)), 0.0, EPOCH)
    assert found.begin_s == 2 * HOUR_S


def test_nothing_known_of_now_is_no_reason_to_wait() -> None:
    assert begins_h(job(), priced(None, 1, 1)) is None
    assert begins_h(job(), priced(1, 1), now_h=5.0) is None
    found, paper = deferred(job(), dict(COST), told(None), 0.0, EPOCH)
    assert found.begin_s is None
    assert paper["defer"]["by"] == "cost"


def test_without_rates_it_is_refused() -> None:
    with pytest.raises(UserError, match="knows no rates") as refused:
        deferred(job(), dict(COST), None, 0.0, EPOCH)
    assert "--rates" in refused.value.hint
    assert deferred(job(), {}, None, 0.0, EPOCH) == (job(), {})


@given(
    prices=st.lists(st.integers(0, 9).map(float), min_size=1, max_size=8),
    quarters=st.integers(1, 16),
    slack=st.integers(0, 30),
    at=st.integers(0, 12),
)
def test_no_other_start_is_cheaper(prices: list[float], quarters: int, slack: int, at: int) -> None:
    """Every quarter of an hour is tried; costs between are linear, so none is missed."""
    quarter_s = HOUR_S / 4
    signal = RateSignal(hourly(prices), "carbon")
    one = Deferrable(
        name="j", submit_s=at * quarter_s, work_s=quarters * quarter_s, gpus=1.0, watts=1.0,
        deadline_s=(at + quarters + slack) * quarter_s,
    )  # fmt: skip
    chosen_s = cheapest_known_start(one, signal)
    tried = [one.submit_s + step * quarter_s for step in range(slack + 1)]
    known = [start_s for start_s in tried if start_s + one.work_s <= signal.ends_s]
    assert one.submit_s <= chosen_s <= one.latest_s
    if not known:
        assert chosen_s == one.submit_s
        return
    costs = [signal.integral(start_s, start_s + one.work_s) for start_s in known]
    assert math.isclose(signal.integral(chosen_s, chosen_s + one.work_s), min(costs), abs_tol=1e-6)


# --- other rates, and users who know better -------------------------------------------------------


def watch(history: JobHistory | None = None) -> DeferWatch:
    unused = cast("CoreLoop", None)
    return DeferWatch(unused, history or JobHistory(), told(None), EPOCH)


def test_other_rates_move_a_begin_and_not_before_what_its_user_wants() -> None:
    spec, paper = job(1.0, 6.0), {"defer": {"by": "cost", "earliest_s": 2 * HOUR_S}}
    moved = watch().moved(spec, paper, 4 * HOUR_S, priced(0, 0, 3, 2, 5, 6), HOUR_S)
    assert moved is not None
    assert moved.begin_at_s == 3 * HOUR_S
    assert watch().moved(spec, paper, 3 * HOUR_S + 59, priced(0, 0, 3, 2, 5, 6), HOUR_S) is None
    assert watch().moved(spec, paper, 3 * HOUR_S, priced(0, None, None), HOUR_S) is None


def test_who_sets_a_begin_by_hand_ends_the_waiting_for_cheap_energy() -> None:
    history = JobHistory()
    spec = JobSpec(id="j-1", submit_s=0.0, duration_s=60.0, deadline_s=9_000.0)
    submitted = JobSubmitted(at_s=0.0, job=spec)
    history.note(JournalEntry(seq=1, event=submitted, by="ann", paper=dict(COST)), ())
    for number, (by, begin_at_s, kept) in enumerate(
        [(DEFERRED_BY, 50.0, True), ("ann", None, True), ("ann", 0.0, False)], start=2
    ):
        event = JobEdited(at_s=1.0, job_id="j-1", priority=1, begin_at_s=begin_at_s)
        history.note(JournalEntry(seq=number, event=event, by=by), ())
        assert ("defer" in history["j-1"].paper) is kept


def test_a_deadline_is_a_time_of_the_journal_so_that_deadlines_can_be_compared() -> None:
    event = _numbered(JobSubmitted(at_s=0.0, job=job(1.0, 2.0)), 7, 7, 500.0)
    assert isinstance(event, JobSubmitted)
    assert event.job.deadline_s == 500.0 + 2 * HOUR_S
    assert chosen_begin_s(event.job, COST, priced(2, 1, 9), 500.0, EPOCH) == HOUR_S


# --- what is written and said ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("time", "missing"),
    [
        ({"defer": "cost", "limit": "1h"}, "deadline"),
        ({"defer": "cost", "deadline": "2030-01-01T00:00:00Z"}, "how long it takes"),
        ({"defer": "price", "limit": "1h", "deadline": "2030-01-01T00:00:00Z"}, "cost"),
    ],
)
def test_a_job_file_says_until_when_and_how_long(time: dict[str, str], missing: str) -> None:
    with pytest.raises(UserError, match=missing) as refused:
        validated_job({"run": "true", "time": time}, "job.yaml")
    assert "time" in str(refused.value.field)


def test_a_job_that_is_run_again_waits_for_nothing() -> None:
    due = (datetime.now(UTC) + timedelta(hours=9)).isoformat()
    written = {"run": "true", "time": {"defer": "carbon", "limit": "1h", "deadline": due}}
    found = validated_job(written, "job.yaml")
    assert found.paper()["defer"] == {"by": "carbon"}
    spec = found.spec(at=datetime.now(UTC))
    later, paper = deferred(spec, found.paper(), told(priced(1.0, 1.0, carbon=100.0)), 0.0, EPOCH)
    again = file_again(later, paper, secrets=True)
    assert "begin" not in again
    assert again["time"] == {"limit": "3600s"}


def test_why_it_waits_is_said_with_both_rates() -> None:
    rates = priced(0.3, 0.1)
    assert why_deferred(COST, told(rates), EPOCH + HOUR_S, EPOCH) == (
        "energy: 0.1 EUR/kWh then, 0.3 now"
    )
    unknown = why_deferred(COST, told(rates), EPOCH + 9 * HOUR_S, EPOCH)
    assert unknown == "energy: lowest cost that is known"
    assert why_deferred({}, told(rates), EPOCH + HOUR_S, EPOCH) == ""

"""Begin times as people write them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from wattherd.errors import UserError
from wattherd.workload.begin_time import begin_time
from wattherd.workload.job_file import validated_job

ZONE = timezone(timedelta(hours=1))
NOW = datetime(2026, 11, 23, 9, 30, 15, tzinfo=ZONE)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-11-23T18:00", datetime(2026, 11, 23, 18, tzinfo=ZONE)),
        ("2026-11-23 18:00:30", datetime(2026, 11, 23, 18, 0, 30, tzinfo=ZONE)),
        ("2026-11-23T18:00Z", datetime(2026, 11, 23, 19, tzinfo=ZONE)),
        ("2026-11-24", datetime(2026, 11, 24, tzinfo=ZONE)),
        ("18:00", datetime(2026, 11, 23, 18, tzinfo=ZONE)),
        ("09:30", datetime(2026, 11, 24, 9, 30, tzinfo=ZONE)),
        ("in 2h", NOW + timedelta(hours=2)),
        ("in 1h30m", NOW + timedelta(minutes=90)),
        ("now+2h", NOW + timedelta(hours=2)),
    ],
)
def test_times_mean_what_people_mean_by_them(text: str, meant: datetime) -> None:
    assert begin_time(text, NOW, ZONE) == meant


BERLIN, NEW_YORK, SYDNEY = (
    ZoneInfo(name) for name in ("Europe/Berlin", "America/New_York", "Australia/Sydney")
)
DAY = datetime(2026, 11, 23, 17, 30, tzinfo=UTC)  # 18:30 in Berlin, 12:30 in New York
NIGHT = datetime(2026, 10, 25, 0, 10, tzinfo=UTC)  # 02:10 in Berlin; at 03:00 it is 02:00 again


@pytest.mark.parametrize(
    ("text", "now", "meant"),
    [
        ("18:00Z", DAY, "2026-11-23T18:00Z"),
        ("18:00+02:00", DAY, "2026-11-24T16:00Z"),
        ("18:00-08:00", DAY, "2026-11-24T02:00Z"),
        ("18:00", DAY, "2026-11-24T17:00Z"),
        ("18:00 UTC", DAY, "2026-11-23T18:00Z"),
        ("18:00 America/New_York", DAY, "2026-11-23T23:00Z"),
        ("2026-11-23T18:00 America/New_York", DAY, "2026-11-23T23:00Z"),
        ("2026-11-24 Australia/Sydney", DAY, "2026-11-23T13:00Z"),
        # summer and winter time of the day that is meant, not of today
        ("2026-07-01T18:00", DAY, "2026-07-01T16:00Z"),
        ("2027-07-01", DAY, "2027-06-30T22:00Z"),
        # the evening before clocks are set: the time of tomorrow
        ("12:00", datetime(2026, 3, 28, 20, tzinfo=UTC), "2026-03-29T10:00Z"),
        ("12:00", datetime(2026, 10, 24, 20, tzinfo=UTC), "2026-10-25T11:00Z"),
        # an hour that is left out
        ("2026-03-29T02:30", DAY, "2026-03-29T01:30Z"),
        ("02:30", datetime(2026, 3, 28, 20, tzinfo=UTC), "2026-03-29T01:30Z"),
        ("02:30", datetime(2026, 3, 29, 1, 45, tzinfo=UTC), "2026-03-30T00:30Z"),
        # an hour that comes twice
        ("2026-10-25T02:30", DAY, "2026-10-25T00:30Z"),
        ("02:30", NIGHT, "2026-10-25T00:30Z"),
        ("02:30", NIGHT + timedelta(minutes=30), "2026-10-25T01:30Z"),
        ("02:30", NIGHT + timedelta(minutes=90), "2026-10-26T01:30Z"),
        # hours pass, whatever clocks show
        ("in 2h", datetime(2026, 3, 29, 0, 30, tzinfo=UTC), "2026-03-29T02:30Z"),
        ("in 1d", NIGHT, "2026-10-26T00:10Z"),
    ],
)
@pytest.mark.parametrize("zone", [BERLIN, None])
def test_zones_and_summer_time_count(
    text: str, now: datetime, meant: str, zone: ZoneInfo | None, berlin: None
) -> None:
    del berlin
    assert begin_time(text, now, zone).astimezone(UTC) == datetime.fromisoformat(meant)
    assert begin_time(text, now.astimezone(BERLIN), zone) == datetime.fromisoformat(meant)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine is in Berlin."""
    with monkeypatch.context() as context:
        context.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


def test_a_job_file_is_of_the_zone_of_its_day(berlin: None) -> None:
    del berlin
    winter = datetime(2026, 11, 23, 12, tzinfo=UTC)
    job = validated_job({"run": "true", "begin": "2027-07-01T18:00"}, "job")
    meant = datetime(2027, 7, 1, 16, tzinfo=UTC)
    assert job.spec(at=winter).begin_s == (meant - winter).total_seconds()


@pytest.mark.parametrize("text", ["18:00 Europe/Berln", "2026-11-23 Mars/Base", "18:00 ../etc/x"])
def test_a_zone_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        begin_time(text, DAY)


@pytest.mark.parametrize(
    ("text", "hours"), [("0001-01-01", 14), ("9999-12-31T23:59", -12), ("in 9000000d", 0)]
)
def test_days_that_no_clock_reaches_are_refused_in_words(text: str, hours: int) -> None:
    with pytest.raises(UserError, match="out of range"):
        begin_time(text, DAY, timezone(timedelta(hours=hours)))


def test_a_begin_out_of_range_is_said_once() -> None:
    with pytest.raises(UserError, match=r"^job: begin: is out of range"):
        validated_job({"run": "true", "begin": "in 9000000d"}, "job")


@pytest.mark.parametrize("number", [1080, 64800, 18.5, True])
def test_a_number_is_no_begin(number: object) -> None:
    """YAML reads `18:00` without quotes as 1080, which would have been long ago."""
    with pytest.raises(UserError, match="in quotes"):
        validated_job({"run": "true", "begin": number}, "job")
    with pytest.raises(UserError, match="in quotes"):
        validated_job({"run": "true", "time": {"deadline": number}}, "job")


@pytest.mark.parametrize(
    "text", ["", "soon", "25:00", "in 2", "in a while", "2026-13-01", "in 9e9d"]
)
def test_what_means_no_time_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        begin_time(text, NOW)
    with pytest.raises(UserError, match="begin"):
        validated_job({"run": "true", "begin": text}, "job")


def test_a_job_says_its_begin_in_seconds_from_its_submission() -> None:
    job = validated_job({"run": "true", "begin": "in 2h"}, "job")
    assert job.spec(at=NOW).begin_s == 7200.0
    job = validated_job({"run": "true", "begin": "2026-11-23T10:30:15+01:00"}, "job")
    assert job.spec(at=NOW).begin_s == 3600.0
    assert job.spec(at=NOW + timedelta(days=1)).begin_s == 0.0


def test_a_singleton_needs_a_name() -> None:
    with pytest.raises(UserError, match="needs a `name`"):
        validated_job({"run": "true", "singleton": True}, "job")


def test_dependencies_are_a_list_or_named_by_the_end_they_need() -> None:
    job = validated_job({"run": "true", "after": ["j-1"]}, "job").spec()
    assert (job.after, job.after_any, job.after_notok) == (("j-1",), (), ())
    ends = {"ok": ["j-1"], "any": ["j-2"], "notok": ["j-3", "j-4"]}
    job = validated_job({"run": "true", "after": ends}, "job").spec()
    assert (job.after, job.after_any, job.after_notok) == (("j-1",), ("j-2",), ("j-3", "j-4"))
    with pytest.raises(UserError, match="notok"):
        validated_job({"run": "true", "after": {"notokay": ["j-1"]}}, "job")

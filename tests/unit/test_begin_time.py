"""Begin times as people write them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

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
    assert begin_time(text, NOW) == meant


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
